"""The check of an acceptance that evaluates: how many images does the machine recognise with weights from a CPU?"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import static

from harness import sampling, state
from harness.loader import Batch
from harness.loop import COUNTED, Evaluator
from paddle_rn50 import config, data
from paddle_rn50.folder import ImageList
from paddle_rn50.train import ResNet50
from program import precision
from program.arrays import Array
from runlog.verdict import Verdict, judged
from tools.acceptance.machine import BATCH, GOLDEN, SIDE, Batches, Machine, as_fed, copy_state, cpu_network

FIT_BATCHES = 16  # of training images that the weights are fitted to
RIDGE_SHARE = 0.1  # of the penalty on large weights: a share of the mean square length of a row of features
BLOCK_SCALE = 0.2  # last scale of each block: untrained blocks at full scale leave little of the image
MAX_DIFFERENT = 4  # images by which the number of right answers may differ from the recorded one
WHY_MOST_DIFFERENT = "rounding products to 11 bits changes one on a CPU, and so does storing in FP16; four times that"


def evaluation(machine: Machine) -> Verdict:
    """Count how many images of digits this machine's network gets right, and compare with a recorded count.

    The recorded count is that of a CPU (paddle_rn50/golden.json). The network is not trained: layers with random
    weights turn the images into features, and the last layer is fitted to training images by linear algebra. The CPU of
    the first rank computes this, so every machine has the same weights. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.

    Returns:
        Ok if all images were counted, and the count of right ones differs by at most MAX_DIFFERENT (4); else fatal.
    """
    recipe = config.recipe("digits_small", global_batch=BATCH, image_size=SIDE)
    weights = _weights_of_first_rank(machine, recipe)  # by name: the first rank computes them and sends them to all
    images = machine.images("val", recipe)  # other images than those that the last layer is fitted to
    model = ResNet50(recipe, machine.plan(), batch=BATCH)
    with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        main = _evaluation_program(model)
        _set_weights(main, weights, machine.executor.place)
        # `counted`: images of all ranks that were evaluated; `correct`: those of them that were recognised.
        totals = _totals_over_ranks(machine, main, model, images, resize=recipe.eval_resize)

    recorded = GOLDEN["evaluation"]["correct"]
    all_are_counted = totals.counted == len(images)
    good = all_are_counted and abs(totals.correct - recorded) <= MAX_DIFFERENT
    found = f"{totals.correct} of {totals.counted} images right, recorded {recorded}"
    wanted = f"differs by at most {MAX_DIFFERENT} images: {WHY_MOST_DIFFERENT}"
    figures = {"correct": totals.correct, "of": totals.counted, "recorded": recorded}
    # Ok if `good`, else fatal. `found` and `wanted` are the words on what was found and on what would be ok.
    return judged("evaluation", good, found, wanted, figures=figures)


def _weights_of_first_rank(machine: Machine, recipe: config.Recipe) -> dict[str, Array]:
    """Return the weights to evaluate, by name: the first rank fits them to training images and sends them to all.

    All ranks must call this together.
    """
    weights = None
    if machine.me.is_first:
        batches = machine.batches(machine.images("train", recipe), recipe, FIT_BATCHES)
        weights = fitted_weights(batches, recipe)
    weights_of_first_rank: dict[str, Array] = machine.me.comm.bcast(weights)
    return weights_of_first_rank


def _evaluation_program(model: ResNet50) -> static.Program:
    """Return the program that evaluates a model in the precision of its plan; its weights are not set."""
    main = static.Program()
    dropped_startup = static.Program()  # would draw the first weights, which are given here
    with static.program_guard(main, dropped_startup):
        model.evaluation_totals(model.image, BATCH)  # appends its operators to `main`
        precision.cast_evaluation(main, model.plan.precision)
    return main


def _set_weights(main: static.Program, weights: dict[str, Array], place: Any) -> None:
    """Set variables of a program to given weights, in Paddle's current scope.

    Args:
        main: The program. Its variables that `weights` does not name are left as they are.
        weights: FP32 values by the names of variables. Each is cast to the type of its variable. Zeros are added for
            input channels that the variable has and the weight does not.
        place: Paddle's name of the device: a CPUPlace or a CUDAPlace.
    """
    for variable in main.list_vars():
        if variable.name in weights:
            dtype = paddle.base.data_feeder.convert_dtype(variable.dtype)
            # The first convolution may have more input channels than its weight: zeros are added for these.
            value = state.padded(weights[variable.name], variable.shape).astype(dtype)
            tensor = static.global_scope().var(variable.name).get_tensor()
            tensor.set(value, place)


class Totals(NamedTuple):
    """The counts of an evaluation, of all ranks together."""

    correct: int  # right answers
    counted: int  # images


def _totals_over_ranks(
    machine: Machine, main: static.Program, model: ResNet50, images: ImageList, *, resize: int
) -> Totals:
    """Evaluate images on all ranks; return how many answers are right and how many images were counted.

    Each rank evaluates a share of the images, and gets the counts of all ranks. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.
        main: The program that evaluates a batch, with its weights set in Paddle's current scope.
        model: The model of the program.
        images: The images of all ranks together.
        resize: Length in pixels to which the shorter side of each image is resized, before the centre is cropped.
    """
    # The program adds the right answers of each batch to one variable, and the number of its images to another.
    right_answers = model.QUALITY  # the variables' names
    counted_images = COUNTED
    evaluator = Evaluator(
        executor=machine.executor, main=main, totals=(right_answers, counted_images), ranks=machine.me
    )
    batches_of_a_rank = sampling.evaluation_steps(len(images), BATCH * machine.me.size)
    with contextlib.closing(_loader_of_share(machine, images, resize=resize)) as loader:
        # Evaluates this rank's batches, and sums both variables over the ranks.
        total_by_name = evaluator.run(_in_format(loader, model.image), steps=batches_of_a_rank)
    return Totals(correct=int(total_by_name[right_answers]), counted=int(total_by_name[counted_images]))


def _loader_of_share(machine: Machine, images: ImageList, *, resize: int) -> data.Loader:
    """Return a loader of this rank's share of the images: with 2 ranks, rank 0 has the images 0, 2, 4 and so on."""
    me = machine.me
    share = sampling.evaluation_plan(len(images), batch=BATCH, rank=me.rank, ranks=me.size)
    # The CPU decodes the images, so that the program gets the same ones on every machine.
    reader = machine.reader(data.ImageFormat(size=SIDE), device="cpu")
    return data.Loader(images, share, reader, resize=resize)


