"""The report of an acceptance by the files of its jobs, wherever it is made."""

import errno
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from harness.job import job_of
from runlog.verdict import FATAL, UNKNOWN
from tests import jobs
from tools.acceptance import __main__ as acceptance_command
from tools.acceptance.first_line import describe_job
from tools.acceptance.machine import VerdictWriter

reported = functools.partial(jobs.called, acceptance_command.main)


def finished(folder: Path, *lines: dict[str, Any]) -> Path:
    """The folder of an acceptance in the short form on 8 GPUs of the system X-1.5, with these lines of its FP32 job."""
    folder.mkdir(parents=True)
    writer = VerdictWriter(folder / "fp32.txt", "fp32")
    described = describe_job(job_of(DGXSYSTEM="X-1.5", DGXNGPU=8, DEVICE="gpu"), short=True)
    writer.append_line({"nodes": [{"host": "node"}], "job": described})
    for line in lines:
        writer.append_line(line)
    return folder


def test_a_report_made_elsewhere_says_what_the_jobs_ran_on(tmp_path: Path) -> None:
    """Here on a CPU and without --short; the job of TF32 was begun, and that of amp_o1 was not."""
    folder = finished(tmp_path / "X-1.5-20261128T000000Z")
    (folder / "tf32.failed").write_text("a GPU was lost\n")
    (tmp_path / "X-1.json").write_text("another report")
    assert reported("--report", folder, DEVICE="cpu", DGXNGPU=1).returncode == 1
    report = json.loads((tmp_path / "X-1.5-20261128T000000Z.json").read_text())
    assert (report["short"], report["system"], report["ranks"]) == (True, "X-1.5", 8)
    assert report["verdict"].endswith(", in the short form")
    status = {(line["check"], line["where"]): line["status"] for line in report["lines"]}
    assert (status["losses", "tf32"], status["losses", "amp_o1"]) == (FATAL, UNKNOWN)
    assert (tmp_path / "X-1.json").read_text() == "another report"


@pytest.mark.parametrize(
    "damage",
    [
        '{"check": "loss',
        '{"check": "losses"}',
        '{"check": "losses", "status": "good", "found": ""}',
        '{"check": "losses", "status": "warning", "found": ""}',
        "[1]",
        "\xff",
        '""',
    ],
)
def test_a_damaged_line_is_named(damage: str, tmp_path: Path) -> None:
    folder = finished(tmp_path / "X-1")
    with (folder / "fp32.lines").open("ab") as file:
        file.write(damage.encode("latin-1"))
    said = f"{folder / 'fp32.lines'}:2: is damaged: remove the line, and its check counts as one that was not run"
    jobs.refused(reported("--report", folder), said)


@pytest.mark.parametrize("name", ["fp32.lines", "tf32.failed"])
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(tmp_path / "X-1")
    (folder / "tf32.failed").write_text("a GPU was lost\n")
    unreadable, read_text = folder / name, Path.read_text

    def read(path: Path, *arguments: Any, **options: Any) -> str:
        if path == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", read)
    jobs.refused(reported("--report", folder), f"{unreadable}: permission denied")


def test_a_reason_in_undecodable_bytes_is_shown(tmp_path: Path) -> None:
    folder = finished(tmp_path / "X-1")
    (folder / "tf32.failed").write_bytes(b"no GPU \xff\n")
    assert "  not run: no GPU \ufffd\n" in reported("--report", folder).stdout


def test_a_report_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(tmp_path / "X-1")
    (tmp_path / "X-1.json").mkdir()
    monkeypatch.chdir(folder)
    done = reported("--report", ".")
    jobs.refused(done, f"{tmp_path / 'X-1.json'}: is a folder")
    assert "\nverdict   0 ok, " in done.stdout
