"""The distributed strategy: FleetX's knobs by their names, each with what it does in this Paddle.

STRATEGY is empty (our defaults), `auto` (Paddle's own automatic mode), or `knob=value,...`. Paddle 2.6.2 swallows
many of them without a word; here a knob works, or is refused with the reason. `program.proof.knobs` proves on the
built program that it did.
"""

import contextlib
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, NamedTuple

AUTO = "auto"
AUTO_RANKS = 8  # fleet's default degree of sharding; its own check fails at any other number of ranks


def _knob(doc: str, default: Any, least: float | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "least": least})


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """The knobs that work. None means: on if the device and the precision have the kernels, or as FLAGS_ say."""

    auto: bool = _knob("Paddle's automatic mode: it chooses, this program records what", False)
    fuse_grad_size_in_MB: float = _knob("MiB of gradients in one all-reduce at most (our own pass)", 16.0, 0.001)
    fuse_bn_act_ops: bool | None = _knob("batch norm + relu as one operator (half precision, NHWC)", None)
    fuse_bn_add_act_ops: bool | None = _knob("batch norm + add + relu as one operator (half precision, NHWC)", None)
    fuse_elewise_add_act_ops: bool | None = _knob("add + relu as one operator (FP32 and FP16)", None)
    enable_addto: bool | None = _knob("a convolution adds to the gradient that is there instead of a sum (GPU)", None)
    enable_inplace: bool | None = _knob("outputs take the buffers of inputs that are read last there", None)
    merged_optimizer: bool | None = _knob("one update operator for all parameters of a type", None)
    resnet_unit: bool = _knob("a block's convolution, batch norm, add and relu as one operator (FP16, NHWC)", False)
    merged_lars: bool = _knob("LARS updates of parameters of one type in few operators (our own pass)", False)
    cuda_graph: bool = _knob("the step captured as a CUDA graph and replayed (GPU; HRNet not in FP16)", False)
    gradient_merge: int = _knob("parts of BATCHSIZE that are computed one after the other (our own pass)", 1, 1)
    conv_workspace_size_limit: int | None = _knob("MiB of workspace a cuDNN convolution may use", None, 0)
    cudnn_exhaustive_search: bool | None = _knob("cuDNN tries its algorithms on the first step", None)
    cudnn_batchnorm_spatial_persistent: bool | None = _knob("cuDNN's persistent batch norm kernels", None)
    perturb_input: bool = _knob("moves each input value by one rounding: the control of tools.tune", False)

    @property
    def flags(self) -> dict[str, Any]:
        """Paddle's flags that a knob sets in place of the system's config file, with their values."""
        flags = {}
        for name in _OF_CUDNN:
            value = getattr(self, name)
            if value is not None:
                flags[f"FLAGS_{name}"] = value
        return flags


MAX_NUMBER = 2**31 - 1  # of a number; Paddle's flags and attributes are of C's integers
_OF_CUDNN = ("conv_workspace_size_limit", "cudnn_exhaustive_search", "cudnn_batchnorm_spatial_persistent")
_NO_EXECUTOR = (
    "Paddle 2.6.2 has one executor, which reads no ExecutionStrategy: set FLAGS_new_executor_serial_run or the number "
    "of threads (THREADS) instead"
)
_WHERE_NHWC = "leave it out, or train ResNet-50 with PRECISION=amp_o1 or amp_o2 and without LAYOUT=NCHW"
_HIERARCHY = "fleet's knob changes nothing; NCCL chooses rings or trees that reduce inside a node first (NCCL_ALGO)"
# Read off the programs that fleet 2.6.2 builds (docs/program.md has the counts).
REFUSED = {
    "_fuse_grad_size_in_TFLOPS": "no pass of Paddle 2.6.2 reads it: use fuse_grad_size_in_MB",
    "fuse_grad_size_in_num": "buckets are cut by bytes here: use fuse_grad_size_in_MB",
    "sync_nccl_allreduce": "only the old ParallelExecutor read it; in Paddle 2.6.2 it changes nothing",
    "nccl_comm_num": "all buckets are summed on one communicator, as in every published run that names it",
    "fp16_allreduce": "fleet's pass removes every all-reduce: with PRECISION=amp_o2 gradients travel as FP16",
    "num_threads": _NO_EXECUTOR,
    "num_iteration_per_drop_scope": _NO_EXECUTOR,
    "amp": "say it by PRECISION=amp_o1 or amp_o2",
    "lars": "the optimizer belongs to the recipe: choose a RECIPE with LARS",
    "lamb": "the optimizer belongs to the recipe, and no recipe has LAMB",
    "sync_batch_norm": "fleet's knob changes nothing; ResNet-50's recipes normalize by rank, HRNet's over all ranks",
    "use_hierarchical_allreduce": _HIERARCHY,
    "hierarchical_allreduce": _HIERARCHY,
    "localsgd": "fleet's program keeps the all-reduce of every gradient beside it, so nothing is saved",
    "adaptive_localsgd": "fleet's program keeps the all-reduce of every gradient beside it, so nothing is saved",
    "dgc": "the momentum of its first steps differs from the recipe's, and it needs FP32 gradients on a GPU",
    "sharding": "it needs another program than the one that is verified here",
    "fuse_resunit": "this wheel has no such pass",
}


