"""mlperf-logging's own tools, each run in a process of its own, its text read and not its exit status alone."""

import csv
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compliance.official import rule_files
from compliance.official.rule_files import RULES, VERSION
from runlog.text import printable
from runlog.verdict import Verdict, judged

TIMEOUT_S = 600  # the official parser's time grows with the square of a line's length
# {tool: packages that it imports beyond those of locks/run.lock}; the others import none
IMPORTED = {
    "package_checker": ("scipy",),
    "rcp_checker": ("scipy",),
    "result_summarizer": ("pandas", "scipy"),
}


def run_tool(tool: str, arguments: Sequence[str]) -> tuple[int | None, str]:
    """Run one of mlperf-logging's tools in a process of its own, in an empty folder.

    Args:
        tool: The name of its module, such as "rcp_checker".
        arguments: Its command line.

    Returns:
        The exit status, and everything that the tool printed. If it was killed after TIMEOUT_S, the status is None, and
        the text says so.

    Raises:
        ValueError: Another release of mlperf-logging than VERSION is installed, or none, or a package that the tool
            imports is missing.
    """
    _check_installed(tool)
    command = [sys.executable, "-m", f"mlperf_logging.{tool}", *arguments]
    with tempfile.TemporaryDirectory() as folder:  # the tools write into the working directory
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
                encoding="utf-8",
                errors="replace",
                env=os.environ | {"PYTHONUTF8": "1"},  # or they read files by the locale's encoding
            )
        except subprocess.TimeoutExpired:
            return None, f"no end within {TIMEOUT_S} s"
    return done.returncode, done.stdout


def _check_installed(tool: str) -> None:
    """Check that mlperf-logging's right release, and the packages that a tool imports, are installed.

    Args:
        tool: The name of the tool's module, such as "rcp_checker".

    Raises:
        ValueError: They are not. The message says how to install them.
    """
    try:
        installed = importlib.metadata.version("mlperf-logging")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != VERSION:
        raise ValueError(
            f"the official tools are those of mlperf-logging {VERSION}, {installed} is installed: "
            f"pip install --no-deps mlperf-logging=={VERSION}, or install locks/run.lock"
        )
    missing = [package for package in IMPORTED.get(tool, ()) if importlib.util.find_spec(package) is None]
    if missing:
        raise ValueError(
            f"mlperf-logging's {tool} imports {' and '.join(missing)}, which is not installed: "
            "launch/setup.sh official installs it, or the extra [official]"
        )


