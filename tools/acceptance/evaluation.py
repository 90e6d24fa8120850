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
MOST_DIFFERENT = 4  # images by which the number of right answers may differ from the recorded one
WHY_MOST_DIFFERENT = "rounding products to 11 bits changes one on a CPU, and so does storing in FP16; four times that"


def evaluation(machine: Machine) -> Verdict:
    """Count how many images of digits this machine's network gets right, and compare with a recorded count.

    A CPU once gave that count (paddle_rn50/golden.json). The weights are computed on a CPU here, not trained, so every
    machine has the same. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.

    Returns:
        Ok if all images were counted, and the count of right ones differs by at most MOST_DIFFERENT (4); else fatal.
    """
    recipe = config.recipe("digits_small", global_batch=BATCH, image_size=SIDE)
    weights = _weights_of_first_rank(machine, recipe)  # computed, not trained, so every machine has the same
    images = machine.images("val", recipe)
    model = ResNet50(recipe, machine.plan(), batch=BATCH)
    with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        main = _evaluation_program(model)
        _set_weights(main, weights, machine.executor.place)
        totals = _totals_over_ranks(machine, main, model, images, resize=recipe.eval_resize)

    recorded = GOLDEN["evaluation"]["correct"]
    all_are_counted = totals.counted == len(images)
    good = all_are_counted and abs(totals.correct - recorded) <= MOST_DIFFERENT
    found = f"{totals.correct} of {totals.counted} images right, recorded {recorded}"
    wanted = f"differs by at most {MOST_DIFFERENT} images: {WHY_MOST_DIFFERENT}"
    figures = {"correct": totals.correct, "of": totals.counted, "recorded": recorded}
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

    Each rank evaluates its own share of the images, and the counts of the ranks are added up. If 2 ranks have 50 images
    each and answer 40 and 43 of them right, each rank returns 83 right answers and 100 images. All ranks must call this
    together.

    Args:
        machine: What the checks share on this rank, such as Paddle's executor.
        main: The program that evaluates a batch, with its weights set in Paddle's current scope.
        model: The model of the program. `model.image` is the format in which the program takes images.
        images: The images of all ranks together.
        resize: Length in pixels to which the shorter side of each image is resized, before the centre is cropped.
    """
    me = machine.me
    # First the input: which images this rank evaluates, in how many batches, and how they are read.
    # The share is the batches of this rank, as image numbers. With 2 ranks, rank 0 has the images 0, 2, 4, ...
    share_of_rank = sampling.evaluation_plan(len(images), batch=BATCH, rank=me.rank, ranks=me.size)
    steps = sampling.evaluation_steps(len(images), BATCH * me.size)  # batches of a rank, as many on every rank
    # The CPU decodes the images, so that the program gets the same ones on every machine.
    reader = machine.reader(data.ImageFormat(size=SIDE), device="cpu")

    # Then the counts: the program has two variables, to which each batch adds its right answers and its images. The
    # evaluator needs the names of the variables, to set them to 0 first and to read them at the end.
    correct_name = model.QUALITY  # name of the variable with the right answers
    counted_name = COUNTED  # name of the variable with the number of images
    evaluator = Evaluator(executor=machine.executor, main=main, totals=(correct_name, counted_name), ranks=me)
    with contextlib.closing(data.Loader(images, share_of_rank, reader, resize=resize)) as batches:
        batches_as_fed = _in_format(batches, model.image)  # in the layout and type that the program takes
        # Evaluates this rank's batches, then sums each variable over all ranks: {correct_name: 83, counted_name: 100}.
        total_by_name = evaluator.run(batches_as_fed, steps=steps)
    return Totals(correct=int(total_by_name[correct_name]), counted=int(total_by_name[counted_name]))


def _in_format(batches: Iterable[Batch], wanted: data.ImageFormat) -> Iterator[Batch]:
    """Yield batches with their images in the format that a program is fed."""
    for batch in batches:
        yield replace(batch, image=as_fed(np.asarray(batch.image), wanted))


def fitted_weights(batches: Batches, recipe: config.Recipe) -> dict[str, Array]:
    """Return weights, by name, with which ResNet-50 recognises the digits of some images without any training.

    The convolutions keep their random first weights. One forward pass turns the images into features, and the last
    layer is then fitted by ridge regression to map the features to the labels. All is computed on the CPU, so that
    every machine has the same weights.

    Args:
        batches: The training images [N, 3, H, W] and labels [N, 1] of several steps. All steps are used as one batch.
        recipe: Sets the number of classes and the image size.
    """
    # The weights include the running mean and variance of each batch norm. At momentum 0, a pass replaces the old ones
    # by those of its own batch, so that a single pass is enough.
    recipe = replace(recipe, bn_momentum=0.0)
    image = np.concatenate([images for images, _ in batches])
    label = np.concatenate([labels for _, labels in batches])
    with cpu_network(recipe, len(image)) as (main, executor):
        # An untrained residual block adds noise to its input. With the noise scaled to 0.2 (BLOCK_SCALE), enough of the
        # image is left.
        _scale_blocks_down(main)
        feed = {"image": image, "label": label}
        (features,) = executor.run(main, feed=feed, fetch_list=[_name_of_features(main)])
        weights = copy_state(main)  # all weights, with the running means and variances of this pass

    classes = np.eye(recipe.classes)[label[:, 0]]  # one-hot, [N, classes]
    weight, bias = _ridge_regression(features, classes)  # features @ weight + bias is close to `classes`
    weights["fc.w"] = weight.astype(np.float32)
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
