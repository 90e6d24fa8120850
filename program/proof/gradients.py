"""Proof, read off a built training program, that each parameter is trained by the mean of its gradients.

The gradient of each parameter is followed from the loss to the optimizer as a value (times it was summed over the
ranks, factor on it): both must be (once, 1 / ranks) when the optimizer reads it, with the loss scale taken off again.
Every operator of the backward pass is linear in the gradient that it receives, so it hands the value on.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.ops import Refused, is_close, prove
from runlog.digits import six_digits


@dataclass(frozen=True, kw_only=True)
class GradientHistory:
    """The history of a gradient: what operators have done to it so far."""

    micro_steps: int = 1  # number of micro-steps whose gradients are added up in it
    sums: int = 0  # how many times it was summed over the ranks
    factor: float = 1.0  # product of the constants that it was multiplied by
    scale_power: int = 0  # power of the dynamic loss scale on it: 1 while the loss is scaled, 0 after unscaling


_TO_OR_FROM_ONE_RANK = ("c_reduce_sum", "c_broadcast")  # operators that leave the sum on one rank, or send it from one
# By the name of the variable that holds the gradient. A variable without a history holds none: its gradient is not
# computed yet, or it is an accumulator of zeros.
Histories = dict[str, GradientHistory]


def check_gradients(update: Sequence[static.Program], *, ranks: int, scale: float = 1.0) -> Histories:
    """Prove that an update trains each parameter by the mean of its gradients over all ranks and micro-steps.

    The gradients are followed from the loss to the optimizer through the operators of the built programs; nothing is
    run.

    Args:
        update: The program of each micro-step (a part of the batch), in order. The last one has the optimizer; without
            gradient accumulation it is the only one.
        ranks: Number of data-parallel processes.
        scale: The fixed loss scale, at which the gradient of the loss must start; 1 without one.

    Returns:
        By parameter, how its gradient was summed and scaled until the optimizer reads it.

    Raises:
        Refused: A gradient is not this mean, a trainable parameter is not updated, or the programs are not
            data-parallel training. The message names the first difference.
    """
    histories = _histories_at_optimizer(update, ranks=ranks, scale=scale)
    main = update[-1]  # the program with the optimizer; every program of the update has all parameters
    trainable = {parameter.name for parameter in main.all_parameters() if parameter.trainable}
    not_updated = sorted(trainable - histories.keys())
    if not_updated:
        raise Refused(f"no optimizer updates {not_updated[0]} and {len(not_updated) - 1} more")

    for parameter, history in histories.items():
        _check_history(parameter, history, ranks=ranks, micro_steps=len(update))
    return histories


def _check_history(parameter: str, history: GradientHistory, *, ranks: int, micro_steps: int) -> None:
    """Prove that the gradient of a parameter is the mean over all ranks and micro-steps when the optimizer reads it.

    With 8 ranks and 2 micro-steps it must be summed over the ranks once and scaled by 1/16.

    Args:
        parameter: Name of the parameter, for messages.
        history: Record of how its gradient was summed and scaled until the optimizer reads it.
        ranks: Number of data-parallel processes.
        micro_steps: Number of parts of the batch whose gradients one update adds up.

    Raises:
        Refused: The gradient is summed or scaled otherwise, or still has the loss scale on it.
    """
    subject = f"the gradient of {parameter}"
    merged = history.micro_steps
    prove(merged == micro_steps, f"{subject} is merged of {merged} micro-steps, not {micro_steps}")
    expected_sums = 1 if ranks > 1 else 0
    prove(
        history.sums == expected_sums,
        f"{subject} is summed over the ranks {history.sums} times, not {expected_sums}",
    )
    divisor = ranks * micro_steps
    is_mean = is_close(history.factor, 1 / divisor)
    prove(is_mean, f"{subject} is scaled by {six_digits(history.factor)}, not by 1/{divisor}")
    power = history.scale_power
    prove(power == 0, f"{subject} still has the loss scale on it ({power:+d})")


def _histories_at_optimizer(update: Sequence[static.Program], *, ranks: int, scale: float) -> Histories:
    """Return, by parameter, the history of the gradient that the optimizer reads.

    A history records what operators did to a gradient from the loss on. A mean over 8 ranks is

        GradientHistory(micro_steps=1, sums=1, factor=0.125, scale_power=0)

    that is, the gradient of 1 micro-step, summed over the ranks once, multiplied by 1/8, and without the loss scale. To
    find the histories, the operators of the programs are read one after the other; nothing is run.

    Args:
        update: The program of each micro-step of an update (a part of the batch), in order. The last one has the
            optimizer.
        ranks: Number of data-parallel processes.
        scale: The fixed loss scale; 1 without one.

    Raises:
        Refused: The programs are not data-parallel training, a parameter is updated twice, or a variable that adds up
            gradients of several micro-steps is not cleared at the end.
    """
    # Variables by which mixed precision multiplies the loss; empty without a dynamic loss scale.
    dynamic_scales = _dynamic_scales(update[-1])
    # What was found up to the end of a program: the gradients that the optimizer has read, the gradients in
    # accumulators (which add up those of several micro-steps), and the variables whose gradient was summed over ranks.
    followed = _Followed(read_by_optimizer=[], accumulated={}, ever_summed=frozenset())
    # All micro-steps before the last one run the same program. For 4 micro-steps `update` is (a, a, a, main), and the
    # Counter gives (a, 3) and then (main, 1). Each program is read once, and its gradients count as those of `runs`
    # micro-steps.
    for program, runs in Counter(update).items():
        follower = _Follower(ranks=ranks, scale=scale, runs=runs, dynamic_scales=dynamic_scales)
        followed = follower.follow(program.global_block(), before=followed)
    if followed.accumulated:
        raise Refused(f"{min(followed.accumulated)} is not cleared after the update")
    return _by_parameter(followed.read_by_optimizer)


def _dynamic_scales(main: static.Program) -> set[str]:
    """Return the variables by which Paddle's mixed precision (AMP) multiplies the loss of a program.

    Args:
        main: Training program.

    Returns:
        Their names; empty without a dynamic loss scale.
    """
    scales: set[str] = set()
    for op in main.global_block().ops:
        if op.attr("op_role") == ops.LOSS and op.type == "elementwise_mul":
            scales.update(op.input("Y"))
    return scales


class _Read(NamedTuple):
    """A gradient as the optimizer reads it to update a parameter."""

    parameter: str
    history: GradientHistory


class _Followed(NamedTuple):
    """The gradients at the end of a program, when the programs of an update are followed in their order."""

    read_by_optimizer: list[_Read]  # so far
    accumulated: Histories  # by accumulator: only these carry gradients from one program to the next
    ever_summed: frozenset[str]  # variables whose gradient was summed over the ranks, in this program or before it


def _by_parameter(read: list[_Read]) -> Histories:
    """Map each parameter to the history of the gradient that updates it: how it was summed and scaled.

    Args:
        read: The gradients that the optimizer reads, each with its parameter.

    Raises:
        Refused: A parameter is updated twice.
    """
    histories: Histories = {}
    for parameter, history in read:
        prove(parameter not in histories, f"{parameter} is updated twice")
        histories[parameter] = history
    return histories


def _read_by_update(op: Operator, histories: Histories) -> list[_Read]:
    """Return each parameter that an operator updates, with the history of the gradient by which it is updated.

    A history records what operators did to a gradient: `sums` is how many times it was summed over the ranks, `factor`
    the product of the constants by which it was multiplied, and `scale_power` the power of the dynamic loss scale on
    it. Some update operators multiply the gradients by a constant of their own, `rescale_grad`. The factor returned has
    that constant in it.

    Args:
        op: Operator that updates one or more parameters, such as `momentum`.
        histories: Histories before this operator, by the variable that holds the gradient.

    Raises:
        Refused: The operator reads a variable that no gradient of the loss reaches.
    """
    own_factor = op.attr("rescale_grad") if op.has_attr("rescale_grad") else 1.0
    read = []
    for parameter, gradient in zip(op.input("Param"), op.input("Grad"), strict=True):
        # Raises Refused, with this message, if the variable has no history.
        prove(gradient in histories, f"the optimizer reads {gradient}, which no gradient of the loss reaches")
        history = histories[gradient]
        read.append(_Read(parameter, replace(history, factor=history.factor * own_factor)))
    return read


@dataclass(frozen=True, kw_only=True)
class _Follower:
    """Follows the gradients through one program of an update, operator by operator.

    Its methods get the histories before an operator and return histories after it. They change nothing.
    """

    ranks: int
    scale: float  # the fixed loss scale
    runs: int  # how many times an update runs the program
    dynamic_scales: set[str]  # variables by which AMP multiplies the loss

    def follow(self, block: Block, *, before: _Followed) -> _Followed:
        """Return what was done to the gradients up to the end of a program: how each was summed and scaled.

        The histories map each variable that holds a gradient to a record: how many micro-steps are added up in the
        gradient, how many times it was summed over the ranks, and by what it was multiplied. A variable without a
        history holds no gradient. The operators are read in order:

            update of parameters   the gradients that it reads are noted with their histories, for the result
            coalesce_tensor        the gradients in its buffer are noted, for the all-reduce of the buffer
            c_allreduce_sum        each gradient that it sums gets a history with one sum more
            any other              `after` may give histories to what it writes, or remove that of a cleared accumulator

        Args:
            block: Main block of one program of an update.
            before: Findings in the earlier programs of the update: the gradients that the optimizer has read, the
                gradients in accumulators, and the variables that were ever summed over the ranks.

        Returns:
            The same findings up to the end of this program. Only the histories of accumulators pass from one program to
            the next, because only accumulators keep gradients.

        Raises:
            Refused: The program is not data-parallel training, because the optimizer reads a variable without a
                history, the all-reduce of a buffer comes before a gradient in it, or `after` refuses an operator.
        """
        read = [*before.read_by_optimizer]
        histories = before.accumulated  # of the gradients that earlier programs have left in accumulators
        ever_summed = before.ever_summed  # by these names `after` refuses an operator that overwrites a sum
        gradients_by_buffer: dict[str, list[str]] = {}
        for op in block.ops:
            if op.type in ops.ALL_UPDATES:
                read += _read_by_update(op, histories)
            elif op.type == "coalesce_tensor":  # it puts gradients side by side into a buffer, before they are computed
                (buffer,) = op.output("FusedOutput")
                gradients_by_buffer[buffer] = op.output("Output")
            elif op.type == "c_allreduce_sum":
                # The new histories of the gradients that this all-reduce sums: those in a buffer, a single one or none.
                summed = _summed_by(op, histories, gradients_by_buffer)
                histories = histories | summed  # replaces their old histories
                ever_summed = ever_summed.union(summed)
            else:
                histories = self.after(op, histories, ever_summed)
        still_accumulated = {name: history for name, history in histories.items() if ops.is_accumulator(name)}
        return _Followed(read_by_optimizer=read, accumulated=still_accumulated, ever_summed=ever_summed)

    def after(self, op: Operator, histories: Histories, ever_summed: frozenset[str]) -> Histories:
        """Return the histories of all gradients after one operator.

        A history records how a gradient was summed and scaled. The first case that fits the operator decides:

            c_reduce_sum, c_broadcast      Refused, if it is in the backward pass: it sums to or sends from one rank
            start of the backward pass     the gradient of the loss gets its first history
            gradient + accumulator         the result gets the micro-steps of both
            accumulator = 0                its history is removed: it holds no gradient any more
            check_finite_and_unscale       divides gradients by the loss scale: their `scale_power` falls by 1
            update_loss_scaling            its results get the histories of the gradients that it copies
            any other in backward, update  its results get the one history that all gradients read by it must have, with
                                           its own factor if it scales them
            any other                      nothing changes

        Args:
            op: Any operator but those that `follow` treats: `c_allreduce_sum`, `coalesce_tensor`, update of parameters.
            histories: The histories before the operator, by the variable that holds the gradient.
            ever_summed: Variables whose gradient was summed over the ranks before. Only some operators may overwrite
                them (`_refuse_overwritten_sum`).

        Raises:
            Refused: The operator cannot be part of data-parallel training.
        """
        role = op.attr("op_role")  # bits of BACKWARD, OPTIMIZE and LOSS
        is_in_backward = bool(role & ops.BACKWARD)
        if is_in_backward and op.type in _TO_OR_FROM_ONE_RANK:
            raise Refused(f"{op.input('X')[0]} goes through {op.type}: this is not an all-reduce")
        # Both bits are set, and no other: Python computes | before ==.
        starts_gradients = role == ops.BACKWARD | ops.LOSS
        if starts_gradients:
            _require_start_at_loss_scale(op, self.scale)
            return histories | _gradient_of_loss(op, runs=self.runs)
        if ops.is_merge(op):
            return histories | _merged(op, histories)
        if ops.is_clear(op):
            return _without(op.output("Out")[0], histories)
        if op.type == "check_finite_and_unscale":
            return histories | self._unscaled(op, histories)
        if op.type == "update_loss_scaling":
            return histories | _kept_by_scale_update(op, histories)
        # This case comes after the others, because their operators are in the backward pass or the update too.
        if is_in_backward or ops.is_optimizer(op):
            return histories | self._computed_from_gradients(op, histories, ever_summed)
        return histories

    def _unscaled(self, op: Operator, histories: Histories) -> Histories:
        """Return the histories of the gradients that a `check_finite_and_unscale` of Paddle's mixed precision writes.

        The operator divides gradients by the dynamic loss scale. A history says by its `scale_power` how often the
        scale is a factor of the gradient: 1 while the loss is scaled, 0 after this operator. So `scale_power` falls by
        1, and the rest of a history stays.

        The operator also looks for values that are not finite; if there are any, the update is skipped.

        Args:
            op: The operator.
            histories: How each gradient was summed and scaled before the operator, by variable.

        Raises:
            Refused: The operator reads a variable that no gradient reaches. Or, with several ranks, it reads a gradient
                that was not summed over the ranks exactly once: the ranks could differ in what they find.
        """
        unscaled: Histories = {}
        for source, name in zip(op.input("X"), op.output("Out"), strict=True):
            prove(source in histories, f"{source} is unscaled but no gradient reaches it")
            history = histories[source]
            # Before the sum, one rank could find an infinity that the others do not, and skip the update alone. After
            # the sum, all ranks have the same gradient.
            prove(
                self.ranks == 1 or history.sums == 1,
                f"{source} is looked at for infinities before its sum over the ranks: they would differ",
            )
            unscaled[name] = replace(history, scale_power=history.scale_power - 1)
        return unscaled

    def _computed_from_gradients(self, op: Operator, histories: Histories, ever_summed: frozenset[str]) -> Histories:
        """Return the history of each variable that an operator computes from gradients.

        A history records how a gradient was summed over the ranks and by what it was multiplied. All gradients that the
        operator reads must have the same history. The operator is linear in them, so what it writes has that history
        too. If the operator multiplies by a factor of its own, the history gets this factor (`_scaled`).

        Args:
            op: Operator of the backward pass or the optimizer.
            histories: Histories before the operator, by the variable that holds the gradient.
            ever_summed: Variables whose gradient was summed over the ranks before the operator.

        Returns:
            Histories of what the operator writes; empty if it reads no gradient.

        Raises:
            Refused: The gradients that it reads have different histories, it overwrites a sum over the ranks, or it
                scales by more than a constant.
        """
        # `_linear_inputs` gives all that the operator reads, except what a `depend` only waits for. A variable with a
        # history holds a gradient.
        gradients_read = [name for name in _linear_inputs(op) if name in histories]
        if not gradients_read:
            return {}
        histories_read = {histories[name] for name in gradients_read}
        are_alike = len(histories_read) == 1
        prove(are_alike, f"{op.type} joins gradients of different sums or scales: {sorted(gradients_read)[:2]}")
        (history_read,) = histories_read

        # EMPTY stands where an operator writes no gradient.
        written = [name for name in op.output_arg_names if name != ops.EMPTY]
        # Raises Refused if a sum over the ranks is overwritten; `depend`, `scale` and optimizer operators may do so.
        _refuse_overwritten_sum(op, written, ever_summed)
        history_written = self._scaled(op, history_read, gradient=gradients_read[0])
        return dict.fromkeys(written, history_written)

    def _scaled(self, op: Operator, history: GradientHistory, *, gradient: str) -> GradientHistory:
        """Return the history of a gradient after an operator: changed by a `scale` or by the loss scale, else the same.

        A history says that the gradient is multiplied by factor * loss_scale^scale_power. The dynamic loss scale
        changes in training, so only its power is known.

            operator                                         history afterwards
            scale                                            `factor` is multiplied by the operator's constant
            elementwise_mul_grad that reads the loss scale   `scale_power` is higher by 1
            any other operator                               the same

        Args:
            op: The operator.
            history: History of the gradient that the operator reads.
            gradient: Name of this gradient, for the message.

        Raises:
            Refused: A `scale` adds something, or takes its factor from a variable.
        """
        if op.type == "scale":
            bias = op.attr("bias")
            has_bias = bias != 0
            scales_by_variable = len(op.input_arg_names) > 1  # the second input is the factor
            # If this is False, `prove` raises Refused.
            is_constant_factor = not has_bias and not scales_by_variable
            prove(is_constant_factor, f"scale of {gradient} is more than a constant factor: bias {six_digits(bias)}")
            return replace(history, factor=history.factor * op.attr("scale"))
        # Mixed precision computes product = loss * loss_scale by an `elementwise_mul`. In the backward pass
        # an `elementwise_mul_grad` computes the gradient of the loss: that of the product, multiplied by loss_scale.
        reads_loss_scale = bool(self.dynamic_scales.intersection(op.input_arg_names))
        if op.type == "elementwise_mul_grad" and reads_loss_scale:
            return replace(history, scale_power=history.scale_power + 1)
        return history


def _require_start_at_loss_scale(op: Operator, loss_scale: float) -> None:
    """Raise Refused if the gradient of the loss starts at another constant than the fixed loss scale.

    Args:
        op: The operator that begins the backward pass: it sets the gradient of the loss to a constant.
        loss_scale: The fixed loss scale; 1 if the job has none.

    Raises:
        Refused: With a message such as "the gradients start at 1, not at the loss scale 128".
    """
    constant = op.attr("value")
    prove(
        is_close(constant, loss_scale),
        f"the gradients start at {six_digits(constant)}, not at the loss scale {six_digits(loss_scale)}",
    )


def _gradient_of_loss(op: Operator, *, runs: int) -> Histories:
    """Return the history of the gradient of the loss, with which the backward pass begins.

    An operator sets this gradient to a constant, which becomes the factor of the history. The program is read once for
    all of its runs, so all of its gradients, from this one on, count as those of `runs` micro-steps.

    Args:
        op: The operator.
        runs: How many times an update runs the program: once for each micro-step (a part of the batch).

    Returns:
        One entry, by the variable that holds the gradient. For the constant 128 and 3 runs it is such as
        {"train.loss@GRAD": GradientHistory(factor=128.0, micro_steps=3)}.
    """
    variable = op.output_arg_names[0]
    return {variable: GradientHistory(factor=op.attr("value"), micro_steps=runs)}


def _gradients_in(name: str, histories: Histories, gradients_by_buffer: dict[str, list[str]]) -> list[str]:
    """Return the gradients that an all-reduce of a variable sums: those in a buffer, or the variable itself.

    Args:
        name: Name of the variable, which is a buffer of several gradients, one gradient, or none.
        histories: How each gradient was summed and scaled so far, by variable. A gradient that is not here is not
            computed yet.
        gradients_by_buffer: For each buffer, the names of the gradients that lie side by side in it.

    Returns:
        Their names; empty if the variable is neither a buffer nor a gradient that is computed already.

    Raises:
        Refused: A gradient in the buffer is not computed yet.
    """
    if name in gradients_by_buffer:
        gradients = gradients_by_buffer[name]
        for gradient in gradients:
            prove(gradient in histories, f"{gradient} is summed over the ranks before it is computed")
        return gradients
    if name in histories:
        return [name]
    return []


def _summed_by(op: Operator, histories: Histories, gradients_by_buffer: dict[str, list[str]]) -> Histories:
    """Return the new histories of the gradients that an all-reduce sums over the ranks: each has one sum more.

    Args:
        op: A `c_allreduce_sum` operator.
        histories: How each gradient was summed and scaled before the operator, by variable.
        gradients_by_buffer: For each buffer, the names of the gradients that lie side by side in it.

    Returns:
        Histories of these gradients alone; empty if the operator sums something else.

    Raises:
        Refused: A gradient in a buffer is not computed yet (`_gradients_in` finds this).
    """
    (variable,) = op.input("X")
    summed: Histories = {}
    for gradient in _gradients_in(variable, histories, gradients_by_buffer):
        history = histories[gradient]
        summed[gradient] = replace(history, sums=history.sums + 1)
    return summed


def _refuse_overwritten_sum(op: Operator, written: list[str], ever_summed: frozenset[str]) -> None:
    """Raise Refused if an operator overwrites a sum over the ranks, as a further micro-step would.

    Some operators may write such a variable: `depend`, which only waits for the sum, `scale`, and those of the
    optimizer.

    Args:
        op: The operator.
        written: Names of the variables that it writes.
        ever_summed: Names of all variables whose gradient was summed over the ranks before, in this program of the
            update or an earlier one. They count even if they hold another gradient by now.

    Raises:
        Refused: One of `written` is among them, and the operator is none of these.
    """
    if op.type in ("depend", "scale") or ops.is_optimizer(op):
        return
    for name in written:
        prove(name not in ever_summed, f"{name} is written by {op.type} after its sum over the ranks")


def _linear_inputs(op: Operator) -> list[str]:
    """Return the variables that an operator reads, except what a `depend` only waits for."""
    if op.type == "depend":
        return list(op.input("X"))  # handed on
    return list(op.input_arg_names)


def _without(name: str, histories: Histories) -> Histories:
    """Return all histories but that of the variable `name`, which is set to zero."""
    return {other: history for other, history in histories.items() if other != name}


def _kept_by_scale_update(op: Operator, histories: Histories) -> Histories:
    """Return the unchanged histories of the gradients that AMP's `update_loss_scaling` copies.

    The operator zeroes all gradients if one is not finite, which skips the update.

    Args:
        op: The operator, which Paddle's mixed precision (AMP) adds.
        histories: How each gradient was summed and scaled before it, by variable.
    """
    return {name: histories[source] for source, name in zip(op.input("X"), op.output("Out"), strict=True)}


def _merged(op: Operator, histories: Histories) -> Histories:
    """Return the history of gradient + accumulator, which an operator of gradient accumulation computes.

    The accumulator holds the gradients of earlier micro-steps (parts of the batch), so the result's history has the
    micro-steps of both. The rest of their histories must be equal: the number of sums over the ranks, the constant
    factor, and `scale_power`, the power of the dynamic loss scale on the gradient.

    Args:
        op: The addition.
        histories: Histories before the addition, by variable. An accumulator without a history holds zeros.

    Returns:
        The history, by the name of the variable that the addition writes.

    Raises:
        Refused: The gradient is not computed yet or already summed over the ranks, or the accumulator was summed or
            scaled differently.
    """
    gradient, accumulator, out = ops.operands(op, "X", "Y", "Out")
    if gradient not in histories or histories[gradient].sums > 0:
        raise Refused(f"{gradient} is merged after its sum over the ranks, or before it is computed")
    history = histories[gradient]
    accumulator_holds_zeros = accumulator not in histories
    if accumulator_holds_zeros:
        return {out: history}
    accumulated = histories[accumulator]
    is_alike = (
        accumulated.sums == history.sums
        and accumulated.factor == history.factor
        and accumulated.scale_power == history.scale_power
    )
    prove(is_alike, f"{gradient} is merged with an accumulator at another scale")
    return {out: replace(history, micro_steps=history.micro_steps + accumulated.micro_steps)}
