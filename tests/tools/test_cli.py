"""`paddle-reference`, installed as a user installs it: into an empty environment, without what training needs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import jobs, make_log
from tests.harness import small
from tests.scoring.pages import write_log
from tools import cli

LIMIT_MB = 60  # of packages beside pip


def run(command: Sequence[str | Path], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, cwd=cwd, env=environment | variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment after `pip install .`; needs a package index."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], jobs.REPOSITORY).stdout.split("\n")
    for name in filter(None, listed):
        if not name.startswith("tests/") and (jobs.REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(jobs.REPOSITORY / name, source / name)
    made = run([sys.executable, "-m", "venv", folder / "venv"], folder)
    assert made.returncode == 0, made.stderr
    done = run([folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "."], source)
    assert done.returncode == 0, done.stderr
    return folder / "venv/bin"


def test_each_command_is_listed_with_what_it_does_and_has_options() -> None:
    shown = run([sys.executable, "-m", "tools.cli"], jobs.REPOSITORY).stdout
    listed = dict(re.findall(r"^  (\S+) {2,}(\S.*)$", shown, re.M))
    assert listed.keys() == (cli.PUBLISHING | cli.TRAINING).keys() > {"history", "scale", "audit", "doctor"}
    for name in ("history", "audit", "watch", "tune"):
        done = run([sys.executable, "-m", "tools.cli", name, "--help"], jobs.REPOSITORY)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("usage: "), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("scoring score log", "the following arguments are required: --protocol"),
        ("scoring score log --protocol window --devices 8,64", "--devices: '8,64': must be a whole number above 0"),
        (
            "scoring score log --protocol window --devices 1000000000",
            "--devices: '1000000000': must be below 1000000000",
        ),
        ("scoring score log --protocol window --skip -1", "--skip: '-1': must be a whole number, 0 or above"),
        ("scoring compare a b --protocol window --between-runs-sd 0.8", "'0.8': must be PERCENT/RUNS, as 0.8/5"),
        ("compliance check log --ruleset", "--ruleset: expected one argument"),
        ("compliance check log --foo", "unrecognized arguments: --foo; see python -m compliance check --help"),
        ("scoring history show page --foo", "unrecognized arguments: --foo; see python -m scoring history show --help"),
        ("tools.cli check ''", "an argument is empty (behind check), as where a variable is not set"),
        ("scoring score log --protocol ''", "an argument is empty (behind --protocol)"),
        ("scoring report log --html=", "an argument is empty (--html=)"),
        ("tools.watch --once ''", "an argument is empty"),
        ("tools.pack '' packed", "an argument is empty (the first)"),
        ("tools.watch", "the following arguments are required: LOGDIR"),
    ],
)
def test_wrong_words_are_told_in_one_line(words: str, said: str) -> None:
    done = run([sys.executable, "-m", *shlex.split(words)], jobs.REPOSITORY)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr and done.stderr.endswith(" --help\n")


@pytest.mark.parametrize("name", ["score", "compare", "report", "import", "scale", "export"])
def test_the_help_says_what_each_option_is(name: str) -> None:
    shown = run([sys.executable, "-m", "scoring", name, "--help"], jobs.REPOSITORY, COLUMNS="400").stdout
    on_one_line = re.sub(r"\n {10,}", "  ", shown.partition("options:")[2])
    options = re.findall(r"^  (--\S+.*)$", on_one_line, re.M)
    assert len(options) > 4 and [option for option in options if "  " not in option] == []
    assert ("8,64: of two systems" in shown) == (name in ("compare", "report"))


COMPLETED = """
eval "$(register-python-argcomplete paddle-reference)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
read -ra COMP_WORDS <<<"${COMP_LINE}|"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete paddle-reference "${COMP_WORDS[COMP_CWORD]%|}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("line", ["paddle-reference co", "paddle-reference watch --"])
@pytest.mark.parametrize("point", ["abc", "-3", "²", ""])
def test_a_cursor_that_is_no_number_is_one_line(line: str, point: str) -> None:
    words = [sys.executable, "-m", "tools.cli"]
    done = run(words, jobs.REPOSITORY, _ARGCOMPLETE="1", COMP_LINE=line, COMP_POINT=point)
    jobs.refused(done, f"COMP_POINT={point!r}: must be a whole number")


