"""PaddleSeg's own FCN-HRNetW18: `python paddleseg_peer.py FOLDER` saves its weights and outputs there.

A process of its own: PaddleSeg works in dygraph, and its OpenCV must be loaded before Paddle is.
"""

import sys
from pathlib import Path

import cv2  # noqa: F401
import numpy as np
import paddle
from paddleseg.core import infer
from paddleseg.models import FCN
from paddleseg.models.backbones.hrnet import HRNet_W18

folder = Path(sys.argv[1])
model = FCN(num_classes=19, backbone=HRNet_W18())
rng = np.random.default_rng(0)
for name, value in model.state_dict().items():
    # Drawn anew: PaddleSeg's first weights are so small that every output would be nearly 0.
    if value.ndim == 4:
        fan_in = int(np.prod(value.shape[1:]))
        drawn = rng.normal(0, (2 / fan_in) ** 0.5, value.shape)
    elif name.endswith("_mean") or name.endswith("bias"):
        drawn = rng.normal(0, 0.1, value.shape)
    else:
        drawn = rng.uniform(0.5, 1.0, value.shape)
    value.set_value(drawn.astype(np.float32))
paddle.save(model.state_dict(), str(folder / "weights.pdparams"))

image = rng.standard_normal((2, 3, 64, 96)).astype(np.float32)
model.eval()
evaluated = model(paddle.to_tensor(image))[0].numpy()
with paddle.no_grad():
    augmented = {
        name: infer.aug_inference(model, paddle.to_tensor(image), [], scales=scales, flip_horizontal=True)[1].numpy()
        for name, scales in (("flip", (1.0,)), ("multiscale", (0.75, 1.0, 1.25)))
    }
model.train()
trained = model(paddle.to_tensor(image))[0].numpy()
np.savez(folder / "outputs.npz", image=image, evaluated=evaluated, trained=trained, **augmented)
