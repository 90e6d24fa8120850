"""`python -m compliance`: check logs, describe the system, build and verify a package, score a submission.

Exit status: 0 done, 1 a check failed, 2 wrong use or bad input (one line on stderr).
"""

import argparse
import gc
import importlib
import sys
from pathlib import Path
from typing import Any

from compliance import COMMANDS, forms, rules
from compliance.check import Report
from compliance.submission.runs import check_logs, logs_named_by
from runlog import named_files
from runlog.completion import complete
from runlog.errors import INTERRUPTED, INTERRUPTED_STATUS, RunError, drop_output, flush_output
from runlog.options import Parser, refuse_empty_words
from runlog.text import called, printable


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status.

    Args:
        arguments: The words of the command line; None takes sys.argv.

    Returns:
        The status of the command. It is 2, with one line on stderr, for bad input, 1 if the output is closed early, as
        in `check ... | head`, and 130 after Ctrl-C.

    Raises:
        SystemExit: The words are wrong (status 2), or ask for help (status 0).
    """
    parser = _parser()
    complete(parser)  # ends here if a shell asks which word comes next
    refuse_empty_words(parser, sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(arguments)
    try:
        named_files.check_options(options)
        status = _run_command(options)
        flush_output()
        return status
    except BrokenPipeError:
        drop_output()
        return 1
    except (ValueError, OSError, RunError) as error:
        text = named_files.explain(error) if isinstance(error, OSError) else str(error)
        print(f"compliance {options.command}: {printable(text, 1000)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"compliance {options.command}: {INTERRUPTED}", file=sys.stderr)
        return INTERRUPTED_STATUS


def _run_command(options: argparse.Namespace) -> int:
    """Run the command that the options name, and return its exit status.

    Args:
        options: The options of the command line.
    """
    if options.command == "check":
        return _check(options)
    return int(_module(f"compliance.submission.{options.command}").command(options))


def _module(name: str) -> Any:
    """Import and return a module that most checks do without; imports are half of the time of a small check.

    Args:
        name: The dotted name of the module, such as "compliance.junit".
    """
    return importlib.import_module(name)


def _parser() -> Parser:
    """Return the parser of the command line, with a parser for each command in COMMANDS."""
    parser = Parser(prog=called("compliance"), description="Compliance of training logs and submission packages.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = [commands.add_parser(name, help=what, description=what) for name, what in COMMANDS.items()]
    for one in parsers:
        one.add_argument("--json", action="store_true", help="print JSON")
    check, score, system, package, verify, publish, audit, rules_command = parsers
    ruleset: dict[str, Any] = {"default": "4.0.0", "help": "MLPerf Training ruleset (default: %(default)s)"}
    which = "which one counts (default: strict for logs of this project, official for others)"

    check.add_argument("logs", nargs="*", metavar="LOG", type=Path, help="log of a run, or a folder of result_*.txt")
    check.add_argument("--ruleset", **ruleset)
    check.add_argument("--benchmark", help="what the logs must be of, as resnet or hrnet (default: what each log says)")
    check.add_argument("--system", type=Path, metavar="JSON", help="system description that the logs must agree with")
    check.add_argument("--verdict", choices=("official", "strict"), help=which)
    check.add_argument("--official", action="store_true", help="run mlperf-logging's checker beside this one")
    check.add_argument("--receipt", action="store_true", help="write LOG.checked: verdict and SHA-256 of each log")
    check.add_argument("--format", choices=("text", "json", "github"), default="text", help="form of the findings")
    check.add_argument("--junit", type=Path, metavar="FILE", help="write the findings as JUnit XML too")
    check.add_argument("--explain", metavar="RULE", help="say what RULE (or `all`) asks for, why, and what to do")

    score.add_argument("logs", nargs="+", metavar="LOG", type=Path, help="logs of one submission, or their folder")
    score.add_argument("--ruleset", **ruleset)
    score.add_argument("--verdict", choices=("official", "strict"), help=which)

    system.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write, systems/NAME.json")
    system.add_argument("--log", type=Path, required=True, help="log that says the machine and the submission")
    system.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="what is asked for")
    system.add_argument("--force", action="store_true", help="replace FILE")

    package.add_argument("logs", nargs="+", metavar="LOG", type=Path, help="logs of one submission, or their folder")
    package.add_argument("--org", required=True, help="organisation: the package's top folder")
    package.add_argument("--system", required=True, metavar="NAME", help="of systems/NAME.json, or the path of one")
    package.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder that gets ORG/")
    package.add_argument("--ruleset", **ruleset)

    verify.add_argument("folder", type=Path, metavar="DIR", help="ORG/ of the package, or a published folder")
    verify.add_argument("--signers", type=Path, metavar="FILE", help="who may sign a published folder: ssh-keygen(1)")
    verify.add_argument("--official", action="store_true", help="run mlperf-logging's tools on a copy, too")

    publish.add_argument("folders", nargs="+", metavar="DIR", type=Path, help="ORG/ of a package that verifies")
    publish.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write, for a web server")
    publish.add_argument("--key", type=Path, metavar="FILE", help="sign its hashes with this SSH key")

    audit.add_argument("path", type=Path, metavar="FOLDER|ARCHIVE", help="SUBMITTER/results/SYSTEM/BENCHMARK, or tar")
    audit.add_argument("--ruleset", help="default: of the round in a folder's name; 4.0.0 for this project's logs")
    audit.add_argument(
        "--envelope", action="store_true", help="test against the lower convex envelope of the reference points, too"
    )
    audit.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    audit.add_argument("--csv", type=Path, metavar="FILE", help="write a table")

    rules_command.add_argument("--ruleset", **ruleset)
    return parser


def _check(options: argparse.Namespace) -> int:
    """Check logs and print the reports. With --explain, print a rule instead.

    Args:
        options: The options of the command line.

    Returns:
        The exit status: 0 if all logs pass or a rule was explained, else 1.

    Raises:
        ValueError: The options do not go together, or a log or another input cannot be used.
        OSError: A file cannot be read or written.
    """
    if options.explain:
        _explain_rule(options)
        return 0
    _refuse_wrong_options(options)
    form = "json" if options.json else options.format
    shows_hashes = form == "json"
    reports = _reports_on(options, hashed=shows_hashes)
    text_of = {"text": forms.as_text, "json": forms.as_json, "github": forms.as_github}[form]
    print(text_of(reports), end="")
    if options.junit:
        options.junit.write_text(_module("compliance.junit").as_junit(reports), encoding="utf-8")
    return 0 if all(report.passed for report in reports) else 1


def _explain_rule(options: argparse.Namespace) -> None:
    """Print an explanation of the rule that --explain names, or of all rules for `--explain all`.

    Args:
        options: The options of the command line.

    Raises:
        ValueError: Logs are given, too, no rule has the name, or there are no rules for the ruleset.
    """
    if options.logs:
        raise ValueError("--explain checks no log; ask for it in a command of its own")
    explained = _module("compliance.explained")  # imported only when it is needed
    ruleset = rules.load(options.ruleset)
    print(explained.explain(options.explain, ruleset), end="")


def _refuse_wrong_options(options: argparse.Namespace) -> None:
    """Check that the options of `check` go together.

    Args:
        options: The options of the command line.

    Raises:
        ValueError: No log is given, --json and --format github are both given, or --junit names a folder or a file that
            this command did not write.
    """
    if not options.logs:
        raise ValueError("no log given; name one, or --explain RULE")
    if options.json and options.format == "github":
        raise ValueError("--json and --format github: one form only")
    if options.junit:
        forms.check_replaceable(options.junit, _module("compliance.junit").START_OF_JUNIT)


def _reports_on(options: argparse.Namespace, *, hashed: bool) -> list[Report]:
    """Check the logs that the command line names, by its options. Return a report for each log.

    With --receipt, the verdict is also written into a file beside each log.

    Args:
        options: The options of the command line.
        hashed: Whether each report gets the SHA-256 of its log. With --receipt it gets this in any case.

    Raises:
        ValueError: A log or another input cannot be used.
        OSError: A log or another file cannot be read or written.
    """
    official_checker = None
    if options.official:  # mlperf-logging's checker is to be run, too
        official_checker = _module("compliance.official.tools").check_log
    return check_logs(
        logs_named_by(options.logs),
        rules.load(options.ruleset),
        benchmark=options.benchmark,
        system=options.system,
        official=official_checker,
        receipt=options.receipt,
        hashed=hashed,
        by=options.verdict,
    )


if __name__ == "__main__":
    gc.freeze()  # what the imports made stays to the end: to look through it for garbage took a tenth of a small check
    sys.exit(main())
