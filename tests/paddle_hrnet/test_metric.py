"""mIoU against scikit-learn's confusion matrix and PaddleSeg's rule."""

import numpy as np
import paddle
import pytest
from paddle import static
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import jaccard_score

from paddle_hrnet import train


def by_operators(logits: np.ndarray, label: np.ndarray, classes: int) -> np.ndarray:
    paddle.enable_static()
    main = static.Program()
    with static.program_guard(main, static.Program()):
        matrix = train.confusion_matrix(
            static.data("logits", list(logits.shape), "float32"),
            static.data("label", list(label.shape), "uint8"),
            classes,
        )
    executor = static.Executor(paddle.CPUPlace())
    return executor.run(main, feed={"logits": logits, "label": label}, fetch_list=[matrix])[0]


@pytest.mark.parametrize("seed", range(4))
def test_confusion_matrix_is_sklearns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 20))
    logits = rng.standard_normal((2, classes, 17, 23)).astype(np.float32)
    label = rng.integers(0, classes, (2, 17, 23)).astype(np.uint8)
    label[rng.random(label.shape) < 0.3] = 255
    prediction, counted = logits.argmax(axis=1), label != 255
    ours = by_operators(logits, label, classes)
    theirs = sklearn_confusion(label[counted], prediction[counted], labels=range(classes))
    np.testing.assert_array_equal(ours, theirs)
    iou = jaccard_score(label[counted], prediction[counted], labels=range(classes), average=None, zero_division=0)
    assert train.mean_iou(ours) == pytest.approx(iou.mean())


def test_an_absent_class_counts_as_0_as_in_paddleseg() -> None:
    assert train.mean_iou(np.array([[6, 0, 0], [2, 2, 0], [0, 0, 0]])) == pytest.approx((0.75 + 0.5 + 0.0) / 3)
    confusion = by_operators(np.zeros((1, 3, 2, 2), np.float32), np.full((1, 2, 2), 255, np.uint8), 3)
    assert not confusion.any() and train.mean_iou(confusion) == 0.0
