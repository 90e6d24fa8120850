"""The training program of any configuration and rank count, without a GPU: its counts, and rooflines of them."""

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

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
Operators = list[tuple[Work, float | None]]

# ---- roofline ------------------------------------------------------------------------------------------------------


def in_order(update: Sequence[Any]) -> Operators:
    """Return the operators of an update's programs in order, each all-reduce with its bytes."""
    main = update[-1]
    summed_bytes = {bucket["operator"]: bucket["mib"] * MIB for bucket in buckets(main)}
    operators: Operators = []
    for program in update:
        for work in works(program):
            operators.append((work, summed_bytes.get(work.index) if program is main else None))
    return operators


def roofline(operators: Operators, *, tf32: bool, batch: int, ranks: int, card: Card) -> dict[str, Any] | None:
    """Roofline of a step on `card`: an upper bound on its images/s; None where it lacks the arithmetic.

    Each operator takes the longer of its FLOPs at the peak of its type and its bytes at the peak; a normalization by
    the batch's statistics reads its image twice where the chip cannot hold it. An all-reduce of b bytes takes
    2 (n - 1) / n b at NVLink's peak, beginning when its last gradient is made and the one before is done; the
    optimizer waits for the last. Beyond one node (8 ranks) nothing is estimated: the network has no data sheet here.
    """
    math_modes = {w.dtype: "tf32" if tf32 and w.dtype == "float32" else w.dtype for w, _ in operators if w.flops}
    peaks = card.flops_per_s
    if ranks > 8 or not peaks.keys() >= set(math_modes.values()):
        return None
    compute_s = link_free_s = flops_s = bytes_s = exposed_s = 0.0
    waited = False
    for work, summed_bytes in operators:
        if summed_bytes is not None:
            link_free_s = max(link_free_s, compute_s)
            link_free_s += 2 * (ranks - 1) / ranks * summed_bytes / card.link_bytes_per_s
            continue
        if work.role & OPTIMIZE and not waited:
            waited, exposed_s = True, max(0.0, link_free_s - compute_s)
            compute_s += exposed_s
        again_bytes = sum(size for size in work.again_bytes if size > card.on_chip_bytes)
        by_flops_s = work.flops / peaks[math_modes[work.dtype]] if work.flops else 0.0
        by_bytes_s = (work.moved_bytes + again_bytes) / card.memory_bytes_per_s
        flops_s, bytes_s = flops_s + by_flops_s, bytes_s + by_bytes_s
        compute_s += max(by_flops_s, by_bytes_s)
    return {
        "roofline_images_per_s": batch * ranks / compute_s,
        "step_time_s": compute_s,
        "flops_time_s": flops_s,
        "bytes_time_s": bytes_s,
        "exposed_all_reduce_s": exposed_s,
        "peaks": card.peaks(math_modes.values()),
        "kind": "roofline at data-sheet peaks, an upper bound; not measured",
    }


def quoted(figure: Published) -> dict[str, Any]:
    """A published figure with its source and what it is of."""
    names = ("source", "framework", "table", "batch_per_device", "devices")
    return {"images_per_s": figure.value, "note": note(figure)} | {name: getattr(figure, name) for name in names}


def estimates(update: Sequence[Any], job: env.Job) -> list[dict[str, Any]]:
    """On each card: the roofline of the job's update, the nearest published figure, and the traffic."""
    operators, found = in_order(update), list[dict[str, Any]]()
    sizes = {"batch": job.model.batchsize, "ranks": job.cluster.world_size}
    for card in read_cards():
        figure = None
        if not job.model.knobs.auto:  # Paddle chose that program, not who published
            figures = figures_of(card, model=job.model.row.model, precision=job.model.precision)
            figure = nearest(figures, batch=job.model.batchsize, devices=job.cluster.world_size)
        bound = roofline(operators, tf32=job.model.precision == "tf32", card=card, **sizes)
        found.append(
            {"device": f"{card.name} {card.memory_gib} GB"}
            | (bound or {"roofline_images_per_s": None})
            | {"published": figure and quoted(figure), "traffic_gb": traffic_gb(operators, card)}
        )
    return found


def traffic_gb(operators: Operators, card: Card) -> dict[str, float]:
    """Return the GB that the kernels of each class move on `card`; transposes inside kernels are a class."""
    found: Counter[str] = Counter()
    for work, _ in operators:
        found[work.kernel_class] += work.traffic_bytes(card.on_chip_bytes) - work.turned_bytes
        found["transposes inside kernels"] += work.turned_bytes
    return {name: size / 1e9 for name, size in found.most_common() if size}


# ---- building --------------------------------------------------------------------------------------------------------


def build(job: env.Job) -> Any:
    """The `TrainingProgram` of rank 0 of a job. Raises ValueError where the job asks for what cannot be built."""
    import paddle

    env.export_trainer(0, [f"127.0.0.1:{FIRST_PORT + rank}" for rank in range(job.cluster.world_size)])
    paddle.enable_static()
    model = workload.of_job(job)
    model.plan = dataclasses.replace(model.plan, ranks_listen=False)
    schedule = model.recipe.make_schedule(samples=job.global_batch * 100, global_batch=job.global_batch)
    training = model.training_program(schedule, seed=1)
    kernels.sizes(training.main)  # a CPU's too: its rates are those of GPUs
    return training


def inspect(job: env.Job) -> dict[str, Any]:
    """All that `python -m tools.inspect` says of a job. Raises ValueError as `build` does."""
    training = build(job)
    main = training.main
    head = {
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
    return head | counts_of(main) | {"verified": list(training.verified), "estimate": estimates(training.update, job)}


def text(found: dict[str, Any]) -> str:
    """Return the counts for people: YAML, a figure to six digits."""
    rounded = json.loads(json.dumps(found), parse_float=lambda figure: float(f"{float(figure):.6g}"))
    return yaml.safe_dump(rounded, sort_keys=False, default_flow_style=None, width=120)


@one_line
def main() -> int:
    """`python -m tools.inspect`: the training program of a configuration, built without a GPU."""
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
    asked = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    as_json = asked.pop("json")
    if "DGXNGPU" in asked:
        asked["DGXNNODES"] = "1"  # the program does not know nodes
    # Some strategies are refused in training to a target; nothing is trained here.
    job = env.of_system(**asked, MODE="throughput")
    env.export({"GLOG_minloglevel": "2"})
    found = inspect(job)
    print(json.dumps(found, indent=1) if as_json else text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
