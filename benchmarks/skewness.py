"""How skewed repeats of a run are, and which 95 % interval of their mean would hold if they were more so.

    python benchmarks/skewness.py [--corpus ../shared/corpus/mlperf_resnet.tar.xz] [--short] [--json]

First: the skewness G1 (Joanes and Gill, The Statistician 47, 1998) of the repeats of each published system, as a mean
over systems with its interval, beside the same of simulated groups of as many runs, normal or with a tail of slow runs.
So few runs show less skewness than they have; the simulated rows say how much less. A rate's tail of slow runs is
negative.

Second: how often intervals of the mean hold it, on the runs of `calibration.py`, and how wide they are beside ours.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import calibration
import numpy as np

from scoring.figure import spread

LEAST_RUNS = 4  # of a group: three have one shape but for their sign
Ends = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Skew:
    """The mean skewness of groups of runs, with the 95 % interval of that mean, and how far groups lie apart."""

    of: str
    groups: int
    runs: int
    mean: float
    low: float
    high: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One interval on one kind of runs."""

    method: str
    shape: str
    runs: int
    held: float
    width: float  # the median one, over that of ours


def skewness(groups: np.ndarray) -> np.ndarray:
    """G1 of each row, 0 of equal values."""
    n = groups.shape[1]
    off = groups - groups.mean(1, keepdims=True)
    second, third = (off**2).mean(1), (off**3).mean(1)
    safe = np.where(second > 0, second, 1)
    return np.where(second > 0, third / safe**1.5, 0) * math.sqrt(n * (n - 1)) / (n - 2)


def row(of: str, found: np.ndarray, runs: int) -> Skew:
    estimate = spread.t_interval(found.tolist())
    assert estimate is not None
    return Skew(
        of=of,
        groups=len(found),
        runs=runs,
        mean=float(found.mean()),
        low=estimate[0],
        high=estimate[1],
        spread=float(found.std(ddof=1)),
    )


def beside_simulated(groups: Sequence[Sequence[float]], copies: int) -> list[Skew]:
    """The published groups, and `copies` simulated ones of each one's size."""
    draw = np.random.default_rng(calibration.SEED)
    published = np.concatenate([skewness(np.array([values])) for values in groups])
    sizes = [len(values) for values in groups]
    found = [row("MLPerf's repeats", published, sum(sizes))]
    for shape in calibration.GAMMAS:
        made = np.concatenate([skewness(calibration.noise(draw, shape, (copies, n))) for n in sizes])
        found.append(row(f"simulated, {shape}", made, copies * sum(sizes)))
    return found


def student(runs: np.ndarray, level: float) -> Ends:
    """Ours at 95 %: t on the scale of logarithms."""
    n, mean = runs.shape[1], runs.mean(1)
    half = spread.t_quantile(n - 1, 0.5 + level / 2) * runs.std(1, ddof=1) / math.sqrt(n) / mean
    return mean * np.exp(-half), mean * np.exp(half)


def johnson(runs: np.ndarray) -> Ends:
    """The modified t of Johnson (Journal of the American Statistical Association 73, 1978)."""
    n, deviation = runs.shape[1], runs.std(1, ddof=1)
    centre = runs.mean(1) + third_moment(runs) / (6 * deviation**2 * n)
    half = spread.t_quantile(n - 1) * deviation / math.sqrt(n)
    return centre - half, centre + half


def hall(runs: np.ndarray) -> Ends:
    """The cubic transformation of Hall (Journal of the Royal Statistical Society B 54, 1992)."""
    n, mean, deviation = runs.shape[1], runs.mean(1), runs.std(1, ddof=1)
    third = third_moment(runs) / deviation**3 / 3
    third = np.where(abs(third) < 1e-9, 1e-9, third)

    def back(t: float) -> np.ndarray:
        return (np.cbrt(1 + 3 * third * (t / math.sqrt(n) - third / (2 * n))) - 1) / third

    t = spread.t_quantile(n - 1)
    return mean - deviation * back(t), mean - deviation * back(-t)


def third_moment(runs: np.ndarray) -> np.ndarray:
    """Of each row, unbiased."""
    n = runs.shape[1]
    return ((runs - runs.mean(1, keepdims=True)) ** 3).sum(1) * n / ((n - 1) * (n - 2))


METHODS: dict[str, Callable[[np.ndarray], Ends]] = {
    "Student's t (ours)": lambda runs: student(runs, 0.95),
    "Johnson's modified t": johnson,
    "Hall's transformation": hall,
    "Student's t at 96 %": lambda runs: student(runs, 0.96),
    "Student's t at 97 %": lambda runs: student(runs, 0.97),
}


def tried(repeats: int) -> list[Tried]:
    """Each method on the same runs, whose windows are independent: their error hides the least of the skewness."""
    found = []
    for shape in calibration.GAMMAS:
        for count in (3, 5, 7):
            runs = calibration.systems(np.random.default_rng(calibration.SEED), shape, (repeats, count), 0.0)
            low, high = METHODS["Student's t (ours)"](runs)
            ours = np.median(high - low)
            for name, method in METHODS.items():
                low, high = method(runs)
                held = float(((low <= 100) & (high >= 100)).mean())
                width = float(np.median(high - low) / ours)
                found.append(Tried(method=name, shape=shape, runs=count, held=held, width=width))
    return found


def tables(skews: Sequence[Skew], methods: Sequence[Tried]) -> str:
    """Both as Markdown."""
    head = "| skewness G1 | groups | runs | mean | its 95 % interval | deviation over groups |"
    lines = [head, "|---" * 6 + "|"]
    for s in skews:
        interval = f"{s.low:+.2f} to {s.high:+.2f}"
        lines.append(f"| {s.of} | {s.groups:,} | {s.runs:,} | {s.mean:+.2f} | {interval} | {s.spread:.2f} |")
    lines += [
        "",
        f"| % held; width beside ours, at 3, 5, 7 runs | {' | '.join(calibration.GAMMAS)} |",
        "|---" * 5 + "|",
    ]
    for name in METHODS:
        cells = []
        for shape in calibration.GAMMAS:
            own = [one for one in methods if one.method == name and one.shape == shape]
            held, width = (f"{100 * one.held:.1f}" for one in own), (f"{one.width:.2f}" for one in own)
            cells.append(f"{', '.join(held)}; {', '.join(width)}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=calibration.ROOT / "../shared/corpus/mlperf_resnet.tar.xz")
    parser.add_argument("--short", action="store_true", help="few systems and repeats: only shows that it runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    skews: list[Skew] = []
    if args.corpus.is_file():
        systems = calibration.published_systems(args.corpus, 4 if args.short else None)
        groups = [[one.value for one in scores] for scores in systems if len(scores) >= LEAST_RUNS]
        skews = beside_simulated(groups, 100)
    else:
        print(f"published repeats: not measured, {args.corpus} is not here", file=sys.stderr)
    methods = tried(1_000 if args.short else 200_000)
    if args.json:
        print(json.dumps({"skewness": [asdict(s) for s in skews], "intervals": [asdict(m) for m in methods]}, indent=1))
    else:
        print(tables(skews, methods))
    return 0


if __name__ == "__main__":
    sys.exit(main())
