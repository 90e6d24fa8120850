"""Networks of other operators than those of our two: what they compute is proved, too."""

from typing import Any

import paddle
import pytest
from paddle import static

from paddle_rn50 import train
from tests.program import programs


class Unbound(train.ResNet50):
    """Takes its channels apart, of which one is not used; the gradient of this is a `stack`."""

    def training_loss(self, batch: int) -> Any:
        image, label = static.data("image", [batch, 3, 8, 8]), static.data("label", [batch, 1], "int64")
        filters = static.nn.conv2d(image, 3, 3, param_attr=paddle.ParamAttr(name="conv.w"), bias_attr=False)
        first, second, _ = paddle.unbind(filters, axis=1)
        weight, bias = paddle.ParamAttr(name="last.w"), paddle.ParamAttr(name="last.b")
        logits = static.nn.fc(paddle.flatten(first * second, 1), 10, weight_attr=weight, bias_attr=bias)
        return paddle.nn.functional.cross_entropy(logits, label)


@pytest.mark.parametrize("name", ["fp32", "amp_o1"])
def test_a_network_that_takes_a_tensor_apart_is_proved(name: str) -> None:
    built = programs.fresh(name=name, device="gpu", ranks=8, layout="NCHW", workload=Unbound)
    assert "3 gradients summed over 8 ranks once, scaled by 1/8 once" in built.verified
