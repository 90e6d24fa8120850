"""ResNet-50 v1.5 against Paddle's own."""

import dataclasses
import re
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import static

from paddle_rn50 import config
from paddle_rn50.model import STAGES, resnet50


@pytest.fixture(autouse=True)
def _static() -> None:
    paddle.enable_static()


def build(*, layout: str = "NCHW", channels: int = 3, **changed: Any) -> tuple[static.Program, static.Program, str]:
    """The evaluation's, by a recipe with these fields changed."""
    recipe = dataclasses.replace(config.NVIDIA_COSINE, **changed)
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        shape = [2, channels, 64, 64] if layout == "NCHW" else [2, 64, 64, channels]
        logits = resnet50(static.data("image", shape, "float32"), recipe, layout=layout, training=False)
    return main, startup, logits.name


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_parameters(layout: str) -> None:
    """A fourth input channel adds one 7 x 7 plane to each of the stem's 64 filters."""
    for channels, count in ((3, 25_557_032), (4, 25_557_032 + 64 * 49)):
        parameters = build(layout=layout, channels=channels)[0].all_parameters()
        assert sum(int(np.prod(p.shape)) for p in parameters if p.trainable) == count


def test_zero_gamma_is_in_the_last_bn_of_each_block_only() -> None:
    for zero_gamma in (True, False):
        made = build(zero_gamma=zero_gamma)[1].global_block().ops
        scales = {op.output("Out")[0]: op.attr("value") for op in made if op.type == "fill_constant"}
        zero = sorted(name for name, value in scales.items() if name.endswith(".bn.w") and not value)
        last = sorted(f"stage{s}.{b}.3.bn.w" for s, (_, n) in enumerate(STAGES, 1) for b in range(n))
        assert zero == (last if zero_gamma else [])


VALUES = {"weight": "w", "bias": "b", "_mean": "mean", "_variance": "variance"}
LAYERS = {r"^(conv|bn)1": r"stem.\1", r"\.(conv|bn)(\d)": r".\2.\1", "^layer": "stage"}
LAYERS |= {r"downsample\.0": "shortcut.conv", r"downsample\.1": "shortcut.bn"}


def _ours(theirs: str) -> str:
    """Our name of a variable of paddle.vision's ResNet-50."""
    layer, _, value = theirs.rpartition(".")
    for pattern, name in LAYERS.items():
        layer = re.sub(pattern, name, layer)
    return f"{layer}.{VALUES[value]}"


def test_outputs_agree_with_paddle_vision() -> None:
    rng = np.random.default_rng(0)
    image = rng.standard_normal((2, 3, 64, 64), dtype=np.float32)
    paddle.disable_static()
    paddle.seed(0)
    reference = paddle.vision.models.resnet50()
    state = {name: tensor.numpy().copy() for name, tensor in reference.state_dict().items()}
    for name, value in state.items():
        if name.endswith("_mean"):  # fresh statistics are 0 and 1 and would hide an exchange
            state[name] = rng.normal(0, 0.1, value.shape).astype("float32")
        elif name.endswith(("_variance", "bn1.weight", "bn2.weight", "bn3.weight")):
            state[name] = rng.uniform(0.5, 1.0, value.shape).astype("float32")
    reference.set_state_dict(state)
    reference.eval()
    expected = reference(paddle.to_tensor(image)).numpy()
    paddle.enable_static()

    for layout in ("NCHW", "NHWC"):
        main, startup, logits = build(layout=layout)
        ours = {_ours(name): value for name, value in state.items()}
        assert ours.keys() == {v.name for v in main.list_vars() if v.persistable and v.name not in ("feed", "fetch")}
        fed = image if layout == "NCHW" else np.ascontiguousarray(image.transpose(0, 2, 3, 1))
        executor = static.Executor(paddle.CPUPlace())
        with static.scope_guard(static.Scope()):
            executor.run(startup)
            static.set_program_state(main, ours)
            (actual,) = executor.run(main, feed={"image": fed}, fetch_list=[logits])
        assert np.abs(actual - expected).max() / np.abs(expected).max() < 1e-5
