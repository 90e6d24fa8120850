"""Whether several logs may be those of the ranks of one run, which counts once."""

import itertools
from collections.abc import Iterator, Sequence

from runlog.verdict import Verdict
from scoring.figure.run_start import date_of_first_row
from scoring.figure.warnings import warning
from scoring.record import Record, Window

LEAST_ROWS = 10  # that two logs have in common
MOST_APART_S = 2.0  # between the stamps of two ranks' rows: many logs print whole seconds
LEAST_TIME_S = 200.0  # from the first to the last common row: two runs would drift apart by more than 1 % of it


def warn_of_ranks_as_runs(records: Sequence[Record]) -> Iterator[Verdict]:
    """Yield a warning if two logs print the same steps at the same times, as the ranks of one run do.

    Args:
        records: The runs as read from their logs.
    """
    for first, second in itertools.combinations(records, 2):
        if _are_in_step(first, second):
            message = (
                f"prints the same steps as {first.file} at the same times: if both are ranks of one run, give one log"
            )
            yield warning("runs_in_step", message, second)
            return


def _are_in_step(first: Record, second: Record) -> bool:
    """Return whether the rows of two logs that stand for the same step have the same date and time, within 2 s.

    Args:
        first: What one log says.
        second: What the other log says.

    Returns:
        False also for MLPerf logs, which are of one run each (published ones that began together stay in step), if the
        stamps are no dates, or if the common rows are too few or of too short a time.
    """
    are_mlperf_logs = "mllog" in (first.format, second.format)
    have_dates = date_of_first_row(first) is not None and date_of_first_row(second) is not None
    if are_mlperf_logs or not have_dates:
        return False
    stamps_of_second = _stamp_by_place(second.windows)
    common_stamps_s = []
    for place, stamp_s in _stamp_by_place(first.windows).items():
        stamp_of_second_s = stamps_of_second.get(place)
        if stamp_of_second_s is None:
            continue
        if abs(stamp_s - stamp_of_second_s) > MOST_APART_S:
            return False
        common_stamps_s.append(stamp_s)
    return len(common_stamps_s) >= LEAST_ROWS and max(common_stamps_s) - min(common_stamps_s) >= LEAST_TIME_S


def _stamp_by_place(rows: Sequence[Window]) -> dict[tuple[int | None, int | None], float]:
    """Return the time stamps of a log's rows in seconds, each by the row's epoch and step; None if it prints none.

    Args:
        rows: Rows of training figures. Those without a stamp are left out.
    """
    return {(row.epoch, row.step): row.end_s for row in rows if row.end_s is not None}
