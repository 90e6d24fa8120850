"""Both verdicts on every ResNet log of five rounds of MLPerf, beside what mlperf-logging 4.1.68 said of it."""

import csv
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from compliance import rules
from compliance.check import Report
from compliance.submission.runs import check_logs
from runlog.reader import HeldLog

# What strict refuses and official passes: for the text of the round, or as a copy; docs/audit.md
CONFIRMED = {"closed-data", "eval-schedule", "runs-differ"}


def _submissions(archive: Path) -> Iterator[list[HeldLog]]:
    """The logs of one folder after another; nothing is unpacked to disk."""
    logs: list[HeldLog] = []
    with tarfile.open(archive, "r|xz") as members:
        for member in members:
            content = members.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            log = HeldLog(member.name)
            log.data = content.read()
            if logs and logs[-1].parent != log.parent:
                yield logs
                logs = []
            logs.append(log)
    yield logs


@pytest.mark.parametrize(
    ("name", "logs_of_it", "refused_by"),
    [
        ("mlperf_resnet", 700, {"closed-data": 30, "eval-schedule": 9}),
        (
            "mlperf_v0.7_v1.0",
            315,
            {"closed-data": 29, "runs-differ": 1},
        ),
    ],
)
def test_both_verdicts_on_every_published_log(
    name: str, logs_of_it: int, refused_by: dict[str, int], published_corpus: Path
) -> None:
    recorded = {row["path"]: row for row in csv.DictReader((published_corpus / f"{name}.csv").open())}
    reports: dict[str, Report] = {}
    for logs in _submissions(published_corpus / f"{name}.tar.xz"):
        ruleset = rules.load(recorded[str(logs[0])]["ruleset"])
        reports |= {report.file: report for report in check_logs(logs, ruleset)}
    assert reports.keys() == recorded.keys()
    assert len(reports) == logs_of_it
    differ = {file for file, report in reports.items() if report.official != (recorded[file]["official"] == "pass")}
    assert differ == set()
    lax = [file for file, report in reports.items() if report.strict and not report.official]
    assert lax == []
    only_strict = [report for report in reports.values() if report.official and not report.strict]
    refused = [{f.rule for f in report.findings if f.severity == "error"} for report in only_strict]
    assert [file for file, why in zip(only_strict, refused, strict=True) if not why & CONFIRMED] == []
    assert Counter(rule for why in refused for rule in why) == refused_by
