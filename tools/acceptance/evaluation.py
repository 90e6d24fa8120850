"""The check of an acceptance that evaluates: how many images does the machine recognise, by weights of the CPU?"""

import contextlib
from dataclasses import replace

import numpy as np
import paddle
from paddle import static

from harness import sampling, state
from harness.loop import COUNTED, Evaluator
from paddle_rn50 import config, data
from paddle_rn50.folder import ImageList
from paddle_rn50.train import ResNet50
from program import precision
from program.arrays import Array
from runlog.json_types import JsonObject
from runlog.verdict import Verdict, judged
from tools.acceptance.machine import BATCH, GOLDEN, SIDE, Images, Machine, as_fed, cpu_network, weights_of

FIT_BATCHES = 16  # of training images that the evaluated weights are fitted to
RIDGE = 0.1  # of the mean square of what the last layer reads
RESIDUAL = 0.2  # last scale of each block: untrained blocks at full scale leave little of the image
MOST_DIFFERENT = 4  # images by which the number of right answers may differ from the recorded one
WHY_MOST_DIFFERENT = "rounding products to 11 bits changes one on a CPU, and so does storing in FP16; four times that"


def evaluation(machine: Machine) -> Verdict:
    """Count the right answers on the embedded evaluation set, and judge them by the number that a CPU once got.

    Nothing is trained: the first rank's CPU computes the weights, the same on every machine. The ranks share the images
    and add up their counts. The verdict is good where every image was counted, and where the number of right answers
    differs from the recorded one, which paddle_rn50/golden.json holds, by at most MOST_DIFFERENT.
    """
    recipe = config.recipe("digits_small", global_batch=BATCH, image_size=SIDE)
    weights = _weights_of_first_rank(machine, recipe)
    images = machine.images("val", recipe)
    model = ResNet50(recipe, machine.plan(), batch=BATCH)
    with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        main = _evaluation_program(machine, model, weights)
        totals = _totals_over_ranks(machine, main, model, images, resize=recipe.eval_resize)

    correct = int(totals[model.QUALITY])
    counted = int(totals[COUNTED])
    recorded = GOLDEN["evaluation"]["correct"]
    good = counted == len(images) and abs(correct - recorded) <= MOST_DIFFERENT
    found = f"{correct} of {counted} images right, recorded {recorded}"
    wanted = f"differs by at most {MOST_DIFFERENT} images: {WHY_MOST_DIFFERENT}"
    return judged("evaluation", good, found, wanted, figures={"correct": correct, "of": counted, "recorded": recorded})


def _weights_of_first_rank(machine: Machine, recipe: config.Recipe) -> dict[str, Array]:
    """Return the weights to evaluate, by name: the first rank fits them to training images, the others get them.

    All ranks call this together.
    """
    weights = None
    if machine.me.is_first:
        batches = machine.batches(machine.images("train", recipe), recipe, FIT_BATCHES)
        weights = fitted_weights(batches, recipe)
    shared: dict[str, Array] = machine.me.comm.bcast(weights)
    return shared


def _evaluation_program(machine: Machine, model: ResNet50, weights: dict[str, Array]) -> static.Program:
    """Return the program of an evaluation in the job's precision, and set its weights in the current scope.

    `weights` are FP32 on the CPU, by name. Each is padded to the shape and cast to the type in which the program has
    it, and copied to this rank's device. Other variables of the program are left as they are.
    """
    main = static.Program()
    with static.program_guard(main, static.Program()):  # the start-up program is not kept: the weights are given
        model.evaluation_totals(model.image, BATCH)
        precision.cast_evaluation(main, model.plan.precision)
    for variable in main.list_vars():
        if variable.name in weights:
            dtype = paddle.base.data_feeder.convert_dtype(variable.dtype)
            value = state.padded(weights[variable.name], variable.shape).astype(dtype)
            tensor = static.global_scope().var(variable.name).get_tensor()
            tensor.set(value, machine.executor.place)
    return main


