"""The history of runs: added once, compared with the last ones, drawn and exported."""

import csv
import json
import os
import re
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scoring.__main__ import main
from scoring.figure import history
from tests.scoring import samples

Command = Callable[..., tuple[int, str, str]]
PAST = [1, 1.01, 0.99, 1.005, 0.995]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `python -m scoring history ... --file`: exit status, output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        words = ["history", *map(str, arguments), "--file", str(tmp_path / "history.sqlite")]
        code = main(words if "--system" in words else [*words, "--system", "my machine"])
        return code, *capsys.readouterr()

    return call


def rows_in(folder: Path) -> list[history.Row]:
    with sqlite3.connect(folder / "history.sqlite") as connection:
        return history.rows_of(connection)


def logs(folder: Path, name: str, factors: list[float], devices: int = 8) -> list[Path]:
    texts = [samples.mllog(samples.run_of([0.5 * factor] * 200, devices=devices)) for factor in factors]
    return [samples.write(folder, f"{name}_{at}.txt", text) for at, text in enumerate(texts)]


def moved(log: Path, by_ms: int) -> None:
    """Sets the clock of a log."""
    log.write_text(re.sub(r'("time_ms": )(\d+)', lambda m: f"{m[1]}{int(m[2]) + by_ms}", log.read_text()))


def test_a_run_is_kept_once_with_its_record_and_where_it_is_from(tmp_path: Path, command: Command) -> None:
    runs = logs(tmp_path, "a", PAST)
    assert command("add", *runs)[:2] == (0, f"5 of 5 runs are new in {tmp_path / 'history.sqlite'}\n")
    assert command("add", *runs)[1].startswith("0 of 5")
    with sqlite3.connect(tmp_path / "history.sqlite") as connection:
        rows = history.rows_of(connection)
        (packed,) = connection.execute("SELECT record FROM run WHERE sha256 = ?", [rows[0].sha256]).fetchone()
    record = json.loads(zlib.decompress(packed))
    assert len(rows) == 5 and record["sha256"] == rows[0].sha256 and record["windows"]
    assert {row.file for row in rows} == {str(run) for run in runs}
    assert rows[0].system.startswith("my machine, 8 devices") and rows[0].protocol.startswith("window: ")


def test_a_correction_takes_the_place_of_the_wrong_row(tmp_path: Path, command: Command) -> None:
    (run,) = logs(tmp_path, "a", [1])
    assert command("add", run, "--system", "wrong")[1].startswith("1 of 1 runs are new in ")
    assert command("add", run)[1].endswith("history.sqlite, and 1 took the place of what it said\n")
    run.touch()
    assert command("add", run)[1] == f"0 of 1 runs are new in {tmp_path / 'history.sqlite'}\n"
    [row] = rows_in(tmp_path)
    assert row.system.startswith("my machine, 8 devices")


@pytest.mark.parametrize("writer", ["paddleclas_static", "oneflow"])  # a local calendar, a Unix time
def test_a_public_log_has_its_first_row_s_date(tmp_path: Path, command: Command, writer: str) -> None:
    run = tmp_path / "a.log"
    run.write_text(samples.WRITERS[writer](samples.run_of([0.5] * 200)))
    command("add", run)
    [row] = rows_in(tmp_path)
    assert row.date_of == "first_row" and row.date.startswith({"oneflow": "2020-08-20"}.get(writer, "2023-07-28"))


def test_a_year_that_no_calendar_has_is_no_date(tmp_path: Path, command: Command) -> None:
    (run,) = logs(tmp_path, "a", [1])
    moved(run, 10**15)
    assert command("add", run)[0] == 0
    [row] = rows_in(tmp_path)
    assert row.date_of == "file" and row.date.startswith("20")


def test_each_segment_of_a_log_is_a_run(tmp_path: Path, command: Command) -> None:
    one, two = logs(tmp_path, "a", [1, 1.1])
    both = tmp_path / "both.txt"
    both.write_text(one.read_text() + two.read_text())
    assert "2 runs in one log" in command("add", both)[2]
    for segment in (1, 2):
        assert command("add", both, "--segment", segment)[1].startswith("1 of 1 runs are new")
    assert command("add", both, "--segment", 2)[1].startswith("0 of 1")
    rates = sorted(row.images_per_s for row in rows_in(tmp_path))
    assert rates == pytest.approx([256 / 0.55, 256 / 0.5])


