"""Proof, read off a built training program, that it computes the loss and the gradients of the network as written.

Values are numbered: two variables have one number if the same operators, with the same attributes, compute them from
the same values. First the network as written is read, with the gradients that Paddle adds to it. Then the built program
is read, whose casts, shared buffers and fused operators stand for what they were made of. Loss, running statistics and
gradients must have the same numbers in both. Nothing is run.

What is done to a gradient on its way to the optimizer (its sum over ranks, its factors) is proved in `gradients.py`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paddle import static
from paddle.base import core
from paddle.base.framework import Operator
from paddle.utils import unique_name

from program import ops
from program.ops import operands, prove

# Attributes that change nothing of what an operator computes; `use_addto` is read by `ops.added_to`.
_WITHOUT_MEANING = {
    *("op_role", "op_role_var", "op_callstack", "op_namescope", "op_device", "with_quant_attr", "use_addto"),
    *("use_cudnn", "use_mkldnn", "exhaustive_search", "workspace_size_MB", "force_cpu", "place_type"),
    *("save_intermediate_out", "mkldnn_data_type", "use_quantizer"),
}
_OF_NORM = ("momentum", "epsilon", "data_layout", "is_test", "use_global_stats", "trainable_statistics")
_READ_BY_NORM_GRADIENT = ("X", "Scale", "Bias", "SavedMean", "SavedVariance", "ReserveSpace")
_FLOATS = {4: "float", 5: "float", 22: "float"}  # float16, float32 and bfloat16 by their numbers in Paddle
_WITHOUT_VALUE = {"coalesce_tensor", "c_sync_calc_stream", "c_sync_comm_stream"}  # they compute no new value
_RANDOM = ("dropout", "random", "bernoulli", "randint", "seed")  # parts of the types of operators that draw numbers
_NO_ATTRIBUTES = ((), ())  # of an operator without any that changes what it computes

Inputs = Mapping[str, Sequence[int]]  # numbers of the values in each input slot
Computed = dict[str, int]  # the number of the value that an operator gives to each variable


@dataclass(frozen=True, kw_only=True)
class Network:
    """The values of the network as written."""

    numbers: "_Numbers"
    all_values: frozenset[int]
    kept: Mapping[str, int]  # by variable: the loss and what is kept from step to step, as running statistics
    gradients: Mapping[str, int]  # by parameter


class _Numbers:
    """Numbers of values: equal values have equal numbers in all programs that are read with these."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, int] = {}
        self._addends: dict[int, list[int]] = {}  # of each value that is a sum

    def number(self, *key: Hashable) -> int:
        """Return the number of the value that a key describes."""
        return self._by_key.setdefault(key, len(self._by_key))

    def sum(self, addends: Iterable[int]) -> int:
        """Return the number of a sum. The order in which the addends are added up does not matter."""
        single: list[int] = []
        for addend in addends:
            single += self._addends.get(addend, [addend])  # those of a sum one by one
        number = self.number("sum", *sorted(single))
        self._addends[number] = single
        return number

    def output(self, kind: str, attrs: Hashable, inputs: Inputs, slot: str, index: int = 0) -> int:
        """Return the number of the value that an operator writes to a place of an output slot."""
        read = tuple((name, tuple(values)) for name, values in sorted(inputs.items()) if values)
        return self.number(kind, attrs, read, slot, index)

    def relu(self, value: int) -> int:
        """Return the number of a value's relu."""
        return self.output("relu", _NO_ATTRIBUTES, {"X": [value]}, "Out")

    def relu_gradient(self, out: int, gradient: int) -> int:
        """Return the number of the gradient by what a relu reads, of its result and the gradient by this."""
        return self.output("relu_grad", _NO_ATTRIBUTES, {"Out": [out], "Out@GRAD": [gradient]}, "X@GRAD")