def parse(text: str) -> Strategy:
    """Return the options of distributed training that a value of STRATEGY describes.

    Args:
        text: "auto" for Paddle's automatic mode, or options (knobs) as "enable_addto=0,gradient_merge=2". Knobs that
            are not named keep their defaults; an empty text keeps all.

    Raises:
        ValueError: A knob is unknown, is one of Paddle's that is refused (REFUSED has the reasons), or cannot have its
            value.
    """
    if text.strip() == AUTO:
        return Strategy(auto=True)
    knobs = {knob.name: knob for knob in fields(Strategy) if knob.name != AUTO}
    chosen: dict[str, Any] = {}
    for part in text.split(","):
        entry = part.strip()
        if not entry:
            continue
        name, _, value = entry.partition("=")
        if name in REFUSED:
            raise ValueError(f"STRATEGY: {name} is refused: {REFUSED[name]}")
        if name not in knobs:
            raise ValueError(
                f"STRATEGY={text!r}: no knob {name!r}: use auto alone, or knob=value of {', '.join(knobs)}"
            )
        chosen[name] = _parse_value(knobs[name], value)
    return Strategy(**chosen)


def _parse_value(knob: Field[Any], text: str) -> bool | int | float:
    """Return the value that the user wrote as a text for an option (knob) of STRATEGY.

    The type of the option decides how the text is read: "1" is True for a switch (bool), 1 for an int and 1.0 for a
    float.

    Args:
        knob: The option, as a field of Strategy.
        text: Text that the user wrote behind the `=`.

    Raises:
        ValueError: The text is not a value of this type, or a number that is not in the range from the knob's `least`
            to 2^31 - 1 (MAX_NUMBER).
    """
    # The option's annotation as text, which may also allow None: "<class 'int'>", "<class 'float'>", "bool | None".
    type_name = str(knob.type)
    if "bool" in type_name:
        return _parse_switch(knob, text)  # True for "1" or "true", False for "0" or "false"
    is_whole = "float" not in type_name  # of the other options, those without "float" are int
    to_number = int if is_whole else float

    number = None  # stays None if the text is not plain, or if `to_number` raises, as for "1.5" as an int
    is_plain = text.isascii() and "_" not in text  # Python would also take digits of another script, and 1_000
    if is_plain:
        with contextlib.suppress(ValueError):  # the error with a message for the user comes below
            number = to_number(text)
    if number is None:
        wanted = "a whole number" if is_whole else "a number"
        raise ValueError(f"STRATEGY: {knob.name}={text!r}: must be {wanted} ({knob.metadata['doc']})")
    if not knob.metadata["least"] <= number <= MAX_NUMBER:
        raise ValueError(f"STRATEGY: {knob.name}={text}: must be {knob.metadata['least']} to {MAX_NUMBER}")
    return number


def _parse_switch(knob: Field[Any], text: str) -> bool:
    """Return whether a text turns an option (knob) on or off.

    Args:
        knob: Field of Strategy, for the message.
        text: "0", "1", "true" or "false", in any case.

    Raises:
        ValueError: It is another text.
    """
    if text.lower() not in ("0", "1", "true", "false"):
        raise ValueError(f"STRATEGY: {knob.name}={text!r}: must be 0 or 1")
    return text.lower() in ("1", "true")


def in_words(strategy: Strategy) -> str:
    """Return the text with which a user asks for a strategy, such as "fuse_bn_act_ops=0,gradient_merge=2".

    The text is a value of the setting STRATEGY: "auto" for Paddle's automatic mode; otherwise knob=value for each
    option (knob) that is not at its default, so an empty text for the default strategy. `parse` turns the text into the
    same strategy again.

    Args:
        strategy: Options of distributed training.
    """
    if strategy.auto:
        return AUTO
    entries = []
    for knob in fields(strategy):
        value = getattr(strategy, knob.name)
        if value == knob.default:
            continue
        if isinstance(value, bool):
            value = int(value)
        text = str(value).removesuffix(".0")  # 8.0 -> 8
        entries.append(f"{knob.name}={text}")
    return ",".join(entries)


class _Condition(NamedTuple):
    """A condition under which a knob can be on."""

    knob: str
    is_met: bool
    reason: str  # why it cannot be on otherwise, and what to do


# Knobs that can be on in every job; the user may leave them open.
_ALWAYS_POSSIBLE = ("fuse_elewise_add_act_ops", "merged_optimizer")


