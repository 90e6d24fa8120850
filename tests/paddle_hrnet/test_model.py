"""FCN-HRNetW18 against PaddleSeg's own."""

import functools
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import paddle
import pytest
from paddle import static

from paddle_hrnet import model, train
from paddle_hrnet.config import CITYSCAPES_80K, FLIP, MULTISCALE, Recipe
from paddle_hrnet.model import fcn_hrnet_w18, paddleseg_name, pretrained_weights
from tests import jobs


@pytest.fixture(autouse=True)
def _static() -> None:
    paddle.enable_static()


@functools.cache
def build(recipe: Recipe = CITYSCAPES_80K) -> static.Program:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        logits = fcn_hrnet_w18(static.data("image", [1, 3, 512, 1024], "float32"), recipe, training=False)
    assert logits.shape == (1, recipe.classes, 512, 1024)
    return main


def parameters(main: static.Program) -> tuple[int, int]:
    """Trainable ones, and all with BN statistics."""
    count = {v.name: int(np.prod(v.shape)) for v in main.list_vars() if v.persistable and paddleseg_name(v.name)}
    trainable = {p.name for p in main.all_parameters() if p.trainable}
    return sum(count[name] for name in trainable), sum(count.values())


@pytest.mark.parametrize(("bias", "trainable", "whole"), [(True, 9_641_119, 9_675_595), (False, 9_640_830, 9_675_306)])
def test_parameters(bias: bool, trainable: int, whole: int) -> None:
    assert parameters(build(replace(CITYSCAPES_80K, head_bias=bias))) == (trainable, whole)


def test_building_twice_shares_the_weights() -> None:
    main, startup, found = static.Program(), static.Program(), []
    small = mock.patch.multiple(model, MODULES={2: 1, 3: 1, 4: 1}, BLOCKS=1)
    with small, static.program_guard(main, startup):
        image = static.data("image", [1, 3, 32, 32], "float32")
        for _ in range(2):
            fcn_hrnet_w18(image, replace(CITYSCAPES_80K, classes=3), training=False)
            found.append(parameters(main))
    assert found[0] == found[1]


# ---- PaddleSeg's own weights and outputs


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peer")
    done = jobs.run([sys.executable, str(Path(__file__).with_name("paddleseg_peer.py")), str(folder)])
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["evaluated", "trained", "flip", "multiscale"])
def test_outputs_agree_with_paddleseg(peer: Path, mode: str) -> None:
    """Of the network, and of an evaluation that sums up logits of several sizes and mirror images."""
    outputs = np.load(peer / "outputs.npz")
    recipe, views = {"flip": (FLIP, 2), "multiscale": (MULTISCALE, 6)}.get(mode, (CITYSCAPES_80K, 1))
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        image = static.data("image", list(outputs["image"].shape), "float32")
        if mode == "trained":
            logits = fcn_hrnet_w18(image, recipe, training=True)
        else:
            logits = train.evaluation_logits(image, recipe)
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        static.set_program_state(main, pretrained_weights(peer / "weights.pdparams", main))
        (ours,) = executor.run(main, feed={"image": outputs["image"]}, fetch_list=[logits])
    assert np.abs(outputs[mode]).max() > 0.1
    assert mode == "evaluated" or np.abs(outputs[mode] - outputs["evaluated"]).max() > 0.1
    np.testing.assert_allclose(ours / views, outputs[mode], rtol=0, atol=1e-4 * np.abs(outputs[mode]).max())


# ---- files of weights


def zeros(program: static.Program) -> dict[str, np.ndarray]:
    """A value for each variable of the model, as PaddleSeg names it."""
    shapes = {paddleseg_name(v.name): v.shape for v in program.list_vars() if v.persistable}
    return {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items() if name}


def saved(folder: Path, state: dict[str, np.ndarray]) -> Path:
    paddle.save(state, str(folder / "weights.pdparams"))
    return folder / "weights.pdparams"


def test_backbone_weights_leave_the_head_as_it_is(tmp_path: Path) -> None:
    main = build()
    state = {name.removeprefix("backbone."): value for name, value in zeros(main).items() if "backbone." in name}
    found = {paddleseg_name(name) for name in pretrained_weights(saved(tmp_path, state), main)}
    assert found == {f"backbone.{name}" for name in state} and len(found) == 1533 - 8


def test_a_mismatch_names_the_layers(tmp_path: Path) -> None:
    main = build()
    state = zeros(main)
    assert len(pretrained_weights(saved(tmp_path, state), main)) == 1533
    del state["backbone.la1.bb_layer2_1.conv1._conv.weight"]
    state["head.cls.weight"] = np.zeros([21, 270, 1, 1], dtype=np.float32)
    absent = "backbone.la1.bb_layer2_1.conv1._conv.weight is absent; "
    other = r"head.cls.weight is \[21, 270, 1, 1\] there and \[19, 270, 1, 1\] here: set PRETRAINED"
    with pytest.raises(ValueError, match=f"2 layers do not fit: {absent}{other}"):
        pretrained_weights(saved(tmp_path, state), main)
