"""Proof, read off a built training program, that it is data-parallel SGD of what was asked for.

The gradient of each parameter is followed from the loss to the optimizer as a value (times it was summed over the
ranks, factor on it): both must be (once, 1 / ranks) when the optimizer reads it, with the loss scale taken off again.
Every operator of the backward pass is linear in the gradient that it receives, so it hands the value on. What the
knobs of the strategy did is proved in `knobs.py`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from paddle import static
from paddle.base.framework import Operator

from program import ops
from program.ops import Refused, prove, type_in
from program.optimizers import KINDS, OptimizerConfig
from runlog.digits import six_digits


@dataclass(frozen=True, kw_only=True)
class GradientHistory:
    """The history of a gradient: what operators have done to it so far."""

    micro_steps: int = 1  # number of micro-steps whose gradients are added up in it
    sums: int = 0  # how many times it was summed over the ranks
    factor: float = 1.0  # product of the constants that it was multiplied by
    scale_power: int = 0  # power of the dynamic loss scale on it: 1 while the loss is scaled, 0 after unscaling


def _is_close(value: float, expected: float, least: float = 0.0) -> bool:
    """Tell whether a value is the expected one up to the rounding of C's float.

    The difference may be 1e-6 times the expected value, or 1e-6 times `least` if that is larger. `least` is for
    expected values at or near 0.
    """
    return abs(value - expected) <= 1e-6 * max(abs(expected), least)


def check_gradients(update: Sequence[static.Program], *, ranks: int, scale: float = 1.0) -> dict[str, GradientHistory]:
    """Prove that an update trains each parameter by the mean of its gradients over all ranks and micro-steps.

    `update` lists the program of each micro-step, in order. `scale` is the fixed loss scale.

    Returns, by parameter, the gradient's history up to the optimizer. Raises Refused at the first difference.
    """
    histories = _Follower(update, ranks=ranks, scale=scale).follow_to_optimizer()
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

    `history` says what was done to the gradient until then. Raises Refused if the gradients of another number of
    micro-steps are added up in it, or if it was summed or scaled in another way.
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
    is_mean = _is_close(history.factor, 1 / divisor)
    prove(is_mean, f"{subject} is scaled by {six_digits(history.factor)}, not by 1/{divisor}")
    power = history.scale_power
    prove(power == 0, f"{subject} still has the loss scale on it ({power:+d})")


class _Follower:
    """Follows the gradients of an update through its programs, operator by operator."""

    def __init__(self, update: Sequence[static.Program], *, ranks: int, scale: float) -> None:
        self._update = update
        self._ranks = ranks
        self._scale = scale
        self._read_by_optimizer: dict[str, GradientHistory] = {}  # parameter: its gradient as the optimizer reads it
        self._histories: dict[str, GradientHistory] = {}  # variable: the history of the gradient in it
        self._gradients_by_buffer: dict[str, list[str]] = {}  # buffer: the gradients that lie in it
        self._ever_summed: set[str] = set()  # variables whose gradient was summed over the ranks, in any program so far
        self._runs = 0  # how many times an update runs the program that is being followed
        self._dynamic_scales: set[str] = set()  # variables by which AMP multiplies the loss
        for op in update[-1].global_block().ops:
            if op.attr("op_role") == ops.LOSS and op.type == "elementwise_mul":
                self._dynamic_scales.update(op.input("Y"))

    def follow_to_optimizer(self) -> dict[str, GradientHistory]:
        """Return, by parameter, the history of the gradient that the optimizer reads; to be called once.

        `self._update` lists the programs of one update. A program that runs N times is in the list N times, but is
        followed once. Each of its gradients then counts as the sum of N micro-steps.

        Raises Refused if `_note` refuses an operator, or if an accumulator still holds a gradient after the update.
        """
        for program in dict.fromkeys(self._update):  # each program once
            self._runs = list(self._update).count(program)
            # Only accumulators carry a gradient from one program to the next.
            self._histories = self._histories_of_accumulators()
            for op in program.global_block().ops:
                self._note(op)  # an update operator is noted in `self._read_by_optimizer`, which is returned
        not_cleared = sorted(self._histories_of_accumulators())
        if not_cleared:
            raise Refused(f"{not_cleared[0]} is not cleared after the update")
        return self._read_by_optimizer

    def _histories_of_accumulators(self) -> dict[str, GradientHistory]:
        """Return those of `self._histories` that belong to accumulators (gradient accumulation), by variable."""
        return {name: history for name, history in self._histories.items() if name.endswith(ops.MERGED)}

    def _note(self, op: Operator) -> None:
        """Update the histories of gradients by what one operator does; to be called in the order of the program.

        `self._histories` maps each variable that holds a gradient to the gradient's history. The history lists what
        happened to the gradient so far: merged, summed over the ranks, scaled, unscaled.

        - Operators that start, merge, sum, unscale or use gradients have a case of their own.
        - Any other operator of the backward pass or the optimizer hands the history on (`_propagate`).
        - Any other operator of the forward pass changes nothing.

        Raises Refused if an operator cannot be part of data-parallel training.
        """
        role = op.attr("op_role")  # bits of BACKWARD, OPTIMIZE and LOSS
        is_in_backward = bool(role & ops.BACKWARD)
        is_start_of_backward = role == ops.BACKWARD | ops.LOSS
        # Outside the backward pass these two operators carry no gradients.
        is_one_sided = op.type in ("c_reduce_sum", "c_broadcast") and is_in_backward
        if op.type == "coalesce_tensor":  # gradients become slices of a buffer
            self._gradients_by_buffer[op.output("FusedOutput")[0]] = op.output("Output")
        elif is_start_of_backward:
            self._start_at_loss(op)
        elif ops.is_merge(op):
            self._note_merge(op)
        elif ops.is_clear(op):  # an accumulator becomes zero
            self._histories.pop(op.output("Out")[0], None)
        elif op.type == "c_allreduce_sum":
            self._note_all_reduce(op.input("X")[0])
        elif is_one_sided:  # sums to one rank only, or sends from one rank only
            raise Refused(f"{op.input('X')[0]} goes through {op.type}: this is not an all-reduce")
        elif op.type in ops.ALL_UPDATES:
            self._note_update(op)
        elif op.type in ("check_finite_and_unscale", "update_loss_scaling"):
            self._note_loss_scaling(op)
        elif is_in_backward or ops.is_optimizer(op):  # any other operator that may hand a gradient on
            self._propagate(op)

    def _start_at_loss(self, op: Operator) -> None:
        """Begin the history of the loss's gradient, which an operator sets to the loss scale."""
        value = op.attr("value")
        prove(
            _is_close(value, self._scale),
            f"the gradients start at {six_digits(value)}, not at the loss scale {six_digits(self._scale)}",
        )
        self._histories[op.output_arg_names[0]] = GradientHistory(factor=value, micro_steps=self._runs)

    def _note_all_reduce(self, name: str) -> None:
        """Record an all-reduce of the variable `name`: the `sums` in the history of each gradient in it rises by 1.

        - buffer: it holds several gradients. Raises Refused if one of them is not computed yet.
        - variable of a single gradient: it holds this one.
        - any other variable: it holds none, and nothing changes.
        """
        if name in self._gradients_by_buffer:
            gradients = self._gradients_by_buffer[name]  # all that lie in the buffer
            for gradient in gradients:
                prove(gradient in self._histories, f"{gradient} is summed over the ranks before it is computed")
        elif name in self._histories:
            gradients = [name]
        else:
            gradients = []  # the variable holds no gradient
        for gradient in gradients:
            history = self._histories[gradient]
            self._histories[gradient] = replace(history, sums=history.sums + 1)
            self._ever_summed.add(gradient)

    def _note_loss_scaling(self, op: Operator) -> None:
        """Carry the history of each gradient from X to Out of an operator of AMP that takes all gradients.

        A history lists what happened to a gradient so far (`GradientHistory`). Two operators come here:

        - `check_finite_and_unscale` takes the dynamic loss scale off each gradient, and so off its history.
        - `update_loss_scaling` zeroes all gradients if one is not finite. It changes no history.
        """
        for source, name in zip(op.input("X"), op.output("Out"), strict=True):
            if op.type == "check_finite_and_unscale":
                self._histories[name] = self._without_loss_scale(source)
            else:
                self._histories[name] = self._histories[source]

    def _without_loss_scale(self, source: str) -> GradientHistory:
        """Return the history of the gradient in `source` after the dynamic loss scale is taken off once.

        Raises Refused if `source` holds no gradient, or if the gradient is not summed over the ranks yet. Ranks would
        then find different infinities.
        """
        prove(source in self._histories, f"{source} is unscaled but no gradient reaches it")
        history = self._histories[source]
        prove(
            self._ranks == 1 or history.sums == 1,
            f"{source} is looked at for infinities before its sum over the ranks: they would differ",
        )
        return replace(history, scale_power=history.scale_power - 1)

    def _propagate(self, op: Operator) -> None:
        """Give each output of an operator the history of the gradient that the operator reads.

        Every operator that comes here is linear in the gradient. So its outputs have the same history, except for a
        factor or a loss scale (`_after_scaling_by`). An operator that reads no gradient changes nothing.

        Raises Refused if the operator

        - joins gradients of different histories, or
        - overwrites a gradient after its all-reduce. Only `depend`, `scale` and operators of the optimizer may do so.
        """
        # A `depend` hands on X and only waits for its other input, so only X carries a gradient.
        inputs = op.input("X") if op.type == "depend" else op.input_arg_names
        gradients_read = [name for name in inputs if name in self._histories]
        if not gradients_read:
            return
        histories = {self._histories[name] for name in gradients_read}
        are_alike = len(histories) == 1
        prove(are_alike, f"{op.type} joins gradients of different sums or scales: {sorted(gradients_read)[:2]}")
        (history_read,) = histories
        history_of_outputs = self._after_scaling_by(op, history_read, gradient=gradients_read[0])

        # These operators wait for the summed gradient, scale it or apply it. Any other would change the sum.
        # `self._ever_summed` names the variables that were all-reduced.
        may_write_after_sum = op.type in ("depend", "scale") or ops.is_optimizer(op)
        for name in op.output_arg_names:
            is_summed = name in self._ever_summed
            prove(may_write_after_sum or not is_summed, f"{name} is written by {op.type} after its sum over the ranks")
            is_computed = name != ops.EMPTY
            if is_computed:
                self._histories[name] = history_of_outputs

    def _after_scaling_by(self, op: Operator, history: GradientHistory, *, gradient: str) -> GradientHistory:
        """Return the history of a gradient after an operator, which may multiply it by a factor or a loss scale.

        `history` is the history before the operator, and `gradient` the name for the message.

        - `scale`: `factor` is multiplied by the operator's constant. Raises Refused if the operator adds a bias or
          scales by a variable.
        - gradient of AMP's multiplication of the loss by the loss scale: `scale_power` rises by 1.
        - any other operator: the history stays the same.
        """
        if op.type == "scale":
            bias = op.attr("bias")
            is_constant_factor = not bias and len(op.input_arg_names) == 1
            prove(is_constant_factor, f"scale of {gradient} is more than a constant factor: bias {six_digits(bias)}")
            return replace(history, factor=history.factor * op.attr("scale"))
        # AMP multiplies the loss by its dynamic scale, so the gradient of this operator is scaled too.
        is_by_loss_scale = bool(self._dynamic_scales.intersection(op.input_arg_names))
        if op.type == "elementwise_mul_grad" and is_by_loss_scale:
            return replace(history, scale_power=history.scale_power + 1)
        return history

    def _note_merge(self, op: Operator) -> None:
        """Record that an operator adds a gradient and its accumulator (gradient accumulation).

        The output gets the history of the gradient, except for `micro_steps`. This number is the sum of the gradient's
        and the accumulator's. An accumulator without a history holds zeros and counts 0 micro-steps.

        Raises Refused if the gradient is not computed yet or was already summed over the ranks, or if gradient and
        accumulator were scaled differently.
        """
        name, accumulator, out = ops.operands(op, "X", "Y", "Out")
        history = self._histories.get(name)
        if history is None or history.sums:  # not computed yet, or summed over the ranks at least once
            raise Refused(f"{name} is merged after its sum over the ranks, or before it is computed")
        accumulated = self._histories.get(accumulator)
        if accumulated is None:
            accumulated_micro_steps = 0  # the accumulator holds zeros
        else:
            accumulated_micro_steps = accumulated.micro_steps
            # Sums, factor and loss scale must be equal. The numbers of micro-steps may differ.
            differ_only_in_micro_steps = replace(accumulated, micro_steps=history.micro_steps) == history
            prove(differ_only_in_micro_steps, f"{name} is merged with an accumulator at another scale")
        self._histories[out] = replace(history, micro_steps=history.micro_steps + accumulated_micro_steps)

    def _note_update(self, op: Operator) -> None:
        """Record the gradient that an update operator reads for each parameter, with its factor `rescale_grad` applied.

        Raises Refused if no gradient of the loss reaches a parameter's gradient, or if a parameter is updated twice.
        """
        own_factor = op.attr("rescale_grad") if op.has_attr("rescale_grad") else 1.0
        for parameter, gradient in zip(op.input("Param"), op.input("Grad"), strict=True):
            prove(gradient in self._histories, f"the optimizer reads {gradient}, which no gradient of the loss reaches")
            prove(parameter not in self._read_by_optimizer, f"{parameter} is updated twice")
            history = self._histories[gradient]
            self._read_by_optimizer[parameter] = replace(history, factor=history.factor * own_factor)


