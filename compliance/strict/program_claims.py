"""The training program in the header of a log of this project: its operators, its all-reduces and what was proved."""

import re
from collections.abc import Iterator

from compliance.logged_run import LoggedRun
from compliance.rules import Weights
from compliance.strict.strategy import is_automatic, parts_of_batch
from runlog import schema
from runlog.digits import counted, six_digits
from runlog.json_types import JsonObject
from runlog.text import printable

_LOSS_SCALING = "check_finite_and_unscale"  # the operator that looks for what overflowed in half precision
_PREFIXES_OF_FUSED = ("fused_", "merged_")  # of the operators that the header lists once more as `fused`
_ALL_REDUCE = "c_allreduce_sum"
_MIB_IN_SINGLE = 4 / 2**20  # of a number in single precision
# As a share of a model's weights: HRNet's head may lack its bias, and ResNet's first convolution have a fourth channel.
_MAX_DIFFERENCE_OF_WEIGHTS = 0.01
# Lines of the header's list `verified`, which are proofs about the program. Lines of other forms are not read.
# "161 gradients summed over 2 ranks once, scaled by 1/2 once": must agree with the ranks and the parts of a batch.
_GRADIENTS = re.compile(
    r"(?P<all>\d{1,9}) gradients (?:summed over (?P<ranks>\d{1,9}) ranks once, )?scaled by 1/(?P<divisor>\d{1,9}) once"
)
# "sgd by merged_momentum of 161": must agree with the optimizer, and with the gradients of a line above.
_UPDATES = re.compile(r"(\w+) by (\w+ of \d{1,9}(?:, \w+ of \d{1,9})*)")
# "merged_optimizer made 1 merged_momentum": must agree with the operators.
_MADE = re.compile(r"\w+ made (\d{1,9}) (fused_\w+|merged_\w+|resnet_unit)")
# "fuse_grad_size_in_MB=16: buckets 9": must agree with the all-reduces.
_BUCKETS = re.compile(r".*: buckets (\d{1,9})")


def faults_of_program(run: LoggedRun, summary: schema.RunSummary) -> Iterator[str]:
    """Yield in words what is impossible in a log's description of its training program, or contradicts the log.

    Examples are "a program of 0 all-reduces for 2 devices", and "a program that casts nothing, for precision amp_o2".
    Also checked are each count of operators, the operators that update weights, the list of fused operators, and
    lines such as "sgd by merged_momentum of 161", in which a run states what it has proved of its program. Nothing is
    checked if STRATEGY is `auto`.

    Args:
        run: The facts that the log states of the run. The header's section `program`, which describes the program, must
            fit the schema.
        summary: The value of the event run_summary: the number of devices and the precision.
    """
    if is_automatic(str(run.settings.get("STRATEGY"))):  # Paddle makes the program, and may make any
        return

    program = run.header_section(schema.PROGRAM)
    operators = program["operators"]
    yield from _impossible_all_reduces(run, program, summary.devices)  # their number, their operators, their size
    for kind, count in operators.items():
        if count < 1:
            yield f"a program of {count} {printable(kind)}"
    # The optimizer that the log states must have the operators that update weights.
    yield from _updates_of_other_optimizer(operators, run.stated_text(schema.OPT_NAME))
    yield from _wrong_list_of_fused_operators(program)
    yield from _other_precision(operators, summary.precision)  # no cast in half precision, or a scaled loss in another
    yield from _faults_of_proofs(run, program, summary.devices)  # the lines of its list `verified`


def faults_of_weights(run: LoggedRun, summary: schema.RunSummary, weights: Weights) -> Iterator[str]:
    """Yield in words that a program has other gradients than its model has weights, by their number or by their size.

    A gradient is as large as the weights that it updates. So a run of ResNet-50 proves 161 gradients. With 1000 classes
    its all-reduces sum 25,557,032 numbers a step: 97.5 MiB in single precision, and at least half as many in half
    precision, in which the gradients of normalizations stay in single. Nothing is checked if STRATEGY is `auto`.

    Args:
        run: The facts that the log states of the run. The header's section `program` must fit the schema.
        summary: The value of the event run_summary: the precision.
        weights: Those of the model.
    """
    if is_automatic(str(run.settings.get("STRATEGY"))):  # Paddle makes the program, and may make any
        return
    program = run.header_section(schema.PROGRAM)
    for proof in program["verified"]:
        sum_of_gradients = _GRADIENTS.fullmatch(proof)  # None for a line of another form
        if sum_of_gradients is None:
            continue
        gradients = int(sum_of_gradients["all"])
        if not _is_within(gradients, weights.tensors, weights.tensors):
            yield f"a program of {gradients} gradients; its model has {weights.tensors}"

    mib = program["all_reduce_mib"]
    classes = run.whole_setting("RECIPE.classes")
    if mib == 0 or classes is None:  # a run on one device sums nothing
        return
    most_mib = weights.numbers(classes) * _MIB_IN_SINGLE
    least_mib = most_mib / 2 if summary.precision in schema.HALF_PRECISIONS else most_mib
    if not _is_within(mib, least_mib, most_mib):
        of_model = f"a {summary.precision} model for {classes} classes has {six_digits(most_mib)} MiB of gradients"
        or_half = "" if least_mib == most_mib else ", or half as many"
        yield f"a program whose all-reduces sum {six_digits(mib)} MiB; {printable(of_model)}{or_half}"