def resolve(strategy: Strategy, *, dtype: str, layout: str, device: str) -> Strategy:
    """Return a copy of a strategy whose undecided knobs (None) are turned on or off for a device and precision.

    A knob that the user left open is turned on if it can be, except `enable_inplace`, which is on for a GPU alone.
    Options of cuDNN stay open: Paddle's flags decide them.

    Args:
        strategy: Knobs as the user set them. None means that the user left the knob open.
        dtype: Data type of convolutions, "float32" or "float16".
        layout: Layout of images, "NCHW" or "NHWC".
        device: "cpu" or "gpu".

    Raises:
        ValueError: The user turned on a knob whose conditions are not met, such as `cuda_graph` with a `gradient_merge`
            above 1, or set an option of cuDNN, to any value, for a CPU.
    """
    on_gpu = device == "gpu"
    if not on_gpu:
        _refuse_cudnn_flags(strategy)
    is_half_nhwc = dtype == "float16" and layout == "NHWC"
    # Each condition has its knob, and whether this job meets it. For example, `enable_addto` needs a GPU.
    conditions = _conditions(strategy, on_gpu=on_gpu, is_half_nhwc=is_half_nhwc)
    _refuse_unmet(strategy, conditions)  # raises if the user turned on a knob that cannot be on

    # {knob: whether it is on if left open}, which is whether it can be on: always for the two of _ALWAYS_POSSIBLE, by
    # their conditions for the others.
    defaults = dict.fromkeys(_ALWAYS_POSSIBLE, True) | _can_be_on(conditions)
    # The exception: a user may turn on `enable_inplace` on a CPU, but left open it is off there. It adds operators, and
    # a CPU's executor takes memory that grows by the square of their number.
    defaults["enable_inplace"] = on_gpu
    # Only knobs that are None. Those that are off unless the user turns them on, such as `cuda_graph`, are never None.
    decided = {knob: is_on for knob, is_on in defaults.items() if getattr(strategy, knob) is None}
    return replace(strategy, **decided)


def _can_be_on(conditions: list[_Condition]) -> dict[str, bool]:
    """Map each option (knob) that has conditions to whether all of them are met.

    Args:
        conditions: All conditions; an option may have several.
    """
    can_be_on: dict[str, bool] = {}
    for condition in conditions:
        can_be_on[condition.knob] = can_be_on.get(condition.knob, True) and condition.is_met
    return can_be_on


def _refuse_unmet(strategy: Strategy, conditions: list[_Condition]) -> None:
    """Raise ValueError if an option (knob) is on whose condition is not met.

    Args:
        strategy: Options as the user set them.
        conditions: The conditions under which options can be on.

    Raises:
        ValueError: There is such an option; the first one is named, with the reason.
    """
    for condition in conditions:
        is_on = bool(getattr(strategy, condition.knob))
        if is_on and not condition.is_met:
            raise ValueError(f"STRATEGY: {condition.knob}=1: {condition.reason}")


def _refuse_cudnn_flags(strategy: Strategy) -> None:
    """Raise ValueError if an option sets a flag of cuDNN, which a CPU does not use.

    Args:
        strategy: Options of a job on CPUs, as the user set them.

    Raises:
        ValueError: There is such an option; the first one is named.
    """
    if strategy.flags:
        knob = next(iter(strategy.flags)).removeprefix("FLAGS_")
        raise ValueError(f"STRATEGY: {knob}: a CPU computes without cuDNN: leave it out, or set DEVICE=gpu")


def _conditions(strategy: Strategy, *, on_gpu: bool, is_half_nhwc: bool) -> list[_Condition]:
    """Return the conditions under which knobs can be on, each with whether a job meets it.

    A knob can be on if all of its conditions are met; `cuda_graph` has two.

    Args:
        strategy: Knobs as the user set them.
        on_gpu: Whether the job runs on GPUs.
        is_half_nhwc: Whether convolutions compute in float16 and images are NHWC.
    """
    fused_bn = f"cuDNN's fused batch norm takes FP16 in NHWC only: {_WHERE_NHWC}"
    return [
        _Condition("cuda_graph", on_gpu, "a CPU has no CUDA graphs: leave it out, or set DEVICE=gpu"),
        _Condition(
            "cuda_graph",
            strategy.gradient_merge == 1,
            "one program is captured, gradient_merge has two: leave one out",
        ),
        _Condition("fuse_bn_act_ops", is_half_nhwc, fused_bn),
        _Condition("fuse_bn_add_act_ops", is_half_nhwc, fused_bn),
        _Condition(
            "enable_addto", on_gpu, "a CPU's convolution ignores it and the gradients would be wrong: set DEVICE=gpu"
        ),
        _Condition(
            "resnet_unit",
            on_gpu and is_half_nhwc,
            f"Paddle has its kernel for GPUs, in FP16 and NHWC: {_WHERE_NHWC}, DEVICE=gpu",
        ),
    ]