# ---- the optimizer


def check_optimizer(main: static.Program, config: OptimizerConfig) -> dict[str, int]:
    """Prove that a program updates its parameters by the optimizer of `config`.

    Returns how many parameters each type of update operator updates, as {"momentum": 161}. Raises Refused at the first
    difference.
    """
    parameter_counts: Counter[str] = Counter()
    for op in main.global_block().ops:
        if op.type in ops.ALL_UPDATES:
            _check_update(op, config)
            parameter_counts[op.type] += len(op.input("Param"))
    return dict(parameter_counts)


def _check_update(op: Operator, config: OptimizerConfig) -> None:
    """Prove that an update operator is the optimizer of `config`, with an FP32 master of each half-precision parameter.

    Raises Refused for the first difference in the operator's type, settings or states.
    """
    parameters = op.input("Param")
    prove(
        op.type in KINDS[config.kind].operators,
        f"the recipe asks for {config.kind}, the program updates {parameters[0]} by {op.type}",
    )
    _check_attributes(op, config)
    if op.type == "lars_momentum":
        _check_lars_states(op)
    _check_decays(op, config)
    is_half = any(type_in(op.block, name) == "float16" for name in parameters)
    has_masters = len(ops.operands(op, "MasterParam")) == len(parameters) and op.attr("multi_precision")
    prove(not is_half or has_masters, f"{parameters[0]} is in half precision and has no FP32 master")


