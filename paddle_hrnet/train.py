"""FCN-HRNetW18 on images in Cityscapes' layout, as `harness/train.py` trains it."""

import dataclasses
import sys
import zlib  # noqa: F401 - before Paddle, which brings a zlib that crashes Python's own behind it
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import paddle
from paddle import static
from paddle.nn import functional
from paddle.utils import unique_name

from harness.loop import COUNTED
from harness.workload import Workload, add_to_total
from paddle_hrnet import config, data, labels, scenes
from paddle_hrnet.model import enlarge, fcn_hrnet_w18, pretrained_weights
from program.arrays import Array
from program.passes import sync_bn

CONFUSION = "eval.confusion"
PIXELS = 32  # side of the smallest image that the network takes


class HRNet(Workload):
    """FCN-HRNetW18, in the plan's precision and the one layout that `paddle_hrnet/model.py` has."""

    EMBEDDED: ClassVar = scenes
    DATA: ClassVar = data
    QUALITY = CONFUSION
    recipe: config.Recipe

    @property
    def bn_span(self) -> int:
        images_of_rank = super().bn_span
        return images_of_rank * self.ranks if self.recipe.sync_bn else images_of_rank

    @property
    def image(self) -> data.ImageFormat:
        half = self.plan.precision.is_half
        return data.ImageFormat(height=self.recipe.image_height, width=self.recipe.image_width, half=half)

    def eval_input(self, samples: data.PairList) -> tuple[data.ImageFormat, int]:
        return dataclasses.replace(data.first_size(samples), half=self.image.half), self.recipe.eval_batch

    def training_loss(self, batch: int) -> static.Variable:
        """Append the forward pass of a training step to Paddle's default program and return its loss, a scalar.

        It is the mean cross entropy over the pixels whose label is not IGNORED (255). The program's inputs are `image`
        [batch, 3, H, W] and `label` [batch, H, W]. If the recipe says so, batch normalization uses the statistics of
        all ranks.

        Args:
            batch: Images of the device that are computed at once.
        """
        height = self.image.height
        width = self.image.width
        pixels = static.data("image", [batch, 3, height, width], "float32")
        with static.amp.fp16_guard():  # AMP at O2 casts what is inside the guard to half precision
            logits = fcn_hrnet_w18(pixels, self.recipe, training=True)
        label = static.data("label", [batch, height, width], "uint8")
        label = paddle.unsqueeze(paddle.cast(label, "int64"), 1)
        loss = functional.cross_entropy(logits, label, axis=1, ignore_index=config.IGNORED)
        if self.recipe.sync_bn and self.ranks > 1:  # batch normalization by the statistics of all ranks
            sync_bn.span_ranks(static.default_main_program())
        return loss

    def evaluation_totals(self, image: data.ImageFormat, batch: int) -> None:
        pixels = static.data("image", [batch, 3, image.height, image.width], "float32")
        label = static.data("label", [batch, image.height, image.width], "uint8")
        valid = static.data("valid", [batch], "float32")
        with static.amp.fp16_guard():
            logits = evaluation_logits(pixels, self.recipe)
        matrix = confusion_matrix(logits, label, self.recipe.classes)
        counted = paddle.cast(paddle.sum(valid, keepdim=True), "int64")
        add_to_total(CONFUSION, matrix)
        add_to_total(COUNTED, counted)

    def quality(self, totals: dict[str, Any]) -> float:
        """Return the mean intersection over union of an evaluation.

        Args:
            totals: Sums over the evaluation by name, among them the confusion matrix.
        """
        return mean_iou(totals[CONFUSION])

    def doubt(self, totals: dict[str, Any]) -> str:
        """Return a warning if the labels of an evaluation hold too few classes for its quality to mean anything.

        With a single class or none, the network has no classes to tell apart. For example, masks that have 0 for the
        ground and 255 for an object hold class 0 alone, because pixels labelled 255 are ignored. With a few more, the
        target may be out of reach, because a class without a pixel counts 0 in the mean of all classes: with 3 of 11
        classes the quality is at most 0.27.

        Args:
            totals: Sums over the evaluation by name, among them the confusion matrix, without the ignored pixels.

        Returns:
            The warning; an empty text if the labels hold enough classes.
        """
        pixels_by_class = totals[CONFUSION].sum(axis=1)  # a row of the matrix is a class of the labels
        present = np.flatnonzero(pixels_by_class).tolist()  # the classes that have a pixel: [0] in the first example
        # "the evaluation's labels hold class 0 alone ...", or an empty text for two classes or more
        nothing_to_tell_apart = labels.few_classes("the evaluation's labels", present)
        if nothing_to_tell_apart:
            return nothing_to_tell_apart
        return labels.target_out_of_reach(len(present), of=len(pixels_by_class), target=self.recipe.target)

    def require_pretrained(self, path: str) -> None:
        if not path:
            return
        paddle.enable_static()
        network = static.Program()  # its layers are those of the training program, at any size of the images
        with static.program_guard(network, static.Program()), unique_name.guard():
            pixels = static.data("image", [1, 3, PIXELS, PIXELS], "float32")
            fcn_hrnet_w18(pixels, self.recipe, training=False)
        pretrained_weights(Path(path), network)

    def pretrained(self, path: str, program: static.Program) -> dict[str, Array]:
        return pretrained_weights(Path(path), program) if path else {}


