"""Every output that shows a result names it by its standing: MLPerf results unverified, others as none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compliance import mlperf, rules
from compliance.submission import package, published_pages
from compliance.submission.committed_code import CodeFile
from tests import make_log
from tests.compliance.altered import compliance
from tests.compliance.packages import description
from tests.scoring.samples import scoring
from tools.summarize import summarize

COMMIT = "0" * 40
Printer = Callable[[Path], str]


def _logs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("result_*.txt"))


def _page(folder: Path) -> str:
    """The package of the logs, and the page of results that shows it."""
    division = "closed" if "closed" in _logs(folder)[0].read_text() else "open"
    system = description(folder, division=division)
    site = folder / "site"
    target, content, _ = package.build(
        _logs(folder), org="Example", system=str(system), out=site / "packages/0", ruleset=rules.load("4.0.0")
    )
    assert (target / "README.md").read_text() == content.report_text
    pages = published_pages.pages_of(site)
    return content.report_text + pages["index.html"]


def _table(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The table that run_and_time.sh prints, and the report that it writes."""
    summarize(_logs(folder), throughput_only=False)
    return capsys.readouterr().out


def _audit(folder: Path, form: str) -> str:
    if form == "text":
        return compliance("audit", folder).stdout
    out = folder / f"audit.{form}"
    compliance("audit", folder, f"--{form}", out)
    return out.read_text()


def _report(folder: Path, form: str) -> str:
    out = folder / f"report.{form}"
    assert scoring("report", *_logs(folder), f"--{form}", out).returncode == 0
    return out.read_text()


PRINTERS: dict[str, Printer] = {
    "score": lambda folder: compliance("score", *_logs(folder)).stdout,
    "score --json": lambda folder: compliance("score", "--json", *_logs(folder)).stdout,
    "package and page": _page,
    "audit": lambda folder: _audit(folder, "text"),
    "audit --html": lambda folder: _audit(folder, "html"),
    "scoring score": lambda folder: scoring("score", *_logs(folder), "--protocol", "mlperf").stdout,
    "scoring score --json": lambda folder: scoring("score", *_logs(folder), "--protocol", "mlperf", "--json").stdout,
    "scoring compare": lambda folder: scoring("compare", *_logs(folder)[:2], "--protocol", "window").stdout,
    "report": lambda folder: scoring("report", *_logs(folder)).stdout.replace("\\", ""),  # Markdown escapes
    "report --html": lambda folder: _report(folder, "html"),
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the logs of five runs, closed ones on ImageNet or open ones on digits, in a submitter's tree."""
    monkeypatch.setattr(package, "official_answers", lambda *_: [])
    monkeypatch.setattr(package, "code_of", lambda _: {"run_and_time.sh": CodeFile(b"", is_executable=True)})
    monkeypatch.setattr(package, "committed_ms", lambda _: 0.0)
    monkeypatch.setattr(package, "refusals_by_logging_code", lambda *_: [])  # tests/make_log.py has logged the events

    def make(kind: str) -> Path:
        written = make_log.closed_run if kind == "imagenet" else make_log.run
        folder = tmp_path / "v4.0/Example/results/CPU/resnet"
        folder.mkdir(parents=True)
        for seed in range(5):
            (folder / f"result_{seed}.txt").write_text(written(seed=seed, epoch_ms=30_000 + 500 * seed))
        return tmp_path

    return make


@pytest.mark.parametrize("printer", PRINTERS)
def test_a_result_on_imagenet_is_named_unverified_with_its_notes(printer: str, results: Callable[[str], Path]) -> None:
    shown = PRINTERS[printer](results("imagenet"))
    assert "Unverified MLPerf(R) v4.0 Training Closed ResNet" in shown
    assert "unverified" in shown
    assert mlperf.NOT_VERIFIED in shown
    assert shown.count(mlperf.TRADEMARK) >= 1
    assert "images/J" not in shown


@pytest.mark.parametrize("printer", PRINTERS)
def test_a_result_on_digits_is_named_none_and_has_no_legend(printer: str, results: Callable[[str], Path]) -> None:
    shown = PRINTERS[printer](results("digits"))
    assert "no MLPerf result" in shown
    assert "digits" in shown
    for words in ("unverified", "Unverified", mlperf.NOT_VERIFIED, mlperf.TRADEMARK):
        assert words not in shown


@pytest.mark.parametrize(("kind", "named"), [("imagenet", "Unverified MLPerf(R) v4.0"), ("digits", "no MLPerf result")])
def test_the_table_of_a_job_names_its_result(
    kind: str, named: str, results: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = results(kind)
    shown = _table(folder, capsys)
    assert named in shown
    assert (mlperf.TRADEMARK in shown) == ("(unverified)" in shown) == (kind == "imagenet")
    [report] = folder.rglob("report.html")
    assert (mlperf.TRADEMARK in report.read_text()) == (kind == "imagenet")


def test_a_published_result_next_to_a_recomputed_one_says_what_a_comparison_must(published_logs: Path) -> None:
    shown = scoring("reproduce", published_logs).stdout
    assert mlperf.NEXT_TO_VERIFIED in shown
    assert "unverified" in shown


def test_what_is_compared_with_mlperf_results_and_is_none_is_said(
    results: Callable[[str], Path], tmp_path: Path
) -> None:
    [first, *_] = _logs(results("imagenet"))
    digits = tmp_path / "digits.txt"
    digits.write_text(make_log.run(seed=9))
    assert mlperf.NOT_COMPARABLE in scoring("compare", first, digits, "--protocol", "window").stdout
