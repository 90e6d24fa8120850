"""Measures how often the intervals and verdicts of `scoring` are right, by simulation and on others' repeats.

    python benchmarks/calibration.py [--corpus FOLDER] [--only PART] [--short] [--json] [--write]

Simulated (simulated_runs.py): how often a 95 % interval holds the true figure, how often two equal systems are called
different or a healthy set is said to hold an outlier, and how often a real difference is found. Published
(published_repeats.py): all pairs of repeats of one MLPerf system, each judged by its system's other repeats. Widths
(interval_widths.py): those of the two intervals of one run, fitted on one half of the published systems and tried on
the other, both ways; `--write` puts the widths of all systems into scoring/figure/calibration.yaml, and the coverage
into docs/scoring.md.

Targets: coverage 93 to 97 % (more is conservative, and said), false "different" and `outlying_run` at most 5 %, of
published repeats at most 7 %, each but for two standard errors of the simulation. Exit 1 on a miss.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import simulated_runs, width_tables  # noqa: E402
from benchmarks.cells import MISSED, Cell, table  # noqa: E402
from benchmarks.published_repeats import repeats_of_one_system  # noqa: E402
from benchmarks.published_runs import CORPUS, published_runs  # noqa: E402

SEED = 17
PUBLISHED = "published"
WIDTHS = "widths"
SHORT_LOGS = 12  # of each archive that --short reads for the widths
SHORT_SYSTEMS = 4  # of each archive that --short reads the repeats of


class Simulation(NamedTuple):
    """A part of the table that is simulated, and how many repeats a cell has."""

    cells: Callable[[np.random.Generator, int], Iterator[Cell]]
    repeats: int
    short_repeats: int


SIMULATIONS = {
    "one": Simulation(simulated_runs.one_run, 2_000, 60),
    "several": Simulation(simulated_runs.several_runs, 10_000, 300),
    "two": Simulation(simulated_runs.two_systems, 10_000, 300),
    "trend": Simulation(simulated_runs.trend, 10_000, 300),
}


def options() -> argparse.Namespace:
    """Return what the command line asks for; exits where options do not go together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of published logs (PUBLISHED_CORPUS)")
    parser.add_argument("--short", action="store_true", help="few repeats: only shows that it runs")
    parser.add_argument("--only", choices=[*SIMULATIONS, PUBLISHED, WIDTHS], help="one part of the table")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--write", action="store_true", help="with --only widths: write the file of widths and the table"
    )
    args = parser.parse_args()
    if args.write and (args.only != WIDTHS or args.short):
        parser.error("--write goes with --only widths, and not with --short")
    return args


def has_corpus(corpus: Path, part: str) -> bool:
    """Return whether the published logs are here; where they are not, print that the part was not measured."""
    if corpus.exists():
        return True
    print(f"{part}: not measured, {corpus} is not here", file=sys.stderr)
    return False


def measure_widths(args: argparse.Namespace) -> None:
    """Print how often the intervals of one run hold on systems that their widths were not fitted on."""
    runs = published_runs(args.corpus, SHORT_LOGS if args.short else None)
    cases = width_tables.cases_by_interval(runs)
    coverage = width_tables.coverage_table(cases)
    print(coverage)
    if args.write:
        width_tables.write(runs, cases, coverage)


def measured_parts(args: argparse.Namespace) -> Iterator[Sequence[Cell]]:
    """Yield the cells of each part but the widths. A part draws the same numbers with or without the others."""
    for at, (name, simulation) in enumerate(SIMULATIONS.items()):
        if args.only in (None, name):
            repeats = simulation.short_repeats if args.short else simulation.repeats
            yield list(simulation.cells(np.random.default_rng(SEED + at), repeats))
    if args.only in (None, PUBLISHED) and has_corpus(args.corpus, PUBLISHED):
        yield list(repeats_of_one_system(args.corpus, SHORT_SYSTEMS if args.short else None))


def main() -> int:
    """Print the parts that are asked for. Return 1 if a target is missed."""
    args = options()
    if args.only in (None, WIDTHS) and has_corpus(args.corpus, WIDTHS):
        measure_widths(args)

    cells: list[Cell] = []
    for part in measured_parts(args):
        cells += part
        if not args.json:
            print(table(part), flush=True)
    if args.json and args.only != WIDTHS:
        print(json.dumps([asdict(cell) | {"mark": cell.mark} for cell in cells], indent=1))
    is_missed = any(cell.mark == MISSED for cell in cells)
    return 1 if is_missed and not args.short else 0


if __name__ == "__main__":
    sys.exit(main())