WORKLOAD = HRNet


def mean_iou(confusion: Array) -> float:
    """Return the mean over the classes of their intersection over union, as PaddleSeg computes it.

    A class that occurs neither in labels nor in predictions has 0 and counts in the mean.

    Args:
        confusion: Pixels of each pair of true and predicted class, [K, K].
    """
    intersection = np.diag(confusion).astype(np.float64)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - np.diag(confusion)
    return float((intersection / np.maximum(union, 1)).mean())


def confusion_matrix(logits: static.Variable, label: static.Variable, classes: int) -> static.Variable:
    """Count the pixels of each pair of true and predicted class, by operators of Paddle's default program.

    Args:
        logits: Scores of each class at each pixel, [N, K, H, W]. The class with the highest one is the prediction.
        label: True class of each pixel, [N, H, W] uint8. Pixels labelled IGNORED (255) are not counted.
        classes: Number of classes K.

    Returns:
        The confusion matrix, [K, K] int64, with a row for each true class and a column for each predicted one.
    """
    cells = classes * classes
    label = paddle.cast(label, "int64")
    prediction = paddle.argmax(logits, axis=1)
    additional_cell = paddle.full_like(label, cells)  # after the last one, for ignored pixels
    is_ignored = paddle.equal(label, paddle.full_like(label, config.IGNORED))
    # The cells of the flattened matrix are numbered by label x K + prediction.
    cell = paddle.where(is_ignored, additional_cell, label * classes + prediction)
    counts = paddle.bincount(paddle.reshape(cell, [-1]), minlength=cells + 1)
    counts = paddle.slice(counts, [0], [0], [cells])  # all but the additional cell
    return paddle.reshape(counts, [classes, classes])


def evaluation_logits(pixels: static.Variable, recipe: config.Recipe) -> static.Variable:
    """Append the evaluation of images to Paddle's default program and return its logits.

    The network is run at each size of the recipe's `eval_scales` and, with `eval_flip`, on the mirrored images too. All
    logits are brought to the size of the images and added up.

    Args:
        pixels: Images [N, 3, H, W].
        recipe: Hyperparameters of the network and its evaluation.

    Returns:
        Logits [N, K, H, W], with K classes.
    """
    height, width = pixels.shape[2:]
    networks = [_logits]
    if recipe.eval_flip:
        networks.append(_mirrored_logits)
    total = None  # of the logits so far
    for scale in recipe.eval_scales:
        image = pixels
        if scale != 1.0:
            image = enlarge(pixels, [int(height * scale + 0.5), int(width * scale + 0.5)])  # rounded to whole pixels
        for network in networks:
            logits = network(image, recipe)
            if scale != 1.0:
                logits = enlarge(logits, [height, width])
            total = logits if total is None else total + logits
    return total


def _logits(image: static.Variable, recipe: config.Recipe) -> static.Variable:
    """Append the network in evaluation to Paddle's default program; return its logits of images."""
    return fcn_hrnet_w18(image, recipe, training=False)


def _mirrored_logits(image: static.Variable, recipe: config.Recipe) -> static.Variable:
    """Return the logits of the mirror images, mirrored back."""
    mirror = paddle.flip(image, [3])
    return paddle.flip(_logits(mirror, recipe), [3])


if __name__ == "__main__":
    print("error: paddle_hrnet/train.py is not a command: start a job by ./run_and_time.sh", file=sys.stderr)
    sys.exit(2)
