"""Whether several logs may be those of the ranks of one run, which counts once."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from runlog.verdict import Verdict
from scoring.figure.run_start import date_of_first_row
from scoring.figure.warnings import warning
from scoring.record import Record, Window

MIN_ROWS = 10  # that two logs have in common
MAX_APART_S = 2.0  # between the stamps of two ranks' rows: many logs print whole seconds
MIN_TIME_S = 200.0  # from the first to the last common row: two runs would drift apart by more than 1 % of it


Place = tuple[int | None, int | None]  # the epoch and the step of a row; None for what it does not print


def warn_of_ranks_as_runs(records: Sequence[Record]) -> Iterator[Verdict]:
    """Yield a warning about the first two logs that print the same steps at the same times, as ranks of one run do.

    There is at most one warning, which names both logs. Two kinds of logs are not compared, because the warning may
    be false:

    - MLPerf logs (format "mllog"): published runs that began together print the same steps at the same times.
    - Logs whose first row has no date: the times of any two runs may be alike if both are counted from 0.

    Args:
        records: The runs as read from their logs.
    """
    stamped: list[tuple[Record, dict[Place, float]]] = []
    for record in records:
        if record.format != "mllog" and date_of_first_row(record) is not None:
            stamped.append((record, _stamp_by_place(record.windows)))
    for (first, stamps_of_first), (second, stamps_of_second) in itertools.combinations(stamped, 2):
        if _are_in_step(stamps_of_first, stamps_of_second):
            message = (
                f"prints the same steps as {first.file} at the same times: if both are ranks of one run, give one log"
            )
            yield warning("runs_in_step", message, second)
            return  # one warning is enough


def _are_in_step(first: Mapping[Place, float], second: Mapping[Place, float]) -> bool:
    """Return whether two logs print the same steps at the same times, as the logs of two ranks of one run do.

    The rows that print the same epoch and step in both logs are compared, and must have about the same time stamps.

    Args:
        first: The time stamps of one log's rows in seconds, by epoch and step: {(1, 100): 1.6e9, (1, 200): 1.6e9 + 30}.
            A row without a stamp is left out. Of several rows of one step, the last one counts (`_stamp_by_place`).
        second: The time stamps of the rows of the other log, in the same form.
    """
    common_stamps_s = []  # of the first log
    for place, stamp_s in first.items():
        stamp_of_second_s = second.get(place)
        if stamp_of_second_s is None:  # the second log has no row of this step
            continue
        if abs(stamp_s - stamp_of_second_s) > MAX_APART_S:  # 2 s
            return False
        common_stamps_s.append(stamp_s)
    if len(common_stamps_s) < MIN_ROWS:  # 10: fewer rows may agree by chance
        return False
    span_s = max(common_stamps_s) - min(common_stamps_s)
    return span_s >= MIN_TIME_S  # 200 s: in less time, two runs may not drift apart


def _stamp_by_place(rows: Sequence[Window]) -> dict[Place, float]:
    """Return the time stamps of a log's rows in seconds, each by the row's epoch and step.

    Args:
        rows: Rows of training figures. Those without a stamp are left out.
    """
    return {(row.epoch, row.step): row.end_s for row in rows if row.end_s is not None}
