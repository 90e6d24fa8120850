"""ResNet-50 v1.5 on images in ImageNet's layout, as `harness/train.py` trains it."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import static

from harness.loader import Batch, ReaderConfig
from harness.loop import COUNTED
from harness.sampling import Plan
from harness.workload import Workload
from paddle_rn50 import config, data, digits
from paddle_rn50.model import ModelConfig, resnet50
from program import precision

CORRECT = "eval.correct"


class ResNet50(Workload):
    """ResNet-50, in the plan's layout and precision."""

    EMBEDDED, QUALITY = digits.NAME, CORRECT
    recipe: config.Recipe
    make_data, find_data = staticmethod(digits.prepare), staticmethod(data.find)

    @property
    def model(self) -> ModelConfig:
        """The network."""
        layout = self.plan.layout
        return ModelConfig(
            classes=self.recipe.classes,
            layout=layout,
            input_channels=4 if layout == "NHWC" and self.plan.precision.is_half else 3,
            bn_momentum=self.recipe.bn_momentum,
            zero_gamma=self.recipe.zero_gamma,
            uniform_classifier=self.recipe.uniform_classifier,
        )

    @property
    def image(self) -> data.ImageFormat:
        """Square images, in training and in evaluation."""
        return data.ImageFormat(
            size=self.recipe.image_size,
            layout=self.plan.layout,
            channels=self.model.input_channels,
            half=self.plan.precision.is_half,
        )

    def eval_input(self, samples: data.Images) -> tuple[data.ImageFormat, int]:
        """That of the training."""
        return self.image, self.batch

    def synthetic(self, image: data.ImageFormat, *, batch: int, seed: int) -> Batch:
        """A batch of noise."""
        return data.synthetic(image, batch=batch, classes=self.recipe.classes, seed=seed)

    def batches(self, samples: data.Images, plan: Plan, reader: ReaderConfig) -> data.Loader:
        """Images cropped and flipped."""
        return data.Loader(samples, plan, reader, augment=self.recipe.augmentation)

    def eval_batches(self, samples: data.Images, plan: Plan, reader: ReaderConfig) -> data.Loader:
        """Centre crops."""
        return data.Loader(samples, plan, reader, resize=self.recipe.eval_resize)

    def _logits(self, batch: int, *, training: bool) -> static.Variable:
        """[batch, classes] of the input "image", which is fed as float16 where the program begins by casting it."""
        side, channels = self.image.size, self.image.channels
        shape = [batch, channels, side, side] if self.image.layout == "NCHW" else [batch, side, side, channels]
        pixels = static.data("image", shape, "float32")
        with precision.half_region():
            return resnet50(pixels, self.model, training=training)

    def training_loss(self, batch: int) -> static.Variable:
        """Mean cross entropy [] of a batch against its smoothed labels."""
        logits = self._logits(batch, training=True)
        label = static.data("label", [batch, 1], "int64")
        if not self.recipe.label_smoothing:
            return paddle.nn.functional.cross_entropy(logits, label)
        one_hot = paddle.nn.functional.one_hot(paddle.squeeze(label, 1), self.recipe.classes)
        smooth = paddle.nn.functional.label_smooth(one_hot, epsilon=self.recipe.label_smoothing)
        return paddle.nn.functional.cross_entropy(logits, smooth, soft_label=True)

    def evaluation_totals(self, image: data.ImageFormat, batch: int) -> None:
        """Adds a batch's correct and counted samples to CORRECT and COUNTED."""
        logits = self._logits(batch, training=False)
        label = static.data("label", [batch, 1], "int64")
        valid = static.data("valid", [batch, 1], "float32")
        hit = paddle.cast(paddle.equal(paddle.argmax(logits, axis=1, keepdim=True), label), "float32")
        for name, value in ((CORRECT, hit * valid), (COUNTED, valid)):
            block = static.default_main_program().global_block()
            total = block.create_var(name=name, shape=[1], dtype="float32", persistable=True)
            paddle.assign(total + paddle.sum(value), output=total)

    def quality(self, totals: dict[str, Any]) -> float:
        """Top-1: the share of the images whose class is found."""
        return float(totals[CORRECT] / totals[COUNTED])


WORKLOAD = ResNet50
