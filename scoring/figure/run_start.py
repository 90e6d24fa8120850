"""The date on which a run started, by what its log says."""

import datetime
from pathlib import Path
from typing import NamedTuple, TypeGuard

from scoring.record import Record

OLDEST_DATE_S = 1e9  # Unix time, in 2001; an earlier one is of a clock that began at 0
LATEST_DATE_S = 1e10  # Unix time, in 2286


class Start(NamedTuple):
    """The time at which a run started, as near as its log gives it."""

    seconds: float  # Unix time
    source: str  # run_start, first_row, or file if the log gives no date


def start_of(record: Record) -> Start:
    """Return when a run started, by the first of these that is a date:

    - its run_start,
    - the time stamp of its first row, read as a Unix time (seconds since 1970),
    - the same stamp, read as a local time (seconds since the year 1),
    - the last change of its file.

    The log does not say how its stamps count. So a time is a date if it lies between OLDEST_DATE_S and LATEST_DATE_S;
    any other is of a clock without a calendar.
    """
    if _is_date(record.run_start_s):
        return Start(record.run_start_s, "run_start")

    first_stamp_s = record.windows[0].end_s if record.windows else None
    if first_stamp_s is not None:
        if _is_date(first_stamp_s):
            return Start(first_stamp_s, "first_row")
        days_before_1970 = datetime.date(1970, 1, 1).toordinal()  # since the year 1
        unix_s = first_stamp_s - days_before_1970 * 86_400
        if _is_date(unix_s):
            return Start(unix_s, "first_row")

    return Start(Path(record.file).stat().st_mtime, "file")


def _is_date(unix_s: float | None) -> TypeGuard[float]:
    """Tell whether a Unix time may be that of a run, rather than of a clock that began at 0. None is no date."""
    return unix_s is not None and OLDEST_DATE_S < unix_s < LATEST_DATE_S
