"""Each command line in a block of README.md and docs/*.md is one that its program takes.

A line of Python goes through its command's own parser; a job's settings are resolved as in a dry run; a script of
launch/ that has a dry run makes it elsewhere (test_launchers.py). Nothing is started.
"""

import argparse
import importlib.util
import re
import shlex
from collections.abc import Callable
from typing import NoReturn

import pytest

from harness import env
from tests import jobs

# Why a line that begins so is not tried here.
NOT_TRIED = {
    "docker": "needs the image",
    "enroot": "needs the image",
    "sbatch": "needs a cluster; tests/cluster/test_slurm.py starts it",
    "ssh-keygen": "is no program of this project",
    "./tests/run.sh": "is what runs this",
    "launch/base_image.sh": "needs the network",
    "launch/build_image.sh": "needs the network",
    "launch/lock.sh": "needs the network",
    "launch/setup.sh": "needs the network",
    "launch/sbom.sh": "writes a file",
    "launch/campaign.sh": "tests/scoring/test_campaign.py runs it",
    "launch/container_node.sh": "test_launchers.py runs it dry",
    "launch/mpirun.sh": "test_launchers.py runs it dry",
}
OF_A_JOB = {"--dry-run", "--check", "--fleet", "--acceptance", "--short"}


MADE_BY_A_LINE_BEFORE = {"DGXA100_tuned"}  # systems
SETTINGS = r"""(?:[A-Z_]+=(?:"[^"]*"|\S+) +)*"""
PROGRAMS = "|".join(re.escape(name) for name in ("python", "./run_and_time.sh", *NOT_TRIED))
COMMAND = re.compile(rf"{SETTINGS}(?:{PROGRAMS}|\./\S+|launch/\S+)( |$)")


def command_lines() -> list[tuple[str, str]]:
    """Return (page, line) of the lines in blocks that begin with a program, settings before it or not."""
    found = []
    for page in [jobs.REPOSITORY / "README.md", *sorted((jobs.REPOSITORY / "docs").glob("*.md"))]:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                if COMMAND.match(line):
                    found.append((page.name, line))
    return found


def test_the_pages_have_command_lines() -> None:
    assert len(command_lines()) > 40


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


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_line_of_a_page_is_one_that_its_program_takes(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(re.sub(r" > \S+$", "", line), comments=True)
    settings = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    program = words[0]
    if program == "python":
        # [--optional VALUE], `--set ...` for more of them, and `LOG...` stand for a user's own words.
        usage = re.sub(r"\[[^\]]*\]|--\S+ \.\.\.|\.\.\.", "", " ".join(words[3:])).split()
        parse_alone(monkeypatch)
        with pytest.raises(ParsedError):
            jobs.called(main_of(words[2]), *usage, **settings)
    elif program == "./run_and_time.sh":
        assert set(words[1:]) <= OF_A_JOB
        if settings.get("DGXSYSTEM") not in MADE_BY_A_LINE_BEFORE:
            done = jobs.called(env.main, "--json", **settings)
            assert done.returncode == 0, done.stderr
    else:
        assert program in NOT_TRIED, f"{page}: {line!r}: try it here, or say in NOT_TRIED why not"
