"""The reader of logs, and a run made of events in any order: nothing is lost, nor taken for what it is not."""

import io
import json
from pathlib import Path
from typing import Any, cast

import pytest

from runlog import reader
from runlog.reader import Event, Header, Problem
from runlog.run import Run
from tests import make_log

EVENT = '{"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "a", "value": 1, "metadata": {}}'
LINE = f":::MLLOG {EVENT}"
SECTION = '# {"log": {"version": 1}}\n'


def read(text: str | bytes) -> list[reader.Entry]:
    return list(reader.read_text(text))


def kinds(text: str | bytes) -> list[str]:
    return [entry.kind if isinstance(entry, Problem) else type(entry).__name__ for entry in read(text)]


def test_headers_events_and_human_lines_come_in_order_with_their_line_numbers() -> None:
    text = make_log.run()
    entries, lines = read(text), text.splitlines()
    headers = [(entry.section, entry.line) for entry in entries if isinstance(entry, Header)]
    sections = ("log", "source", "config", "environment", "packages", "hardware", "dataset", "program")
    assert headers == [(section, line) for line, section in enumerate(sections, 1)]
    events = [entry for entry in entries if isinstance(entry, Event)]
    assert [event.line for event in events] == [at for at, line in enumerate(lines, 1) if ":::MLLOG" in line]
    for event in events:
        assert f'"key": "{event.key}"' in lines[event.line - 1]
        assert text.encode()[event.offset :].startswith(b":::MLLOG ")
    assert (events[0].key, events[0].value) == ("submission_benchmark", "resnet") and events[0].metadata["lineno"] > 0


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[1,3]<stdout>:", 3),
        ("[1,0]<stdout>: ", 0),
        ("[prterun-node-1@1,3]<stdout>: ", 3),
        ("Mon Jul 31 09:00:37 2023[1,3]<stderr>:", 3),
        ("[3]<stdout>:", 3),
        ("[1,3][node-1:4711]<stdout>: ", 3),
        ("7: ", 7),
        ("[rank 5]:", 5),
        ("\x1b[32m", None),
        ("2026-01-02 03:04:05 INFO ", None),
    ],
)
def test_prefixes_of_launchers_are_passed_over_and_their_rank_is_read(prefix: str, rank: int | None) -> None:
    [header, event] = read(f"{'[1,0]<stdout>:' if rank is not None else ''}{SECTION}{prefix}{LINE}\n")
    assert isinstance(header, Header)
    assert isinstance(event, Event)
    assert (event.rank, event.line) == (rank, 2)


@pytest.mark.parametrize(
    ("label", "is_header"),
    [
        *(("0: ", True), ("node01: ", True), ("trainer-0  | ", True), ("[pod/trainer-0/main] ", True)),
        *(("2026-01-01T00:00:00.123456789Z ", True), ("trainer-0  | 2026-01-01T00:00:00.1Z ", True)),
        *(("2026-01-01T00:00:00.1Z stdout F ", True), ("2026-01-01T00:00:00.1+02:00 stderr F node01: ", True)),
        *(("trainer-0 pytorch ", True), ("trainer-0 main 2026-01-01T00:00:00.1Z ", True), ("Jan 01 00:00:00 ", True)),
        *(("\x1b[32mtrainer-0 \x1b[0m\x1b[32mmain\x1b[0m ", True), ("1690530600.123456 ", True), ("INFO ", True)),
        *(("2026-01-01 00:00:00,123 - INFO - ", True), ("(Worker pid=4711, ip=10.0.0.1) ", True)),
        *(("one two three four ", False), ("a sentence, and so ", False)),
        *(("value = 1  ", False), (f"{'a' * 200}: ", False)),
    ],
)
def test_a_header_section_is_read_behind_any_label(label: str, *, is_header: bool) -> None:
    headers = [entry for entry in read(f"{label}{SECTION}") if isinstance(entry, Header)]
    assert len(headers) == is_header