def _is_within(stated: float, least: float, most: float) -> bool:
    """Return whether a number or size of gradients lies between two of the model, but for a share."""
    return least * (1 - _MAX_DIFFERENCE_OF_WEIGHTS) <= stated <= most * (1 + _MAX_DIFFERENCE_OF_WEIGHTS)


def _wrong_list_of_fused_operators(program: JsonObject) -> Iterator[str]:
    """Yield a fault if the list `fused` does not repeat the fused operators of the program, such as fused_adam.

    Args:
        program: The header's section `program`. Its `operators` and its `fused` have a count of each kind of operator.
    """
    operators = program["operators"]
    fused = {kind: count for kind, count in operators.items() if kind.startswith(_PREFIXES_OF_FUSED)}
    if program["fused"] != fused:
        yield f"a program whose fused operators are {printable(program['fused'])}, not {printable(fused)}"


def _other_precision(operators: JsonObject, precision: str) -> Iterator[str]:
    """Yield a fault if a program for half precision casts nothing, or if another one scales its loss.

    Args:
        operators: The operators of the program: the count of each by its kind.
        precision: The precision that run_summary states, such as "fp32" or "amp_o2".
    """
    is_half_precision = precision in schema.HALF_PRECISIONS
    if is_half_precision and operators.get("cast", 0) < 1:
        yield f"a program that casts nothing, for precision {precision}"
    if not is_half_precision and _LOSS_SCALING in operators:
        yield f"a program that scales its loss for half precision, for precision {precision}"


def _updates_of_other_optimizer(operators: JsonObject, optimizer: str) -> Iterator[str]:
    """Yield one fault if the program updates weights by an operator that the stated optimizer does not have.

    For instance, the optimizer sgd has the operators momentum and merged_momentum. With opt_name sgd, the operator adam
    gives "a program that updates by adam; opt_name is sgd".

    Args:
        operators: The operators of the program: the count of each by its kind.
        optimizer: The optimizer that the log states as opt_name. An unknown one has no operators, so that any update of
            weights is a fault then.
    """
    is_known = optimizer in schema.OPTIMIZERS
    operators_of_optimizer = schema.OPTIMIZERS[optimizer].operators if is_known else frozenset()
    update_operators = schema.UPDATES & operators.keys()  # those of the program that update weights
    if not update_operators <= operators_of_optimizer:  # at least one of them is of another optimizer
        yield f"a program that updates by {', '.join(sorted(update_operators))}; opt_name is {printable(optimizer)}"


def _impossible_all_reduces(run: LoggedRun, program: JsonObject, devices: int) -> Iterator[str]:
    """Yield in words that a program's all-reduces do not fit its devices, its operators or their stated size.

    An all-reduce is an operator c_allreduce_sum that sums gradients over the ranks. These values are right:

        devices   all-reduces   operators c_allreduce_sum                      size
        1         0             as many; with RECIPE.sync_bn as many or more   0 MiB
        several   1 or more     as many; with RECIPE.sync_bn as many or more   above 0 MiB

    Args:
        run: The facts that the log states of the run.
        program: The header's section `program`, with such values as 9 `all_reduces` and an `all_reduce_mib` of 97.5.
        devices: How many ranks the run has.
    """
    all_reduces = program["all_reduces"]
    is_number_possible = all_reduces > 0 if devices > 1 else all_reduces == 0
    if not is_number_possible:
        yield f"a program of {counted(all_reduces, 'all-reduce')} for {counted(devices, 'device')}"
        return  # nothing can be held against a wrong number

    operators = program["operators"].get(_ALL_REDUCE, 0)
    # With RECIPE.sync_bn, further operators may sum the statistics of the batch normalization.
    may_have_more_operators = bool(run.settings.get("RECIPE.sync_bn"))
    has_too_few_operators = operators < all_reduces
    has_too_many_operators = operators > all_reduces and not may_have_more_operators
    if has_too_few_operators or has_too_many_operators:
        yield f"a program of {all_reduces} all-reduces, and {operators} operators {_ALL_REDUCE}"

    mib = program["all_reduce_mib"]
    is_size_possible = mib > 0 if all_reduces > 0 else mib == 0
    if not is_size_possible:
        yield f"a program of {all_reduces} all-reduces of {six_digits(mib)} MiB"


