"""The training program of any configuration and rank count, without a GPU: its counts, and rooflines of them."""

import argparse
import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import yaml

from harness import env, workload
from harness.job import PRECISIONS
from program.count import counts_of, layout
from program.proof import kernels
from runlog import workloads
from runlog.completion import complete
from runlog.digits import six_digits
from runlog.errors import one_line, print_to_reader
from runlog.json_types import JsonObject
from runlog.options import Parser
from scoring.published.table import Card, Published, figures_of, nearest, note, read_cards
from tools.roofline import Operators, operators_in_order, published_scaling, roofline, scaling

DESCRIPTION = "`python -m tools.inspect`: the training program of a configuration, built without a GPU."
FIRST_PORT = 6170  # Paddle's
BITS_OF_A_BYTE = 8

# ---- estimates -----------------------------------------------------------------------------------------------------


def quoted(figure: Published) -> JsonObject:
    """Return a published throughput for JSON: its images/s, caveats, source, framework, batch and number of devices.

    Args:
        figure: The published throughput.
    """
    names = ("source", "framework", "table", "batch_per_device", "devices")
    return {"images_per_s": figure.value, "note": note(figure)} | {name: getattr(figure, name) for name in names}


def estimates(
    update_programs: Sequence[Any], job: env.Job, network_bytes_per_s: float | None = None
) -> list[JsonObject]:
    """Estimate how fast each known GPU model could at best train a job, and quote what was published for it.

    Nothing is measured, and no GPU is needed: the peaks of a GPU's data sheet bound the throughput.

    Args:
        update_programs: The Paddle programs whose runs, in this order, make one update of the weights. The last one
            sums the gradients over the ranks.
        job: Settings of the training job.
        network_bytes_per_s: Peak of what a node's network sends: 12.5e9 for 100 Gb/s. None: no scaling is estimated.

    Returns:
        A dict for each GPU model, with what `_estimate` returns and, for a network, `_estimate_of_scaling`.
    """
    operators = operators_in_order(update_programs)
    entries: list[JsonObject] = []
    for card in read_cards():
        entry = _estimate(operators, job, card)
        if network_bytes_per_s is not None:
            entry |= _estimate_of_scaling(operators, job, card, network_bytes_per_s)
        entries.append(entry)
    return entries


def _estimate(operators: Operators, job: env.Job, card: Card) -> JsonObject:
    """Return how fast a card could at best train a job, and what was published for it, for JSON.

    Args:
        operators: The operators of a training step, in their order.
        job: Settings of the training job, with its precision, batch size and number of ranks.
        card: The data sheet of the GPU.

    Returns:
        "roofline_images_per_s" is the estimate; it is None, and its details are missing, if there can be none.
        "published" is the nearest published figure, or None. "traffic_gb" has the GB that each class of kernels moves.
    """
    tf32 = job.model.precision == "tf32"
    bound = roofline(operators, tf32=tf32, batch=job.model.batchsize, ranks=job.cluster.world_size, card=card)
    if bound is None:
        bound = {"roofline_images_per_s": None}
    return {
        "device": f"{card.name} {card.memory_gib} GB",
        **bound,
        "published": _nearest_published(card, job),
        "traffic_gb": traffic_gb(operators, card),
    }


def _estimate_of_scaling(operators: Operators, job: env.Job, card: Card, network_bytes_per_s: float) -> JsonObject:
    """Return how a job scales to several nodes with a card, for JSON: as estimated, and as published.

    Args:
        operators: The operators of a training step, in their order.
        job: Settings of the training job, with its model and precision.
        card: The data sheet of the GPU.
        network_bytes_per_s: What the network of a node sends at its peak; 12.5e9 for 100 Gb/s.

    Returns:
        "scaling" is the estimate, or None if the data sheet lacks a peak that is needed. "published_scaling" is empty
        if nothing was published.
    """
    precision = job.model.precision
    is_tf32 = precision == "tf32"
    return {
        "scaling": scaling(operators, tf32=is_tf32, card=card, network_bytes_per_s=network_bytes_per_s),
        "published_scaling": published_scaling(card, model=job.model.row.model, precision=precision),
    }