def test_line_ends_of_windows_and_progress_bars_end_an_event_but_only_newlines_count() -> None:
    entries = read(f"{LINE}\r\n{LINE}\r 45 %\r 50 %\n{LINE}")
    assert [entry.line for entry in entries] == [1, 2, 3]
    assert {type(entry) for entry in entries} == {Event}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("no event\n# no header\n# {broken\n", []),
        (f"{LINE}{LINE}\n", ["several-events", "Event", "Event"]),
        (f"{LINE[:40]}{LINE}\n", ["several-events", "json", "Event"]),
        (f"{LINE}\x1b[0m\n", ["trailing-text", "Event"]),
        (f"{LINE} and more\n", ["trailing-text", "Event"]),
        (LINE[:-5], ["json"]),
        (f":::MLLOG{EVENT}", ["json"]),
        (":::MLLOG [1]", ["fields"]),
        (":::MLLOG 1", ["fields"]),
        (f"\0{LINE}", ["nul", "Event"]),
        (LINE.encode().replace(b'"a"', b'"\xff"'), ["encoding", "Event"]),
        (LINE.replace("{}", '{"x": 1, "x": 2}'), ["duplicate-key"]),
        (LINE.replace("{}", '{"x": [{"y": 1, "y": {}}]}'), ["duplicate-key"]),
        (LINE.replace("{}", '{"x": [{"y": "a:b"}, {"y": {}}], "y": "\\n"}'), ["Event"]),
        (LINE.replace("1,", "NaN,", 1), ["json"]),
        (LINE.replace("1,", f"{2**63},", 1), ["fields"]),
        (LINE.replace("1,", "1e400,", 1), ["fields"]),
        (LINE.replace("1,", "1" * 5000 + ",", 1), ["json"]),
        (LINE.replace("1,", '"1",', 1), ["time-text", "Event"]),
        (LINE.replace("1,", '"1e400",', 1), ["fields"]),
        (LINE.replace("1,", '"nan",', 1), ["fields"]),
        (LINE.replace("1,", '"soon",', 1), ["fields"]),
        (LINE.replace("1,", "true,", 1), ["fields"]),
        (LINE.replace("1,", "1.5,", 1), ["Event"]),
        (LINE.replace('"a"', "[]"), ["fields"]),
        (LINE.replace("{}", '"status"'), ["fields"]),
        (LINE.replace("POINT", "point"), ["event-type", "Event"]),
        (LINE.replace('"value": 1, ', ""), ["fields"]),
        (LINE.replace("{}", "[" * 30 + "]" * 30), ["fields"]),
        (LINE.replace("{}", '{"x": ' + "[" * 60 + "]" * 60 + "}"), ["json"]),
        (LINE.replace("{}", '{"x": ' + "[]," * 0 + "[" + "[]," * 200 + "[]]}"), ["Event"]),
        (LINE.replace("{}", "[" * 200_000), ["json"]),
    ],
)
def test_what_is_no_event_is_a_problem(text: str | bytes, found: list[str]) -> None:
    assert kinds(text) == found


def test_long_lines_are_passed_over_and_reported_only_if_they_hold_an_event() -> None:
    long = "x" * 5_000_000
    assert kinds(f"{LINE}\n{long}\n{LINE}\n{long}") == ["Event", "Event"]
    entries = read(f"{long}{LINE}\n{LINE}")
    assert [getattr(entry, "kind", "Event") for entry in entries] == ["oversized", "Event"]
    assert [entry.line for entry in entries] == [1, 2]
    assert kinds(LINE.replace("1,", f'"{long}",', 1)) == ["oversized"]


@pytest.mark.parametrize("mib", [1, 1.5, 5])
def test_a_section_on_a_long_line_is_passed_over_wherever_the_line_is_long(mib: float) -> None:
    spaces = " " * int(mib * (1 << 20))
    assert kinds(f"{spaces}{SECTION}\n{LINE}") == ["Event"]
    assert kinds(f"{SECTION.rstrip()}{spaces}\n{LINE}") == ["Event"]


