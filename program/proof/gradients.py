"""Proof, read off a built training program, that each parameter is trained by the mean of its gradients.

A gradient is followed from the loss to the optimizer, operator by operator, and a `GradientHistory` records what the
operators do to it. When the optimizer reads it, it must have been summed over the ranks once and multiplied by
1 / (ranks x micro-steps), with the loss scale taken off again. Every operator of the backward pass is linear in the
gradient that it receives, so it hands the history on. Nothing is run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops
from program.ops import Refused, is_close, prove
from runlog.digits import six_digits


@dataclass(frozen=True, kw_only=True)
class GradientHistory:
    """The operators' work on a gradient so far: how it was summed and scaled."""

    micro_steps: int = 1  # how many micro-steps (parts of the batch) have their gradients added up in it
    sums_over_ranks: int = 0  # how many times it was summed over the ranks
    factor: float = 1.0  # product of the constants that it was multiplied by
    loss_scale_power: int = 0  # power of the dynamic loss scale on it: 1 while the loss is scaled, 0 after unscaling


_TO_OR_FROM_ONE_RANK = ("c_reduce_sum", "c_broadcast")  # operators that leave the sum on one rank, or send it from one


def check_gradients(update: Sequence[static.Program], *, ranks: int, scale: float = 1.0) -> int:
    """Prove that an update trains each parameter by the mean of its gradients over all ranks and micro-steps.

    Args:
        update: The program of each micro-step (a part of the batch), in order. The last one has the optimizer; without
            gradient accumulation it is the only one.
        ranks: Number of data-parallel processes.
        scale: The fixed loss scale, at which the gradient of the loss must start; 1 without one.

    Returns:
        How many parameters the optimizer updates, each by one gradient.

    Raises:
        Refused: A gradient is not this mean, a trainable parameter is not updated, or the programs are not
            data-parallel training. The message names the first difference.
    """
    main = update[-1]
    tracker = _GradientTracker(ranks=ranks, loss_scale=scale, dynamic_scales=_dynamic_scales(main))
    # 4 micro-steps are 3 runs of one program and then 1 run of `main`. Each program is read once.
    for program in dict.fromkeys(update):
        tracker.follow(program.global_block(), runs=update.count(program))
    tracker.refuse_uncleared_accumulators()

    _refuse_parameters_not_updated(main, updated=set(tracker.at_optimizer))
    for parameter, history in tracker.at_optimizer.items():
        _check_is_mean(parameter, history, ranks=ranks, micro_steps=len(update))
    return len(tracker.at_optimizer)


def _refuse_parameters_not_updated(main: static.Program, updated: set[str]) -> None:
    """Raise Refused if the optimizer leaves out a trainable parameter.

    Args:
        main: Training program; it has all parameters.
        updated: Names of the parameters that the optimizer updates.
    """
    trainable = {parameter.name for parameter in main.all_parameters() if parameter.trainable}
    not_updated = sorted(trainable - updated)
    if not_updated:
        raise Refused(f"no optimizer updates {not_updated[0]} and {len(not_updated) - 1} more")


def _check_is_mean(parameter: str, history: GradientHistory, *, ranks: int, micro_steps: int) -> None:
    """Prove that the optimizer reads the mean of a gradient over all ranks and micro-steps.

    With 8 ranks and 2 micro-steps it must be summed over the ranks once and scaled by 1/16.

    Args:
        parameter: Name of the parameter that the gradient updates, for messages.
        history: How the gradient was summed and scaled until the optimizer reads it.
        ranks: Number of data-parallel processes.
        micro_steps: Number of parts of the batch whose gradients one update adds up.

    Raises:
        Refused: The gradient is summed or scaled otherwise, or still has the loss scale on it.
    """
    subject = f"the gradient of {parameter}"
    merged = history.micro_steps
    prove(merged == micro_steps, f"{subject} is merged of {merged} micro-steps, not {micro_steps}")
    sums = history.sums_over_ranks
    expected_sums = 1 if ranks > 1 else 0
    prove(sums == expected_sums, f"{subject} is summed over the ranks {sums} times, not {expected_sums}")
    divisor = ranks * micro_steps
    is_divided = is_close(history.factor, 1 / divisor)
    prove(is_divided, f"{subject} is scaled by {six_digits(history.factor)}, not by 1/{divisor}")
    power = history.loss_scale_power
    prove(power == 0, f"{subject} still has the loss scale on it ({power:+d})")


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


