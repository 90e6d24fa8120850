"""What is fed is what the programs take, and evaluation programs are proved as training ones are."""

from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from paddle import static

from harness.loop import COUNTED
from paddle_hrnet import config as hrnet_config
from paddle_hrnet import model as hrnet_model
from paddle_hrnet import train as hrnet
from paddle_rn50 import config
from program import count, precision
from program.ops import dtype_of
from program.proof import kernels
from tests.program import programs

BATCH, RANKS = 2, 2
RN50 = tuple(name for name in config.RECIPES if name != "recorded")  # whose program is nvidia_cosine's
# Slow are those that differ from another by its learning rate alone, or by the layout that a user must ask for; and of
# FCN-HRNetW18, slow to build, all but three: the null GPUs evaluate each of its recipes in amp_o2 (tests/null_gpu/).
FAST_OF_HRNET = {("cityscapes_80k", "fp32"), ("cityscapes_80k", "amp_o2"), ("scenes_small", "amp_o2")}
CI_OF_HRNET = {("cityscapes_80k", "amp_o1"), ("cityscapes_80k", "tf32")}


def marks_of_hrnet(case: tuple[str, str]) -> list[pytest.MarkDecorator]:
    """The marks of a recipe in a precision."""
    if case in FAST_OF_HRNET:
        return []
    return [pytest.mark.slow, pytest.mark.ci] if case in CI_OF_HRNET else [pytest.mark.slow]


CASES = [
    pytest.param(
        *("rn50", recipe, name, layout),
        marks=[] if recipe in RN50[:2] and layout == precision.PRECISIONS[name].layout else [pytest.mark.slow],
    )
    for recipe in RN50
    for name in precision.PRECISIONS
    for layout in ("NCHW", "NHWC")
] + [
    pytest.param("hrnet", recipe, name, "NCHW", marks=marks_of_hrnet((recipe, name)))
    for recipe in hrnet_config.RECIPES
    for name in precision.PRECISIONS
]


@pytest.fixture(autouse=True)
def small() -> Any:
    """Networks of few layers, of the same operators."""
    with (
        paddle.utils.unique_name.guard(),
        mock.patch("paddle_rn50.model.STAGES", programs.STAGES),
        mock.patch.object(hrnet_model, "MODULES", {2: 1, 3: 1, 4: 1}),
        mock.patch.object(hrnet_model, "BLOCKS", 1),
    ):
        yield


def built(
    name: str, layout: str, recipe_name: str = "nvidia_cosine", workload: str = "rn50"
) -> tuple[programs.Built, static.Program, list[dict[str, Any]]]:
    """The training and the evaluation program, and what a synthetic batch feeds each."""
    job: dict[str, Any] = {"device": "gpu", "name": name, "layout": layout, "batch": BATCH, "ranks": RANKS}
    if workload == "rn50":
        recipe: Any = config.recipe(recipe_name, global_batch=4096, image_size=32)  # has a rate in every recipe
        training = programs.fresh(**job, recipe=recipe)
        image, batch = training.model.image, BATCH
    else:
        recipe = hrnet_config.recipe(recipe_name, global_batch=BATCH * RANKS, image_size=64)
        training = programs.fresh(**job, recipe=recipe, workload=partial(hrnet.HRNet, ranks=RANKS))
        image, batch = replace(training.model.image, height=64, width=96), recipe.eval_batch
    formats = ((training.model.image, BATCH), (image, batch))
    made = [training.model.synthetic(of, batch=size, seed=1) for of, size in formats]
    fed = [{"image": one.image, "label": one.label, "valid": one.valid} for one in made]
    return training, training.evaluation(image, batch), fed


@pytest.mark.parametrize(("workload", "recipe", "name", "layout"), CASES)
def test_a_synthetic_batch_is_what_both_programs_take(workload: str, recipe: str, name: str, layout: str) -> None:
    """Of every workload, recipe, precision and layout, as two GPUs have them; each is proved as it is built."""
    training, evaluation, (batch, whole) = built(name, layout, recipe, workload)
    for program in training.update:
        kernels.check_feed(program, {"image": batch["image"], "label": batch["label"]})
    kernels.check_feed(evaluation, whole)
    assert dtype_of(evaluation.global_block().var("image")) == precision.PRECISIONS[name].dtype
    assert dtype_of(evaluation.global_block().var(COUNTED)) in ("float32", "int64")


def test_a_batch_of_another_type_or_shape_is_refused_before_any_kernel() -> None:
    training, _, (batch, _) = built("amp_o2", "NHWC")
    good = {"image": batch["image"], "label": batch["label"]}
    as_float = {"image": good["image"].astype(np.float32)}
    for wrong, said in (
        (as_float, r"takes image as \(\[2, 32, 32, 4\], 'float16'\) and is fed .*32'"),
        ({"label": good["label"][:, 0]}, r"takes label as \(\[2, 1\], 'int64'\) and is fed \(\[2\], 'int64'\)"),
        ({"valid": batch["valid"]}, "takes valid as nothing"),
    ):
        with pytest.raises(ValueError, match=said):
            kernels.check_feed(training.main, good | wrong)


def test_an_operand_of_another_type_than_its_operators_is_refused() -> None:
    """What Paddle would cast at each step without a word, or stop at in the first one."""
    training, evaluation, _ = built("amp_o2", "NHWC")
    evaluation.global_block().var("image").desc.set_dtype(paddle.float32)
    with pytest.raises(ValueError, match=r"conv2d reads or writes stem.conv.w in float32, and it is declared float16"):
        kernels.check(evaluation, "gpu")
    with pytest.raises(ValueError, match=r"the evaluation has .* the training as"):
        kernels.check_evaluation(built("fp32", "NHWC")[1], training.main, "gpu")


@pytest.mark.parametrize(("shape", "dtype"), [([2, 3], "float16"), ([3, 2], "float32")])
def test_an_evaluation_that_shares_a_variable_of_another_shape_or_type_is_refused(shape: list[int], dtype: str) -> None:
    paddle.enable_static()
    training, evaluation = static.Program(), static.Program()
    training.global_block().create_var(name="w", shape=[2, 3], dtype="float32", persistable=True)
    evaluation.global_block().create_var(name="w", shape=shape, dtype=dtype, persistable=True)
    kernels.check_evaluation(training.clone(), training, "cpu")
    with pytest.raises(ValueError, match=r"the evaluation has w as .* the training as"):
        kernels.check_evaluation(evaluation, training, "cpu")


def test_the_logged_all_reduces_are_those_of_gradients() -> None:
    """On CPUs the sums of batch norm over the ranks are all-reduces too, forward and backward."""
    recipe = hrnet_config.recipe("cityscapes_80k", global_batch=BATCH * RANKS, image_size=64)
    workload = partial(hrnet.HRNet, ranks=RANKS)
    counts = []
    for device in ("cpu", "gpu"):
        training = programs.fresh(device=device, batch=BATCH, ranks=RANKS, recipe=recipe, workload=workload)
        [sums] = training.kinds("c_allreduce_sum")
        found = count.counts_of(training.main)
        counts.append((found["all_reduces"], found["all_reduce_mib"], sum(b["gradients"] for b in found["buckets"])))
        assert (sums > found["all_reduces"]) == (device == "cpu")
    assert counts[0] == counts[1]
