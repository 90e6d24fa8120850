"""Mean intersection over union from a confusion matrix, as PaddleSeg computes it.

The matrix [K, K] counts pixels: row the label, column the prediction; pixels labelled 255 count nowhere.
A class that occurs neither in labels nor in predictions has an IoU of 0 and counts in the mean.
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import static

from paddle_hrnet.config import IGNORED


def class_iou(confusion: np.ndarray) -> np.ndarray:
    """Intersection over union of each class [K]."""
    intersection = np.diag(confusion).astype(np.float64)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - np.diag(confusion)
    return intersection / np.maximum(union, 1)


def mean_iou(confusion: np.ndarray) -> float:
    """Mean of the classes' IoU, between 0 and 1."""
    return float(class_iou(confusion).mean())


def confusion_matrix(logits: static.Variable, label: static.Variable, classes: int) -> static.Variable:
    """Pixels by label and prediction [K, K], int64, of logits [N, K, H, W] and labels [N, H, W] uint8, by operators."""
    label = paddle.cast(label, "int64")
    prediction = paddle.argmax(logits, axis=1)
    ignored = paddle.full_like(label, classes * classes)
    cell = paddle.where(paddle.equal(label, paddle.full_like(label, IGNORED)), ignored, label * classes + prediction)
    counts = paddle.bincount(paddle.reshape(cell, [-1]), minlength=classes * classes + 1)
    return paddle.reshape(paddle.slice(counts, [0], [0], [classes * classes]), [classes, classes])