def _complaints(text: str) -> str:
    """Return the first three lines of a tool's text that complain; if none does, the last line.

    Args:
        text: What the tool printed.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no text"]
    complaining = [line for line in lines if re.search(r"ERROR|CRITICAL|Traceback|Error:|failed|Required", line)]
    return printable("; ".join(complaining[:3] or lines[-1:]), 500)


_TEXT_OF_ACCEPTANCE = {  # what each tool prints if it accepts
    "package_checker": "PACKAGE CHECKER FOUND NO ERRORS",
    "system_desc_checker": "System description checker passed",
    "repo_checker": "ALL CHECKS PASSED",
    "rcp_checker": "RCP test PASSED",
}


def ask_tool(tool: str, *arguments: str) -> Verdict:
    """Run a tool and return its verdict, by its text alone: most of the tools exit with 0 whatever they find.

    Args:
        tool: The name of the tool's module, one of _TEXT_OF_ACCEPTANCE.
        *arguments: Its command line.

    Raises:
        ValueError: The right release of mlperf-logging, or a package that the tool imports, is not installed.
    """
    _, text = run_tool(tool, arguments)
    wanted_text = _TEXT_OF_ACCEPTANCE[tool]
    # package_checker skips a benchmark that it does not know, and may then accept the rest.
    is_accepted = wanted_text in text and "Skipping benchmark" not in text
    return judged(tool, is_accepted, wanted_text if is_accepted else _complaints(text))


def ask_for_score(folder: Path, ruleset: str, benchmark: str, minutes: float | None) -> Verdict:
    """Return a verdict on whether result_summarizer, an official tool, computes our own score for a package.

    Args:
        folder: The folder of the package. The tool may add or remove files in it.
        ruleset: The version of the rules, such as 4.0.0.
        benchmark: The benchmark of the package, which is a column of the tool's table.
        minutes: Our own score; None if there is none.

    Returns:
        A good verdict if the tool gives exactly one score, and this score equals ours to the last digit. A bad verdict
        otherwise. If the tool fails, the verdict quotes the tool.

    Raises:
        ValueError: The right release of mlperf-logging, or a package that the tool imports, is not installed.
        KeyError: The tool does not know the benchmark.
    """
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "summary.csv"
        command = [str(folder), "training", ruleset, "-csv", str(table)]
        # The tool multiplies the score by a factor from scaling.json beside the logs. It writes this file itself, but
        # only after it has computed the score. So the first run is for the file, and the second one for the score.
        run_tool("result_summarizer", command)  # whether it fails does not matter: the second run is judged
        table.unlink(missing_ok=True)  # with the score of the first run
        status, text = run_tool("result_summarizer", command)
        if status != 0 or "CRITICAL ERROR" in text or not table.is_file():
            return judged("result_summarizer", False, _complaints(text))
        with table.open(encoding="utf-8", newline="") as stream:
            scores = [row[benchmark] for row in csv.DictReader(stream)]  # in minutes; "" in a row without a score
    has_one_score = len(scores) == 1 and scores[0] != ""
    is_ours = has_one_score and minutes is not None and float(scores[0]) == minutes
    return judged("result_summarizer", is_ours, f"{', '.join(map(printable, scores))} minutes; ours {minutes!r}")


def config_of_ours(ruleset: str, folder: Path) -> Path:
    """Write into a folder the rule files with which mlperf-logging's checker can check our own benchmarks.

    The checker begins with common.yaml, and goes on to the file that each file names. It would look for that in its own
    package, which has no file for a benchmark of ours. So the files are copied, and each copy names the next copy. With
    /tmp/x as the folder:

        common.yaml           names training_4.0.0/{}_common.yaml, its copy names /tmp/x/{}_common.yaml
        closed_common.yaml    names training_4.0.0/closed_{}.yaml, its copy names /tmp/x/closed_{}.yaml

    The {} stay in the copies: the checker puts the log's division, then its benchmark, in their place.

    Args:
        ruleset: The version of the rules, such as 4.0.0.
        folder: The absolute path of an existing folder. Files of the same names in it are replaced.

    Returns:
        FOLDER/common.yaml, the file to give to the checker as --config.

    Raises:
        KeyError: mlperf-logging has no rules of this version.
    """
    subfolder = f"training_{ruleset}"  # of the rules of mlperf-logging, and of this project's rules
    common_names = ["common.yaml", "closed_common.yaml", "open_common.yaml"]
    our_names = [path.name for path in (RULES / subfolder).glob("*.yaml")]  # such as closed_hrnet.yaml
    for name in [*common_names, *our_names]:
        original_text = rule_files.text_of(f"{subfolder}/{name}")  # from this project or from mlperf-logging
        text = original_text.replace(f"{subfolder}/", f"{folder}/")  # the name of the next file, if it names one
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "common.yaml"


# One of these parts is in each line by which the official checker says why it rejects a log.
_COMPLAINT = re.compile(
    r"Required"  # a wrong number of events
    r"|CHECK for|failed test"  # a check that is not met, in two lines
    r"|Failed"  # code that failed, or a check that no event meets
    r"|Error"  # a traceback
    r"|No log lines"  # no events
    r"|parsing errors|\^\^"  # lines that cannot be parsed, each with the reason after "^^"
    r"|no end within"  # the text that `run_tool` returns if the checker took too long
)


def check_log(path: Path, ruleset: str, benchmark: str) -> tuple[bool, list[str]]:
    """Return whether the official checker of mlperf-logging accepts a log, and if not, what it complains about.

    Args:
        path: The path of the log.
        ruleset: The version of the rules, such as 4.0.0.
        benchmark: The benchmark that the log states. If this project has rules of its own for the
            benchmark, the checker gets these rules.

    Returns:
        (True, []) if the checker accepts the log. Otherwise False, and at most 20 lines that complain, of those that
        the checker printed, such as one with "Required EXACTLY_ONE occurrence of 'run_start' but found 0".

    Raises:
        ValueError: The right release of mlperf-logging is not installed.
    """
    # The checker writes out.log into the folder in which `run_tool` runs the checker, and which is deleted after that.
    # Nobody reads out.log, because the checker also prints the text.
    arguments = ["--usage", "training", "--ruleset", ruleset, "--log_output", "out.log"]
    with tempfile.TemporaryDirectory() as folder:
        if _is_benchmark_of_ours(benchmark, ruleset):
            arguments += ["--config", str(config_of_ours(ruleset, Path(folder)))]
        status, text = run_tool("compliance_checker", [*arguments, str(path.resolve())])  # absolute, for any folder
    if status == 0 and "INFO - SUCCESS" in text:
        return True, []
    complaints = [printable(line.strip()) for line in text.splitlines() if _COMPLAINT.search(line)]
    return False, complaints[:20]


def _is_benchmark_of_ours(benchmark: str, ruleset: str) -> bool:
    """Return whether this project has a file of rules for a benchmark in the ruleset.

    Args:
        benchmark: The benchmark that a log states, which may be any text.
        ruleset: The version of the rules, such as 4.0.0.
    """
    is_plain_name = re.fullmatch(r"\w+", benchmark) is not None  # a log may state anything, such as ../../x
    return is_plain_name and (RULES / f"training_{ruleset}" / f"closed_{benchmark}.yaml").is_file()
