"""Power logs of a submission, SUBMITTER/results/SYSTEM/BENCHMARK/power/RESULT/node_N.txt, beside their runs.

Asked is what power_measurement.adoc (mlcommons/training_policies, 2ddbe8a) says of readings: of every node, one a
second at least, 60 at least, over the whole timed portion. mlperf-logging's power_checker asks for the files alone.
"""

import itertools
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from compliance.check import LoggedRun
from runlog.reader import Event, read_log

PATTERN = "power/*/node_*.txt"
LEAST_READINGS = 60
MOST_MEDIAN_MS = 1_100  # a second, and a meter's own jitter
MOST_GAP_MS = 2_200  # a reading that is missing

Logs = dict[str, dict[str, list[float]]]  # of a submission: {RESULT: {node_N.txt: the times of its readings in ms}}


def times_of(log: Path) -> list[float]:
    """The times of a file's readings, in its order, in ms. Raises ValueError or OSError as the reader does."""
    return [entry.time_ms for entry in read_log(log) if isinstance(entry, Event) and entry.key == "power_reading"]


def questions(name: str, run: LoggedRun, power: Logs) -> Iterator[tuple[str, str]]:
    """(rule, what was found) of the power logs of the run in the log `name`, where the submission has any."""
    if not power:
        return
    files = power.get(Path(name).stem, {})
    wanted = max(map(len, power.values()))
    numbers = sorted(int(number[1]) for file in files if (number := re.fullmatch(r"node_(\d+)\.txt", file)))
    if numbers != list(range(wanted)):
        yield "power-nodes", f"power readings of {len(files)} nodes, where another run has {wanted}"
    for file, times in sorted(files.items()):
        yield from ((rule, f"{file}: {what}") for rule, what in _of_node(times, run))


def _of_node(times: list[float], run: LoggedRun) -> Iterator[tuple[str, str]]:
    if len(times) < LEAST_READINGS:
        yield "power-readings", f"{len(times)} readings; the rules ask for {LEAST_READINGS}"
    if len(times) < 2:
        return
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    median, largest = statistics.median(gaps), max(gaps)
    if median > MOST_MEDIAN_MS or largest > MOST_GAP_MS:
        found = f"a reading every {median / 1000:.3g} s (median), the largest gap {largest / 1000:.3g} s"
        yield "power-interval", f"{found}; the rules ask for one a second"
    if min(gaps) < 0:
        yield "power-time", "its readings are not in the order of their time"
    if run.start_ms is not None and run.stop_ms is not None:
        late, early = times[0] - run.start_ms, run.stop_ms - times[-1]
        if max(late, early) > MOST_GAP_MS:
            found = f"readings from {late / 1000:.3g} s after run_start to {early / 1000:.3g} s before run_stop"
            yield "power-time", f"{found}; the rules ask for the whole timed portion"
