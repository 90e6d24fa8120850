"""The training program in the header of a log of this project: its operators, its all-reduces and what was proved."""

import re
from collections.abc import Iterator

from compliance.logged_run import LoggedRun
from compliance.strict.strategy import AUTO, parts_of_batch
from runlog import schema
from runlog.digits import six_digits
from runlog.json_types import JsonObject
from runlog.text import printable

_LOSS_SCALING = "check_finite_and_unscale"  # the operator that looks for what overflowed in half precision
_PREFIXES_OF_FUSED = ("fused_", "merged_")  # of the operators that the header lists once more as `fused`
_ALL_REDUCE = "c_allreduce_sum"
# Lines of `verified`, as "161 gradients summed over 2 ranks once, scaled by 1/2 once", "sgd by merged_momentum of 161",
# "merged_optimizer made 1 merged_momentum" and "fuse_grad_size_in_MB=16: buckets 9". Lines of other forms are not read.
_GRADIENTS = re.compile(
    r"(?P<all>\d{1,9}) gradients (?:summed over (?P<ranks>\d{1,9}) ranks once, )?scaled by 1/(?P<divisor>\d{1,9}) once"
)
_UPDATES = re.compile(r"(\w+) by (\w+ of \d{1,9}(?:, \w+ of \d{1,9})*)")
_MADE = re.compile(r"\w+ made (\d{1,9}) (fused_\w+|merged_\w+|resnet_unit)")
_BUCKETS = re.compile(r".*: buckets (\d{1,9})")


def faults_of_program(run: LoggedRun, summary: schema.RunSummary) -> Iterator[str]:
    """Yield in words why the training program cannot be that of so many devices, or contradicts itself.

    A program sums gradients if and only if there are several devices. It casts values for half precision, and scales
    its loss for nothing else. Nothing is checked if Paddle makes the program (STRATEGY=auto).

    Args:
        run: The facts that the log states of the run. The header's section `program` must fit the schema.
        summary: The value of the event run_summary: the number of devices and the precision.
    """
    if run.settings.get("STRATEGY") == AUTO:
        return
    program = run.header_section(schema.PROGRAM)
    operators = program["operators"]
    yield from _impossible_all_reduces(run, program, summary.devices)
    for kind, count in operators.items():
        if count < 1:
            yield f"a program of {count} {printable(kind)}"
    stated = run.stated_text(schema.OPT_NAME)
    updates_of_stated = schema.OPTIMIZERS[stated].operators if stated in schema.OPTIMIZERS else frozenset()
    updates = schema.UPDATES & operators.keys()
    if updates - updates_of_stated:
        yield f"a program that updates by {', '.join(sorted(updates))}; opt_name is {printable(stated)}"
    fused = {kind: count for kind, count in operators.items() if kind.startswith(_PREFIXES_OF_FUSED)}
    if program["fused"] != fused:
        yield f"a program whose fused operators are {printable(program['fused'])}, not {printable(fused)}"
    is_half_precision = summary.precision in schema.HALF_PRECISIONS
    if is_half_precision and operators.get("cast", 0) < 1:
        yield f"a program that casts nothing, for precision {summary.precision}"
    if not is_half_precision and _LOSS_SCALING in operators:
        yield f"a program that scales its loss for half precision, for precision {summary.precision}"
    yield from _other_proofs(run, program, summary.devices)


def _impossible_all_reduces(run: LoggedRun, program: JsonObject, devices: int) -> Iterator[str]:
    """Yield in words what is wrong with the number and the size of the all-reduces.

    Each is an operator. With the setting RECIPE.sync_bn, some of these operators sum statistics instead.

    Args:
        run: The facts that the log states of the run.
        program: The header's section `program`.
        devices: How many ranks the run has.
    """
    all_reduces = program["all_reduces"]
    sums_gradients = all_reduces > 0
    must_sum_gradients = devices > 1
    if sums_gradients != must_sum_gradients:
        yield f"a program of {all_reduces} all-reduces for {devices} devices"
        return
    operators = program["operators"].get(_ALL_REDUCE, 0)
    may_be_of_statistics = bool(run.settings.get("RECIPE.sync_bn"))
    if operators < all_reduces or (operators > all_reduces and not may_be_of_statistics):
        yield f"a program of {all_reduces} all-reduces, and {operators} operators {_ALL_REDUCE}"
    sums_anything = program["all_reduce_mib"] > 0
    if sums_anything != sums_gradients or program["all_reduce_mib"] < 0:
        yield f"a program of {all_reduces} all-reduces of {six_digits(program['all_reduce_mib'])} MiB"


def _other_proofs(run: LoggedRun, program: JsonObject, devices: int) -> Iterator[str]:
    """Yield in words each proof that is of another program, or that nothing was proved of the gradients.

    Args:
        run: The facts that the log states of the run, with its optimizer and its STRATEGY.
        program: The header's section `program`.
        devices: How many ranks the run has.
    """
    parts = parts_of_batch(str(run.settings.get("STRATEGY", "")))
    gradients = None
    for proved in program["verified"]:
        summed = _GRADIENTS.fullmatch(proved)
        if summed is not None:
            gradients = int(summed["all"])
            yield from _other_sum(summed, devices, parts)
        is_of_other_operators = _is_of_other_operators(proved, program)
        has_other_updates = _has_other_updates(proved, run.stated_text(schema.OPT_NAME), gradients)
        if is_of_other_operators or has_other_updates:
            yield f"a program of which was proved what it is not: {printable(proved)}"
    if gradients is None:
        yield "a program of whose gradients nothing was proved"


def _other_sum(summed: re.Match[str], devices: int, parts: int | None) -> Iterator[str]:
    """Yield in words that the gradients are summed over other ranks, or divided by another number, than the run's.

    Args:
        summed: The match of _GRADIENTS. It has no ranks where one device sums nothing.
        devices: How many ranks the run has.
        parts: Into how many parts STRATEGY divides a batch; None if it does not say.
    """
    ranks = int(summed["ranks"] or 1)
    if ranks != devices:
        yield f"a program of {printable(summed.string)}, for {devices} devices"
    elif parts is not None and int(summed["divisor"]) != devices * parts:
        yield f"a program of {printable(summed.string)}, for {devices} devices and a batch in {parts} parts"


def _is_of_other_operators(proved: str, program: JsonObject) -> bool:
    """Return whether a proof counts operators or all-reduces, and the header has another number of them."""
    made = _MADE.fullmatch(proved)
    buckets = _BUCKETS.fullmatch(proved)
    if made is not None:
        return bool(program["operators"].get(made.group(2), 0) != int(made.group(1)))
    return buckets is not None and bool(program["all_reduces"] != int(buckets.group(1)))


def _has_other_updates(proved: str, optimizer: str, gradients: int | None) -> bool:
    """Return whether a proof counts updates of parameters that the run's optimizer cannot have made.

    Such a proof reads "lars by lars_momentum of 54, momentum of 107": its optimizer, then each operator with the number
    of its updates. An optimizer makes one update of each gradient.

    Args:
        proved: The line of `verified`. The result is False for a line that counts no updates.
        optimizer: The optimizer that the log states.
        gradients: How many gradients an earlier line counts. If none does (None), any count of updates is wrong.
    """
    updates = _UPDATES.fullmatch(proved)
    if updates is None:
        return False
    proved_optimizer, operators = updates.groups()
    if proved_optimizer != optimizer:
        return True
    update_counts = re.findall(r" of (\d+)", operators)
    return gradients != sum(int(count) for count in update_counts)