def as_written(loss: static.Variable) -> Network:
    """Return the values of a network as written, with the gradients that Paddle adds to it.

    Args:
        loss: Loss of a forward program, which stays as it is.
    """
    main = loss.block.program.clone()
    # A guard for names too: those that Paddle makes later must not depend on the gradients that are added here.
    with static.program_guard(main, static.Program()), unique_name.guard():
        pairs = static.append_backward(main.global_block().var(loss.name))
    numbers = _Numbers()
    reading = _Reading(numbers, network=None)
    reading.read(main)
    block = main.global_block()
    kept = {name: value for name, value in reading.values.items() if block.var(name).persistable}
    gradients = {parameter.name: reading.value(gradient.name) for parameter, gradient in pairs}
    return Network(numbers=numbers, all_values=frozenset(reading.seen), kept=kept, gradients=gradients)


def check_network(update: Sequence[static.Program], network: Network) -> frozenset[Operator]:
    """Prove that each program of an update computes the loss, running statistics and gradients of a network.

    Args:
        update: The program of each micro-step (a part of the batch), in order. The last one has the optimizer.
        network: The network as written.

    Returns:
        The operators that the network as written has too, or that stand for some of it.

    Raises:
        Refused: A value differs; the message names it, and the first operator that computes another value.
    """
    of_network: set[Operator] = set()
    for program in dict.fromkeys(update):
        reading = _Reading(network.numbers, network=network.all_values)
        reading.read(program)
        first = reading.first_foreign
        where = f"; {first.type}, which writes {first.output_arg_names[0]}, is the first that differs" if first else ""
        for name, value in network.kept.items():
            prove(reading.value(name) == value, f"{name} is not computed as the network is written{where}")
        for parameter, gradient in reading.gradients.items():
            is_its_own = network.gradients.get(parameter) == gradient
            prove(is_its_own, f"{parameter} is trained by another gradient than the written network's{where}")
        of_network |= reading.of_network
    return frozenset(of_network)


