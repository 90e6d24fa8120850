"""The network of stripes, as `harness/train.py` trains it."""

from typing import Any, ClassVar

import paddle
from paddle import static
from paddle.nn import functional

from harness.loop import COUNTED
from harness.workload import Workload, add_to_total
from paddle_stripes import data
from paddle_stripes.model import stripes_net

CORRECT = "eval.correct"


class Stripes(Workload):
    """A small network of its own."""

    EMBEDDED: ClassVar = data
    DATA: ClassVar = data
    QUALITY = CORRECT

    @property
    def image(self) -> int:
        """Side of a picture in pixels."""
        side: int = self.recipe.image_size
        return side

    def _logits(self, side: int, batch: int, *, training: bool) -> static.Variable:
        pixels = static.data("image", [batch, 1, side, side], "float32")
        return stripes_net(pixels, self.recipe.classes, training=training)

    def training_loss(self, batch: int) -> static.Variable:
        """Mean cross entropy of a batch."""
        logits = self._logits(self.image, batch, training=True)
        return functional.cross_entropy(logits, static.data("label", [batch, 1], "int64"))

    def evaluation_totals(self, image: int, batch: int) -> None:
        """Add up right answers and valid pictures."""
        logits = self._logits(image, batch, training=False)
        label = static.data("label", [batch, 1], "int64")
        valid = static.data("valid", [batch, 1], "float32")
        right = paddle.cast(paddle.equal(paddle.argmax(logits, axis=1, keepdim=True), label), "float32")
        add_to_total(CORRECT, paddle.sum(right * valid))
        add_to_total(COUNTED, paddle.sum(valid))

    def quality(self, totals: dict[str, Any]) -> float:
        """Share of right answers."""
        return float(totals[CORRECT] / totals[COUNTED])


WORKLOAD = Stripes
