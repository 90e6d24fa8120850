"""Proof, read off a built training program, that each parameter is trained by the mean of its gradients.

A gradient is followed from the loss to the optimizer, operator by operator, and a `GradientHistory` records what the
operators do to it. When the optimizer reads it, it must have been summed over the ranks once and multiplied by
1 / (ranks x micro-steps), with the loss scale taken off again. Every operator that may touch it on its way is linear in
the gradient that it receives, so it hands the history on. Nothing is run.
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
    parameter: str = ""  # by which it is the gradient; empty for that by another variable
    is_zero_if_infinite: bool = False  # whether it is set to 0 where any gradient is not finite


_JOINING_FLAGS = ("concat", "reduce_any")  # operators that make one flag of infinities of several
_TO_OR_FROM_ONE_RANK = ("c_reduce_sum", "c_broadcast")  # operators that leave the sum on one rank, or send it from one
_SUMS = ("sum", "grad_add", "elementwise_add", "share_buffer")  # of gradients; `ops.is_aliasing` says when the last is
# Operators that hand on a gradient, or what is linear in it, and that are not named as a gradient of another one.
_LINEAR = {*_SUMS, "scale", "cast", "assign", "depend", "pool2d"}  # `pool2d`: passes.gradients.spread_mean_gradients
_LINEAR |= {"concat", "split", "stack", "slice", "reshape2", "transpose2", "flip", "squeeze2", "unsqueeze2"}


def check_gradients(
    update: Sequence[static.Program],
    *,
    ranks: int,
    scale: float = 1.0,
    of_network: frozenset[Operator] = frozenset(),
) -> int:
    """Prove that an update trains each parameter by the mean of its gradients over all ranks and micro-steps.

    Args:
        update: The program of each micro-step (a part of the batch), in order. The last one has the optimizer; without
            gradient accumulation it is the only one.
        ranks: Number of data-parallel processes.
        scale: The fixed loss scale, at which the gradient of the loss must start; 1 without one.
        of_network: Operators that are proved to compute what the network as written does. What they do to a gradient
            belongs to the gradient, as the weight of an auxiliary loss.

    Returns:
        How many parameters the optimizer updates, each by one gradient.

    Raises:
        Refused: A gradient is not this mean, a trainable parameter is not updated, or the programs are not
            data-parallel training. The message names the first difference.
    """
    main = update[-1]
    dynamic_scales = _dynamic_scales(main, of_network)
    tracker = _GradientTracker(ranks=ranks, loss_scale=scale, dynamic_scales=dynamic_scales, of_network=of_network)
    # 4 micro-steps are 3 runs of one program and then 1 run of `main`. Each program is read once.
    for program in dict.fromkeys(update):
        tracker.follow(program.global_block(), runs=update.count(program))
    tracker.refuse_uncleared_accumulators()

    _refuse_parameters_not_updated(main, updated=set(tracker.at_optimizer))
    for parameter, history in tracker.at_optimizer.items():
        _check_is_mean(parameter, history, ranks=ranks, micro_steps=len(update))
        prove(
            history.is_zero_if_infinite or not dynamic_scales,
            f"an infinite gradient of {parameter} would reach it: no update_loss_scaling sets it to 0 by the flags of "
            "all checks",
        )
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


def _dynamic_scales(main: static.Program, of_network: frozenset[Operator]) -> set[str]:
    """Return the variables by which Paddle's mixed precision (AMP) multiplies the loss of a program.

    Args:
        main: Training program.
        of_network: Operators of the network as written, whose loss may be a product too.

    Returns:
        Their names; empty without a dynamic loss scale.
    """
    scales: set[str] = set()
    for op in main.global_block().ops:
        if op.attr("op_role") == ops.LOSS and op.type == "elementwise_mul" and op not in of_network:
            scales.update(op.input("Y"))
    return scales


class _GradientTracker:
    """Reads the programs of an update operator by operator, and records what was done to each gradient.

    Call `follow` with each program, in order, then read `at_optimizer`. All methods raise Refused where a program is
    not data-parallel training.
    """

    def __init__(
        self, *, ranks: int, loss_scale: float, dynamic_scales: set[str], of_network: frozenset[Operator]
    ) -> None:
        """Start without any gradient.

        Args:
            ranks: Number of data-parallel processes.
            loss_scale: The fixed loss scale; 1 without one.
            dynamic_scales: Variables by which mixed precision multiplies the loss.
            of_network: Operators of the network as written, and of its gradients.
        """
        self.at_optimizer: dict[str, GradientHistory] = {}  # by parameter: of the gradient that the optimizer reads
        self._ranks = ranks
        self._loss_scale = loss_scale
        self._dynamic_scales = dynamic_scales
        self._of_network = of_network
        # By the variable that holds the gradient now. A variable without a history holds none: its gradient is not
        # computed yet, or it is an accumulator of zeros.
        self._histories: dict[str, GradientHistory] = {}
        self._ever_summed: set[str] = set()  # variables whose gradient was summed over the ranks, in any program so far
        # Of the program that is being read:
        self._parameters_by_gradient: dict[str, str] = {}
        self._gradients_by_buffer: dict[str, list[str]] = {}
        self._sums_by_buffer: dict[str, int] = {}  # how many times a buffer was summed over the ranks
        self._lies_in: dict[str, str] = {}  # by variable: the one whose buffer an operator has let it use
        self._sums_by_adding: set[str] = set()  # gradients to which a convolution has added, until a sum is read there
        self._checks_by_flag: dict[str, set[str]] = {}  # by flag of infinities: the checks (their flags) that set it
        self._runs = 1  # how many times an update runs that program

    def follow(self, block: Block, *, runs: int) -> None:
        """Record what a program does to the gradients.

        Args:
            block: Main block of the next program of an update.
            runs: How many times the update runs it. The program is read once, and its gradients count as those of
                `runs` micro-steps.
        """
        self._runs = runs
        self._parameters_by_gradient = ops.parameters_by_gradient(block)
        self._gradients_by_buffer = {}
        self._sums_by_buffer = {}
        self._lies_in = {}
        self._sums_by_adding = set()
        self._checks_by_flag = {}
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
        """Record what one operator does to gradients, such as a sum over the ranks; nothing if it reads none.

        An operator is told by its type, or by its role, which says the part of the training step that it is in.
        """
        role = op.attr("op_role")  # bits of BACKWARD, OPTIMIZE and LOSS
        is_in_backward = bool(role & ops.BACKWARD)
        starts_gradients = role == (ops.BACKWARD | ops.LOSS)
        if is_in_backward and op.type in _TO_OR_FROM_ONE_RANK:
            raise Refused(f"{op.input('X')[0]} goes through {op.type}: this is not an all-reduce")
        if op.type in ops.ALL_UPDATES:
            self._record_update(op)
        elif ops.is_aliasing(op):
            self._lies_in |= zip(op.output("Out"), op.input("X"), strict=True)
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
        elif op.type in _JOINING_FLAGS and self._checks_of(op):
            self._checks_by_flag[op.output("Out")[0]] = self._checks_of(op)
        else:
            self._record_linear_operator(op)

    def _record_gradient_of_loss(self, op: Operator) -> None:
        """Record the start of the backward pass, which sets the gradient of the loss to a constant.

        Args:
            op: The operator. With the constant 128 in a program of 3 runs, the gradient's history is
                GradientHistory(factor=128.0, micro_steps=3).

        Raises:
            Refused: The constant is not the fixed loss scale.
        """
        text = op.attr("str_value")  # Paddle reads it in place of the value, where it is not empty
        constant = float(text) if text else op.attr("value")
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
            op: Any operator. Without a gradient among its inputs, nothing changes.

        Raises:
            Refused: The operator is not known to be linear in a gradient, the gradients that it reads have different
                histories, it adds something to one, overwrites a sum over the ranks, scales by more than a constant, or
                writes the gradient of one parameter where that of another one belongs.
        """
        gradients_read = [name for name in _linear_inputs(op) if name in self._histories]
        if not gradients_read:
            return
        self._refuse_other_than_linear(op, gradients_read[0])
        self._refuse_exchanged_gradients(op)
        if op.type == "share_buffer":
            self._refuse_lost_addend(op)
        gradients_read += self._gradients_added_to(op)
        histories_read = {self._histories[name] for name in gradients_read}
        are_alike = len(histories_read) == 1
        prove(are_alike, f"{op.type} joins gradients of different sums or scales: {sorted(gradients_read)[:2]}")
        (history_read,) = histories_read

        written = [name for name in op.output_arg_names if name != ops.EMPTY]  # EMPTY: a gradient that is not written
        self._refuse_overwritten_sum(op, written)
        history_written = self._with_factor_of(op, history_read, gradient=gradients_read[0])
        if op.type == "depend":
            history_written = self._with_sum_of_buffer(op, history_written)
        for name in written:
            parameter = self._parameters_by_gradient.get(name, history_written.parameter)
            self._histories[name] = replace(history_written, parameter=parameter)

    def _refuse_other_than_linear(self, op: Operator, gradient: str) -> None:
        """Raise Refused if an operator may do more to a gradient than hand on what is linear in it.

        Args:
            op: The operator. All that Paddle names as the gradient of another operator are linear, and all that it adds
                as gradients to the network as written.
            gradient: Name of a gradient that it reads, for messages.
        """
        is_linear = op.type.endswith("_grad") or op.type in _LINEAR or op in self._of_network
        prove(is_linear, f"{op.type} reads {gradient}: it is not known to keep gradients in proportion")
        if op.type in _SUMS:
            for name in op.input_arg_names:
                is_of_loss = name in self._histories
                prove(is_of_loss, f"{op.type} adds {name} to {gradient}, which is not a gradient of the loss")

    def _refuse_exchanged_gradients(self, op: Operator) -> None:
        """Raise Refused if an operator writes a gradient by one parameter to the variable of another one's gradient.

        Args:
            op: The operator. For an input slot such as `Filter`, it may have an output slot `Filter@GRAD`. In the input
                slot is a parameter, its copy of another type, such as `fc.w.cast_fp16`, or anything else.
        """
        for slot in op.input_names:
            gradients = ops.operands(op, f"{slot}@GRAD")
            for variable, gradient in zip(op.input(slot), gradients, strict=False):
                parameter = self._parameters_by_gradient.get(f"{variable}@GRAD")
                named_for = self._parameters_by_gradient.get(gradient)
                is_exchanged = parameter and named_for and parameter != named_for
                prove(not is_exchanged, f"{op.type} writes the gradient of {variable} to {gradient}")

    def _refuse_lost_addend(self, op: Operator) -> None:
        """Raise Refused if an operator stands for the sum of two gradients and no convolution has added them up.

        Args:
            op: A `share_buffer` of two inputs. It computes nothing: an operator before it must have added one of them
                to the other (`use_addto`), which it does for one sum.
        """
        added_up = self._sums_by_adding.intersection(op.input_arg_names)
        prove(bool(added_up), f"a share_buffer takes {op.input('X')[0]} for a sum, but no convolution has added to it")
        self._sums_by_adding -= added_up

    def _gradients_added_to(self, op: Operator) -> list[str]:
        """Return the gradients to which an operator adds its result, as `enable_addto` has it; mostly none.

        Raises:
            Refused: There is no gradient in the buffer to which it adds.
        """
        added_to = []
        for name in ops.added_to(op):
            gradient = self._lies_in.pop(name, "nothing")  # so that nothing adds to it once more
            prove(gradient in self._histories, f"{op.type} adds to {name}, in whose buffer no gradient lies")
            added_to.append(gradient)
            self._sums_by_adding.add(name)
        return added_to

    def _with_sum_of_buffer(self, op: Operator, history: GradientHistory) -> GradientHistory:
        """Return a gradient's history after it has waited for the sum of its buffer over the ranks.

        Args:
            op: A `depend`, which waits for the sum of a buffer in which the gradient lies, or for anything else.
            history: History of the gradient before.
        """
        (gradient,) = op.input("X")
        sums = 0
        for buffer in op.input("Dep"):
            if gradient in self._gradients_by_buffer.get(buffer, ()):
                sums += self._sums_by_buffer.get(buffer, 0)
        return replace(history, sums_over_ranks=history.sums_over_ranks + sums)

    def _with_factor_of(self, op: Operator, history: GradientHistory, *, gradient: str) -> GradientHistory:
        """Return a gradient's history after an operator, with the factor by which the operator multiplies it.

        For example, a `scale` by 0.5 turns the factor 0.25 of the history into 0.125.

        Args:
            op: The operator. All but a `scale` and the gradient of the loss's scaling leave the history as it is, and
                so do those of the network as written.
            history: History of the gradient that the operator reads.
            gradient: Name of this gradient, for the message.

        Raises:
            Refused: A `scale` adds something, or takes its factor from a variable.
        """
        if op in self._of_network:
            return history
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

        Raises:
            Refused: A gradient gets a place of another shape than its own.
        """
        (buffer,) = op.output("FusedOutput")
        gradients = op.output("Output")
        for parameter, gradient in zip(op.input("Input"), gradients, strict=True):  # a place as the parameter needs it
            has_its_shape = op.block.var(gradient).shape == op.block.var(parameter).shape
            prove(has_its_shape, f"{gradient} gets the place of a gradient of {parameter} in {buffer}")
        self._gradients_by_buffer[buffer] = gradients

    def _record_sum_over_ranks(self, op: Operator) -> None:
        """Count one more sum over the ranks for the gradient that an all-reduce sums, or for a buffer of gradients.

        Those of a buffer count as summed once a `depend` has made them wait for the buffer.

        Args:
            op: A `c_allreduce_sum` operator.

        Raises:
            Refused: A gradient in the buffer that is all-reduced is not computed yet.
        """
        (variable,) = op.input("X")
        gradients = self._gradients_in(variable)
        self._ever_summed.update(gradients)
        if variable in self._gradients_by_buffer:
            self._sums_by_buffer[variable] = self._sums_by_buffer.get(variable, 0) + 1
            return
        for gradient in gradients:
            history = self._histories[gradient]
            self._histories[gradient] = replace(history, sums_over_ranks=history.sums_over_ranks + 1)

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
            Refused: The operator divides by another variable, reads one that no gradient reaches, or, with several
                ranks, a gradient that was not summed over the ranks exactly once.
        """
        (flag,) = op.output("FoundInfinite")
        self._checks_by_flag[flag] = {flag}
        (scale,) = op.input("Scale")
        prove(scale in self._dynamic_scales, f"gradients are divided by {scale}, which is not the loss scale")
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
            op: The operator, of Paddle's mixed precision. If its flag says that a gradient is not finite, it zeroes all
                of them, which skips the update. There is a check for each data type, and the flag must be of all.
        """
        all_checks = set().union(*self._checks_by_flag.values())
        sees_all = self._checks_of(op) == all_checks
        for source, name in zip(op.input("X"), op.output("Out"), strict=True):
            self._histories[name] = replace(self._histories[source], is_zero_if_infinite=sees_all)

    def _checks_of(self, op: Operator) -> set[str]:
        """Return the checks for infinities of whose flags an operator reads one, or one made of them."""
        checks: set[str] = set()
        for name in op.input_arg_names:
            checks |= self._checks_by_flag.get(name, set())
        return checks

    def _record_update(self, op: Operator) -> None:
        """Record for each parameter that an operator updates the history of the gradient by which it does so.

        Args:
            op: Operator that updates one or more parameters, such as `momentum`. It may multiply all gradients by a
                constant of its own, `rescale_grad`.

        Raises:
            Refused: A parameter is updated twice, by the gradient of another one, or by a variable that no gradient of
                the loss reaches.
        """
        own_factor = op.attr("rescale_grad") if op.has_attr("rescale_grad") else 1.0
        for parameter, gradient in zip(op.input("Param"), op.input("Grad"), strict=True):
            is_gradient = gradient in self._histories
            prove(is_gradient, f"the optimizer reads {gradient}, which no gradient of the loss reaches")
            prove(parameter not in self.at_optimizer, f"{parameter} is updated twice")
            history = self._histories[gradient]
            is_its_own = history.parameter == parameter
            prove(is_its_own, f"{parameter} is updated by {gradient}, which is not a gradient of it")
            self.at_optimizer[parameter] = replace(history, factor=history.factor * own_factor)


def _linear_inputs(op: Operator) -> list[str]:
    """Return the variables that an operator reads, except what a `depend` only waits for."""
    if op.type == "depend":
        return list(op.input("X"))  # handed on
    return list(op.input_arg_names)
