"""What must hold of every log of every format: the figure is as the time and the devices are."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scoring.figure import protocols
from scoring.figure.score import run_figure
from scoring.importers import read_record
from tests.scoring import samples

SETTINGS = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
)
NAMES = st.sampled_from(sorted(samples.WRITERS))
RULES = st.sampled_from(["window", "perf", "perf-seg", "oneflow"])


def figure(text: str, rule: str, name: str) -> float:
    """The figure, through a file as the command reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.log"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        record = read_record(path, **samples.OPTIONS.get(name, {}))
    assert record.format == name
    return run_figure(record, protocols.find(rule)).value


def made(name: str, **changes: Any) -> str:
    return samples.WRITERS[name](samples.run_of(samples.steady(160, changes.pop("seconds", 0.5)), **changes))


@given(name=NAMES, rule=RULES, factor=st.sampled_from([0.25, 0.5, 2.0, 4.0, 10.0]), seconds=st.floats(0.3, 3.0))
@SETTINGS
def test_k_times_the_time_is_a_kth_of_the_figure(name: str, rule: str, factor: float, seconds: float) -> None:
    once, scaled = (
        figure(made(name, seconds=seconds), rule, name),
        figure(made(name, seconds=seconds * factor), rule, name),
    )
    # mmsegmentation prints milliseconds: 1 in 75 of the shortest step here, averaged over the windows.
    assert abs(scaled * factor / once - 1) < (7e-3 if name == "mmseg" else 1e-3)


@given(name=NAMES, rule=RULES, devices=st.sampled_from([1, 2, 16, 128]), batch=st.sampled_from([1, 8, 256]))
@SETTINGS
def test_figure_is_of_all_devices(name: str, rule: str, devices: int, batch: int) -> None:
    """The same step time on more devices, or with more images each, is so much more."""
    options = {"devices": devices, "batch_per_device": batch} if name in samples.OPTIONS else {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.log"
        path.write_text(made(name, devices=devices, batch=batch))
        record = read_record(path, **options)
    value = run_figure(record, protocols.find(rule)).value
    assert abs(value / (devices * batch) / (figure(made(name), rule, name) / 256) - 1) < 1e-3
