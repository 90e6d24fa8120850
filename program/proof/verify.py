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
class Gradient:
    """The history of a gradient: sums, factors and scales that operators have applied to it so far."""

    micro_steps: int = 1  # whose gradients are added up in it
    sums: int = 0  # how many times it was summed over the ranks
    factor: float = 1.0  # by which it is multiplied, without a dynamic loss scale
    scale_power: int = 0  # of the dynamic loss scale that it is multiplied by: 1 with the scale on it, 0 without


def _is_close(value: float, expected: float, least: float = 0.0) -> bool:
    """Tell whether a value is the expected one up to the rounding of C's float.

    The difference is held against the size of the expected value, or against `least` if that is larger.
    """
    return abs(value - expected) <= 1e-6 * max(abs(expected), least)


def gradients(update: Sequence[static.Program], *, ranks: int, scale: float = 1.0) -> dict[str, Gradient]:
    """Prove that an update trains every parameter by the mean of its gradients over all ranks and micro-steps.

    The programs of `update`, run in this order, are one update. Each gradient is followed through their operators from
    the loss to the optimizer, with the sums and factors that are applied to it. When the optimizer reads it, it must be

    - the sum of the gradients of all micro-steps,
    - summed over the ranks exactly once (not at all on one rank),
    - scaled by 1 / (ranks x micro-steps), with the loss scale taken off again.

    `scale` is the fixed loss scale, at which the gradients start and which the optimizer takes off by `rescale_grad`.

    Returns, by parameter, the history of the gradient that the optimizer reads. Raises Refused where a gradient has
    another history or is written again after its sum, or where no optimizer updates a trainable parameter.
    """
    histories = _Follower(update, ranks, scale).read_by_optimizer
    trainable = {parameter.name for parameter in update[-1].all_parameters() if parameter.trainable}
    not_updated = sorted(trainable - histories.keys())
    if not_updated:
        raise Refused(f"no optimizer updates {not_updated[0]} and {len(not_updated) - 1} more")

    for parameter, gradient in histories.items():
        _check_history(parameter, gradient, ranks=ranks, micro_steps=len(update))
    return histories


def _check_history(parameter: str, gradient: Gradient, *, ranks: int, micro_steps: int) -> None:
    """Prove that a parameter's gradient, as the optimizer reads it, is the mean over all ranks and micro-steps.

    Raises Refused where it is merged, summed or scaled otherwise.
    """
    subject = f"the gradient of {parameter}"
    merged = gradient.micro_steps
    prove(merged == micro_steps, f"{subject} is merged of {merged} micro-steps, not {micro_steps}")
    sums = 1 if ranks > 1 else 0
    prove(gradient.sums == sums, f"{subject} is summed over the ranks {gradient.sums} times, not {sums}")
    divisor = ranks * micro_steps
    is_mean = _is_close(gradient.factor, 1 / divisor)
    prove(is_mean, f"{subject} is scaled by {six_digits(gradient.factor)}, not by 1/{divisor}")
    power = gradient.scale_power
    prove(power == 0, f"{subject} still has the loss scale on it ({power:+d})")