def _check_decays(op: Operator, config: OptimizerConfig) -> None:
    """Prove that an update operator has the weight decay of `config` for each of its parameters.

    It is 0 for parameters that do not decay. Raises Refused for the first parameter with another weight decay.
    """
    for index, name in enumerate(op.input("Param")):
        decay = _decay(op, index)
        expected = config.weight_decay if config.decays(name) else 0.0
        prove(
            _is_close(decay, expected, least=1e-3),
            f"weight decay of {name} is {six_digits(decay)}, not {six_digits(expected)}",
        )


class _Attribute(NamedTuple):
    """An attribute of an update, and the value that the recipe asks for."""

    attr: str
    called: str
    expected: float


def _check_attributes(op: Operator, config: OptimizerConfig) -> None:
    """Prove that an update operator has the momentum of `config` and, for LARS, its coefficient and epsilon.

    Raises Refused for the first attribute of another value.
    """
    attributes = [_Attribute("mu", "momentum", config.momentum)]
    if op.type == "lars_momentum":
        attributes.append(_Attribute("lars_coeff", "lars_coeff", config.lars_coefficient))
        attributes.append(_Attribute("epsilon", "epsilon", config.lars_epsilon))
    parameter = op.input("Param")[0]
    for attr, called, expected in attributes:
        value = op.attr(attr)
        prove(
            _is_close(value, expected, least=1e-3),
            f"{called} of {parameter} is {six_digits(value)}, not {six_digits(expected)}",
        )


