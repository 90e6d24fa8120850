"""Measures how often the intervals and verdicts of `scoring` are right, by simulation and on others' repeats.

    python benchmarks/calibration.py [--corpus FOLDER] [--only PART] [--short] [--json] [--write]

Simulated: runs whose windows scatter by 2 % with first-order correlation, and that lie 1 % apart themselves; normal,
or skewed (gamma, skewness 1 and 2: a tail of slow runs). Counted: how often a 95 % interval holds the true figure, how
often two equal systems are called different or a healthy set is said to hold an outlier, and how often a real
difference is found. A/A: all pairs of repeats of one MLPerf system, each judged by its system's other repeats.
Widths: those of the two intervals of one run, fitted on one half of the published systems and tried on the other, both
ways; `--write` puts the widths of all systems into scoring/figure/calibration.yaml, and the coverage into
docs/scoring.md.

Targets: coverage 93 to 97 % (more is conservative, and said), false "different" and `outlying_run` at most 5 %, A/A at
most 7 %, each but for two standard errors of the simulation. Skewness 2 is shown and no target for means: Student's t
misses it, and published repeats do not show it (docs/scoring.md). Exit 1 on a miss.
"""

import argparse
import datetime
import functools
import itertools
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import interval_widths  # noqa: E402
from benchmarks.interval_widths import Case  # noqa: E402
from benchmarks.published_runs import CORPUS, PublishedRun, published_runs  # noqa: E402
from runlog import stats  # noqa: E402
from scoring.figure import compare, history, protocols, spread  # noqa: E402
from scoring.figure.calibration import FILE as CALIBRATION  # noqa: E402
from scoring.figure.score import Score, score  # noqa: E402
from scoring.importers import read_record  # noqa: E402
from scoring.record import InputError  # noqa: E402

PAGE = ROOT / "docs" / "scoring.md"
TABLE_STARTS = "<!-- by benchmarks/calibration.py --only widths --write -->"
TABLE_ENDS = "<!-- end -->"
SEED = 17
BETWEEN, WITHIN, WINDOWS = 0.01, 0.02, 40
GAMMAS = {"normal": 0.0, "skewed (0.5)": 16.0, "skewed (1)": 4.0, "skewed (2)": 1.0}  # its skewness is 2 / root
SHAPES = ("normal", "skewed (1)", "skewed (2)")
Values = Sequence[float]
Interval = tuple[float, float] | None


def of_estimate(of: Callable[[Values], spread.Estimate | None], values: Values) -> Interval:
    """The interval of a mean or an olympic mean, where there are runs enough."""
    found = of(values)
    return found.interval_95 if found else None


