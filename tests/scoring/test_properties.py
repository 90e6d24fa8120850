"""What must hold of every log of every format: noise around its rows changes nothing, time scales the figure."""

import string
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scoring.figure import protocols
from scoring.figure.score import run_figure
from scoring.importers import FORMATS, read_record
from scoring.record import InputError
from tests.scoring import samples

SETTINGS = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
)
NAMES = st.sampled_from(sorted(samples.WRITERS))
RULES = st.sampled_from(["window", "perf", "perf-seg", "oneflow"])

# Lines that other processes write: none of them is a row of any format.
NOISE = st.one_of(
    st.text(alphabet=string.printable.replace("\n", "").replace("\r", ""), max_size=80).filter(
        lambda text: not any(form.row.search(text) is not None for form in FORMATS.values()) and "]<std" not in text
    ),
    st.sampled_from(
        [
            "LAUNCH INFO --ips=10.0.0.1,10.0.0.2",
            "infer_imgs: docs/demo.jpg ips: 100",
            "W0602 16:17:05 2674 gpu_context.cc:278] Please NOTE: ips: 12 samples",
            "step 12: loss 3.2, ips: 44",
            "\x00\x00",
            "\ufffd\x7f",
            "train.ips",
            "epoch:",
            ":::MLLOG",
        ]
    ),
)


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


@given(name=NAMES, rule=RULES, noise=st.lists(st.tuples(st.integers(0, 10_000), NOISE), min_size=1, max_size=30))
@SETTINGS
def test_interleaved_lines_change_nothing(name: str, rule: str, noise: list[tuple[int, str]]) -> None:
    text = made(name)
    lines = text.splitlines()
    for at, line in noise:
        lines.insert(at % (len(lines) + 1), line)
    assert figure("\n".join(lines) + "\n", rule, name) == figure(text, rule, name)


@given(
    name=NAMES,
    rule=RULES,
    prefix=st.sampled_from(
        [
            "[1,0]<stdout>:",
            "[prterun-h-1@1,0]<stdout>: ",
            "0: ",
            "worker-0  | ",
            "2023-07-28T07:50:00.123Z ",
            "\x1b[36m",
        ]
    ),
    colour=st.sampled_from(["", "\x1b[1;31m", "\x1b[38;5;208m", "\x1b]0;title\x07", "\x1b[2K"]),
)
@SETTINGS
def test_prefixes_and_colours_change_nothing(name: str, rule: str, prefix: str, colour: str) -> None:
    text = made(name)
    end = "\x1b[0m" if colour else ""
    changed = "".join(f"{prefix}{colour}{line}{end}\n" for line in text.replace("[1,0]<stdout>:", "").splitlines())
    assert figure(changed, rule, name) == figure(text, rule, name)


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


@given(name=NAMES, cut=st.integers(0, 30_000))
@SETTINGS
def test_a_cut_log_yields_whole_rows_or_an_error(name: str, cut: int) -> None:
    text = made(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.log"
        path.write_text(text)
        whole = read_record(path, **samples.OPTIONS.get(name, {}))
        path.write_text(text[: cut % len(text)])
        try:
            part = read_record(path, **samples.OPTIONS.get(name, {}))
        except InputError:
            return
    rows = [(w.step, w.epoch, w.printed_rate, w.printed_step_time_s) for w in whole.windows]
    assert [(w.step, w.epoch, w.printed_rate, w.printed_step_time_s) for w in part.windows] == rows[: len(part.windows)]
    if part.truncated is False:
        assert len(part.windows) == len(rows)