class _Reading:
    """The values of one program's variables, after the operators that were read so far."""

    def __init__(self, numbers: _Numbers, network: frozenset[int] | None) -> None:
        """Start before the first operator.

        Args:
            numbers: Numbers of values.
            network: All values of the network as written; None while this itself is read.
        """
        self.values: dict[str, int] = {}
        self.seen: set[int] = set()
        self.gradients: dict[str, int] = {}  # by parameter: what the optimizer reads, or an accumulator adds up
        self.of_network: set[Operator] = set()
        self.first_foreign: Operator | None = None  # the first that computes what the network as written has not
        self._numbers = numbers
        self._network = network
        self._loss_scales: set[str] = set()
        self._in_one_buffer: dict[str, set[str]] = {}
        self._parameters_by_gradient: dict[str, str] = {}

    def value(self, name: str) -> int:
        """Return the number of a variable's value; if no operator has written it, it is fed or kept."""
        return self.values.get(name, self._numbers.number("given", name))

    def read(self, program: static.Program) -> None:
        """Read all operators of a program."""
        block = program.global_block()
        self._parameters_by_gradient = ops.parameters_by_gradient(block)
        for op in block.ops:
            if op.type in ops.ALL_UPDATES:
                pairs = zip(op.input("Param"), op.input("Grad"), strict=True)
                self.gradients |= {parameter: self.value(gradient) for parameter, gradient in pairs}
            elif op.type == "share_buffer":
                self._share(op.input("X")[0], op.output("Out")[0])
            elif op.type not in _WITHOUT_VALUE:
                for name, value in self._computed_by(op).items():
                    self._write(name, value)

    def _share(self, name: str, out: str) -> None:
        """Let a variable use the buffer of another one."""
        together = self._in_one_buffer.get(name, {name}) | {out}
        for member in together:
            self._in_one_buffer[member] = together
        self.values[out] = self.value(name)

    def _write(self, name: str, value: int) -> None:
        """Give a value to a variable, and to all others that lie in its buffer."""
        for member in self._in_one_buffer.get(name, {name}):
            self.values[member] = value

    def _computed_by(self, op: Operator) -> Computed:
        """Return the values that an operator gives to variables; `of_network` and `first_foreign` note what it is."""
        handed_on = self._handed_on(op)
        if handed_on is None and self._network is not None:
            handed_on = self._unscaled(op)
        if handed_on is not None:
            return handed_on
        computed = self._values_of(op)
        computed.pop(ops.EMPTY, None)
        added_to = ops.added_to(op)
        for name in added_to:
            computed[name] = self._numbers.sum([self.value(name), computed[name]])
        self.seen.update(computed.values())
        if self._network is None:
            return computed
        if self._network.issuperset(computed.values()):
            self.of_network.add(op)
            return computed
        is_update = bool(op.attr("op_role") & ops.OPTIMIZE)
        is_part_of_sum = bool(added_to) or op.type in ("sum", "grad_add", "elementwise_add")
        if self.first_foreign is None and not is_update and not is_part_of_sum:
            self.first_foreign = op
        return computed

    def _handed_on(self, op: Operator) -> Computed | None:
        """Return what an operator writes that only hands its input on, as a cast does; None of another operator."""
        if ops.is_merge(op):
            (gradient,) = op.input("X")
            self.gradients[self._parameters_by_gradient[gradient]] = self.value(gradient)
            return {op.output("Out")[0]: self.value(gradient)}
        is_moved = bool(op.output_arg_names) and op.output_arg_names[0].endswith(".moved")  # by the knob perturb_input
        is_sum_over_ranks = op.type == "c_allreduce_sum" and bool(op.attr("op_role") & ops.BACKWARD)
        hands_on = op.type in ("assign", "depend", "check_finite_and_unscale", "update_loss_scaling")
        if is_moved or is_sum_over_ranks or hands_on or _is_cast_of_floats(op):
            pairs = zip(operands(op, "X"), operands(op, "Out"), strict=True)
            return {out: self.value(name) for name, out in pairs}
        return None

    def _unscaled(self, op: Operator) -> Computed | None:
        """Return what an operator writes that multiplies by a factor of which `gradients.py` keeps account, or None.

        The written network has no such operators: those of the mean over the ranks scale in place, and mixed precision
        multiplies the loss itself.
        """
        if op.type == "scale" and op.attr("op_role") & ops.BACKWARD and op.input("X") == op.output("Out"):
            return {}
        if op.type == "elementwise_mul" and op.attr("op_role") == ops.LOSS:
            loss = self.values.get(ops.LOSS_VALUE)  # none where this operator computes the loss itself
            if self.value(op.input("X")[0]) == loss:
                self._loss_scales.update(op.input("Y"))
                return {op.output("Out")[0]: loss}
        if op.type == "elementwise_mul_grad" and self._loss_scales.issuperset(op.input("Y")):
            return {op.output("X@GRAD")[0]: self.value(op.input("Out@GRAD")[0])}
        return None

    # ---- what an operator computes

    def _values_of(self, op: Operator) -> Computed:
        """Return the values that an operator computes, in the terms of plain operators."""
        is_start = op.attr("op_role") == (ops.BACKWARD | ops.LOSS) and op.type == "fill_constant"
        if is_start:
            return {op.output("Out")[0]: self._numbers.number("gradient of the loss")}
        if op.type in ("sum", "grad_add"):
            return {op.output("Out")[0]: self._numbers.sum(self._read_from(op, "X", "Y"))}
        if op.type in ("elementwise_add", "elementwise_add_grad"):
            return self._values_of_addition(op)
        if op.type.startswith("fused_elemwise_add_activation"):
            return self._values_of_fused_addition(op)
        if op.type.removesuffix("_grad") in ("batch_norm", "fused_batch_norm_act", "fused_bn_add_activation"):
            return self._values_of_norm_gradient(op) if op.type.endswith("_grad") else self._values_of_norm(op)
        spread_sides = _spread_sides(op)
        if spread_sides:
            (gradient,) = operands(op, "Out@GRAD") or op.input("X")
            (out,) = operands(op, "X@GRAD") or op.output("Out")
            return {
                out: self._numbers.number("spread mean", spread_sides, op.attr("data_format"), self.value(gradient))
            }
        return self._values_of_any(op)

    def _read_from(self, op: Operator, *slots: str) -> list[int]:
        """Return the values that an operator reads from these slots."""
        return [self.value(name) for name in operands(op, *slots)]

    def _values_of_any(self, op: Operator) -> Computed:
        """Return the values of an operator that is compared as it stands."""
        unread = _unread(op)
        inputs = {slot: self._read_from(op, slot) for slot in op.input_names if slot not in unread}
        shapes = tuple(_shape(op, name) for name in operands(op, *sorted(unread)) if name != ops.EMPTY)
        attrs: Hashable = (_comparable(op, _meaningful(op)), shapes)
        if any(part in op.type for part in _RANDOM) and not op.type.endswith("_grad"):
            attrs = (attrs, tuple(op.output_arg_names))  # two that draw alike do not draw the same
        return {
            place.name: self._numbers.output(op.type, attrs, inputs, place.slot, place.number) for place in _written(op)
        }

    def _values_of_addition(self, op: Operator) -> Computed:
        """Return the values of an addition or its gradients."""
        if op.type == "elementwise_add_grad":
            return self._gradients_of_addition(op, self.value(op.input("Out@GRAD")[0]))
        return {op.output("Out")[0]: self._total(op, self.value(op.input("Y")[0]))}

    def _total(self, op: Operator, addend: int) -> int:
        """Return the number of what an operator adds up: its X and an addend of the shape of its Y, as Y itself.

        Tensors of one shape make a sum. A smaller one, such as a bias, is added along an axis.
        """
        (x,) = op.input("X")
        shapes = (_shape(op, x), _shape(op, op.input("Y")[0]))
        if shapes[0] == shapes[1]:
            return self._numbers.sum([self.value(x), addend])
        return self._numbers.number("addition", op.attr("axis"), shapes, self.value(x), addend)

    def _gradients_of_addition(self, op: Operator, gradient: int) -> Computed:
        """Return the values of an addition's gradients. A smaller addend's is summed over what it is added to."""
        of_result = _shape(op, op.input("Out@GRAD")[0])
        computed = {}
        for slot in ("X@GRAD", "Y@GRAD"):
            for name in operands(op, slot):
                if name != ops.EMPTY and _shape(op, name) != of_result:
                    place = (op.attr("axis"), _shape(op, name), of_result)
                    computed[name] = self._numbers.number("gradient of an addend", place, gradient)
                else:
                    computed[name] = gradient
        return computed

    def _values_of_fused_addition(self, op: Operator) -> Computed:
        """Return the values of an addition and a function (relu or scale) as one operator, or of its gradients."""
        outer, inner = op.attr("functor_list")
        if outer == "elementwise_add":  # x + function(y)
            changed = self._function(op, inner, self.value(op.input("Y")[0]))
            total = self._total(op, changed)
            return {op.output("Out")[0]: total} | dict.fromkeys(operands(op, "IntermediateOut"), changed)
        if inner == "elementwise_add":  # function(x + y)
            total = self._total(op, self.value(op.input("Y")[0]))
            changed = self._function(op, outer, total)
            return {op.output("Out")[0]: changed} | dict.fromkeys(operands(op, "IntermediateOut"), total)
        gradient = self.value(op.input("Out@GRAD")[0])
        if outer == "relu_grad":
            gradient = self._numbers.relu_gradient(self.value(op.input("Out")[0]), gradient)
        computed = self._gradients_of_addition(op, gradient)
        if inner == "relu_grad":
            (of_relu,) = op.output("Y@GRAD")
            relu = self.value(op.input("IntermediateOut")[0])
            computed[of_relu] = self._numbers.relu_gradient(relu, computed[of_relu])
        return computed

    def _function(self, op: Operator, kind: str, value: int) -> int:
        """Return the value of a function of one operand that is fused with an addition."""
        if kind == "relu":
            return self._numbers.relu(value)
        attrs = (_comparable(op, ("bias", "bias_after_scale", "scale")), ())  # as `_values_of_any` has those of a scale
        return self._numbers.output(kind, attrs, {"X": [value]}, "Out")

    def _values_of_norm(self, op: Operator) -> Computed:
        """Return the values of a batch norm, alone or as one operator with an addition and a relu."""
        inputs = {slot: self._read_from(op, slot) for slot in ("X", "Scale", "Bias", "Mean", "Variance")}
        attrs = _attributes_of_norm(op)
        computed = {place.name: self._numbers.output("batch_norm", attrs, inputs, place.slot) for place in _written(op)}
        (y,) = op.output("Y")
        if op.type != "batch_norm":
            addends = [computed[y], *self._read_from(op, "Z")]
            computed[y] = self._numbers.relu(self._numbers.sum(addends) if len(addends) > 1 else addends[0])
        return computed

    def _values_of_norm_gradient(self, op: Operator) -> Computed:
        """Return the values of a batch norm's gradients, alone or as one operator with an addition's and a relu's."""
        gradient = self.value(op.input("Y@GRAD")[0])
        if op.type != "batch_norm_grad":
            gradient = self._numbers.relu_gradient(self.value(op.input("Y")[0]), gradient)
        inputs = {slot: self._read_from(op, slot) for slot in _READ_BY_NORM_GRADIENT}
        inputs["Y@GRAD"] = [gradient]
        attrs = _attributes_of_norm(op)
        computed = {
            place.name: self._numbers.output("batch_norm_grad", attrs, inputs, place.slot) for place in _written(op)
        }
        return computed | dict.fromkeys(operands(op, "Z@GRAD"), gradient)


