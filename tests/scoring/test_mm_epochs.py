"""Logs of OpenMMLab's trainers that count by epochs."""

import itertools
from pathlib import Path

from tests.scoring.test_importers import read


def test_mmengine_by_epochs(tmp_path: Path) -> None:
    """Steps count anew in each epoch; `Epoch(val)` is not a training, and its result is of its epoch."""
    head = "2023/03/24 16:36:15 - mmengine - INFO - "
    setting = "GPU number: 4\nmax_epochs = 3\ntrain_dataloader = dict(\n    batch_size=32,\n    dataset='ImageNet')\n"
    lines = [setting]
    for epoch, step in itertools.product((1, 2), (50, 100)):
        lines.append(
            f"{head}Epoch(train)  [{epoch}][{step:>3}/130]  lr: 1.0e-01  eta: 0:00:15  time: 0.2500  data_time: 0.0100"
            "  memory: 1314  loss: 0.7267"
        )
        if step == 100:
            lines.append(
                f"{head}Epoch(val)  [{epoch}][50/98]    eta: 0:00:01  time: 0.0600  data_time: 0.0010  memory: 9"
            )
            lines.append(
                f"{head}Epoch(val) [{epoch}][98/98]    accuracy/top1: 7{epoch}.5000  data_time: 0.01  time: 0.06"
            )
    record = read(tmp_path, "\n".join(lines))
    assert (record.format, record.devices, record.batch_per_device, record.truncated) == ("mm_epochs", 4, 32, True)
    assert [(window.epoch, window.step, window.steps) for window in record.windows] == [
        *((1, 50, 50), (1, 100, 50)),
        *((2, 50, 50), (2, 100, 50)),
    ]
    assert [window.seconds for window in record.windows] == [12.5] * 4
    assert [(found.epoch, found.value) for found in record.quality] == [(1, 71.5), (2, 72.5)]
