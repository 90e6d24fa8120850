"""Each command line of README.md and docs/*.md is one that its program takes, in a block or inside a sentence.

A line of Python goes through its command's own parser; a job's settings are resolved as in a dry run; a script of
launch/ that has a dry run makes it. Nothing is started.
"""

import argparse
import importlib.util
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness import describe
from tests import jobs

# Why a line that begins so is not tried here.
NOT_TRIED = {
    "docker": "needs the image",
    "enroot": "needs the image",
    "podman": "is not a program of this project",
    "sbatch": "needs a cluster; tests/cluster/test_slurm.py starts it",
    "ssh-keygen": "is not a program of this project",
    "./tests/run.sh": "is what runs this",
    "launch/sbom.sh": "writes a file",
    "launch/campaign.sh": "tests/scoring/test_campaign.py runs it",
}
HAVE_A_DRY_RUN = {
    "launch/base_image.sh",
    "launch/build_image.sh",
    "launch/container_node.sh",
    "launch/lock.sh",
    "launch/mpirun.sh",
    "launch/setup.sh",
}
OF_A_JOB = {"--dry-run", "--check", "--fleet", "--acceptance", "--short"}


MADE_BY_A_LINE_BEFORE = {"DGXA100_tuned"}  # systems
SETTINGS = r"""(?:[A-Z_]+=(?:"[^"]*"|\S+) +)*"""
PROGRAMS = "|".join(re.escape(name) for name in ("python", "./run_and_time.sh", *NOT_TRIED))
COMMAND = re.compile(rf"{SETTINGS}(?:{PROGRAMS}|\./\S+|launch/\S+)( |$)")
# Words in a sentence that begin so, and are a reason in a log or a name.
NO_COMMAND = re.compile(r"launch/\S+ was |launch/\S+$|docker$|podman$|python$")


BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)


def lines_of_blocks(page: str) -> list[str]:
    """Return the lines of a page's blocks; one that ends in a backslash is joined to the next one."""
    lines = []
    for block in BLOCK.findall(page):
        lines += block.replace("\\\n", " ").splitlines()
    return lines


def words_in_sentences(page: str) -> list[str]:
    """Return what stands between backquotes outside the blocks, each in one line."""
    return [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", BLOCK.sub("", page))]


def command_lines() -> list[tuple[str, str]]:
    """Return (page, line) of what begins with a program, settings before it or not."""
    found = []
    for path in [jobs.REPOSITORY / "README.md", *sorted((jobs.REPOSITORY / "docs").glob("*.md"))]:
        page = path.read_text()
        inside = [words for words in words_in_sentences(page) if not NO_COMMAND.match(words)]
        for line in dict.fromkeys([*lines_of_blocks(page), *inside]):
            if COMMAND.match(line):
                found.append((path.name, line))
    return found


def test_the_pages_have_command_lines() -> None:
    assert len(command_lines()) > 60


class ParsedError(Exception):
    """The command line was taken."""


def parse_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each parser end its program once it has taken the words."""
    parse = argparse.ArgumentParser.parse_args

    def taken(parser: argparse.ArgumentParser, *arguments: object, **named: object) -> NoReturn:
        parse(parser, *arguments, **named)  # type: ignore[call-overload]
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", taken)


def main_of(module: str) -> Callable[[], int]:
    """Return the `main` that `python -m MODULE` calls."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    name = f"{module}.__main__" if spec.submodule_search_locations else module
    main: Callable[[], int] = importlib.import_module(name).main
    return main


def python_takes(words: list[str], monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """Assert that the parser of `-m MODULE ARGUMENTS...` takes the arguments, or that of a script is a file."""
    if words[0] != "-m":
        assert (jobs.REPOSITORY / words[0]).is_file()
        return
    # [--optional VALUE], `--set ...` for more of them, and `LOG...` stand for a user's own words.
    usage = re.sub(r"\[[^\]]*\]|--\S+ \.\.\.|\.\.\.", "", " ".join(words[2:])).split()
    main = main_of(words[1])
    asked = jobs.called(main, *usage[:1], "--help")
    if len(usage) <= 1 and asked.returncode == 0:  # a sentence that names a command
        return
    parse_alone(monkeypatch)
    with pytest.raises(ParsedError):
        jobs.called(main, *usage, **settings)


def script_takes(words: list[str], folder: Path, **settings: Any) -> None:
    """Assert that a script of launch/ does its dry run; FILE is a list of eight hosts, GOOD a file to write."""
    hosts = folder / "hosts"
    hosts.write_text("".join(f"node{number}\n" for number in range(8)))
    written = folder / "good"
    stands_for = {"FILE": str(hosts), "GOOD": str(written)}
    told = [stands_for.get(word, word) for word in words]
    dry_run = [] if "--dry-run" in told else ["--dry-run"]
    settings = {name: value.replace("$PWD", str(jobs.REPOSITORY)) for name, value in settings.items()}
    done = jobs.run([*told, *dry_run], **settings)
    if settings.get("CUDA") == "12":  # whose lock the user makes by a line before
        jobs.refused(done, "make it by launch/lock.sh cuda12 --index URL")
    else:
        assert done.returncode == 0, done.stderr
    assert not written.exists(), "a dry run writes nothing"


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_line_of_a_page_is_one_that_its_program_takes(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(re.sub(r" > \S+$", "", line), comments=True)
    settings = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    program = words[0]
    if program == "python":
        python_takes(words[1:], monkeypatch, **settings)
    elif program == "./run_and_time.sh":
        assert set(words[1:]) <= OF_A_JOB
        if settings.get("DGXSYSTEM") not in MADE_BY_A_LINE_BEFORE:
            done = jobs.called(describe.main, "--json", **settings)
            assert done.returncode == 0, done.stderr
    elif program in HAVE_A_DRY_RUN:
        script_takes(words, tmp_path, **settings)
    else:
        assert program in NOT_TRIED, f"{page}: {line!r}: try it here, or say in NOT_TRIED why not"
