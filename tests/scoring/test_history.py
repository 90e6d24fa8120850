"""The history of runs: added once, compared with the last ones, drawn and exported; and what other tools read back."""

import contextlib
import csv
import functools
import json
import os
import re
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from scoring.figure import history_file
from scoring.importers import read_record
from scoring.record import InputError
from tests.browser import TOO_SMALL, Opened, opened  # noqa: F401
from tests.jobs import Done
from tests.scoring import samples
from tests.scoring.pages import write_log
from tests.scoring.samples import scoring

Command = Callable[..., Done]
PAST = [1, 1.01, 0.99, 1.005, 0.995]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs `python -m scoring history ... --file`: exit status, output, standard error."""

    def call(*words: object) -> Done:
        reads_logs = words[0] in ("add", "check")
        machine = ("--system", "my machine") if reads_logs and "--system" not in words else ()
        return scoring("history", *words, "--file", tmp_path / "history.sqlite", *machine)

    return call


def rows_in(folder: Path) -> list[history_file.Row]:
    with sqlite3.connect(folder / "history.sqlite") as connection:
        return history_file.rows_of(connection)


def logs(folder: Path, name: str, factors: list[float], devices: int = 8) -> list[Path]:
    texts = [samples.mllog(samples.run_of([0.5 * factor] * 200, devices=devices)) for factor in factors]
    return [samples.write(folder, f"{name}_{at}.txt", text) for at, text in enumerate(texts)]


def test_a_run_is_kept_once_with_its_record_and_a_correction_takes_its_place(tmp_path: Path, command: Command) -> None:
    runs, file = logs(tmp_path, "a", PAST), tmp_path / "history.sqlite"
    assert command("add", *runs) == (0, f"5 of 5 runs are new in {file}\n", "")
    assert command("add", *runs).stdout.startswith("0 of 5")
    for system in (("--system", "wrong"), ()):
        said = f"0 of 1 run is new in {file}, and 1 took the place of what it said\n"
        assert command("add", runs[0], *system).stdout == said
    runs[0].touch()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE run SET images_per_s = images_per_s * (1 + 2e-16)")  # as another version adds it up
    assert command("add", runs[0]).stdout == f"0 of 1 run is new in {file}\n"
    with sqlite3.connect(file) as connection:
        rows = history_file.rows_of(connection)
        (packed,) = connection.execute("SELECT record FROM run WHERE sha256 = ?", [rows[0].sha256]).fetchone()
    record = json.loads(zlib.decompress(packed))
    assert len(rows) == 5 and record["sha256"] == rows[0].sha256 and record["windows"]
    assert {row.file for row in rows} == {str(run) for run in runs}
    assert all(row.system.startswith("my machine, 8 devices") for row in rows)
    assert rows[0].protocol.startswith("window: ")


@pytest.mark.parametrize("writer", ["mllog", "oneflow"])
def test_a_log_that_was_added_before_its_run_ended_is_no_second_run(
    tmp_path: Path, command: Command, writer: str
) -> None:
    """Its whole log takes its place, and is not compared with it."""
    text = samples.WRITERS[writer](samples.run_of(samples.steady(200)))
    log = samples.write(tmp_path, "a.log", text)
    lines = text.splitlines(keepends=True)
    rows_read = read_record(log).windows
    samples.write(tmp_path, "a.log", "".join(lines[: rows_read[10].line]))
    assert command("add", log).stdout.startswith("1 of 1 run is new")
    samples.write(tmp_path, "a.log", text)
    assert "the history holds 0 earlier runs of it" in command("check", log).stdout
    assert "0 of 1 run is new" in command("add", log).stdout
    [row] = rows_in(tmp_path)
    assert row.sha256 == read_record(log).sha256


@pytest.mark.parametrize(
    "writer, said",
    [
        ("paddleclas_static", ("first_row", "2023-07-28")),  # a local calendar
        ("oneflow", ("first_row", "2020-08-20")),  # a Unix time
        ("mllog", ("file", "20")),  # moved to a year that no calendar has
    ],
)
def test_a_run_s_date_is_that_of_its_start_or_first_row(
    tmp_path: Path, command: Command, writer: str, said: tuple[str, str]
) -> None:
    text = samples.WRITERS[writer](samples.run_of([0.5] * 200))
    command("add", samples.write(tmp_path, "a.log", samples.moved(text, 10**15)))
    [row] = rows_in(tmp_path)
    assert (row.date_of, row.date[: len(said[1])]) == said


def test_one_run_is_counted_as_one(tmp_path: Path, command: Command) -> None:
    first, second = logs(tmp_path, "a", [1, 1.01])
    command("add", first)
    assert "the history holds 1 earlier run of it, 3 are needed" in command("check", second).stdout
    page = tmp_path / "page.html"
    assert command("show", page).stdout == f"1 run in {page}\n"


def test_each_segment_of_a_log_is_a_run(tmp_path: Path, command: Command) -> None:
    both = samples.write(tmp_path, "both.txt", "".join(log.read_text() for log in logs(tmp_path, "a", [1, 1.1])))
    assert "2 runs in one log" in command("add", both)[2]
    for segment, new in ((1, 1), (2, 1), (2, 0)):
        assert command("add", both, "--segment", segment)[1].startswith(f"{new} of 1 run is new")
    rates = sorted(row.images_per_s for row in rows_in(tmp_path))
    assert rates == pytest.approx([256 / 0.55, 256 / 0.5])


@pytest.mark.parametrize("hardware", [{"nodes": None}, ["a"], {"nodes": ["a", {"cpu": None}]}, None])
def test_hardware_that_says_no_machine_asks_for_its_name(tmp_path: Path, hardware: Any) -> None:
    (run,) = logs(tmp_path, "a", [1])
    run.write_text(f"# {json.dumps({'hardware': hardware})}\n{run.read_text()}")
    done = scoring("history", "add", run, "--file", tmp_path / "history.sqlite")
    assert done.returncode == 2 and "name the machine by --system" in done.stderr


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


def test_runs_on_other_numbers_of_nodes_are_of_another_trend(tmp_path: Path, command: Command) -> None:
    """Two nodes, whose all-reduce crosses the network, were called LOWER than one node with as many devices in all."""
    command("add", *logs(tmp_path, "a", PAST))
    two_nodes = samples.mllog(samples.run_of([0.6] * 200), nodes=2)
    done = command("check", samples.write(tmp_path, "b.txt", two_nodes))
    assert done.returncode == 0 and "LOWER" not in done.stdout


def test_runs_that_print_one_figure_judge_nothing(tmp_path: Path, command: Command) -> None:
    command("add", *logs(tmp_path, "past", [1] * 5))
    done = command("check", *logs(tmp_path, "new", [1.01] * 5))
    assert done.returncode == 0 and "cannot be told" in done.stdout and "too few digits" in done.stdout


def test_only_the_last_runs_judge_and_never_the_new_ones_themselves(tmp_path: Path, command: Command) -> None:
    slow = logs(tmp_path, "slow", [1.5, 1.51, 1.49])
    fast = logs(tmp_path, "fast", [1, 1.01, 0.99])
    for run in slow:  # an hour before, by run_start
        run.write_text(samples.moved(run.read_text(), -3_600_000))
    command("add", *slow)
    command("add", *fast)
    new = logs(tmp_path, "new", [1.2, 1.21, 1.19])
    command("add", *new)
    assert command("check", *new, "--last", 3)[0] == 1
    assert command("check", *new)[1].startswith("not shown to be lower")


def test_the_page_and_the_table_hold_each_run_and_nothing_else_is_written_over(
    tmp_path: Path, command: Command
) -> None:
    runs = logs(tmp_path, "a", PAST)
    command("add", *runs)
    command("add", *logs(tmp_path, "b", PAST, devices=4))
    page, table = tmp_path / "page.html", tmp_path / "runs.csv"
    for _ in range(2):  # its own are written anew
        assert command("show", page).returncode == command("export", table).returncode == 0
    text = page.read_text()
    assert text.count("<svg") == 2 and text.count("<circle") == 10 and "<script" not in text and "src=" not in text
    assert "a_0.txt" in text
    assert [float(row["images_per_s"]) > 0 for row in csv.DictReader(table.open())] == [True] * 10
    (tmp_path / "other.html").write_text("<p>mine")
    (tmp_path / "other.csv").write_text("mine")
    (tmp_path / "link.html").symlink_to(runs[0])
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    others: dict[str, tuple[str, ...]] = {"show": ("other.html", "link.html"), "export": ("other.csv",)}
    for action, names in others.items():
        for out in (str(runs[0]), "history.sqlite", "new.txt", *names):
            assert command(action, tmp_path / out).returncode == 2
    assert "new.xls: name a .csv or .parquet file to write to" in command("export", tmp_path / "new.xls").stderr
    assert kept == {path: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.ci
def test_a_phone_shows_the_page_in_its_width_with_labels_that_can_be_read(
    opened: Opened,  # noqa: F811
    tmp_path: Path,
    command: Command,
) -> None:
    command("add", *logs(tmp_path, "a", PAST))
    command("add", write_log(tmp_path / "long.txt", text="long" * 100))
    command("show", tmp_path / "page.html")
    page = opened(tmp_path / "page.html", width=390, height=844, phone=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(TOO_SMALL) == []
    assert sorted(page.locator("summary").all_inner_texts()) == ["1 run", "5 runs"]


def test_the_label_of_the_greatest_figure_is_at_its_height_and_has_a_unit(tmp_path: Path, command: Command) -> None:
    """It stood at the end of the axis, which is a tenth higher, so that each run seemed slower than it was."""
    command("add", *logs(tmp_path, "a", PAST))
    command("show", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    highest = min(float(y) for y in re.findall(r'<circle [^>]*cy="([\d.]+)"', page))
    (foot,) = re.findall(r'<text class="most" x="46" y="([\d.]+)"', page)
    assert float(foot) - 4 == pytest.approx(highest, abs=0.1)
    assert ">images/s</text>" in page


NO_DATA_BASE = "no data base, but long enough to be taken for one " * 40
REFUSED = [  # what the file holds, the command, and what is said
    ("", "show", "no history there"),
    ("", "add", "no log given; name the logs"),
    ("", "add {log} --protocol mlperf", "no throughput"),
    ("", "export", "name it"),
    ("", "show --system mine", "unrecognized arguments: --system;"),  # it was ignored: the page had all systems
    ("", "add {log} --last 3", "unrecognized arguments: --last 3"),
    ("", "check {log}", "no history there"),
    *(
        (made, words, says)
        for made, says in (
            (NO_DATA_BASE, "not a history that can be used"),
            ("CREATE TABLE mine (a)", "no history (tables mine)"),
            ("CREATE TABLE run (sha256, file, more)", "no history (columns sha256, file, more)"),
            ("PRAGMA user_version = 2", "a history of version 2; this code knows 1"),
        )
        for words in ("add {log}", "check {log}", "show {log}.html", "export {log}.csv")
    ),
    *(  # a row that another program altered
        (f"UPDATE run SET {name} = {value}", words, f"has {name} {shown}; delete its row")
        for name, value, shown in (
            ("images_per_s", "'fast'", "'fast'"),
            ("images_per_s", "0.0", "0.0"),
            ("images_per_s", "1e308", "1e+308"),
            ("date", "5", "5"),
            ("file", "NULL", "None"),
        )
        for words in ("check {log}", "show {log}.html", "export {log}.csv")
    ),
]


@pytest.mark.parametrize(("made", "words", "says"), REFUSED)
def test_what_is_refused_is_told_in_one_line_and_nothing_changes(
    tmp_path: Path, command: Command, made: str, words: str, says: str
) -> None:
    file, (log, *others) = tmp_path / "history.sqlite", logs(tmp_path, "a", PAST)
    if made.startswith("UPDATE"):
        command("add", *others)
    if made == NO_DATA_BASE:
        file.write_text(made)
    elif made:
        with sqlite3.connect(file) as connection:
            connection.execute(made)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, error = command(*words.format(log=log).split())
    assert code == 2 and out == "" and says in error and error.count("\n") == 1
    assert str(file) in error or not made, "which of the user's histories it is"
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_rate_that_could_not_be_read_again_is_not_kept(tmp_path: Path, command: Command) -> None:
    log = samples.write(tmp_path, "a.log", samples.WRITERS["mmseg"](samples.run_of(samples.steady(200))))
    huge = ("--devices", 10**9 - 1, "--batch", 10**9 - 1)
    code, _, error = command("add", log, *huge)
    assert code == 2 and str(log) in error and "keeps rates below 1e+15" in error and error.count("\n") == 1
    assert command("add", log, "--devices", 8, "--batch", 8)[0] == command("show", tmp_path / "a.html")[0] == 0


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
    """Nor does text in no encoding stop it."""
    (run,) = logs(tmp_path, "a", [1])
    run.write_text(run.read_text().replace('"model": "', '"model": "\\ud800'))
    log = run.rename(tmp_path / os.fsdecode(b"\xff\n\x1b[31m<b>.txt"))
    for action in ("add", "check"):
        code, out, _ = command(action, log, "--system", "=1+1\x1b[31m<script>")
        assert code == 0 and "\x1b" not in out
    command("show", tmp_path / "a.html")
    command("export", tmp_path / "a.csv")
    page, (row,) = (tmp_path / "a.html").read_text(), csv.DictReader((tmp_path / "a.csv").open())
    assert r"\xff" in page and "\x1b" not in page and "<script>" not in page and "<b>" not in page
    assert row["system"].startswith("'=1+1\\x1b[31m<script>") and "\n" not in row["file"]


def test_an_error_that_is_not_of_what_the_file_holds_says_what_happened(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with history_file.opened(path, new=True):
        pass
    with pytest.raises(
        InputError, match=r"cannot use the file \(unable to open .*\); see that it is a file in a folder"
    ):
        opened_for(tmp_path / "none" / "history.sqlite", "SELECT 1")
    with pytest.raises(InputError, match=r"^/dev/null: is not a file that can hold a history; name another by --file"):
        opened_for(Path("/dev/null"), "SELECT 1")
    with pytest.raises(
        InputError, match=r"cannot use the file \(.* readonly database\); make the file and its folder wri"
    ):
        opened_for(path, "DELETE FROM run", new=False)
    with pytest.raises(InputError, match=r"cannot use the file \(database or disk is full\); make room"):
        opened_for(path, "PRAGMA max_page_count = 1", f"INSERT INTO run (file) VALUES ('{'x' * 10_000}')")
    with pytest.raises(InputError, match=r"not a history that can be used \(no such table: full\); name another"):
        opened_for(path, "SELECT * FROM full")
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with (
            mock.patch.object(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0)),
            pytest.raises(
                InputError, match=r"cannot use the file \(database is locked\); another process writes to it"
            ),
        ):
            opened_for(path, "DELETE FROM run")


def opened_for(path: Path, *statements: str, new: bool = True) -> None:
    with history_file.opened(path, new=new) as connection:
        for statement in statements:
            connection.execute(statement)
