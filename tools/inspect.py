"""The training program of any configuration and rank count, without a GPU: its counts, and rooflines of them."""

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from harness import env, workload
from harness.job import PRECISIONS
from program.count import Work, buckets, counts_of, layout, works
from program.ops import MIB, OPTIMIZE
from program.proof import kernels
from runlog import workloads
from runlog.errors import one_line
from scoring.published.table import Card, Published, figures_of, nearest, note, read_cards

FIRST_PORT = 6170  # Paddle's
SCHEDULED_STEPS = 100
RANKS_OF_A_NODE = 8  # at most, of the systems that published tables speak of

# ---- roofline ------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """An operator of a program, as a roofline sees it."""

    work: Work
    summed_bytes: float | None  # of a gradient all-reduce, the bytes that it sums; None of any other operator


Operators = list[Operation]


def in_order(update: Sequence[Any]) -> Operators:
    """Return the operators of an update's programs, in the order in which they run.

    An update has a program for each micro-step. The last one is the main program, which sums the gradients over the
    ranks: its all-reduces come with their bytes.
    """
    main = update[-1]
    summed_bytes = {bucket["operator"]: bucket["mib"] * MIB for bucket in buckets(main)}
    operators: Operators = []
    for program in update:
        for work in works(program):
            operators.append(Operation(work, summed_bytes.get(work.index) if program is main else None))
    return operators


class OperatorTime(NamedTuple):
    """The least time of an operator on a card, by each of its two limits: it takes the longer one."""

    flops_s: float
    bytes_s: float


def roofline(operators: Operators, *, tf32: bool, batch: int, ranks: int, card: Card) -> dict[str, Any] | None:
    """Return a step's roofline on `card`: the images/s that it cannot exceed, and the times in s that they come from.

    The time is that of the operators one after the other, each at the card's peaks (`_operator_time`). An all-reduce
    runs beside them: it begins when its last gradient is made and the all-reduce before it is done. The optimizer waits
    for the last one, and this wait is the exposed all-reduce.

    `batch` is the images of a rank. Returns None where the card lacks an arithmetic of the program, and for ranks of
    several nodes, as the network between them has no data sheet here.
    """
    arithmetic_of = _arithmetic_of_types(operators, tf32=tf32)
    card_can = card.flops_per_s.keys() >= set(arithmetic_of.values())
    if ranks > RANKS_OF_A_NODE or not card_can:
        return None

    total = OperatorTime(0.0, 0.0)
    now_s = 0.0  # when the operators so far are done
    link_free_s = 0.0  # when the all-reduces so far are done
    exposed_s: float | None = None
    for work, summed_bytes in operators:
        if summed_bytes is not None:
            begins_s = max(link_free_s, now_s)
            link_free_s = begins_s + _all_reduce_s(summed_bytes, ranks, card)
            continue
        is_of_optimizer = bool(work.role & OPTIMIZE)
        if is_of_optimizer and exposed_s is None:
            exposed_s = max(0.0, link_free_s - now_s)
            now_s += exposed_s
        least = _operator_time(work, arithmetic_of, card)
        total = OperatorTime(total.flops_s + least.flops_s, total.bytes_s + least.bytes_s)
        now_s += max(least.flops_s, least.bytes_s)
    return {
        "roofline_images_per_s": batch * ranks / now_s,
        "step_time_s": now_s,
        "flops_time_s": total.flops_s,
        "bytes_time_s": total.bytes_s,
        "exposed_all_reduce_s": exposed_s or 0.0,
        "peaks": card.peaks(arithmetic_of.values()),
        "kind": "roofline at data-sheet peaks, an upper bound; not measured",
    }


def _arithmetic_of_types(operators: Operators, *, tf32: bool) -> dict[str, str]:
    """Return in which arithmetic of a card the products of each type are computed, as {"float32": "tf32"}."""
    arithmetic_of = {}
    for work, _ in operators:
        if work.flops:
            arithmetic_of[work.dtype] = "tf32" if tf32 and work.dtype == "float32" else work.dtype
    return arithmetic_of


def _operator_time(work: Work, arithmetic_of: dict[str, str], card: Card) -> OperatorTime:
    """Return the time of an operator by its FLOPs at the peak of their type, and by its bytes at the memory's peak.

    A normalization by the statistics of a batch reads its image twice where the chip cannot hold it.
    """
    flops_s = 0.0
    if work.flops:
        flops_s = work.flops / card.flops_per_s[arithmetic_of[work.dtype]]
    again_bytes = sum(size for size in work.again_bytes if size > card.on_chip_bytes)
    return OperatorTime(flops_s, (work.moved_bytes + again_bytes) / card.memory_bytes_per_s)


def _all_reduce_s(summed_bytes: float, ranks: int, card: Card) -> float:
    """Return the time of a ring all-reduce of b bytes over n ranks: 2 (n - 1) / n b at NVLink's peak."""
    return 2 * (ranks - 1) / ranks * summed_bytes / card.link_bytes_per_s


def quoted(figure: Published) -> dict[str, Any]:
    """Return a published figure for JSON: its images/s, its source, and the batch and devices that it is of."""
    names = ("source", "framework", "table", "batch_per_device", "devices")
    return {"images_per_s": figure.value, "note": note(figure)} | {name: getattr(figure, name) for name in names}


