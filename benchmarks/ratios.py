"""Takes two or more ways in turns in one run, and gives their ratio with its spread, as every benchmark here does.

Taking turns lets a slow minute of the machine fall on all ways alike; the ratio is formed within each turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Mapping


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with `--repeats N` and `--short`, which only shows that the benchmark runs."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--short", action="store_true", help="once and small: shows that it runs, measures nothing")
    return made


def rate_of(batches: Iterable[object], count: int, *, batch: int) -> float:
    """Samples/s over `count` of the batches."""
    iterator = iter(batches)
    for _ in range(5):  # beyond what the pipelines hold ready
        next(iterator)
    start = time.perf_counter()
    for _ in range(count):
        next(iterator)
    return batch * count / (time.perf_counter() - start)


def take_turns(ways: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Rates of each way, one a turn, in `repeats` turns; the order turns round each time."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats):
        for name in list(ways) if turn % 2 == 0 else reversed(list(ways)):
            rates[name].append(ways[name]())
    return rates


def report(rates: Mapping[str, list[float]], ours: str, peers: Mapping[str, float | None], unit: str) -> None:
    """Prints each way's median rate and `ours` over each peer beside that ratio's target, where there is one."""
    for name, values in rates.items():
        print(f"{name:24} {statistics.median(values):10.2f} {unit}  ({min(values):.2f} to {max(values):.2f})")
    for peer, target in peers.items():
        ratio = [a / b for a, b in zip(rates[ours], rates[peer], strict=True)]
        print(
            f"{ours} / {peer}: {statistics.median(ratio):.3f} "
            f"({min(ratio):.3f} to {max(ratio):.3f}, {len(ratio)} turns)"
            + ("" if target is None else f", target {target}")
        )
