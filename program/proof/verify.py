"""Proof, read off a built training program, that it has the optimizer, arithmetic and communicator asked for.

What happens to the gradients is proved in `gradients.py`, and what the knobs of the strategy did in `knobs.py`.
"""

from collections import Counter

from paddle import static
from paddle.base.framework import Operator

from program import ops
from program.ops import is_close, prove, type_in
from program.optimizers import KINDS, OptimizerConfig
from program.precision import HOW_THE_SCALE_MOVES
from runlog.digits import six_digits

# ---- the optimizer


def check_optimizer(main: static.Program, config: OptimizerConfig) -> dict[str, int]:
    """Prove that a program updates its parameters by the optimizer that the recipe asks for.

    Args:
        main: Training program.
        config: Kind, momentum, weight decay and LARS settings of that optimizer.

    Returns:
        How many parameters each type of update operator updates, as {"momentum": 161}.

    Raises:
        Refused: An operator updates otherwise, or another operator changes what is trained; the message names the first
            difference.
    """
    parameter_counts: Counter[str] = Counter()
    for op in main.global_block().ops:
        if op.type in ops.ALL_UPDATES:
            _check_update(op, config)
            parameter_counts[op.type] += len(op.input("Param"))
    _refuse_other_writers(main)
    return dict(parameter_counts)


def _refuse_other_writers(main: static.Program) -> None:
    """Raise Refused if an operator other than an update writes what updates write: parameters and their states.

    Args:
        main: Training program.
    """
    trained: set[str] = set()
    for op in main.global_block().ops:
        if op.type in ops.ALL_UPDATES:
            trained.update(op.output_arg_names)
    for op in main.global_block().ops:
        if op.type not in ops.ALL_UPDATES:
            for name in op.output_arg_names:
                prove(name not in trained, f"{op.type} changes {name}, which only the optimizer's update may do")


def _check_update(op: Operator, config: OptimizerConfig) -> None:
    """Prove that an update operator updates its parameters as the recipe's optimizer does.

    Args:
        op: Operator that updates one or more parameters, such as `momentum`.
        config: The recipe's optimizer.

    Raises:
        Refused: Its type, an attribute, a weight decay or a state differs; the message names the first difference.
    """
    parameters = op.input("Param")
    types_of_kind = KINDS[config.kind].logged.operators  # {"momentum", "merged_momentum"} for SGD
    prove(
        op.type in types_of_kind,
        f"the recipe asks for {config.kind}, the program updates {parameters[0]} by {op.type}",
    )
    _check_attributes(op, config)
    _check_decays(op, config)
    _check_fp32_masters(op)
    _check_states(op)


def _check_fp32_masters(op: Operator) -> None:
    """Prove that an update of half-precision parameters has an FP32 master copy for each parameter that it updates.

    Args:
        op: Operator that updates one or more parameters. Without a float16 parameter, nothing is checked.

    Raises:
        Refused: A master copy is missing, or the operator does not use them.
    """
    parameters = op.input("Param")
    is_half = any(type_in(op.block, name) == "float16" for name in parameters)
    if is_half:
        masters = ops.operands(op, "MasterParam")
        has_masters = len(masters) == len(parameters) and op.attr("multi_precision")
        prove(has_masters, f"{parameters[0]} is in half precision and has no FP32 master")


def _check_decays(op: Operator, config: OptimizerConfig) -> None:
    """Prove that an update operator applies the weight decay that the recipe asks for to each of its parameters.

    The recipe asks for `config.weight_decay` where `config.decays(name)` is True, as for the weights of convolutions,
    and for 0 everywhere else.

    Args:
        op: Operator that updates one or more parameters.
        config: The recipe's optimizer.

    Raises:
        Refused: A parameter has another weight decay; the message names the first such parameter.
    """
    for index, name in enumerate(op.input("Param")):
        applied = KINDS[config.kind].read_decay(op, index)  # the weight decay of parameter `index` in the operator
        expected = config.weight_decay if config.decays(name) else 0.0
        prove(
            is_close(applied, expected),
            f"weight decay of {name} is {six_digits(applied)}, not {six_digits(expected)}",
        )


def _check_attributes(op: Operator, config: OptimizerConfig) -> None:
    """Prove that an update operator has the recipe's momentum, and for LARS also its coefficient and epsilon.

    Args:
        op: Operator that updates one or more parameters.
        config: The recipe's optimizer.

    Raises:
        Refused: An attribute has another value; the first one is named.
    """
    parameter = op.input("Param")[0]
    for attribute, field in KINDS[config.kind].attributes.items():
        value = op.attr(attribute)
        expected = getattr(config, field)
        prove(
            is_close(value, expected),
            f"{field} of {parameter} is {six_digits(value)}, not {six_digits(expected)}",
        )
    is_nesterovs = op.has_attr("use_nesterov") and op.attr("use_nesterov")
    prove(not is_nesterovs, f"{parameter} is updated by Nesterov's momentum, which no recipe asks for")


def check_learning_rate(main: static.Program, rate_name: str) -> None:
    """Prove that all parameters are updated at the learning rate that the training loop sends to the device.

    Args:
        main: Training program.
        rate_name: Name of the variable to which it is sent. A captured step looks it up in a table, by a `gather`.

    Raises:
        Refused: An update reads another variable, or another operator changes this one.
    """
    for op in main.global_block().ops:
        if op.type in ops.ALL_UPDATES:
            for parameter, name in zip(op.input("Param"), op.input("LearningRate"), strict=False):
                prove(
                    name == rate_name,
                    f"{parameter} takes its learning rate from {name}, not from {rate_name}: its ParamAttr must leave "
                    "learning_rate at 1",
                )
        elif rate_name in op.output_arg_names:
            prove(op.type == "gather", f"{op.type} changes the learning rate")


