"""Both verdicts on every published log at hand: seven rounds, ResNet and 14 other benchmarks."""

import csv
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compliance import rules
from compliance.check import Report
from compliance.submission.runs import check_logs
from runlog.reader import HeldLog

pytestmark = [pytest.mark.slow, pytest.mark.ci]  # over a thousand logs are checked

# The one copy that is known to be true, and the rules that refuse by a text of the round; docs/audit.md
COPY = "v1.0/Supermicro/results/SYS-420GP-TNAR+/resnet/result_3.txt"
BY_TEXT = {"closed-data", "eval-schedule"}
OTHERS = "mlperf_other_benchmarks"


@dataclass
class Audited:
    """The reports of an archive by their files, and the rounds that they are of."""

    reports: dict[str, Report] = field(default_factory=dict)
    rounds: dict[str, str] = field(default_factory=dict)

    def refused(self) -> dict[str, set[str]]:
        """The rules by which strict refuses a log that the official checker accepts."""
        only_strict = (one for one in self.reports.values() if one.passes_official and not one.passes_strict)
        return {one.file: {f.rule for f in one.findings if f.severity == "error"} for one in only_strict}


def submissions(archive: Path) -> Iterator[list[HeldLog]]:
    """The logs of one folder after another; nothing is unpacked to disk."""
    logs: list[HeldLog] = []
    with tarfile.open(archive, "r|xz") as members:
        for member in members:
            content = members.extractfile(member) if member.isfile() else None
            if content is None or not Path(member.name).match("result_*.txt"):
                continue
            log = HeldLog(member.name)
            log.data = content.read()
            if logs and logs[-1].parent != log.parent:
                yield logs
                logs = []
            logs.append(log)
    yield logs


@pytest.fixture(scope="module")
def audited(published_corpus: Path) -> dict[str, Audited]:
    found = {name: Audited() for name in ("mlperf_resnet", "mlperf_v0.7_v1.0", OTHERS)}
    for name, of_archive in found.items():
        for logs in submissions(published_corpus / f"{name}.tar.xz"):
            [version] = re.findall(r"^v(\d+\.\d+)/", str(logs[0]))
            for report in check_logs(logs, rules.load(f"{version}.0")):
                of_archive.reports[report.file] = report
                of_archive.rounds[report.file] = version
    return found


@pytest.mark.parametrize(("name", "count"), [("mlperf_resnet", 700), ("mlperf_v0.7_v1.0", 315)])
def test_the_official_verdict_is_the_tools(name: str, count: int, audited, published_corpus: Path) -> None:
    recorded = {row["path"]: row for row in csv.DictReader((published_corpus / f"{name}.csv").open())}
    reports = audited[name].reports
    assert reports.keys() == recorded.keys() and len(reports) == count
    differ = {
        file for file, report in reports.items() if report.passes_official != (recorded[file]["official"] == "pass")
    }
    assert differ == set()


def test_strict_passes_nothing_that_the_official_checker_refuses(audited) -> None:
    lax = [
        one.file
        for part in audited.values()
        for one in part.reports.values()
        if one.passes_strict and not one.passes_official
    ]
    assert lax == []


def test_each_benchmark_and_round_has_at_most_one_refusal_of_100_without_its_text(audited) -> None:
    accepted: Counter[tuple[str, str]] = Counter()
    without_text: Counter[tuple[str, str]] = Counter()
    for part in audited.values():
        refused = part.refused()
        for file, report in part.reports.items():
            place = (Path(file).parent.name, part.rounds[file])
            accepted[place] += report.passes_official
            without_text[place] += bool(refused.get(file, set()) - BY_TEXT) and file != COPY
    assert len(accepted) == 19  # ResNet in 5 rounds, and 14 others
    assert {place: count for place, count in without_text.items() if count > 0.01 * accepted[place]} == {}


def test_no_run_is_called_a_copy_but_the_one_that_is(audited) -> None:
    copies = [file for part in audited.values() for file, why in part.refused().items() if "runs-differ" in why]
    assert copies == [COPY]


def test_each_row_says_how_many_logs_of_the_corpus_it_refuses(audited) -> None:
    refused_by: Counter[str] = Counter()
    for part in audited.values():
        for why in part.refused().values():
            refused_by.update(why)
    rows = rules.load("4.0.0").strict
    assert dict(refused_by) == {name: rule.found for name, rule in rows.items() if rule.found}


def test_the_rows_are_few_and_each_that_refuses_rests_on_a_text_of_the_benchmarks_that_it_refuses() -> None:
    rows = rules.read_rules("strict.yaml")
    # The 36th is accuracy-ahead: epochs-counted has its purpose, but knows the epochs of our own benchmarks alone.
    # The 37th is trials-consecutive, the only one that asks for runs which are not handed in.
    assert len(rows) <= 37, "over 37 rules: join one to a rule of the same purpose, or raise this limit with its reason"
    for name, row in rows.items():
        assert ("bounds" in row) == ("bound_from" in row), name
        of_all = row["class"] != "form" and "benchmarks" not in row
        is_of_file_or_command = name in {"file-link", "known-benchmark", "benchmark-asked", "official-disagrees"}
        if of_all and row.get("logs") != "project" and not is_of_file_or_command:
            assert row["text"] != "none", f"{name} may refuse any benchmark, but rests on no text of MLPerf"