def _totals_over_ranks(
    machine: Machine, main: static.Program, model: ResNet50, images: ImageList, *, resize: int
) -> JsonObject:
    """Evaluate the images by the program `main`, and return the totals over all ranks.

    They are {model.QUALITY: number of right answers, COUNTED: number of images}. All ranks call this together, and each
    evaluates its share. The CPU decodes the images and resizes them to `resize` pixels, so that they are the same on
    any machine, and each batch is brought into the format of the program.
    """
    me = machine.me
    evaluator = Evaluator(executor=machine.executor, main=main, totals=(model.QUALITY, COUNTED), ranks=me)
    plan = sampling.evaluation_plan(len(images), batch=BATCH, rank=me.rank, ranks=me.size)
    steps = sampling.evaluation_steps(len(images), BATCH * me.size)
    reader = machine.reader(data.ImageFormat(size=SIDE))
    with contextlib.closing(data.Loader(images, plan, reader, resize=resize)) as batches:
        as_program_takes_them = (replace(b, image=as_fed(np.asarray(b.image), model.image)) for b in batches)
        return evaluator.run(as_program_takes_them, steps=steps)


def fitted_weights(batches: Images, recipe: config.Recipe) -> dict[str, Array]:
    """Return weights, by name, with which ResNet-50 recognises the digits of `batches` without any training.

    The convolutions keep their random first weights, and each residual block is scaled down so that the image shows
    through. One forward pass over all images sets the statistics of batch norm. The last layer is then fitted to what
    it read in that pass, its features: it is their ridge regression to the images' classes. The network is computed on
    the CPU in FP32, so that the weights are the same on every machine.
    """
    recipe = replace(recipe, bn_momentum=0.0)  # batch norm then keeps the statistics of the one pass alone
    image = np.concatenate([images for images, _ in batches])
    label = np.concatenate([labels for _, labels in batches])
    with cpu_network(recipe, len(image)) as (main, executor):
        _scale_blocks_down(main)
        (last_layer,) = [op for op in main.global_block().ops if "fc.w" in op.input_arg_names]  # which multiplies by it
        feed = {"image": image, "label": label}
        (features,) = executor.run(main, feed=feed, fetch_list=last_layer.input("X"))
        weights = weights_of(main)

    classes = np.eye(recipe.classes)[label[:, 0]]  # [N, classes], 1 in the column of an image's class
    weight, bias = _ridge_regression(features, classes)
    weights["fc.w"] = weight.astype(np.float32)
    weights["fc.b"] = bias.astype(np.float32)
    return weights


def _scale_blocks_down(main: static.Program) -> None:
    """Set the last scale of each residual block to RESIDUAL in the current scope.

    An untrained block adds noise to the image that passes by it: at full scale the blocks leave little of it.
    """
    for name, tensor in state.tensors(main):
        ends_a_block = name.endswith(".3.bn.w")  # the scale of the batch norm behind a block's third convolution
        if ends_a_block:
            state.assign(tensor, np.full_like(np.array(tensor), RESIDUAL))


def _ridge_regression(features: Array, targets: Array) -> tuple[Array, Array]:
    """Return weight [F, T] and bias [T] of the linear map from `features` [N, F] to `targets` [N, T], in float64.

    The map has the least squared errors plus a penalty on large weights. The bias is the weight of a feature that is
    always 1. There are more features than images, so the dual form is solved, with one unknown for each image: the
    weights are Xᵀ (X Xᵀ + r I)⁻¹ Y. The penalty r is RIDGE times the mean square length of a row of X.
    """
    ones = np.ones((len(features), 1))
    x = np.concatenate([features, ones], axis=1, dtype=np.float64)  # [N, F + 1]
    gram = x @ x.T  # [N, N]
    penalty = RIDGE * np.trace(gram) / len(gram)
    dual = np.linalg.solve(gram + penalty * np.eye(len(gram)), targets)  # [N, T]
    weight_and_bias = x.T @ dual  # [F + 1, T]
    return weight_and_bias[:-1], weight_and_bias[-1]