INTERVALS: dict[str, Callable[[Values], Interval]] = {
    "mean": functools.partial(of_estimate, spread.mean_of),
    "median": spread.median_interval,
    "olympic mean": functools.partial(of_estimate, functools.partial(spread.mean_of, dropped=1)),
}
FIGURES = {
    "mean": lambda runs: runs.mean(1),
    "median": lambda runs: np.median(runs),  # of all systems at once
    "olympic mean": lambda runs: np.sort(runs, axis=1)[:, 1:-1].mean(1),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measured share beside its target."""

    row: str
    column: str
    share: float
    least: float | None = None
    most: float | None = None
    of: int

    @property
    def mark(self) -> str:
        """Return whether the share meets its target, but for two standard errors of the simulation."""
        if self.least is None and self.most is None:
            return "no target"
        doubt = 2 * (self.share * (1 - self.share) / self.of) ** 0.5  # of the simulation itself
        if self.most is not None and self.share - doubt > self.most:
            return "conservative" if self.least is not None else "missed"
        return "missed" if self.least is not None and self.share + doubt < self.least else "met"


def noise(draw: np.random.Generator, shape: str, size: tuple[int, ...]) -> np.ndarray:
    """Draw noise of mean 0 and deviation 1.

    A skewed one has its tail below, as runs are slow by accident and never fast.
    """
    gamma = GAMMAS[shape]
    return (gamma - draw.gamma(gamma, size=size)) / gamma**0.5 if gamma else draw.standard_normal(size)


def correlated(draw: np.random.Generator, shape: str, size: tuple[int, int], correlation: float) -> np.ndarray:
    """Draw series with first-order correlation along the last axis, of mean 0 and deviation 1."""
    found = noise(draw, shape, (size[0], size[1] + 30))
    for at in range(1, found.shape[1]):
        found[:, at] = correlation * found[:, at - 1] + (1 - correlation**2) ** 0.5 * found[:, at]
    return found[:, 30:]


def systems(draw: np.random.Generator, shape: str, size: tuple[int, int], correlation: float) -> np.ndarray:
    """Figures of `size[1]` runs of each of `size[0]` systems of the true rate 100, with their windows' error."""
    lags = np.arange(1, WINDOWS)
    of_mean = (1 + 2 * float(((1 - lags / WINDOWS) * correlation**lags).sum())) / WINDOWS
    return 100 * (1 + BETWEEN * noise(draw, shape, size) + WITHIN * of_mean**0.5 * draw.standard_normal(size))


def held(intervals: Iterator[Interval], truth: float) -> float:
    """Share of the intervals that hold the truth."""
    return float(np.mean([found is not None and found[0] <= truth <= found[1] for found in intervals]))


def one_run(draw: np.random.Generator, repeats: int) -> Iterator[Cell]:
    """Coverage within a run."""
    cases = [("normal", c, n) for c in (0.0, 0.3, 0.6) for n in (10, 20, 40, 200)] + [("skewed (1)", 0.3, 40)]
    for shape, correlation, count in cases:
        windows = 100 * (1 + WITHIN * correlated(draw, shape, (repeats, count), correlation))
        share = held(map(spread.series_interval, windows.tolist()), 100)
        row = f"within a run, {shape}, correlation {correlation:g}"
        yield Cell(row=row, column=f"{count} windows", share=share, least=0.93, most=0.97, of=repeats)


def several_runs(draw: np.random.Generator, repeats: int) -> Iterator[Cell]:
    """Coverage over runs, the outlier test, and the verdicts of two equal systems."""
    for shape, count in itertools.product(SHAPES, (3, 5, 7)):
        wanted = shape != "skewed (2)"
        correlations = (0.0, 0.6) if shape == "normal" else (0.3,)
        for correlation, name in itertools.product(correlations, INTERVALS):
            runs = systems(draw, shape, (repeats, count), correlation)
            row = f"{name}, {shape}, correlation {correlation:g}"
            if INTERVALS[name](runs[0].tolist()) is None:
                continue  # too few runs: refused
            truth = float(
                FIGURES[name](systems(draw, shape, (200_000, 1 if name == "median" else count), correlation)).mean()
            )
            least, most = (0.93, 0.97) if wanted or name == "median" else (None, None)
            share = held(map(INTERVALS[name], runs.tolist()), truth)
            yield Cell(row=row, column=f"{count} runs", share=share, least=least, most=most, of=repeats)
        runs = systems(draw, shape, (repeats, count), 0.3)
        cries = [(at := spread.outlier(row)) is not None and abs(row[at] - 100) > 1 for row in runs.tolist()]
        most = 0.05 if wanted else None
        yield Cell(
            row=f"outlying_run, {shape}", column=f"{count} runs", share=float(np.mean(cries)), most=most, of=repeats
        )


def different(name: str, a: Values, b: Values) -> bool:
    """Tell whether `compare` would call two systems different."""
    if name == "median":
        found = spread.median_ratio_interval(a, b)
    else:
        of = functools.partial(spread.mean_of, dropped=int(name == "olympic mean"))
        base, other = of(a), of(b)
        found = spread.ratio_interval(base, other) if base and other else None
    return found is not None and not found[0] <= 1 <= found[1]


def two_systems(draw: np.random.Generator, repeats: int) -> Iterator[Cell]:
    """False "different", and the power to find a real difference."""
    for faster, shape in ((0, "normal"), (0, "skewed (1)"), (1, "normal"), (2, "normal"), (3, "normal")):
        what = f"found: {faster} % faster" if faster else "false different"
        for count, name in itertools.product((3, 5, 7), INTERVALS):
            if name != "mean" and count < 5:
                continue  # refused, or as good as nothing found
            a, b = (systems(draw, shape, (repeats, count), 0.3) for _ in range(2))
            b *= 1 + faster / 100
            share = float(np.mean([different(name, *pair) for pair in zip(a.tolist(), b.tolist(), strict=True)]))
            yield Cell(
                row=f"{what}, {name}, {shape}",
                column=f"{count} runs each",
                share=share,
                most=None if faster else 0.05,
                of=repeats,
            )
        a, b, known = (systems(draw, shape, (repeats, count), 0.3) for count in (1, 1, 5))
        half = stats.t_quantile(4, spread.SINGLE_RUNS) * known.std(axis=1, ddof=1) / known.mean(1) * 2**0.5
        share = float(np.mean(abs(np.log(b * (1 + faster / 100) / a)[:, 0]) > half))
        row = f"{what}, single runs, 5 others known, {shape}"
        yield Cell(row=row, column="1 run each", share=share, most=None if faster else 0.05, of=repeats)


def trend(draw: np.random.Generator, repeats: int) -> Iterator[Cell]:
    """Count how often `history check` calls new runs lower than ten earlier ones."""
    for lower, count in itertools.product((0, 3), (5, 1)):
        past, new = (systems(draw, "normal", (repeats, runs), 0.3) for runs in (10, count))
        bounds = [history.ratio(*pair) for pair in zip(past.tolist(), (new * (1 - lower / 100)).tolist(), strict=True)]
        share = float(np.mean([found is not None and found[1] < 1 for found in bounds]))
        row = f"called lower, {lower} % lower" if lower else "called lower, no change"
        least, most = (None, 0.05) if not lower else (0.9 if count == 5 else None, None)
        column = f"{count} new run{'s' * (count > 1)}"
        yield Cell(row=row, column=column, share=share, least=least, most=most, of=repeats)


def published_systems(archive_of_rounds: Path, most_systems: int | None = None) -> dict[Any, list[Score]]:
    """The window figures of each published system's repeats, by (ROUND/SUBMITTER/.., batch)."""
    by_system: dict[Any, list[Score]] = {}
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive_of_rounds) as archive:
        for member in archive:
            if not member.isfile():
                continue
            archive.extract(member, folder, filter="data")
            # How many devices the system has does not matter to repeats of it; these logs do not say.
            try:
                record = read_record(Path(folder) / member.name, devices=1)
                figure = score([record], protocols.find("window"))
            except InputError:  # a run that came to nothing
                continue
            finally:
                (Path(folder) / member.name).unlink()
            key = (member.name.rpartition("/")[0], record.global_batch)
            if key not in by_system and len(by_system) == most_systems:
                break
            repeats = by_system.setdefault(key, [])
            if record.run_id not in (other.records[0].run_id for other in repeats):  # v1.0 has one run twice
                repeats.append(figure)
    return by_system