class _Place(NamedTuple):
    """A variable that an operator writes, by its output slot and its number in it."""

    slot: str
    number: int
    name: str


def _written(op: Operator) -> list[_Place]:
    """Return the variables that an operator writes."""
    places = []
    for slot in op.output_names:
        for number, name in enumerate(op.output(slot)):
            places.append(_Place(slot, number, name))
    return places


def _shape(op: Operator, name: str) -> tuple[int, ...]:
    """Return the shape of a variable that an operator reads or writes."""
    return tuple(op.block.var(name).shape)


def _meaningful(op: Operator) -> list[str]:
    """Return the attributes of an operator that may change what it computes."""
    return [name for name in op.attr_names if name not in _WITHOUT_MEANING]


def _unread(op: Operator) -> set[str]:
    """Return the input slots of which an operator looks at the shape alone: others may overwrite what lies there."""
    inputs = {slot: op.input(slot) for slot in op.input_names}
    outputs = {slot: op.output(slot) for slot in op.output_names}
    unread: set[str] = core.infer_no_need_buffer_slots(op.type, inputs, outputs, {})
    return unread & set(op.input_names)


def _comparable(op: Operator, attributes: Sequence[str]) -> Hashable:
    """Return attributes of an operator in a form in which programs of all precisions agree."""
    values: list[Hashable] = []
    for name in sorted(attributes):
        value = op.attr(name)
        values += [name, _FLOATS.get(int(value), int(value)) if "dtype" in name else repr(value)]
    return tuple(values)