class _Follower:
    """Follows the gradients of an update, operator by operator."""

    def __init__(self, update: Sequence[static.Program], ranks: int, scale: float) -> None:
        self.read_by_optimizer: dict[str, Gradient] = {}  # parameter: its gradient as the optimizer reads it
        self._histories: dict[str, Gradient] = {}  # variable: the history of the gradient in it
        self._gradients_in: dict[str, list[str]] = {}  # buffer: the gradients that lie in it
        self._summed: set[str] = set()  # gradients that were summed over the ranks
        self._ranks = ranks
        self._scale = scale
        self._runs = 0  # of the program that is being followed, in one update
        self._dynamic_scales: set[str] = set()  # variables by which AMP multiplies the loss
        for op in update[-1].global_block().ops:
            if op.attr("op_role") == ops.LOSS and op.type == "elementwise_mul":
                self._dynamic_scales.update(op.input("Y"))

        for program in dict.fromkeys(update):
            self._runs = list(update).count(program)
            self._histories = self._accumulators()  # all that a run of a program leaves to the next one
            for op in program.global_block().ops:
                self._follow(op)
        not_cleared = sorted(self._accumulators())
        if not_cleared:
            raise Refused(f"{not_cleared[0]} is not cleared after the update")

    def _accumulators(self) -> dict[str, Gradient]:
        """Return the histories of the gradients that are in accumulators of a gradient merge, by variable."""
        return {name: history for name, history in self._histories.items() if name.endswith(ops.MERGED)}

    def _follow(self, op: Operator) -> None:
        """Note what one operator does to gradients: start, merge, clear, sum, unscale, use them or hand them on.

        `self._histories` maps each variable that holds a gradient to that gradient's history, and is updated in place.
        Beside it, `self._gradients_in` notes which gradients a buffer holds. Operators of the forward pass change
        nothing.

        Raises Refused where an operator breaks the proof, as one that reduces a gradient to one rank alone.
        """
        role = op.attr("op_role")  # bits of BACKWARD, OPTIMIZE and LOSS
        is_start_of_backward = role == ops.BACKWARD | ops.LOSS
        if op.type == "coalesce_tensor":
            self._gradients_in[op.output("FusedOutput")[0]] = op.output("Output")
        elif is_start_of_backward:
            self._start_at_loss(op)
        elif ops.is_merge(op):
            self._add_accumulator(op)
        elif ops.is_clear(op):
            self._histories.pop(op.output("Out")[0], None)
        elif op.type == "c_allreduce_sum":
            self._sum_over_ranks(op.input("X")[0])
        elif op.type in ("c_reduce_sum", "c_broadcast") and role & ops.BACKWARD:
            raise Refused(f"{op.input('X')[0]} goes through {op.type}: this is not an all-reduce")
        elif op.type in ops.ALL_UPDATES:
            self._note_update(op)
        elif op.type == "check_finite_and_unscale":
            for source, name in zip(op.input("X"), op.output("Out"), strict=True):
                self._histories[name] = self._without_loss_scale(source)
        elif op.type == "update_loss_scaling":  # sets gradients to zero at an infinity, else leaves them as they are
            for source, name in zip(op.input("X"), op.output("Out"), strict=True):
                self._histories[name] = self._histories[source]
        elif role & (ops.BACKWARD | ops.OPTIMIZE):
            self._hand_on(op)

    def _start_at_loss(self, op: Operator) -> None:
        """Begin with the gradient of the loss, which an operator sets to the loss scale."""
        value = op.attr("value")
        prove(
            _is_close(value, self._scale),
            f"the gradients start at {six_digits(value)}, not at the loss scale {six_digits(self._scale)}",
        )
        self._histories[op.output_arg_names[0]] = Gradient(factor=value, micro_steps=self._runs)

    def _sum_over_ranks(self, name: str) -> None:
        """Count an all-reduce: of the gradients in a buffer, else of the variable itself if it is a gradient."""
        for gradient in self._gradients_in.get(name, []):
            prove(gradient in self._histories, f"{gradient} is summed over the ranks before it is computed")
        for gradient in self._gradients_in.get(name, [name]):
            if gradient in self._histories:
                history = self._histories[gradient]
                self._histories[gradient] = replace(history, sums=history.sums + 1)
                self._summed.add(gradient)

    def _without_loss_scale(self, source: str) -> Gradient:
        """Return the history of a gradient with the dynamic loss scale taken off once."""
        prove(source in self._histories, f"{source} is unscaled but no gradient reaches it")
        history = self._histories[source]
        prove(
            self._ranks == 1 or history.sums == 1,
            f"{source} is looked at for infinities before its sum over the ranks: they would differ",
        )
        return replace(history, scale_power=history.scale_power - 1)

    def _hand_on(self, op: Operator) -> None:
        """Give each output of an operator the history of the gradient that the operator reads.

        A history (`Gradient`) says what was done to a gradient so far: how many micro-steps are added up in it, how
        often it was summed over the ranks, the factor on it, and the power of the dynamic loss scale on it. All
        operators that come here are linear in the gradient that they read, so they leave this as it is, but for two:
        `scale` multiplies the factor, and the gradient of the multiplication by AMP's dynamic loss scale raises the
        power by 1. An operator that reads no gradient changes nothing.

        Raises Refused where gradients of different histories are joined, where a `scale` adds a bias or is by a
        variable, and where a gradient that was summed over the ranks is written again, other than by a `depend`, a
        `scale` or an operator of the optimizer.
        """
        # Of a `depend` only X is handed on: its other input is a buffer that it waits for.
        inputs = op.input("X") if op.type == "depend" else op.input_arg_names
        gradients_read = [name for name in inputs if name in self._histories]
        if not gradients_read:
            return
        histories = {self._histories[name] for name in gradients_read}
        are_alike = len(histories) == 1
        prove(are_alike, f"{op.type} joins gradients of different sums or scales: {sorted(gradients_read)[:2]}")
        history = histories.pop()
        if op.type == "scale":
            bias = op.attr("bias")
            is_constant = not bias and len(op.input_arg_names) == 1
            prove(is_constant, f"scale of {gradients_read[0]} is more than a constant factor: bias {six_digits(bias)}")
            history = replace(history, factor=history.factor * op.attr("scale"))
        # `_dynamic_scales` has the variables that AMP multiplies the loss by; `__init__` found them.
        if op.type == "elementwise_mul_grad" and self._dynamic_scales.intersection(op.input_arg_names):
            history = replace(history, scale_power=history.scale_power + 1)

        may_follow_sum = op.type in ("depend", "scale") or ops.is_optimizer(op)
        for name in op.output_arg_names:
            is_summed = name in self._summed  # by an all-reduce before this operator (`_sum_over_ranks`)
            prove(may_follow_sum or not is_summed, f"{name} is written by {op.type} after its sum over the ranks")
            if name != ops.EMPTY:  # which stands for an output that is not computed
                self._histories[name] = history

    def _add_accumulator(self, op: Operator) -> None:
        """Note that an operator adds a gradient and its accumulator: the result is of the micro-steps of both.

        An accumulator to which nothing was added yet holds zeros, and is of no micro-step. Raises Refused where the
        gradient is not computed yet, was summed over the ranks already, or has another factor or scale on it than the
        accumulator.
        """
        name, accumulator, out = ops.operands(op, "X", "Y", "Out")
        history = self._histories.get(name)
        if history is None or history.sums:
            raise Refused(f"{name} is merged after its sum over the ranks, or before it is computed")
        zeros = replace(history, micro_steps=0)  # an empty accumulator fits gradients of any factor
        accumulated = self._histories.get(accumulator, zeros)
        are_alike = replace(accumulated, micro_steps=0) == zeros
        prove(are_alike, f"{name} is merged with an accumulator at another scale")
        self._histories[out] = replace(history, micro_steps=history.micro_steps + accumulated.micro_steps)

    def _note_update(self, op: Operator) -> None:
        """Note the gradients by which an update operator changes its parameters, with its own factor applied."""
        rescaled = op.attr("rescale_grad") if op.has_attr("rescale_grad") else 1.0
        for parameter, gradient in zip(op.input("Param"), op.input("Grad"), strict=True):
            prove(gradient in self._histories, f"the optimizer reads {gradient}, which no gradient of the loss reaches")
            prove(parameter not in self.read_by_optimizer, f"{parameter} is updated twice")
            history = self._histories[gradient]
            self.read_by_optimizer[parameter] = replace(history, factor=history.factor * rescaled)


