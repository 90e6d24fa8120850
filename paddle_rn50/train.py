"""ResNet-50 v1.5 on images in ImageNet's layout, as `harness/train.py` trains it."""

import sys
import zlib  # noqa: F401 - before Paddle, which brings a zlib that crashes Python's own behind it
from typing import Any, ClassVar

import paddle
from paddle import static
from paddle.nn import functional

from harness.loader import ReaderConfig
from harness.loop import COUNTED
from harness.sampling import Plan
from harness.workload import Workload, add_to_total
from paddle_rn50 import config, data, digits
from paddle_rn50.model import resnet50

CORRECT = "eval.correct"


class ResNet50(Workload):
    """ResNet-50, in the plan's layout and precision."""

    EMBEDDED: ClassVar = digits
    DATA: ClassVar = data
    QUALITY = CORRECT
    recipe: config.Recipe

    @property
    def image(self) -> data.ImageFormat:
        layout = self.plan.layout
        half = self.plan.precision.is_half
        # A fourth channel of zeros is what the tensor cores' kernels for NHWC take.
        channels = 4 if half and layout == "NHWC" else 3
        return data.ImageFormat(size=self.recipe.image_size, layout=layout, channels=channels, half=half)

    def eval_batches(self, samples: data.Images, plan: Plan, reader: ReaderConfig) -> data.Loader:
        return data.Loader(samples, plan, reader, resize=self.recipe.eval_resize)

    def _logits(self, batch: int, *, training: bool) -> static.Variable:
        """Append ResNet-50 and its input "image" to Paddle's default program; return the logits, [batch, classes].

        Args:
            batch: Number of images that the device computes at once.
            training: Whether batch normalization uses the statistics of the batch and updates the running ones.
        """
        layout = self.plan.layout  # of the images that are fed and of those inside the network
        side = self.image.size
        channels = self.image.channels
        shape = [batch, channels, side, side] if layout == "NCHW" else [batch, side, side, channels]
        pixels = static.data("image", shape, "float32")  # half precision makes it float16 later (program/precision.py)
        # Mixed precision of level O2 casts only the operators inside this guard to half precision.
        with static.amp.fp16_guard():
            return resnet50(pixels, self.recipe, layout=layout, training=training)

    def training_loss(self, batch: int) -> static.Variable:
        """Append the forward pass of a training step to Paddle's default program and return its loss, a scalar.

        It is the mean cross entropy of a batch against its labels, smoothed if the recipe says so.

        Args:
            batch: Images of the device that are computed at once.
        """
        logits = self._logits(batch, training=True)
        label = static.data("label", [batch, 1], "int64")
        if not self.recipe.label_smoothing:
            return functional.cross_entropy(logits, label)
        one_hot = functional.one_hot(paddle.squeeze(label, 1), self.recipe.classes)
        smooth = functional.label_smooth(one_hot, epsilon=self.recipe.label_smoothing)
        return functional.cross_entropy(logits, smooth, soft_label=True)

    def evaluation_totals(self, image: data.ImageFormat, batch: int) -> None:
        logits = self._logits(batch, training=False)
        label = static.data("label", [batch, 1], "int64")
        valid = static.data("valid", [batch, 1], "float32")
        prediction = paddle.argmax(logits, axis=1, keepdim=True)
        is_correct = paddle.cast(paddle.equal(prediction, label), "float32")
        add_to_total(CORRECT, paddle.sum(is_correct * valid))
        add_to_total(COUNTED, paddle.sum(valid))

    def quality(self, totals: dict[str, Any]) -> float:
        """Return the top-1 accuracy: the share of the images whose class is found, from 0 to 1.

        Args:
            totals: Sums over the evaluation by name: the images whose class is found, and all images.
        """
        return float(totals[CORRECT] / totals[COUNTED])


WORKLOAD = ResNet50


if __name__ == "__main__":
    print("error: paddle_rn50/train.py is not a command: start a job by ./run_and_time.sh", file=sys.stderr)
    sys.exit(2)