@pytest.mark.parametrize("module", ["compliance", "scoring", "tools.watch"])
def test_a_command_of_its_own_says_so_in_one_line(module: str) -> None:
    done = run([sys.executable, "-m", module], jobs.REPOSITORY, _ARGCOMPLETE="1", COMP_LINE=module, COMP_POINT="")
    jobs.refused(done, "COMP_POINT='': must be a whole number, as the shell sets it: unset _ARGCOMPLETE")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("paddle-reference co", {"compare "}),
        ("paddle-reference --v", {"--version "}),
        ("paddle-reference check --format ", {"text", "json", "github"}),
        ("paddle-reference score --prot", {"--protocol "}),
        ("paddle-reference watch --", {"--help", "--once", "--json"}),
        ("paddle-reference tune --re", {"--repeats "}),
        ("paddle-reference banana --", {""}),
    ],
)
def test_bash_completes_commands_and_their_words(tmp_path: Path, line: str, words: set[str]) -> None:
    """By the function that the user's `eval` of register-python-argcomplete makes."""
    command = f'#!/bin/sh\ncd "{jobs.REPOSITORY}" && exec "{sys.executable}" -m tools.cli "$@"\n'
    jobs.script(tmp_path / "paddle-reference", command)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run(["bash", "--norc", "-c", COMPLETED, "bash", line], tmp_path, PATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {word.lstrip() for word in done.stdout.split("\n") if word or len(done.stdout) == 1} == words


@pytest.mark.slow
def test_the_packages_are_small_and_ours_has_one_name(installed: Path) -> None:
    (packages,) = installed.parent.glob("lib/python3*/site-packages")
    (record,) = packages.glob("paddle_reference_submission-*/RECORD")
    ours = {line.split("/")[0] for line in record.read_text().splitlines()}
    assert ours == {"..", "paddle_reference", record.parent.name}  # ..: of bin/paddle-reference
    rooms = {path.name for path in (packages / "paddle_reference").iterdir()}
    assert rooms == {"compliance", "runlog", "scoring", "tools"}
    of_pip = {path for name in ("pip", "pip-*", "setuptools", "setuptools-*") for path in packages.glob(name)}
    sizes = [
        file.stat().st_size
        for folder in packages.iterdir()
        if folder not in of_pip
        for file in ([folder] if folder.is_file() else folder.rglob("*"))
        if file.is_file()
    ]
    assert sum(sizes) / 1e6 < LIMIT_MB
    assert not (packages / "paddle").exists()


@pytest.mark.slow
def test_the_commands_work_on_a_log(installed: Path, tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(make_log.run())
    for name in ("tools", "runlog", "compliance", "scoring"):  # another's, which the shell puts first
        (tmp_path / f"{name}.py").write_text("raise SystemExit('another project')")
    command = installed / "paddle-reference"
    for arguments, status, words in (
        (("check", log), 0, "PASS"),
        (("score", log, "--protocol", "window", "--runs", "1"), 0, "images/s"),
        (("compare", log, log, "--protocol", "window"), None, ""),
        (("report", log, "--html", tmp_path / "report.html"), 0, ""),
        (("verify", tmp_path), None, ""),
        (("watch", log, "--once"), 0, "finished"),
        *(((name, "--help"), 0, f"usage: paddle-reference {name} ") for name in ("watch", "score", "check")),
        (("score", "none.txt", "--protocol", "window"), 2, "paddle-reference score: none.txt: "),
        (("package", "--org", "O", "--system", "s", "--out", "out.d", log), 2, "systems/s.json: no system description"),
        (("doctor",), 2, "error: doctor needs the package "),
        (("inspect", "--system", "CPU"), 2, "error: inspect needs the package "),
        (("--version",), 0, "paddle-reference 1.0.0"),
        (("train",), 2, "error: train: no such command: use one of check, "),
    ):
        done = run([command, *arguments], tmp_path, PYTHONPATH=str(tmp_path))
        said = done.stdout + done.stderr
        assert "Traceback" not in said, said
        assert done.returncode == status or (status is None and done.returncode in (0, 1, 2)), said
        assert words in said
    page = (tmp_path / "report.html").read_text()
    assert "<html" in page and "not drawn, as matplotlib is not installed" in page and "<svg" not in page


@pytest.mark.slow
def test_a_closed_run_is_checked_without_mlperf_logging(installed: Path, tmp_path: Path, published_logs: Path) -> None:
    log = published_logs / "mlperf_v2.1_dgxa100_resnet" / "result_0.txt"
    done = run([installed / "paddle-reference", "check", log], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "official pass, strict pass" in done.stdout


def test_the_extra_has_every_package_of_the_lock(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "locks/run.lock", "tools/cli.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(jobs.REPOSITORY / name, tmp_path / name)
    made = "import setuptools.build_meta as b; b.prepare_metadata_for_build_wheel('.')"
    done = run([sys.executable, "-c", made], tmp_path)
    assert done.returncode == 0, done.stderr
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    found = re.findall(r"^Requires-Dist: (\S+)==(\S+?);.*extra == .train.", metadata.read_text(), re.M)
    locked = re.findall(r"^(\S+)==(\S+)", (jobs.REPOSITORY / "locks/run.lock").read_text(), re.M)
    assert sorted(found) == sorted(locked)


@pytest.mark.parametrize(
    "words",
    [
        "doctor",
        "inspect --system CPU --json",
        "tune --dry-run",
        "tune --batches --dry-run",
        "acceptance --precisions",
        "watch --once {log}",
    ],
)
def test_a_reader_that_has_gone_changes_nothing(tmp_path: Path, words: str) -> None:
    """As that of `| grep -q` and `| head`: the command does what it was asked to do, and its status is its own."""
    log = write_log(tmp_path / "result_0.txt")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tools.cli", *words.format(log=log).split()]
    with os.fdopen(writing) as closed:
        done = subprocess.run(command, cwd=jobs.REPOSITORY, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "BrokenPipeError" not in done.stderr, done.stderr


@pytest.mark.parametrize("words", ["import --json {log}", "watch --once {log}", "pack --sizes {images}"])
def test_a_closed_output_changes_nothing(tmp_path: Path, words: str) -> None:
    """As by `>&-`, where Python has no stdout: a traceback ended the import and the pack."""
    log, images = write_log(tmp_path / "result_0.txt"), small.data_set(tmp_path / "images")
    command = [sys.executable, "-m", "tools.cli", *words.format(log=log, images=images).split()]
    done = jobs.run(["bash", "-c", '"$@" >&-', "-", *command])
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "tools.cli --version",
        "tools.cli watch --help",
        "compliance check --help",
        "scoring --help",
        "tools.doctor --help",
        "tools.cli score {log} --protocol window",
        "tools.cli check {log}",
        "tools.watch --once {log}",
        "tools.watch --json {log}",
        "tools.summarize {log}",
        "runlog schema",
        "harness.describe --table",
        "harness.describe --shell",
    ],
)
def test_a_full_disk_under_the_output_is_one_line(tmp_path: Path, words: str) -> None:
    log = write_log(tmp_path / "result_0.txt")
    command = [sys.executable, "-m", *words.format(log=log).split()]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=jobs.REPOSITORY, env=buffered, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, done.stderr
    assert "no space left on" in done.stderr.lower()
