"""The trials of one job of this project: logs that are handed in without those between them are a choice."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from compliance.check import Report
from compliance.logged_run import LoggedRun
from compliance.rules import Ruleset, breach
from compliance.submission.group import BlamedRun
from runlog.digits import counted

_LOG_OF_TRIAL = re.compile(r"result_(?P<number>[0-9]{1,9})\.txt")


class _Job(NamedTuple):
    """Settings that tell a job from others; two in containers may have written into folders of one path."""

    folder: PurePosixPath  # into which it wrote its logs
    trials: int | None  # that it was asked for, its NEXP
    first_seed: int | None  # of trial 0; None if the system gave each trial a seed


class _Trial(NamedTuple):
    """A trial by the settings of its log, which stay if the file is moved or renamed."""

    job: _Job
    number: int  # from 0


def gaps_between_trials(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a breach for each run that does not follow the trial of its job that was handed in before it.

    For example, if the trials 1, 2 and 4 of a job are handed in, trial 4 has a breach, because trial 3 is left out.
    Trials before the first one or after the last one may be left out: the job may have been stopped, or may have made
    more runs than a result takes.

    Args:
        members: The reports on the logs of one submission.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Yields:
        The report of a run and the breach of the rule `trials-consecutive`.
    """
    rule = ruleset.strict["trials-consecutive"]
    reports_by_job: dict[_Job, dict[int, Report]] = {}
    for report in members:
        trial = _trial(report.run)
        if trial is not None:
            reports_by_job.setdefault(trial.job, {})[trial.number] = report

    for reports in reports_by_job.values():
        for earlier, later in itertools.pairwise(sorted(reports)):
            missing = later - earlier - 1
            if missing > 0:
                absent = f"{counted(missing, 'trial')} of its job between trials {earlier} and {later}"
                yield BlamedRun(reports[later], breach(rule, f"not among these logs: {absent}"))


def _trial(run: LoggedRun) -> _Trial | None:
    """Return which trial of which job a log is of; None if it does not say so.

    Args:
        run: The run, by its log. Its setting RESULT_FILE is as "/logs/DGXA100/rn50/result_3.txt" for trial 3.
    """
    setting = run.settings.get("RESULT_FILE")
    if not isinstance(setting, str):
        return None
    path = PurePosixPath(setting)
    name = _LOG_OF_TRIAL.fullmatch(path.name)
    if name is None:
        return None
    number = int(name["number"])
    seed = run.whole_setting("SEED")  # -1: from the system
    first_seed = seed - number if seed is not None and seed >= 0 else None
    return _Trial(_Job(path.parent, run.whole_setting("NEXP"), first_seed), number)
