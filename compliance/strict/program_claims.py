"""The training program in the header of a log of this project: its operators, its all-reduces and what was proved."""

import re
from collections.abc import Iterator

from compliance.logged_run import LoggedRun
from compliance.strict.strategy import is_automatic, parts_of_batch
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
    """Yield in words each contradiction in a log's description of its training program, or with the rest of the log.

    The header's section `program` describes the program: the count of each operator, the fused operators once more, the
    all-reduces, which sum gradients over the ranks, and what the run proved about the program. The contradictions, in
    this order:

    - The number of all-reduces does not fit the devices or the operators, or their size is impossible
      (`_impossible_all_reduces`).
    - An operator has a count below 1.
    - An operator updates weights, and is no operator of the optimizer that the log states as opt_name. An unknown
      optimizer has no operators.
    - The table `fused` differs from the operators whose names begin with fused_ or merged_, and their counts.
    - The precision is half precision, and no operator casts.
    - The precision is not half precision, and the program scales its loss, which is for half precision only.
    - A proof contradicts the rest of the log, or no proof is about the gradients (`_faults_of_proofs`).

    Nothing is checked if Paddle makes the program (STRATEGY=auto).

    Args:
        run: The facts that the log states of the run. The header's section `program` must fit the schema.
        summary: The value of the event run_summary: the number of devices and the precision.
    """
    if is_automatic(str(run.settings.get("STRATEGY"))):
        return

    program = run.header_section(schema.PROGRAM)
    operators = program["operators"]
    yield from _impossible_all_reduces(run, program, summary.devices)
    for kind, count in operators.items():
        if count < 1:
            yield f"a program of {count} {printable(kind)}"

    optimizer = run.stated_text(schema.OPT_NAME)
    is_known_optimizer = optimizer in schema.OPTIMIZERS
    operators_of_optimizer = schema.OPTIMIZERS[optimizer].operators if is_known_optimizer else frozenset()
    update_operators = schema.UPDATES & operators.keys()  # those of the program that update weights
    if not update_operators <= operators_of_optimizer:
        yield f"a program that updates by {', '.join(sorted(update_operators))}; opt_name is {printable(optimizer)}"

    fused = {kind: count for kind, count in operators.items() if kind.startswith(_PREFIXES_OF_FUSED)}
    if program["fused"] != fused:
        yield f"a program whose fused operators are {printable(program['fused'])}, not {printable(fused)}"

    is_half_precision = summary.precision in schema.HALF_PRECISIONS
    if is_half_precision and operators.get("cast", 0) < 1:
        yield f"a program that casts nothing, for precision {summary.precision}"
    if not is_half_precision and _LOSS_SCALING in operators:
        yield f"a program that scales its loss for half precision, for precision {summary.precision}"

    yield from _faults_of_proofs(run, program, summary.devices)


def _impossible_all_reduces(run: LoggedRun, program: JsonObject, devices: int) -> Iterator[str]:
    """Yield in words what is wrong with the number and the size of a program's all-reduces.

    An all-reduce is an operator c_allreduce_sum that sums gradients over the ranks. On several devices, right values
    are

        all_reduces                   9       above 0
        operators c_allreduce_sum     9       as many; with RECIPE.sync_bn maybe more
        all_reduce_mib                97.5    above 0

    On one device, the right values are 0; with RECIPE.sync_bn there may be operators. If `all_reduces` does not fit the
    devices, no other fault is yielded. Otherwise the operators and the size are each checked.

    Args:
        run: The facts that the log states of the run.
        program: The header's section `program`.
        devices: How many ranks the run has.
    """
    all_reduces = program["all_reduces"]
    sums_gradients = all_reduces > 0
    must_sum_gradients = devices > 1
    if all_reduces < 0 or sums_gradients != must_sum_gradients:
        yield f"a program of {all_reduces} all-reduces for {devices} devices"
        return
    operators = program["operators"].get(_ALL_REDUCE, 0)
    # With RECIPE.sync_bn, further operators may sum the statistics of the batch normalization.
    may_sum_statistics = bool(run.settings.get("RECIPE.sync_bn"))
    is_number_right = operators >= all_reduces if may_sum_statistics else operators == all_reduces
    if not is_number_right:
        yield f"a program of {all_reduces} all-reduces, and {operators} operators {_ALL_REDUCE}"
    sums_anything = program["all_reduce_mib"] > 0
    # Wrong: a size above 0 without all-reduces, a size of 0 with all-reduces, and in any case a size below 0.
    if sums_anything != sums_gradients or program["all_reduce_mib"] < 0:
        yield f"a program of {all_reduces} all-reduces of {six_digits(program['all_reduce_mib'])} MiB"