def _in_format(batches: Iterable[Batch], wanted: data.ImageFormat) -> Iterator[Batch]:
    """Yield batches with their images in the format that a program is fed."""
    for batch in batches:
        yield replace(batch, image=as_fed(np.asarray(batch.image), wanted))


def fitted_weights(batches: Batches, recipe: config.Recipe) -> dict[str, Array]:
    """Return weights, by name, with which ResNet-50 recognises the digits of some images without any training.

    All layers but the last keep their random first weights, except for the last scale of each block, and turn the
    images into features. The last layer is fitted to map the features to the labels. A CPU computes this, with the same
    random weights each time, so every machine has the same result.

    Args:
        batches: The training images [N, 3, H, W] and labels [N, 1] of several steps. All steps are used as one batch.
        recipe: Sets the number of classes and the image size.
    """
    image = np.concatenate([images for images, _ in batches])
    label = np.concatenate([labels for _, labels in batches])
    # Evaluation needs the mean and the variance of each batch norm's input. Training finds them over many steps. At
    # momentum 0 a single pass is enough: it sets them to the mean and the variance of this one batch.
    recipe = replace(recipe, bn_momentum=0.0)
    with cpu_network(recipe, len(image)) as (main, executor):
        # First, because the features depend on these scales: untrained blocks at full scale leave little of the image.
        _scale_blocks_down(main)
        feed = {"image": image, "label": label}
        # The pass has two results: the features, and the means and variances, which stay in Paddle's scope.
        (features,) = executor.run(main, feed=feed, fetch_list=[_name_of_features(main)])
        weights = copy_state(main)  # after the pass, so that the means and variances are in it

    classes = np.eye(recipe.classes)[label[:, 0]]  # one-hot, [N, classes]
    weight, bias = _ridge_regression(features, classes)  # features @ weight + bias is close to `classes`
    weights["fc.w"] = weight.astype(np.float32)  # replaces the random weight of the last layer
    weights["fc.b"] = bias.astype(np.float32)
    return weights


def _name_of_features(main: static.Program) -> str:
    """Return the name of the variable that holds the features. The last layer multiplies them by the weight fc.w."""
    (last_layer,) = [op for op in main.global_block().ops if "fc.w" in op.input_arg_names]
    (features,) = last_layer.input("X")
    return str(features)


def _scale_blocks_down(main: static.Program) -> None:
    """Set the last scale of each residual block to BLOCK_SCALE in the current scope.

    An untrained block adds noise to the image. At full scale all blocks together would leave little of the image.
    """
    for name, tensor in state.tensors(main):
        ends_a_block = name.endswith(".3.bn.w")  # the scale of the batch norm behind a block's third convolution
        if ends_a_block:
            state.assign(tensor, np.full_like(np.array(tensor), BLOCK_SCALE))


def _ridge_regression(features: Array, targets: Array) -> tuple[Array, Array]:
    """Fit a linear map from features to targets by ridge regression: least squares with a penalty on large weights.

    With a column of ones behind the features, X = [features, 1], weight and bias are one matrix W. With the penalty r,
    the targets Y and the identity I, the fit is

        W = Xᵀ (X Xᵀ + r I)⁻¹ Y

    Args:
        features: Shape [N, F]. The equations that are solved have N unknowns, not F.
        targets: Shape [N, T].

    Returns:
        (weight, bias) in float64, shapes [F, T] and [T]. The map is features @ weight + bias.
    """
    n = len(features)
    x = np.concatenate([features, np.ones((n, 1))], axis=1, dtype=np.float64)  # [N, F + 1]
    # In this form (the dual one) the system has N unknowns. The images, N, are fewer than the features, F.
    products_of_rows = x @ x.T  # [N, N]
    penalty = RIDGE_SHARE * np.trace(products_of_rows) / n  # the trace is the sum of the square lengths of the rows
    solution = np.linalg.solve(products_of_rows + penalty * np.eye(n), targets)  # [N, T]
    weight_and_bias = x.T @ solution  # [F + 1, T]
    return weight_and_bias[:-1], weight_and_bias[-1]