class _GradientTracker:
    """Reads the programs of an update operator by operator, and records what was done to each gradient.

    Call `follow` with each program, in order, then read `at_optimizer`. All methods raise Refused where a program is
    not data-parallel training.
    """

    def __init__(self, *, ranks: int, loss_scale: float, dynamic_scales: set[str]) -> None:
        """Start without any gradient.

        Args:
            ranks: Number of data-parallel processes.
            loss_scale: The fixed loss scale; 1 without one.
            dynamic_scales: Variables by which mixed precision multiplies the loss.
        """
        self.at_optimizer: dict[str, GradientHistory] = {}  # by parameter: of the gradient that the optimizer reads
        self._ranks = ranks
        self._loss_scale = loss_scale
        self._dynamic_scales = dynamic_scales
        # By the variable that holds the gradient now. A variable without a history holds none: its gradient is not
        # computed yet, or it is an accumulator of zeros.
        self._histories: dict[str, GradientHistory] = {}
        self._ever_summed: set[str] = set()  # variables whose gradient was summed over the ranks, in any program so far
        self._gradients_by_buffer: dict[str, list[str]] = {}  # of the program that is being read
        self._runs = 1  # how many times an update runs that program

    def follow(self, block: Block, *, runs: int) -> None:
        """Record what a program does to the gradients.

        Args:
            block: Main block of the next program of an update.
            runs: How many times the update runs it. The program is read once, and its gradients count as those of
                `runs` micro-steps.
        """
        self._runs = runs
        self._gradients_by_buffer = {}
        self._histories = self._accumulated()  # only accumulators carry gradients from one program to the next
        for op in block.ops:
            self._record(op)

    def refuse_uncleared_accumulators(self) -> None:
        """Raise Refused if an accumulator holds a gradient, which the next update would add to its own."""
        accumulated = self._accumulated()
        if accumulated:
            raise Refused(f"{min(accumulated)} is not cleared after the update")

    def _accumulated(self) -> dict[str, GradientHistory]:
        """Return the histories of the accumulators that hold gradients of earlier micro-steps."""
        return {name: history for name, history in self._histories.items() if ops.is_accumulator(name)}

    def _record(self, op: Operator) -> None:
        """Record what one operator does to gradients, such as a sum over the ranks; nothing for a forward operator.

        An operator is told by its type, or by its role, which says the part of the training step that it is in.
        """
        role = op.attr("op_role")  # bits of BACKWARD, OPTIMIZE and LOSS
        is_in_backward = bool(role & ops.BACKWARD)
        starts_gradients = role == (ops.BACKWARD | ops.LOSS)
        if is_in_backward and op.type in _TO_OR_FROM_ONE_RANK:
            raise Refused(f"{op.input('X')[0]} goes through {op.type}: this is not an all-reduce")
        if op.type in ops.ALL_UPDATES:
            self._record_update(op)
        elif op.type == "coalesce_tensor":
            self._record_buffer(op)
        elif op.type == "c_allreduce_sum":
            self._record_sum_over_ranks(op)
        elif starts_gradients:
            self._record_gradient_of_loss(op)
        elif ops.is_merge(op):  # gradient + accumulator
            self._record_merge(op)
        elif ops.is_clear(op):  # accumulator = 0
            self._histories.pop(op.output("Out")[0], None)
        elif op.type == "check_finite_and_unscale":
            self._record_unscaling(op)
        elif op.type == "update_loss_scaling":
            self._record_copies(op)
        # Last, because operators of the kinds above are in the backward pass or the update too.
        elif is_in_backward or ops.is_optimizer(op):
            self._record_linear_operator(op)

    def _record_gradient_of_loss(self, op: Operator) -> None:
        """Record the start of the backward pass, which sets the gradient of the loss to a constant.

        Args:
            op: The operator. With the constant 128 in a program of 3 runs, the gradient's history is
                GradientHistory(factor=128.0, micro_steps=3).

        Raises:
            Refused: The constant is not the fixed loss scale.
        """
        constant = op.attr("value")
        prove(
            is_close(constant, self._loss_scale),
            f"the gradients start at {six_digits(constant)}, not at the loss scale {six_digits(self._loss_scale)}",
        )
        self._histories[op.output_arg_names[0]] = GradientHistory(factor=constant, micro_steps=self._runs)

    def _record_linear_operator(self, op: Operator) -> None:
        """Give each variable that an operator writes the history of the gradients that it reads.

        For example, a `relu_grad` that reads a gradient which was scaled by 1/8 writes another one of which this holds,
        because it is linear in the gradient. A `scale` multiplies the history's factor by its own (`_with_factor_of`).

        Args:
            op: Operator of the backward pass or the optimizer. Without a gradient among its inputs, nothing changes.

        Raises:
            Refused: The gradients that it reads have different histories, it overwrites a sum over the ranks, or it
                scales by more than a constant.
        """
        gradients_read = [name for name in _linear_inputs(op) if name in self._histories]
        if not gradients_read:
            return
        histories_read = {self._histories[name] for name in gradients_read}
        are_alike = len(histories_read) == 1
        prove(are_alike, f"{op.type} joins gradients of different sums or scales: {sorted(gradients_read)[:2]}")
        (history_read,) = histories_read

        written = [name for name in op.output_arg_names if name != ops.EMPTY]  # EMPTY: a gradient that is not written
        self._refuse_overwritten_sum(op, written)
        history_written = self._with_factor_of(op, history_read, gradient=gradients_read[0])
        for name in written:
            self._histories[name] = history_written

    def _with_factor_of(self, op: Operator, history: GradientHistory, *, gradient: str) -> GradientHistory:
        """Return a gradient's history after an operator, with the factor by which the operator multiplies it.

        For example, a `scale` by 0.5 turns the factor 0.25 of the history into 0.125.

        Args:
            op: The operator. All but a `scale` and the gradient of the loss's scaling leave the history as it is.
            history: History of the gradient that the operator reads.
            gradient: Name of this gradient, for the message.

        Raises:
            Refused: A `scale` adds something, or takes its factor from a variable.
        """
        if op.type == "scale":
            bias = op.attr("bias")
            takes_factor_from_variable = len(op.input_arg_names) > 1
            is_constant_factor = bias == 0 and not takes_factor_from_variable
            prove(is_constant_factor, f"scale of {gradient} is more than a constant factor: bias {six_digits(bias)}")
            return replace(history, factor=history.factor * op.attr("scale"))
        # Mixed precision computes scaled_loss = loss * scale by an `elementwise_mul`. The gradient operator of this
        # multiplies the gradient by scale. As scale changes in training, only its power is recorded.
        reads_loss_scale = bool(self._dynamic_scales.intersection(op.input_arg_names))
        if op.type == "elementwise_mul_grad" and reads_loss_scale:
            return replace(history, loss_scale_power=history.loss_scale_power + 1)
        return history

    def _refuse_overwritten_sum(self, op: Operator, written: list[str]) -> None:
        """Raise Refused if an operator writes to a variable whose gradient was summed over the ranks before.

        For example, a further micro-step after the sum would write fc.w@GRAD anew, with this rank's gradient alone.
        The sum may have been in an earlier program of the update. A `depend`, a `scale` and operators of the update may
        write.

        Args:
            op: The operator.
            written: Names of the variables that it writes.
        """
        keeps_sum = op.type in ("depend", "scale")  # waits for the sum, or multiplies it by a constant
        if keeps_sum or ops.is_optimizer(op):
            return
        for name in written:
            prove(name not in self._ever_summed, f"{name} is written by {op.type} after its sum over the ranks")

    def _record_merge(self, op: Operator) -> None:
        """Record the addition of a gradient and its accumulator, which holds the gradients of earlier micro-steps.

        The result counts the micro-steps of both. In all else the two must have equal histories.

        Args:
            op: The addition, of gradient accumulation.

        Raises:
            Refused: The gradient is not computed yet or already summed over the ranks, or the accumulator was summed or
                scaled differently.
        """
        gradient, accumulator, out = ops.operands(op, "X", "Y", "Out")
        if gradient not in self._histories or self._histories[gradient].sums_over_ranks > 0:
            raise Refused(f"{gradient} is merged after its sum over the ranks, or before it is computed")
        history = self._histories[gradient]
        accumulated = self._histories.get(accumulator)
        if accumulated is None:  # the accumulator holds zeros
            self._histories[out] = history
            return
        is_alike = replace(accumulated, micro_steps=history.micro_steps) == history
        prove(is_alike, f"{gradient} is merged with an accumulator at another scale")
        self._histories[out] = replace(history, micro_steps=history.micro_steps + accumulated.micro_steps)

    def _record_buffer(self, op: Operator) -> None:
        """Note which gradients lie side by side in a buffer, for the all-reduce of the buffer.

        Args:
            op: A `coalesce_tensor`, which puts them there before they are computed.
        """
        (buffer,) = op.output("FusedOutput")
        self._gradients_by_buffer[buffer] = op.output("Output")

    def _record_sum_over_ranks(self, op: Operator) -> None:
        """Count one more sum over the ranks for each gradient that an all-reduce sums.

        Args:
            op: A `c_allreduce_sum` operator.

        Raises:
            Refused: A gradient in the buffer that is all-reduced is not computed yet.
        """
        (variable,) = op.input("X")
        for gradient in self._gradients_in(variable):
            history = self._histories[gradient]
            self._histories[gradient] = replace(history, sums_over_ranks=history.sums_over_ranks + 1)
            self._ever_summed.add(gradient)

    def _gradients_in(self, variable: str) -> list[str]:
        """Return the gradients that an all-reduce of a variable sums: those in a buffer, or the variable itself.

        Args:
            variable: Name of a buffer in which gradients lie side by side, of a gradient, or of anything else.

        Returns:
            Names of the gradients.

        Raises:
            Refused: A gradient in the buffer is not computed yet.
        """
        if variable in self._gradients_by_buffer:
            gradients = self._gradients_by_buffer[variable]
            for gradient in gradients:
                is_computed = gradient in self._histories
                prove(is_computed, f"{gradient} is summed over the ranks before it is computed")
            return gradients
        if variable in self._histories:
            return [variable]
        return []  # no gradient, or one that is not computed yet

    def _record_unscaling(self, op: Operator) -> None:
        """Record that Paddle's mixed precision divides gradients by the dynamic loss scale.

        Args:
            op: A `check_finite_and_unscale`. It also looks for values that are not finite; with any, the update is
                skipped.

        Raises:
            Refused: The operator reads a variable that no gradient reaches, or, with several ranks, a gradient that was
                not summed over the ranks exactly once.
        """
        for source, name in zip(op.input("X"), op.output("Out"), strict=True):
            prove(source in self._histories, f"{source} is unscaled but no gradient reaches it")
            history = self._histories[source]
            # Before the sum, one rank could find an infinity that the others do not, and skip the update alone. After
            # the sum, all ranks have the same gradient.
            prove(
                self._ranks == 1 or history.sums_over_ranks == 1,
                f"{source} is looked at for infinities before its sum over the ranks: they would differ",
            )
            self._histories[name] = replace(history, loss_scale_power=history.loss_scale_power - 1)

    def _record_copies(self, op: Operator) -> None:
        """Give the copies of gradients that an `update_loss_scaling` writes the histories of the originals.

        Args:
            op: The operator, of Paddle's mixed precision. If a gradient is not finite, it zeroes all of them, which
                skips the update.
        """
        for source, name in zip(op.input("X"), op.output("Out"), strict=True):
            self._histories[name] = self._histories[source]

    def _record_update(self, op: Operator) -> None:
        """Record for each parameter that an operator updates the history of the gradient by which it does so.

        Args:
            op: Operator that updates one or more parameters, such as `momentum`. It may multiply all gradients by a
                constant of its own, `rescale_grad`.

        Raises:
            Refused: A parameter is updated twice, or by a variable that no gradient of the loss reaches.
        """
        own_factor = op.attr("rescale_grad") if op.has_attr("rescale_grad") else 1.0
        for parameter, gradient in zip(op.input("Param"), op.input("Grad"), strict=True):
            is_gradient = gradient in self._histories
            prove(is_gradient, f"the optimizer reads {gradient}, which no gradient of the loss reaches")
            prove(parameter not in self.at_optimizer, f"{parameter} is updated twice")
            history = self._histories[gradient]
            self.at_optimizer[parameter] = replace(history, factor=history.factor * own_factor)


def _linear_inputs(op: Operator) -> list[str]:
    """Return the variables that an operator reads, except what a `depend` only waits for."""
    if op.type == "depend":
        return list(op.input("X"))  # handed on
    return list(op.input_arg_names)