def test_a_name_and_text_in_no_encoding_are_kept(tmp_path: Path, command: Command) -> None:
    (run,) = logs(tmp_path, "a", [1])
    run.write_text(run.read_text().replace('"model": "', '"model": "\\ud800'))
    run = run.rename(tmp_path / os.fsdecode(b"\xff.txt"))
    assert command("add", run)[:2] == (0, f"1 of 1 runs are new in {tmp_path / 'history.sqlite'}\n")
    assert command("show", tmp_path / "page.html")[0] == 0
    assert r"\xff.txt" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("hardware", [{"nodes": None}, ["a"], {"nodes": ["a", {"cpu": None}]}, None])
def test_hardware_that_says_no_machine_asks_for_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hardware: Any
) -> None:
    (run,) = logs(tmp_path, "a", [1])
    run.write_text(f"# {json.dumps({'hardware': hardware})}\n{run.read_text()}")
    assert main(["history", "add", str(run), "--file", str(tmp_path / "history.sqlite")]) == 2
    assert "name the machine by --system" in capsys.readouterr().err


def test_a_lower_result_is_found_and_repeats_are_not(tmp_path: Path, command: Command) -> None:
    command("add", *logs(tmp_path, "a", PAST))
    code, out, _ = command("check", *logs(tmp_path, "lower", [1.04, 1.05, 1.045]))
    assert code == 1 and out.startswith("LOWER: ") and "of the last 5, 95 % 0." in out
    code, out, _ = command("check", *logs(tmp_path, "same", [1.002, 0.998, 1.006]))
    assert code == 0 and out.startswith("not shown to be lower: ")
    assert command("check", *logs(tmp_path, "faster", [0.9, 0.91, 0.92]))[0] == 0
    assert command("check", *logs(tmp_path, "one", [1.1]))[0] == 1
    code, out, _ = command("check", *logs(tmp_path, "other", [2.0, 2.1], devices=4))
    assert code == 0 and "cannot be told" in out and "0 earlier runs" in out


def test_only_the_last_runs_judge_and_never_the_new_ones_themselves(tmp_path: Path, command: Command) -> None:
    slow = logs(tmp_path, "slow", [1.5, 1.51, 1.49])
    fast = logs(tmp_path, "fast", [1, 1.01, 0.99])
    for run in slow:  # an hour before, by run_start
        moved(run, -3_600_000)
    command("add", *slow)
    command("add", *fast)
    new = logs(tmp_path, "new", [1.2, 1.21, 1.19])
    command("add", *new)
    assert command("check", *new, "--last", 3)[0] == 1
    assert command("check", *new)[1].startswith("not shown to be lower")


def test_the_page_and_the_table_hold_each_run(tmp_path: Path, command: Command) -> None:
    command("add", *logs(tmp_path, "a", PAST))
    command("add", *logs(tmp_path, "b", PAST, devices=4))
    page, table = tmp_path / "page.html", tmp_path / "runs.csv"
    assert command("show", page)[0] == command("export", table)[0] == 0
    text = page.read_text()
    assert text.count("<svg") == 2 and text.count("<circle") == 10 and "<script" not in text and "src=" not in text
    assert "a_0.txt" in text
    assert [float(row["images_per_s"]) > 0 for row in csv.DictReader(table.open())] == [True] * 10


def test_nothing_but_its_own_pages_and_tables_is_written_over(tmp_path: Path, command: Command) -> None:
    runs = logs(tmp_path, "a", PAST)
    command("add", *runs)
    (tmp_path / "other.html").write_text("<p>mine")
    (tmp_path / "other.csv").write_text("mine")
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "link.html").symlink_to(runs[0])
    for out in (runs[0], "history.sqlite", "other.html", "link.html", "new.txt"):
        assert command("show", tmp_path / out)[0] == 2
    for out in (runs[0], "history.sqlite", "other.csv", "new.txt"):
        assert command("export", tmp_path / out)[0] == 2
    assert all(path.read_bytes() == data for path, data in kept.items()) and not (tmp_path / "new.txt").exists()
    for _ in range(2):  # its own are written anew
        assert command("show", tmp_path / "own.html")[0] == command("export", tmp_path / "own.csv")[0] == 0


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["show"], "no history there"),
        (["add"], "takes logs"),
        (["add", "{log}", "--protocol", "mlperf"], "no throughput"),
        (["export"], "name it"),
        (["check", "{log}"], "no history there"),
    ],
)
def test_wrong_use_is_told_in_one_line(tmp_path: Path, command: Command, arguments: list[str], says: str) -> None:
    (log,) = logs(tmp_path, "a", [1])
    code, out, error = command(*(argument.format(log=log) for argument in arguments))
    assert code == 2 and out == "" and says in error and error.count("\n") == 1