def repeats_of_one_system(corpus: Path, most_systems: int | None) -> Iterator[Cell]:
    """All pairs of repeats of the published systems, by the others of their system, through `compare` itself."""
    judged: dict[str, list[bool]] = {}
    outlying: dict[str, list[bool]] = {}
    systems = {}
    for archive in ("mlperf_v0.7_v1.0", "mlperf_resnet"):
        if (file := corpus / f"{archive}.tar.xz").is_file():
            systems |= published_systems(file, most_systems)
    for (place, _), scores in systems.items():
        published = place.partition("/")[0]
        for a, b in itertools.combinations(scores, 2):
            others = [one for one in scores if one is not a and one is not b]
            if len(others) > 1:
                known = replace(
                    others[0],
                    runs=tuple(one.runs[0] for one in others),
                    records=tuple(one.records[0] for one in others),
                )
                row = compare.compare([("a", a), ("b", b), ("known", known)]).rows[1]
                judged.setdefault(published, []).append(row.different is True)
        values = [one.value for one in scores]
        at = spread.outlier(values)
        of_round = outlying.setdefault(published, [])
        of_round.append(at is not None and bool(abs(values[at] / np.median(values) - 1) > 0.01))
    for column, by_round, most in (("pairs", judged, 0.07), ("outlying_run, sets", outlying, 0.05)):
        for published, found in (*by_round.items(), ("all rounds", list(itertools.chain(*by_round.values())))):
            row = f"MLPerf repeats, {published}"
            yield Cell(row=row, column=column, share=float(np.mean(found)), most=most, of=len(found))