def _nearest_published(card: Card, job: env.Job) -> JsonObject | None:
    """Return the published throughput of the job's model and precision on a card; None if there is none.

    Of several figures it is the one with the nearest batch and number of devices. In Paddle's automatic mode
    (STRATEGY=auto) it is None, because Paddle chooses the program then, and a published figure is of another one.

    Args:
        card: The GPU.
        job: Settings of the training job.
    """
    if job.model.knobs.auto:
        return None
    figures = figures_of(card, model=job.model.row.model, precision=job.model.precision)
    published = nearest(figures, batch=job.model.batchsize, devices=job.cluster.world_size)
    return None if published is None else quoted(published)


def traffic_gb(operators: Operators, card: Card) -> dict[str, float]:
    """Return the GB that each class of kernels moves in a training step on a card, in descending order.

    Args:
        operators: The operators of the step.
        card: The data sheet of the GPU. What its chip can hold need not be read from memory again.

    Returns:
        GB by class, such as "optimizer". The bytes of transposes inside kernels are a class of their own. A class that
        moves nothing is left out.
    """
    bytes_of_class: Counter[str] = Counter()
    for operator in operators:
        work = operator.work
        bytes_of_class[work.kernel_class] += work.traffic_bytes(card.on_chip_bytes) - work.transposed_bytes
        bytes_of_class["transposes inside kernels"] += work.transposed_bytes
    return {name: size / 1e9 for name, size in bytes_of_class.most_common() if size}


# ---- building --------------------------------------------------------------------------------------------------------


def build(job: env.Job) -> Any:
    """Build the training program that rank 0 of a job runs, without a GPU or another rank.

    This sets environment variables and switches Paddle to static mode, both for the whole process.

    Args:
        job: Settings of the training job, with the number of its ranks.

    Returns:
        The training program, as the workload's `training_program` returns it.

    Raises:
        ValueError: The job cannot be built, or a convolution is too large for cuDNN.
    """
    import paddle

    # Paddle wants an address for each rank, although nothing listens at any.
    endpoints = [f"127.0.0.1:{FIRST_PORT + rank}" for rank in range(job.cluster.world_size)]
    env.export_trainer(0, endpoints)
    paddle.enable_static()
    model = workload.of_job(job)
    model.plan = dataclasses.replace(model.plan, is_to_be_run=False)  # else the build waits for the other ranks
    # As in a job on synthetic data: an epoch is as long as on the recipe's data set.
    samples = max(model.recipe.train_samples, job.global_batch)
    schedule = model.recipe.make_schedule(samples=samples, global_batch=job.global_batch)
    training = model.training_program(schedule, seed=1)
    kernels.check_sizes(training.main)  # also for a job on CPUs, because the estimates are always for GPUs
    return training


def inspect(job: env.Job, network_bytes_per_s: float | None = None) -> JsonObject:
    """Build a job's training program without a GPU, and return its counts and estimates of its speed, for JSON.

    Args:
        job: Settings of the training job.
        network_bytes_per_s: What the network of a node sends at its peak, 12.5e9 for 100 Gb/s. The estimates then cover
            several nodes, too. None: they do not.

    Returns:
        The job's settings in short, the counts, what was verified ("verified"), and an estimate for each known GPU
        ("estimate").

    Raises:
        ValueError: The job cannot be built, or a network is given for a job of one rank, which sends nothing.
    """
    if network_bytes_per_s is not None and job.cluster.world_size == 1:
        raise ValueError("--network: the program of one rank has no all-reduce: set --ranks 2 or more")
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
    described["estimate"] = estimates(training.update, job, network_bytes_per_s)
    return described


