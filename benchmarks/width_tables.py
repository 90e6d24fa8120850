"""Writes the fitted widths to scoring/figure/calibration.yaml, and their coverage to the table of docs/scoring.md."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import interval_widths
from benchmarks.interval_widths import Case
from benchmarks.published_runs import ROOT, PublishedRun
from scoring.figure.calibration import FILE as CALIBRATION
from scoring.figure.calibration import Width

PAGE = ROOT / "docs" / "scoring.md"
TABLE_STARTS = "<!-- by benchmarks/calibration.py --only widths --write -->"
TABLE_ENDS = "<!-- end -->"
SHOWN_COUNTS = (10, 20, 40, 60, 100, 200, 400)  # windows, of interval_widths.COUNTS
HEAD = """\
# Widths of the intervals of one run, and the smallest difference that matters (docs/scoring.md).
# Written by `python benchmarks/calibration.py --only widths --write` from logs that others published.
#
# Half a width is factor * scale ** power as a share of the figure, and `least_share` at least. The scale of
# `run` is the relative standard deviation of the windows' times, that of `repeat` half the width of the
# interval of the windows alone (scoring/figure/series.py). A row holds from `windows` on, to the next row.
"""


def cases_by_interval(runs: Sequence[PublishedRun]) -> dict[str, list[Case]]:
    """Return the cases of the interval of a run, and of that of another run."""
    return {"run": list(interval_widths.run_cases(runs)), "repeat": list(interval_widths.repeat_cases(runs))}


def write(runs: Sequence[PublishedRun], cases: Mapping[str, Sequence[Case]], coverage: str) -> None:
    """Write the widths fitted on all systems into calibration.yaml, and the table of coverage into the page."""
    CALIBRATION.write_text(calibration_file(runs, cases), encoding="utf-8")
    _write_table(PAGE, coverage)


def _write_table(page: Path, table: str) -> None:
    """Put a table between the page's two marks."""
    text = page.read_text(encoding="utf-8")
    before, start, rest = text.partition(TABLE_STARTS)
    _, end, after = rest.partition(TABLE_ENDS)
    assert start and end, f"{page} has both marks"
    page.write_text(f"{before}{start}\n{table}{end}{after}", encoding="utf-8")


def coverage_table(cases: Mapping[str, Sequence[Case]]) -> str:
    """Return a table in Markdown of how many intervals hold on held-out systems, by source and number of windows.

    A cell is the share in percent and the number of systems, such as 95.2/18; a dash where no system has so many
    windows.
    """
    lines = [f"| interval, source | {' | '.join(map(str, SHOWN_COUNTS))} |", "|---" * (len(SHOWN_COUNTS) + 1) + "|"]
    for name, of_interval in cases.items():
        for source, by_count in interval_widths.held_out(of_interval).items():
            cells = []
            for count in SHOWN_COUNTS:
                found = by_count.get(count)
                cells.append(f"{100 * found.held:.1f}/{found.systems}" if found else "-")
            lines.append(f"| {name}, {source} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def calibration_file(runs: Sequence[PublishedRun], cases: Mapping[str, Sequence[Case]]) -> str:
    """Return the text of calibration.yaml: the widths fitted on all systems, and what they came from."""
    lines = [*_width_lines(cases), *_smallest_difference_lines(runs), *_source_lines(runs)]
    today = datetime.datetime.now(datetime.timezone.utc).date()
    lines.append(f'date: "{today.isoformat()}"')
    return HEAD + "\n".join(lines) + "\n"


def _width_lines(cases: Mapping[str, Sequence[Case]]) -> Iterator[str]:
    """Yield the widths of each interval by the kind of windows."""
    for name, of_interval in cases.items():
        yield f"{name}:"
        for kind, widths in interval_widths.fitted(of_interval).items():
            yield f"  {kind}:" if widths else f"  {kind}: []  # too few systems"
            for width in widths:
                yield f"    - {{{_fields(width)}}}"


def _fields(width: Width) -> str:
    """Return the fields of a width as YAML has them."""
    fields = [f"windows: {width.windows}", f"factor: {width.factor:g}"]
    fields += [f"power: {width.power:g}", f"least_share: {width.least_share:g}"]
    return ", ".join(fields)


def _smallest_difference_lines(runs: Sequence[PublishedRun]) -> Iterator[str]:
    """Yield the smallest difference that matters, and of how many pairs of like hosts it is."""
    distances = interval_widths.like_host_ratios(runs)
    smallest = interval_widths.smallest_difference(distances)
    share = f"{interval_widths.LIKE_HOSTS:.1%}"
    yield f"smallest_difference: {smallest:g}  # {share} of the pairs of like hosts lie closer"
    yield f"pairs_of_like_hosts: {len(distances)}"


def _source_lines(runs: Sequence[PublishedRun]) -> Iterator[str]:
    """Yield how many series of windows and systems there are, in all and of each source."""
    yield f"series: {len(runs)}"
    yield f"systems: {_systems(runs)}"
    yield "sources:"
    for source in sorted({run.source for run in runs}):
        of_source = [run for run in runs if run.source == source]
        yield f'  "{source}": {{series: {len(of_source)}, systems: {_systems(of_source)}}}'


def _systems(runs: Sequence[PublishedRun]) -> int:
    """Return the number of systems that the runs are of."""
    return len({run.system for run in runs})