def _faults_of_proofs(run: LoggedRun, program: JsonObject, devices: int) -> Iterator[str]:
    """Yield in words each proof about the training program that the rest of the log contradicts.

    Before training, a run proves that its program does what the settings ask for. The list `verified` in the log's
    header has a line for each proof. A line is checked if it has one of these forms:

        form of the line                                              what the line must agree with
        161 gradients summed over 2 ranks once, scaled by 1/2 once    `devices`, and the parts of a batch
        merged_optimizer made 1 merged_momentum                       the operators of `program`
        fuse_grad_size_in_MB=16: buckets 9                            the all-reduces of `program`
        sgd by merged_momentum of 161                                 the optimizer, and the 161 of an earlier line

    A line of the first form may lack "summed over 2 ranks once, ". A line of the last form may name several operators,
    whose numbers are added: "lars by lars_momentum of 54, momentum of 107". A line of the last form is also wrong if no
    line of the first form stands above. If the list has no line of the first form, one more fault is yielded at the
    end.

    Args:
        run: The facts that the log states of the run, with its optimizer and its STRATEGY.
        program: The header's section `program`.
        devices: How many ranks the run has.
    """
    parts = parts_of_batch(str(run.settings.get("STRATEGY", "")))  # into how many a batch is divided; None: not known
    gradients = None  # how many there are; None until a line counts them
    for proof in program["verified"]:
        sum_of_gradients = _GRADIENTS.fullmatch(proof)  # None for a line of another form
        if sum_of_gradients is not None:
            gradients = int(sum_of_gradients["all"])
            yield from _faults_of_sum(sum_of_gradients, devices, parts)
        # The first is about lines with counts, the second about updates. Each is False for a line of another form.
        has_wrong_count = _has_wrong_count(proof, program)
        has_wrong_updates = _has_wrong_updates(proof, run.stated_text(schema.OPT_NAME), gradients)
        if has_wrong_count or has_wrong_updates:
            # The message says that the program is not as the line states.
            yield f"a program of which was proved what it is not: {printable(proof)}"
    if gradients is None:
        yield "a program of whose gradients nothing was proved"


def _faults_of_sum(sum_of_gradients: re.Match[str], devices: int, parts: int | None) -> Iterator[str]:
    """Yield in words the first fault in a proof about the sum of gradients: wrong ranks or a wrong divisor.

    A proof is a line in the log's header, by which the run says what it has proved of its training program. On 2
    devices with each batch in 2 parts, the right line is

        161 gradients summed over 2 ranks once, scaled by 1/4 once

    because the gradients of 2 * 2 parts are averaged. In `sum_of_gradients`, the group "ranks" is "2", which must be
    `devices`, and the group "divisor" is "4", which must be `devices` * `parts`. A line that names no ranks is of 1
    rank: on 1 device, "161 gradients scaled by 1/2 once" is right.

    Args:
        sum_of_gradients: The match of the pattern _GRADIENTS with the line.
        devices: How many ranks the run has.
        parts: Into how many parts the setting STRATEGY divides a batch. None if the setting has no possible number
            there: the divisor is not checked then.
    """
    proof = printable(sum_of_gradients.string)  # the whole line
    stated_ranks = int(sum_of_gradients["ranks"] or 1)  # the group is None if the line names no ranks: 1 rank
    stated_divisor = int(sum_of_gradients["divisor"])
    if stated_ranks != devices:
        yield f"a program of {proof}, for {devices} devices"
    elif parts is not None and stated_divisor != devices * parts:
        yield f"a program of {proof}, for {devices} devices and a batch in {parts} parts"


def _has_wrong_count(proof: str, program: JsonObject) -> bool:
    """Return whether a proof counts operators or all-reduces, and the header has another number of them."""
    made = _MADE.fullmatch(proof)
    buckets = _BUCKETS.fullmatch(proof)
    if made is not None:
        return bool(program["operators"].get(made.group(2), 0) != int(made.group(1)))
    return buckets is not None and bool(program["all_reduces"] != int(buckets.group(1)))


def _has_wrong_updates(proof: str, optimizer: str, gradients: int | None) -> bool:
    """Return whether a proof says how weights are updated, and contradicts the run's optimizer or its gradients.

    The proof "lars by lars_momentum of 54, momentum of 107" says that the optimizer is lars, and that two operators
    update 54 + 107 = 161 weights. The proof is wrong in each of these cases:

    - `optimizer` is not lars;
    - `gradients` is None, because no line so far counts the gradients;
    - `gradients` is not 161: each gradient updates one weight.

    Args:
        proof: A line of the list `verified` in the log's header. A line of another form gives False.
        optimizer: The optimizer that the log states.
        gradients: How many gradients the run has, by an earlier line of the list.
    """
    match = _UPDATES.fullmatch(proof)
    if match is None:
        return False
    proved_optimizer, operators = match.groups()
    if proved_optimizer != optimizer:
        return True
    if gradients is None:
        return True
    weights_by_operator = re.findall(r" of (\d+)", operators)  # ["54", "107"]
    updated_weights = sum(int(weights) for weights in weights_by_operator)
    return updated_weights != gradients