def test_blocks_of_any_size_give_the_same_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event across two blocks is read once; of a line too long for one it is seen that it holds a token."""
    text = (
        f"{make_log.run()[:4000]}{LINE}\r\n{LINE} x\n\0\n{'v' * 300}{LINE}\n{SECTION}{'w' * 900}{LINE}\n"
        f"{' ' * 900}{SECTION}\n{LINE}"
    ).encode()
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 500)
    whole = list(reader.read_stream(io.BytesIO(text)))
    for size in (1, 2, 7, 64, 97, 501):
        monkeypatch.setattr(reader, "BLOCK_BYTES", size)
        assert sorted(map(repr, reader.read_stream(io.BytesIO(text)))) == sorted(map(repr, whole))


def run_of(*events: tuple[str, Any, dict[str, Any]]) -> Run:
    """The run of these events, one a line and a second."""
    run, lines = Run(), []
    for at, (key, value, metadata) in enumerate(events, 1):
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(key.rpartition("_")[2], "POINT_IN_TIME")
        fields = {"namespace": "", "time_ms": 1000 * at, "event_type": kind, "key": key, "value": value}
        lines.append(f":::MLLOG {json.dumps(fields | {'metadata': metadata})}\n")
    for entry in reader.read_text("".join(lines)):
        run.take(entry)
    return run


def test_a_stop_ends_the_interval_of_its_number() -> None:
    """Epochs of large MLPerf runs overlap; a stop without a start and an epoch without an end have their place."""
    run = run_of(
        ("epoch_stop", None, {"epoch_num": 7}),
        ("epoch_start", None, {"epoch_num": 1}),
        ("epoch_start", None, {"epoch_num": 2}),
        ("epoch_stop", None, {"epoch_num": 1}),
        ("epoch_stop", None, {"epoch_num": 2}),
        ("epoch_start", None, {"epoch_num": "three"}),
        ("block_start", None, {"first_epoch_num": 1, "epoch_count": 4}),
        ("eval_start", None, {}),
        ("eval_stop", None, {}),
    )
    lines = [(e.start.line if e.start else None, e.stop.line if e.stop else None) for e in run.epochs]
    assert lines == [(None, 1), (2, 4), (3, 5), (6, None)]
    marks = [epoch.start or epoch.stop for epoch in run.epochs]
    assert [mark.number for mark in marks if mark] == [7, 1, 2, "three"]
    [block], [evaluation] = run.blocks, run.evaluations
    assert block.start and (block.start.number, block.start.count, block.stop) == (1, 4, None)
    assert evaluation.start and evaluation.stop and evaluation.stop.time_ms - evaluation.start.time_ms == 1000


def test_a_second_stop_ends_no_interval_again() -> None:
    marks = (("epoch_start", None, {"epoch_num": 1}), *[("epoch_stop", None, {"epoch_num": 1})] * 2)
    lines = [(e.start.line if e.start else None, e.stop.line if e.stop else None) for e in run_of(*marks).epochs]
    assert lines == [(1, 2), (None, 3)]


@pytest.mark.parametrize("value", [None, 7, "text", [], {"images": {"deep": [1] * 1000}, "time_s": "x" * 1000}])
def test_values_of_any_kind_stay_small(value: Any) -> None:
    said = (("epoch_throughput", value), ("eval_accuracy", value), ("tracked_stats", {"imgs_sec": value}))
    run = run_of(*((key, what, {"epoch_num": [1] * 1000}) for key, what in said))
    assert all(len(str(item)) <= 200 for item in (*run.rates[0], *run.rates[1], *run.accuracies[0]))
    assert run.rates[1].images_per_s == run.accuracies[0].value


def test_what_goes_on_and_what_was_said_last() -> None:
    course = {
        ("init_start", None): "preparing",
        ("run_start", None): "training",
        ("train_samples", 100): "training",
        ("eval_start", None): "evaluating",
        ("train_samples", 200): "evaluating",
        ("eval_stop", None): "training",
        ("run_stop", None): "finished",
    }
    events = [(*event, {"status": "success", "epoch_num": 1}) for event in course]
    assert [run_of(*events[:count]).phase for count in range(1, 8)] == list(course.values())
    assert run_of().phase == "starting" and run_of(("run_stop", None, {})).phase == "aborted"
    run = run_of(*events)
    assert (run.first["train_samples"].value, run.last["train_samples"].value) == (100, 200)
    assert (run.starts[0].line, run.stops[0].line, run.last_ms) == (2, 7, 7000)


@pytest.mark.parametrize("buffered", [False, True])
def test_an_error_of_the_disk_names_the_log(tmp_path: Path, buffered: bool) -> None:
    """Linux fails a read of a process's memory at its first byte, also for root."""
    log = tmp_path / "log.txt"
    log.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output") as error, reader.open_log(log) as stream:
        (io.BufferedReader(cast(Any, stream)) if buffered else stream).read(1)
    assert error.value.filename == str(log)
