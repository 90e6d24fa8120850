"""What MLCommons asks to be said of a result of its benchmarks that it has not reviewed (its messaging guidelines)."""

from __future__ import annotations

from collections.abc import Iterable

from compliance.notice import NOT_VERIFIED, TRADEMARK, UNVERIFIED
from scoring.record import Record

# Benchmarks on images of MLPerf Training, as logs name them, and our model of the first.
BENCHMARKS = frozenset({"resnet", "resnet50_v1.5", "ssd", "maskrcnn", "retinanet", "unet3d"})
IMAGENET = (1_281_167, False)  # images of an epoch, and that they are not made up


def is_mlperf(record: Record) -> bool:
    """Whether the log is of a training run of one of MLPerf's benchmarks, on its data as far as the log says."""
    if record.format != "mllog" or record.mode == "throughput" or (record.model or "").lower() not in BENCHMARKS:
        return False
    dataset = record.header.get("dataset")
    return not isinstance(dataset, dict) or (dataset.get("train_samples"), dataset.get("synthetic")) == IMAGENET


def mark(records: Iterable[Record]) -> str:
    """Stands behind the unit of a score of such runs; empty for others."""
    return f" ({UNVERIFIED})" if any(map(is_mlperf, records)) else ""


def footnotes(records: Iterable[Record], *, throughput: bool) -> list[str]:
    """What stands below scores, a sentence or two each; none where no run is of MLPerf's benchmarks."""
    if not mark(records):
        return []
    metric = " images/s is derived from the logs and is no metric of MLPerf." if throughput else ""
    what = "Recomputed from logs of MLPerf Training, of the round and division that each log was written for."
    return [f"{what}{metric} {NOT_VERIFIED}", TRADEMARK]