def table(cells: Sequence[Cell]) -> str:
    """The cells of one part as Markdown; bold is missed, * is more than asked for, - is refused."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    lines = [f"| % | {' | '.join(columns)} | target |", "|---" * (len(columns) + 2) + "|"]
    for row in dict.fromkeys(cell.row for cell in cells):
        own = {cell.column: cell for cell in cells if cell.row == row}
        form = {"missed": "**{:.1f}**", "conservative": "{:.1f} *"}
        shown = [form.get(own[c].mark, "{:.1f}").format(100 * own[c].share) if c in own else "-" for c in columns]
        one = next(iter(own.values()))
        bounds = [f"{100 * bound:g}" for bound in (one.least, one.most) if bound is not None]
        target = (
            " to ".join(bounds)
            if len(bounds) > 1
            else f"{'at most' if one.most else 'at least'} {bounds[0]}"
            if bounds
            else "none"
        )
        lines.append(f"| {row} | {' | '.join(shown)} | {target} |")
    sizes = ", ".join(f"{size:,}" for size in dict.fromkeys(cell.of for cell in cells))
    return "\n".join(lines) + f"\n\n({sizes} repeats, pairs or logs a cell.)\n"


def print_widths(corpus: Path, *, most_logs: int | None, write: bool) -> None:
    """Print how often the intervals of one run hold on systems that their widths were not fitted on."""
    runs = published_runs(corpus, most_logs)
    cases = {"run": list(interval_widths.run_cases(runs)), "repeat": list(interval_widths.repeat_cases(runs))}
    coverage = coverage_table(cases)
    print(coverage)
    if write:
        CALIBRATION.write_text(calibration_file(runs, cases), encoding="utf-8")
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(TABLE_STARTS)
        _, end, after = rest.partition(TABLE_ENDS)
        PAGE.write_text(before + TABLE_STARTS + "\n" + coverage + end + after, encoding="utf-8")


def coverage_table(cases: Mapping[str, Sequence[Case]]) -> str:
    """A table in Markdown of what the intervals hold by interval, source and number of windows, in percent."""
    counts = interval_widths.COUNTS
    lines = [f"| interval, source | {' | '.join(map(str, counts))} |", "|---" * (len(counts) + 1) + "|"]
    for name, of_name in cases.items():
        for source, by_count in interval_widths.held_out(of_name).items():
            cells = []
            for count in counts:
                cell = "-"
                if count in by_count:
                    cell = f"{100 * by_count[count].held:.1f} ({by_count[count].systems})"
                cells.append(cell)
            lines.append(f"| {name}, {source} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def calibration_file(runs: Sequence[PublishedRun], cases: Mapping[str, Sequence[Case]]) -> str:
    """The text of calibration.yaml: the widths fitted on all systems, and what they came from."""
    lines = [
        "# Widths of the intervals of one run, and the smallest difference that matters (docs/scoring.md).",
        "# Written by `python benchmarks/calibration.py --only widths --write` from logs that others published.",
        "#",
        "# Half a width is factor * scale ** power as a share of the figure, and `least_share` at least. The scale of",
        "# `run` is the relative standard deviation of the windows' times, that of `repeat` half the width of the",
        "# interval of the windows alone (scoring/figure/spread.py). A row holds from `windows` on, to the next row.",
    ]
    for name, of_name in cases.items():
        lines.append(f"{name}:")
        for kind, widths in interval_widths.fitted(of_name).items():
            lines.append(f"  {kind}:" if widths else f"  {kind}: []  # too few systems")
            for width in widths:
                row = (
                    f"windows: {width.windows}, factor: {width.factor:g}, power: {width.power:g}, "
                    f"least_share: {width.least_share:g}"
                )
                lines.append(f"    - {{{row}}}")
    distances = interval_widths.like_host_ratios(runs)
    smallest = interval_widths.smallest_difference(distances)
    lines += [
        f"smallest_difference: {smallest:g}  # {interval_widths.LIKE_HOSTS:.1%} of the pairs of like hosts lie closer",
        f"pairs_of_like_hosts: {len(distances)}",
        f"series: {len(runs)}",
        f"systems: {len({run.system for run in runs})}",
        "sources:",
    ]
    for source in sorted({run.source for run in runs}):
        of_source = [run for run in runs if run.source == source]
        systems = len({run.system for run in of_source})
        lines.append(f'  "{source}": {{series: {len(of_source)}, systems: {systems}}}')
    lines.append(f'date: "{datetime.datetime.now(datetime.timezone.utc).date().isoformat()}"')
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of published logs (PUBLISHED_CORPUS)")
    parser.add_argument("--short", action="store_true", help="few repeats: only shows that it runs")
    parser.add_argument(
        "--only", choices=["one", "several", "two", "trend", "published", "widths"], help="one part of the table"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--write", action="store_true", help="with --only widths: write the file of widths and the table"
    )
    args = parser.parse_args()
    if args.write and (args.only != "widths" or args.short):
        parser.error("--write goes with --only widths, and not with --short")
    if args.only in (None, "widths"):
        if args.corpus.exists():
            print_widths(args.corpus, most_logs=12 if args.short else None, write=args.write)
        else:
            print(f"widths: not measured, {args.corpus} is not here", file=sys.stderr)
        if args.only == "widths":
            return 0
    few, many = (60, 300) if args.short else (2_000, 10_000)
    simulated = {
        "one": (one_run, few),
        "several": (several_runs, many),
        "two": (two_systems, many),
        "trend": (trend, many),
    }
    parts = [
        part(np.random.default_rng(SEED + at), repeats)
        for at, (name, (part, repeats)) in enumerate(simulated.items())
        if args.only in (None, name)
    ]
    of_corpus = {
        "published": (repeats_of_one_system, args.corpus, 4 if args.short else None),
    }
    for name, (part, place, most) in of_corpus.items():
        if args.only in (None, name) and place.exists():
            parts.append(part(place, most))
        elif args.only in (None, name):
            print(f"{name}: not measured, {place} is not here", file=sys.stderr)
    cells: list[Cell] = []
    for part in parts:
        measured = list(part)
        cells += measured
        if not args.json:
            print(table(measured), flush=True)
    if args.json:
        print(json.dumps([{**asdict(cell), "mark": cell.mark} for cell in cells], indent=1))
    return 1 if not args.short and any(cell.mark == "missed" for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
