"""The reasons why a package may not be published, from its logs and its system description."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from compliance.check import Report
from compliance.logged_run import LoggedRun
from compliance.rules import Finding, Ruleset
from compliance.submission.description import compare_description
from compliance.submission.runs import sha256
from compliance.submission.score import RULES_ON_THE_TARGET
from compliance.submission.system import FIELDS, NOT_STATED
from runlog import schema
from runlog.digits import six_digits
from runlog.json_types import JsonObject
from runlog.text import printable

# In the code: the packages that a run installs, and those with Paddle's build for CUDA 12.
_LOCK = "locks/run.lock"
_LOCK_OF_CUDA_12 = "locks/run12.lock"

_MAX_CLOCK_DIFFERENCE_MS = 86_400_000.0  # of the machines of a commit and of a run; a wrong zone makes half of it


class Refusal(NamedTuple):
    """A reason why a package may not be published, and the name of the file, or of the part, that gives it."""

    file: str
    text: str


class PackagedRun(NamedTuple):
    """A run of a package: the report on its log alone, and the findings of its comparison with the other runs."""

    report: Report
    findings_between_runs: list[Finding]

    @property
    def compared_report(self) -> Report:
        """Return the report with the findings of the comparison after its own."""
        return self.report.with_findings(self.findings_between_runs)


def refusals_by_description(file: str, description: JsonObject) -> Iterator[Refusal]:
    """Yield a reason to refuse a package for each field that its system description lacks or that is not a text.

    Args:
        file: Name of the description's file.
        description: Fields of the description by name.
    """
    for name in FIELDS:
        if not isinstance(description.get(name), str):
            problem = "no text" if name in description else "missing"
            yield Refusal(file, f"{name} is {problem}")


def refusals_by_findings(runs: Sequence[PackagedRun], description: JsonObject, ruleset: Ruleset) -> Iterator[Refusal]:
    """Yield a reason to refuse a package for each finding on a run that forbids publishing it.

    A finding is on the run's log, or on its comparison with the other runs or with the system description. Whether too
    many runs missed the target is left to `refusals_by_missed_target`.

    Args:
        runs: The runs of the package, with the findings on them.
        description: Fields of the system description by name.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
    """
    for run in runs:
        for finding in _findings_on_run(run, description, ruleset):
            if _forbids_package(finding):
                where = f" line {finding.line}" if finding.line else ""
                reason = f"{finding.rule}{where}: {finding.actual}; {finding.fix}"
                yield Refusal(run.report.path.name, reason)


def _findings_on_run(run: PackagedRun, description: JsonObject, ruleset: Ruleset) -> list[Finding]:
    """Return the findings (errors, warnings and notes) on one run of a package, from three sources in this order:

    - the check of the run's log by itself. If it has errors, and all of them say that the run missed the target, all
      findings of this check are left out, warnings and notes included.
    - the comparison with the other runs of the package
    - the comparison of the log with the system description

    Args:
        run: The run, with the findings of the first two sources.
        description: Fields of the system description by name, such as {"number_of_nodes": "2"}.
        ruleset: This project's rules for a version of MLPerf Training. A log that contradicts the description breaks
            its rule "system-description".
    """
    # A package may have a few runs that missed the target. `refusals_by_missed_target` counts them, and refuses the
    # package if they are too many. So a missed target is not a reason here.
    findings_on_log = () if _has_only_missed_target(run.report) else run.report.findings
    contradictions = compare_description(run.report.run, description, ruleset.strict["system-description"])
    return [*findings_on_log, *run.findings_between_runs, *contradictions]


def refusals_by_missed_target(checked: Sequence[Report], most_failed_runs: int) -> list[Refusal]:
    """Return the reason to refuse a package if too many of its runs missed the target; it names these runs.

    Only runs without other errors count: `refusals_by_findings` refuses the others.

    Args:
        checked: The reports on the logs, each checked by itself.
        most_failed_runs: How many may miss the target: 4 in a submission of unet3d, 1 in any other.

    Returns:
        A list with the reason; empty if there are not too many.
    """
    names = [report.path.name for report in checked if _has_only_missed_target(report)]
    if len(names) <= most_failed_runs:
        return []
    allowed = "one run" if most_failed_runs == 1 else f"{most_failed_runs} runs"
    return [Refusal(", ".join(names), f"did not reach the target; {allowed} of a submission may fail to")]


def _forbids_package(finding: Finding) -> bool:
    """Return whether a finding is an error, or another configuration, which is only a warning in the check of a log."""
    return finding.severity == "error" or finding.rule == "same-configuration"


def _has_only_missed_target(report: Report) -> bool:
    """Return whether the check of a log has errors, and all of them say that the run missed the target."""
    broken_rules = {finding.rule for finding in report.findings if finding.severity == "error"}
    has_errors = len(broken_rules) > 0
    return has_errors and broken_rules <= RULES_ON_THE_TARGET


def refusals_by_origin(run: LoggedRun, org: str) -> Iterator[Refusal]:
    """Yield each reason why an organisation may not publish the logs of a package, in this order:

    1. They are not logs of this project. Then this is the only reason.
    2. They do not state the organisation.
    3. They do not state the commit of their code, or do not say that the code was as in that commit.

    Args:
        run: The run of the first log, which stands for all: the caller also refuses runs of different organisations or
            different code.
        org: The organisation, with `_` for each blank.
    """
    if not run.is_project_log:
        yield Refusal("logs", "they are not logs of this project, whose code a package holds")
        return
    yield from _refusals_by_organisation(run, org)
    yield from _refusals_by_commit(run)


def _refusals_by_organisation(run: LoggedRun, org: str) -> Iterator[Refusal]:
    """Yield a reason to refuse a package if a run does not state the package's organisation.

    Args:
        run: The run, by its log.
        org: The organisation, with `_` for each blank: `Some_Lab` for `Some Lab`.
    """
    org_of_log = run.first_event(schema.SUBMISSION_ORG).value
    if org_of_log == NOT_STATED:
        yield Refusal("logs", "they state no organisation: run with SUBMISSION_ORG set")
    elif str(org_of_log).replace(" ", "_") != org:
        yield Refusal("logs", f"they are of {printable(org_of_log)}, not of {printable(org)}")


def _refusals_by_commit(run: LoggedRun) -> Iterator[Refusal]:
    """Yield a refusal if a run does not state the commit of its code, or if the code differed from that commit."""
    source = run.header_section(schema.SOURCE)
    commit = source.get("commit")
    is_commit = isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}", commit)
    if not is_commit:
        problem = "they do not say of which commit they are (header `source`), so there is no code to hand in"
        yield Refusal("logs", problem)
    elif source.get("dirty") is not False:  # None: not known, which is refused, too
        yield Refusal("logs", "the code differed from its commit when they were written: commit, and run again")


def refusals_by_code(run: LoggedRun, code: Path) -> Iterator[Refusal]:
    """Yield a reason to refuse a package if its runs were made with another lock file than the package's code has.

    A lock file lists the Python packages that a run installs, and the log states the hash of the one that the run used.
    A log without the hash is refused, too.

    Args:
        run: The run of the first log. It stands for all runs, because the runs of a package must be of the same code.
        code: Folder of the package's code. If the lock file is missing there, nothing is compared.
    """
    paddle_version = run.header_section(schema.PACKAGES).get("paddlepaddle-gpu")
    has_build_for_cuda_12 = str(paddle_version).endswith(".post120")
    # The code has two lock files, one with Paddle's build for CUDA 12.
    name = _LOCK_OF_CUDA_12 if has_build_for_cuda_12 else _LOCK
    lock_in_code = code / name
    stated = run.header_section(schema.SOURCE).get("lock_sha256")  # None if the log states no hash
    if lock_in_code.is_file() and stated != sha256(lock_in_code):
        what = f"by source.lock_sha256 they ran with another {name} than their commit has"
        yield Refusal("logs", f"{what}: {printable(stated)}")


def refusals_by_date(checked: Sequence[Report], committed_ms: float) -> Iterator[Refusal]:
    """Yield a reason to refuse a package for each run that is older than the commit whose code it says it ran.

    Args:
        checked: The reports on the logs.
        committed_ms: When the commit that the logs name was made, in milliseconds since 1970.
    """
    for report in checked:
        if report.run.start_ms is None:  # other rules refuse a run without a start
            continue
        run_began_before_ms = committed_ms - report.run.start_ms
        # A day is let through, because the clocks of the machines of the run and of the commit may differ so much.
        if run_began_before_ms > _MAX_CLOCK_DIFFERENCE_MS:
            days = six_digits(run_began_before_ms / 86_400_000)
            what = f"its run began {days} days before the commit that it names was made"
            yield Refusal(report.path.name, f"{what}: run the code of the commit, with the machine's clock right")