def _check_states(op: Operator) -> None:
    """Prove that an operator updates each parameter in place, by the parameter's own states.

    The states are its velocity and its FP32 master copy. They are recognized by their names: those of `fc.w` begin with
    `fc.w_`.

    Args:
        op: Operator that updates one or several parameters. It need not have such states.

    Raises:
        Refused: A state belongs to another parameter, or a parameter or state is not written to the variable from which
            it is read.
    """
    parameters = op.input("Param")
    _check_written_in_place(op, "Param")
    for slot in ("Velocity", "MasterParam"):
        if not ops.operands(op, slot):
            continue
        _check_written_in_place(op, slot)
        for parameter, state in zip(parameters, op.input(slot), strict=True):
            is_its_own = state.startswith(f"{parameter}_")
            prove(is_its_own, f"{op.type} updates {parameter} by the {slot} of another parameter")


def _check_written_in_place(op: Operator, slot: str) -> None:
    """Prove that an update operator writes to `<slot>Out` the variables that it reads from `slot`."""
    is_in_place = op.output(f"{slot}Out") == op.input(slot)
    prove(is_in_place, f"{op.type} of {op.input('Param')[0]} writes another {slot} than it reads")


# ---- arithmetic and communication

_HALF = ("float16", "bfloat16")


def check_training_mode(main: static.Program) -> None:
    """Prove that no operator of a training program computes as in an evaluation, by its attribute `is_test`.

    A dropout would drop nothing then, and a batch norm would use its running statistics. The latter may be meant, of
    frozen layers: `use_global_stats` says so.

    Args:
        main: Training program.

    Raises:
        Refused: An operator does; the first one is named.
    """
    for op in main.global_block().ops:
        is_frozen = op.has_attr("use_global_stats") and op.attr("use_global_stats")
        is_test = op.has_attr("is_test") and op.attr("is_test") and not is_frozen
        written = ", ".join(op.output_arg_names[:1])
        prove(
            not is_test,
            f"{op.type}, which writes {written}, computes as in an evaluation: leave is_test out (training=False), or "
            "set use_global_stats where a normalization is to keep its statistics",
        )


def check_loss_scaling(main: static.Program) -> None:
    """Prove that the loss scale moves once a step, as HOW_THE_SCALE_MOVES says.

    Paddle has an `update_loss_scaling` for the gradients of each data type. One of them moves the scale, and the others
    only set infinite gradients to 0 (`stop_update`).

    Args:
        main: Training program. Without a dynamic loss scale, nothing is checked.

    Raises:
        Refused: The scale moves otherwise, or not once.
    """
    operators = [op for op in main.global_block().ops if op.type == "update_loss_scaling"]
    if not operators:
        return
    moving = [op for op in operators if not op.attr("stop_update")]
    prove(len(moving) == 1, f"the loss scale moves {len(moving)} times a step, not once")
    for attribute, expected in HOW_THE_SCALE_MOVES.items():
        value = moving[0].attr(attribute)
        prove(
            is_close(value, expected),
            f"{attribute} of the loss scale is {six_digits(value)}, not {six_digits(expected)}",
        )


def check_compute_types(main: static.Program, dtype: str) -> None:
    """Prove that convolutions and matrix products have their weights in `dtype`, and the loss its logits in float32.

    Where they are in float32, nothing at all may be cast to half precision.

    Args:
        main: Training program. The types are those that it declares for its variables.
        dtype: Type of the weights, such as "float16".

    Raises:
        Refused: Something is of another type; the first one is named.
    """
    block = main.global_block()
    for op in block.ops:
        if dtype == "float32" and op.type == "cast":
            (written,) = op.output("Out")
            prove(type_in(block, written) not in _HALF, f"{written} is in half precision, the job is in float32")
        for weights in _multiplying_weights(op):
            prove(type_in(block, weights) == dtype, f"{op.type} of {weights} is not in {dtype}")
        if op.type == "softmax_with_cross_entropy":
            (logits,) = op.input("Logits")
            prove(type_in(block, logits) == "float32", "the loss is not computed in float32")


def _multiplying_weights(op: Operator) -> list[str]:
    """Return the weights by which an operator multiplies or convolves.

    Args:
        op: Any operator.

    Returns:
        Names, such as ["res2a.w"]; two for a `resnet_unit` of two convolutions. Empty if the operator, or the forward
        operator whose gradient it computes, is neither a convolution nor a matrix product.
    """
    forward_type = op.type.removesuffix("_grad")  # a gradient operator reads the same weights
    products = ops.FACTORS.get(forward_type, ())
    weights: list[str] = []
    for product in products:
        weights += ops.operands(op, product.weights)  # `product.weights` is a slot, such as "Filter"
    return weights


def check_communicator(startup: static.Program, main: static.Program, *, ranks: int) -> None:
    """Prove that a start-up program creates one communicator, which joins all ranks, and that both programs use it.

    Args:
        startup: Start-up program of a training program for several ranks.
        main: The training program.
        ranks: Number of data-parallel processes.

    Raises:
        Refused: It creates none, several, or one of another size, or an operator communicates over another one.
    """
    created = [op for op in startup.global_block().ops if op.type == "c_comm_init"]
    sizes = [op.attr("nranks") for op in created]
    prove(sizes == [ranks], f"the communicators join {sizes or 'no'} ranks, not one all {ranks}")
    ring = created[0].attr("ring_id")  # the communicator's number
    for op in (*startup.global_block().ops, *main.global_block().ops):
        if op.has_attr("ring_id"):
            used = op.attr("ring_id")
            prove(used == ring, f"{op.type} communicates over ring {used}, all ranks are joined by ring {ring}")