def _attributes_of_norm(op: Operator) -> Hashable:
    """Return the attributes of a batch norm, or of its gradient, alone or with others as one operator."""
    activation = op.attr("act_type") if op.has_attr("act_type") else "relu"
    return (*(repr(op.attr(name)) for name in _OF_NORM if op.has_attr(name)), activation)


def _is_cast_of_floats(op: Operator) -> bool:
    """Return whether an operator casts one type of floating-point numbers to another."""
    return op.type == "cast" and int(op.attr("in_dtype")) in _FLOATS and int(op.attr("out_dtype")) in _FLOATS


def _spread_sides(op: Operator) -> tuple[int, ...]:
    """Return the sides of the image over which an operator spreads the gradient of its mean; empty if it does not.

    It is the gradient of a pooling over the whole image, or what `passes.gradients.spread_mean_gradients` makes of it.
    """
    is_average = op.type in ("pool2d", "pool2d_grad") and op.attr("pooling_type") == "avg"
    if not is_average:
        return ()
    if op.type == "pool2d":
        spread = [side - 1 for side in op.attr("ksize")]
        is_spreading = op.attr("op_role") & ops.BACKWARD and list(op.attr("paddings")) == spread
        is_plain = list(op.attr("strides")) == [1, 1] and not op.attr("exclusive") and not op.attr("adaptive")
        return tuple(op.attr("ksize")) if is_spreading and is_plain else ()
    first = op.attr("data_format").index("H")
    image = _shape(op, op.input("X")[0])[first : first + 2]
    mean = _shape(op, op.input("Out")[0])[first : first + 2]
    is_whole = op.attr("adaptive") or op.attr("global_pooling") or tuple(op.attr("ksize")) == image
    return image if mean == (1, 1) and is_whole else ()