def test_two_machines_share_no_trend(tmp_path: Path, command: Command) -> None:
    runs = logs(tmp_path, "a", PAST)
    command("add", *runs)
    code, out, _ = command("check", *logs(tmp_path, "b", [2.0, 2.1]), "--system", "another")
    assert code == 0 and "cannot be told" in out
    nodes = [{"host": "a", "cpu": "a", "cores": 2, "gpus": [{"name": "Tesla V100"}] * 8}]
    for run in runs:  # our own logs say it themselves
        run.write_text(f"# {json.dumps({'hardware': {'nodes': nodes}})}\n{run.read_text()}")
    assert main(["history", "add", *map(str, runs), "--file", str(tmp_path / "history.sqlite")]) == 0
    assert any(row.system.startswith("8 x Tesla V100, 8 devices") for row in rows_in(tmp_path))


def test_new_runs_of_two_series_are_not_checked_as_one(tmp_path: Path, command: Command) -> None:
    first, second = logs(tmp_path, "a", [1, 1.01])
    lines = [line for line in second.read_text().splitlines() if '"submission_benchmark"' not in line]
    second.write_text(re.sub(r'"model": "[^"]*"', '"model": null', "\n".join(lines)))
    command("add", first)
    code, _, error = command("check", first, second)
    assert code == 2 and "are of two series" in error and "model unsaid" in error


@pytest.mark.parametrize(
    "statement, says",
    [
        ("", "not a history that can be used"),  # no data base at all
        ("CREATE TABLE mine (a)", "no history (tables mine)"),
        ("CREATE TABLE run (sha256, file, more)", "no history (columns sha256, file, more)"),
        ("PRAGMA user_version = 2", "a history of version 2; this code knows 1"),
    ],
)
def test_another_program_s_database_is_refused_and_left_alone(
    tmp_path: Path, command: Command, statement: str, says: str
) -> None:
    file = tmp_path / "history.sqlite"
    if statement:
        with sqlite3.connect(file) as connection:
            connection.execute(statement)
    else:
        file.write_text("no database, but long enough to be taken for one " * 40)
    before, (log,) = file.read_bytes(), logs(tmp_path, "a", [1])
    for words in (["add", log], ["check", log], ["show", tmp_path / "a.html"], ["export", tmp_path / "a.csv"]):
        code, out, error = command(*words)
        assert code == 2 and out == "" and says in error and error.count("\n") == 1
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "name, value",
    [("images_per_s", "fast"), ("images_per_s", 0.0), ("images_per_s", 1e308), ("date", 5), ("file", None)],
)
def test_a_row_that_another_program_altered_is_told(tmp_path: Path, command: Command, name: str, value: object) -> None:
    runs = logs(tmp_path, "a", PAST)
    command("add", *runs[1:])
    with sqlite3.connect(tmp_path / "history.sqlite") as connection:
        connection.execute(f"UPDATE run SET {name} = ?", [value])
    for words in (["check", runs[0]], ["show", tmp_path / "a.html"], ["export", tmp_path / "a.csv"]):
        code, _, error = command(*words)
        assert code == 2 and f"has {name} {value!r}; delete its row" in error and error.count("\n") == 1


def test_reading_needs_no_right_to_write_and_changes_nothing(tmp_path: Path, command: Command) -> None:
    (log,) = logs(tmp_path, "a", [1])
    command("add", log)
    file = tmp_path / "history.sqlite"
    file.chmod(0o444)
    before = file.read_bytes()
    assert command("check", log)[0] == command("show", tmp_path / "a.html")[0] == 0
    assert file.read_bytes() == before
    file.chmod(0o644)
    file.write_bytes(b"")
    code, _, error = command("show", tmp_path / "b.html")
    assert code == 2 and "no history (tables none)" in error and file.read_bytes() == b""


def test_a_name_steers_neither_terminal_nor_page_nor_spreadsheet(tmp_path: Path, command: Command) -> None:
    (log,) = logs(tmp_path, "a\n\x1b[31m<b>", [1])
    command("add", log, "--system", "=1+1\x1b[31m<script>")
    assert "\x1b" not in command("check", log, "--system", "=1+1\x1b[31m<script>")[1]
    command("show", tmp_path / "a.html")
    command("export", tmp_path / "a.csv")
    page, (row,) = (tmp_path / "a.html").read_text(), csv.DictReader((tmp_path / "a.csv").open())
    assert "\x1b" not in page and "<script>" not in page and "<b>" not in page
    assert row["system"].startswith("'=1+1\\x1b[31m<script>") and "\n" not in row["file"]