def estimates(update: Sequence[Any], job: env.Job) -> list[dict[str, Any]]:
    """Return for each known card the roofline of the job's update, the nearest published figure and the traffic.

    The roofline is {"roofline_images_per_s": None} where it cannot be estimated. The published figure is the one of the
    same model, card and precision whose batch and devices are nearest, or None.
    """
    operators = in_order(update)
    batch = job.model.batchsize
    ranks = job.cluster.world_size
    entries: list[dict[str, Any]] = []
    for card in read_cards():
        entry: dict[str, Any] = {"device": f"{card.name} {card.memory_gib} GB"}
        bound = roofline(operators, tf32=job.model.precision == "tf32", batch=batch, ranks=ranks, card=card)
        entry.update(bound or {"roofline_images_per_s": None})

        published = None
        if not job.model.knobs.auto:  # Paddle chose that program, not who published
            figures = figures_of(card, model=job.model.row.model, precision=job.model.precision)
            published = nearest(figures, batch=batch, devices=ranks)
        entry["published"] = None if published is None else quoted(published)
        entry["traffic_gb"] = traffic_gb(operators, card)
        entries.append(entry)
    return entries


def traffic_gb(operators: Operators, card: Card) -> dict[str, float]:
    """Return the GB that the kernels of each class move on `card`, the most first.

    Transposes inside kernels are a class of their own. A class that moves nothing is left out.
    """
    bytes_of_class: Counter[str] = Counter()
    for work, _ in operators:
        bytes_of_class[work.kernel_class] += work.traffic_bytes(card.on_chip_bytes) - work.turned_bytes
        bytes_of_class["transposes inside kernels"] += work.turned_bytes
    return {name: size / 1e9 for name, size in bytes_of_class.most_common() if size}


# ---- building --------------------------------------------------------------------------------------------------------


def build(job: env.Job) -> Any:
    """Build the training program of a job as its rank 0 has it, and return the `TrainingProgram`.

    No GPU is needed and no other rank runs: the program is told of ranks on this machine, which are never started. The
    job's schedule is made for a data set of SCHEDULED_STEPS steps, as its length changes no operator.

    Raises ValueError where the job asks for what cannot be built.
    """
    import paddle

    endpoints = [f"127.0.0.1:{FIRST_PORT + rank}" for rank in range(job.cluster.world_size)]
    env.export_trainer(0, endpoints)
    paddle.enable_static()
    model = workload.of_job(job)
    model.plan = dataclasses.replace(model.plan, ranks_listen=False)
    samples = job.global_batch * SCHEDULED_STEPS
    schedule = model.recipe.make_schedule(samples=samples, global_batch=job.global_batch)
    training = model.training_program(schedule, seed=1)
    kernels.sizes(training.main)  # refuses images that cuDNN does not take; a CPU's job too, whose rates are of GPUs
    return training


def inspect(job: env.Job) -> dict[str, Any]:
    """Return all that `python -m tools.inspect` prints of a job, for JSON.

    That is what the job is, the counts of its main program, what was proved of it, and an estimate for each known card.
    Raises ValueError where the job asks for what cannot be built.
    """
    training = build(job)
    main = training.main
    described = {
        "system": job.cluster.dgxsystem,
        "workload": job.model.workload,
        "recipe": job.model.recipe,
        "precision": job.model.precision,
        "layout": layout(main),
        "batch_per_device": job.model.batchsize,
        "ranks": job.cluster.world_size,
        "strategy": job.model.strategy,
        "micro_steps": job.model.knobs.gradient_merge,
    }
    described.update(counts_of(main))
    described["verified"] = list(training.verified)
    described["estimate"] = estimates(training.update, job)
    return described


def text(found: dict[str, Any]) -> str:
    """Return the counts for people: YAML, a figure to six digits."""
    rounded = json.loads(json.dumps(found), parse_float=lambda figure: float(f"{float(figure):.6g}"))
    return yaml.safe_dump(rounded, sort_keys=False, default_flow_style=None, width=120)


@one_line
def main() -> int:
    """`python -m tools.inspect`: the training program of a configuration, built without a GPU."""
    # Each option sets the job's variable that its `dest` names; one that is not given leaves it to the config file.
    parser = argparse.ArgumentParser(prog="python -m tools.inspect", description=main.__doc__)
    parser.add_argument("--system", dest="DGXSYSTEM", required=True, help="SYSTEM of a config_<SYSTEM>.sh")
    choices = f"one of {', '.join(workloads.NAMES)}; rn50 if not given"
    parser.add_argument("--workload", dest="WORKLOAD", default="rn50", help=choices)
    parser.add_argument("--precision", dest="PRECISION", help=f"one of {', '.join(PRECISIONS)}")
    parser.add_argument("--batch", dest="BATCHSIZE", help="images a device; the config's if not given")
    parser.add_argument("--ranks", dest="DGXNGPU", help="ranks of the job; the config's if not given")
    parser.add_argument("--recipe", dest="RECIPE", help="the config's if not given")
    parser.add_argument("--strategy", dest="STRATEGY", help="value of STRATEGY; the config's if not given")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    variables = {name: value for name, value in options.items() if value is not None}
    if "DGXNGPU" in variables:
        variables["DGXNNODES"] = "1"  # the program does not know nodes
    # Some strategies are refused in training to a target; nothing is trained here.
    job = env.of_system(**variables, MODE="throughput")
    env.export({"GLOG_minloglevel": "2"})
    described = inspect(job)
    print(json.dumps(described, indent=1) if as_json else text(described))
    return 0


if __name__ == "__main__":
    sys.exit(main())