def _faults_of_proofs(run: LoggedRun, program: JsonObject, devices: int) -> Iterator[str]:
    """Yield in words each line of the header's list `verified` that the log contradicts, and the lack of a needed one.

    Each line, here called a proof, states what a run has found in its program before training. Needed is one such as
    "161 gradients summed over 2 ranks once, scaled by 1/2 once". It must stand above those about updates of weights,
    such as "sgd by merged_momentum of 161", which must have the same number. A line of an unknown form is not a fault.

    Args:
        run: The facts that the log states of the run, with its optimizer and its STRATEGY.
        program: The header's section `program`.
        devices: How many ranks the run has.
    """
    parts = parts_of_batch(str(run.settings.get("STRATEGY", "")))  # into how many a batch is divided; None: not known
    optimizer = run.stated_text(schema.OPT_NAME)
    gradients = None  # how many there are, by the latest line that says it; None: no line has said it yet
    for proof in program["verified"]:
        sum_of_gradients = _GRADIENTS.fullmatch(proof)  # None for a line of another form
        if sum_of_gradients is not None:
            gradients = int(sum_of_gradients["all"])
            yield from _faults_of_sum(sum_of_gradients, devices, parts)
        # Both are False for a line of another form. The first is of lines such as "merged_optimizer made 1
        # merged_momentum", which count operators or all-reduces; the second is of lines about updates of weights.
        elif _has_wrong_count(proof, program) or _has_wrong_updates(proof, optimizer, gradients):
            yield f"a program of which was proved what it is not: {printable(proof)}"
    if gradients is None:
        yield "a program of whose gradients nothing was proved"


def _faults_of_sum(sum_of_gradients: re.Match[str], devices: int, parts: int | None) -> Iterator[str]:
    """Yield at most one fault of a line on the sum of gradients: wrong ranks or, if these are right, a wrong divisor.

    On 2 devices with each batch in 2 parts, the gradients of 2 * 2 parts are averaged, so the right line is

        161 gradients summed over 2 ranks once, scaled by 1/4 once

    Args:
        sum_of_gradients: The match of the pattern _GRADIENTS with the line, such as ranks "2" and divisor "4".
        devices: How many ranks the run has.
        parts: Into how many parts the setting STRATEGY divides a batch. None if it states no possible number: the
            divisor is not checked then.
    """
    proof = printable(sum_of_gradients.string)  # the whole line
    names_ranks = sum_of_gradients["ranks"] is not None  # not in "161 gradients scaled by 1/2 once", as for one device
    stated_ranks = int(sum_of_gradients["ranks"]) if names_ranks else 1
    stated_divisor = int(sum_of_gradients["divisor"])
    if stated_ranks != devices:
        yield f"a program of {proof}, for {counted(devices, 'device')}"
    elif parts is not None and stated_divisor != devices * parts:
        yield f"a program of {proof}, for {counted(devices, 'device')} and a batch in {counted(parts, 'part')}"


def _has_wrong_count(proof: str, program: JsonObject) -> bool:
    """Return whether a proof counts operators or all-reduces, and the header has another number of them."""
    made = _MADE.fullmatch(proof)
    buckets = _BUCKETS.fullmatch(proof)
    if made is not None:
        return bool(program["operators"].get(made.group(2), 0) != int(made.group(1)))
    return buckets is not None and bool(program["all_reduces"] != int(buckets.group(1)))


def _has_wrong_updates(proof: str, optimizer: str, gradients: int | None) -> bool:
    """Return whether a line on updates of weights names another optimizer, or another number of weights.

    The line "sgd by merged_momentum of 54, momentum of 107" says that the optimizer is sgd, and that its operators
    update 54 + 107 = 161 weights. So the run must have 161 gradients. A line that is not on updates gives False.

    Args:
        proof: A line of the list `verified` in the log's header.
        optimizer: The optimizer that the log states.
        gradients: How many gradients the run has, by an earlier line of the list. None if no earlier line says it: a
            line on updates is wrong then, because the run writes it after that one.
    """
    match = _UPDATES.fullmatch(proof)
    if match is None:  # a line that is not on updates
        return False
    proved_optimizer, operators = match.groups()  # "sgd" and "merged_momentum of 54, momentum of 107"
    weights_by_operator = re.findall(r" of (\d+)", operators)  # ["54", "107"]
    updated_weights = sum(int(weights) for weights in weights_by_operator)
    is_other_optimizer = proved_optimizer != optimizer
    is_other_number = updated_weights != gradients  # also true if `gradients` is None
    return is_other_optimizer or is_other_number