# ---- the optimizer


def optimizer(main: static.Program, config: OptimizerConfig) -> dict[str, int]:
    """Prove that the program updates its parameters by the optimizer, momentum and weight decay of `config`.

    Returns how many parameters each type of update operator updates, as {"momentum": 161}. Raises Refused for another
    optimizer, momentum or decay (or, of LARS, coefficient or epsilon), for a LARS operator that mixes up the states of
    its parameters, and for a half-precision parameter without an FP32 master.
    """
    block = main.global_block()
    parameters_by_operator: Counter[str] = Counter()
    for op in block.ops:
        if op.type not in ops.ALL_UPDATES:
            continue
        parameters = op.input("Param")
        parameters_by_operator[op.type] += len(parameters)
        prove(
            op.type in KINDS[config.kind].operators,
            f"the recipe asks for {config.kind}, the program updates {parameters[0]} by {op.type}",
        )
        _check_attributes(op, config)
        if op.type == "lars_momentum":
            _check_lars_states(op)
        _check_decays(op, config)
        is_half = any(type_in(block, name) == "float16" for name in parameters)
        has_masters = len(ops.operands(op, "MasterParam")) == len(parameters) and op.attr("multi_precision")
        prove(not is_half or has_masters, f"{parameters[0]} is in half precision and has no FP32 master")
    return dict(parameters_by_operator)


def _check_decays(op: Operator, config: OptimizerConfig) -> None:
    """Prove that an update operator decays each of its parameters as the recipe asks: by its weight decay, or not."""
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
    """Prove momentum, and LARS' coefficient and epsilon."""
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

    Such an operator takes lists: parameters, their velocities and, in half precision, their FP32 masters. Entry n of
    each list must belong to parameter n: it is called like the parameter, or like it with `_` and more at the end. And
    each list must be updated in place. Raises Refused for the first list of which this is not so.
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
    """Return the L2 weight decay that an update operator applies to the parameter at `index` in its list; 0: none.

    The operators say it in three ways: LARS by a list, `merged_momentum` by a list of methods and one of coefficients,
    which are empty where nothing decays, `momentum` by one method and one coefficient.
    """
    if op.type == "lars_momentum":
        return float(op.attr("lars_weight_decay")[index])
    method = op.attr("regularization_method")
    coefficient = op.attr("regularization_coeff")
    if op.type == "merged_momentum":
        if not method:
            return 0.0
        method = method[index]
        coefficient = coefficient[index]
    if method != "l2_decay":
        return 0.0
    return float(coefficient)


# ---- arithmetic and communication


def arithmetic(main: static.Program, dtype: str) -> None:
    """Prove that convolutions and matrix products compute in `dtype`, as `float16`, and the loss in float32.

    Only the weights of convolutions and products and the logits of the loss are looked at. `kernels.check` proves that
    all other operands have the types that these call for. Raises Refused for the first one of another type.
    """
    block = main.global_block()
    for op in block.ops:
        for factors in ops.FACTORS.get(op.type.removesuffix("_grad"), ()):
            for weights in ops.operands(op, factors.weights):
                prove(type_in(block, weights) == dtype, f"{op.type} of {weights} is not in {dtype}")
        if op.type == "softmax_with_cross_entropy":
            prove(type_in(block, op.input("Logits")[0]) == "float32", "the loss is not computed in float32")


def communicator(startup: static.Program, *, ranks: int) -> None:
    """Prove that there is one communicator and that it joins all ranks. Raises Refused where it is not so."""
    sizes = [op.attr("nranks") for op in startup.global_block().ops if op.type == "c_comm_init"]
    prove(sizes == [ranks], f"the communicators join {sizes or 'no'} ranks, not one all {ranks}")