def text(found: JsonObject) -> str:
    """Return the counts as YAML for people, with floats rounded to six significant digits.

    Args:
        found: The counts and estimates, as `inspect` returns them.
    """
    # A trip through JSON reaches the floats at any depth.
    rounded = json.loads(json.dumps(found), parse_float=lambda figure: float(six_digits(float(figure))))
    return yaml.safe_dump(rounded, sort_keys=False, default_flow_style=None, width=120)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line.

    An option that sets a variable of the job has the variable's name as its `dest`, such as DGXSYSTEM. The other
    options are --network and --json, which `main` takes out before it sets the variables.
    """
    parser = Parser(prog="python -m tools.inspect", description=DESCRIPTION)
    parser.add_argument("--system", dest="DGXSYSTEM", required=True, help="SYSTEM of a config_<SYSTEM>.sh")
    choices = f"one of {', '.join(workloads.NAMES)}; rn50 if not given"
    parser.add_argument("--workload", dest="WORKLOAD", default="rn50", help=choices)
    parser.add_argument("--precision", dest="PRECISION", help=f"one of {', '.join(PRECISIONS)}")
    parser.add_argument("--batch", dest="BATCHSIZE", help="images a device; the config's if not given")
    parser.add_argument("--ranks", dest="DGXNGPU", help="ranks of the job; the config's if not given")
    parser.add_argument("--recipe", dest="RECIPE", help="the config's if not given")
    parser.add_argument("--strategy", dest="STRATEGY", help="value of STRATEGY; the config's if not given")
    network = "Gb/s that a node's network sends: estimates what all-reduces cost at 8 to 64 GPUs"
    parser.add_argument("--network", type=float, metavar="GBPS", help=network)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _bytes_per_s(network_gbps: float | None) -> float | None:
    """Return the speed that the option --network gives, in bytes/s; None if it was not given.

    Args:
        network_gbps: The option's value in Gb/s, such as 100; None: it was not given.

    Raises:
        ValueError: The value is not finite and above 0.
    """
    if network_gbps is None:
        return None
    if not 0 < network_gbps < math.inf:
        raise ValueError(f"--network {six_digits(network_gbps)}: must be above 0 and finite, as 100")
    return network_gbps * 1e9 / BITS_OF_A_BYTE


def _job_of_variables(given: dict[str, str]) -> env.Job:
    """Return the settings of a training job: those of a configuration, changed by the given variables.

    Args:
        given: Values by name, such as {"DGXSYSTEM": "DGXA100", "DGXNGPU": "16"}. DGXSYSTEM names the configuration.
            DGXNGPU, if given, is the number of all ranks of the job.

    Raises:
        ValueError: There is no such configuration, or a value is wrong.
    """
    # Any strategy can be inspected, but the mode that trains to a target refuses some.
    variables = given | {"MODE": "throughput"}
    if "DGXNGPU" in given:
        # All ranks count as on one node: the program depends on their number alone. So they may be more than the node
        # of the configuration has, and the list of their NUMA nodes does not hold.
        variables["DGXNNODES"] = "1"
        variables["RANK_NUMA"] = ""
    return env.of_system(**variables)


@one_line
def main() -> int:
    """Print the counts and estimates of the training program that the options name, as YAML or as JSON.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: The job cannot be built, or the speed of the network is not finite and above 0.
    """
    parser = _parser()
    complete(parser)
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    network_gbps = options.pop("network")
    # The options that are left have the names of the variables of the job that they set, such as DGXSYSTEM.
    given = {name: value for name, value in options.items() if value is not None}
    job = _job_of_variables(given)
    env.export({"GLOG_minloglevel": "2"})
    described = inspect(job, _bytes_per_s(network_gbps))
    print_to_reader(json.dumps(described, indent=1) if as_json else text(described))
    return 0


if __name__ == "__main__":
    sys.exit(main())
