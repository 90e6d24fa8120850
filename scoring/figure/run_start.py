"""The date on which a run started, by what its log says."""

import datetime
from pathlib import Path
from typing import NamedTuple, TypeGuard

from scoring.record import Record

OLDEST_DATE_S = 1e9  # Unix time, in 2001; an earlier one is of a clock that began at 0
LATEST_DATE_S = 1e10  # Unix time, in 2286
# Importers turn a stamp in words into `date.toordinal() * 86400 + seconds of the day`, without its time zone.
ORDINAL_OF_1970 = datetime.date(1970, 1, 1).toordinal()
SECONDS_OF_DAY = 86_400


class Start(NamedTuple):
    """The time at which a run started, as near as its log gives it."""

    seconds: float  # Unix time
    source: str  # run_start, first_row, or file if the log gives no date


def start_of(record: Record) -> Start:
    """Return when a run started: by its run_start, else by the time stamp of its first row, else by its file.

    A run_start or a stamp counts only if it is a plausible date; seconds since midnight, for example, do not count.
    The date of the file is that of its last change.
    """
    if _is_date(record.run_start_s):
        return Start(record.run_start_s, "run_start")

    first_stamp_s = record.windows[0].end_s if record.windows else None
    if first_stamp_s is not None:
        if _is_date(first_stamp_s):
            return Start(first_stamp_s, "first_row")
        # Importers make the stamp of a calendar date by `date.toordinal`, which counts the days from the year 1.
        unix_s = first_stamp_s - ORDINAL_OF_1970 * SECONDS_OF_DAY
        if _is_date(unix_s):
            return Start(unix_s, "first_row")

    return Start(Path(record.file).stat().st_mtime, "file")


def _is_date(unix_s: float | None) -> TypeGuard[float]:
    """Tell whether a Unix time lies in the years of runs. None does not, nor does the time of a clock from 0."""
    return unix_s is not None and OLDEST_DATE_S < unix_s < LATEST_DATE_S