def _check_lars_states(op: Operator) -> None:
    """Prove that one LARS operator updates each of its parameters with that parameter's own state.

    Each slot of the operator holds a list, with one entry for each parameter. The state of `fc.w` is called `fc.w_...`.
    Raises Refused for the first state of another parameter.
    """
    parameters = op.input("Param")
    slots = ["Param", "Velocity"]
    if op.attr("multi_precision"):
        slots.append("MasterParam")
    for slot in slots:
        names = op.input(slot)
        prove(op.output(f"{slot}Out") == names, f"{op.type} of {parameters[0]} writes another {slot} than it reads")
        for parameter, name in zip(parameters, names, strict=True):
            is_its_own = name == parameter or name.startswith(f"{parameter}_")
            prove(is_its_own, f"{op.type} updates {parameter} by the {slot} of another parameter")


def _decay(op: Operator, index: int) -> float:
    """Return the L2 weight decay that an update operator applies to its parameter number `index`; 0 for none.

    The attributes depend on the operator:

    - `lars_momentum`: a list of weight decays.
    - `merged_momentum`: a list of methods and one of coefficients. Both are empty if no parameter decays.
    - `momentum`: one method and one coefficient.
    """
    if op.type == "lars_momentum":
        return float(op.attr("lars_weight_decay")[index])
    if op.type == "merged_momentum":
        methods = op.attr("regularization_method")  # a list with one for each parameter
        if not methods:
            return 0.0  # no parameter decays
        method = methods[index]
        coefficient = op.attr("regularization_coeff")[index]
    else:  # `momentum`, which updates one parameter
        method = op.attr("regularization_method")
        coefficient = op.attr("regularization_coeff")
    if method != "l2_decay":
        return 0.0
    return float(coefficient)


# ---- arithmetic and communication


def check_compute_types(main: static.Program, dtype: str) -> None:
    """Prove that convolutions and matrix products compute in `dtype`, as `float16`, and the loss in float32.

    Only weights and the logits of the loss are looked at. `kernels.check` proves that the other operands of an operator
    have matching types. Raises Refused for the first weights or logits of another type.
    """
    block = main.global_block()
    for op in block.ops:
        # FACTORS maps a type of operator to the slots of the tensors that it multiplies.
        for slots in ops.FACTORS.get(op.type.removesuffix("_grad"), ()):
            for weight_name in ops.operands(op, slots.weights):
                prove(type_in(block, weight_name) == dtype, f"{op.type} of {weight_name} is not in {dtype}")
        if op.type == "softmax_with_cross_entropy":
            prove(type_in(block, op.input("Logits")[0]) == "float32", "the loss is not computed in float32")


def check_communicator(startup: static.Program, *, ranks: int) -> None:
    """Prove that a start-up program creates one communicator, which joins all ranks. Raises Refused otherwise."""
    sizes = [op.attr("nranks") for op in startup.global_block().ops if op.type == "c_comm_init"]
    prove(sizes == [ranks], f"the communicators join {sizes or 'no'} ranks, not one all {ranks}")
