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
    """Return when a run started.

    It is the first of these that is known: the date of its start, the date of its first row, the date of the last
    change of its log's file. A log may count its times from midnight or from 0, and such times are not dates.

    Args:
        record: The run as read from its log. Its file must exist if the log has no date.

    Returns:
        The Unix time in seconds, and which of the three it is: "run_start", "first_row" or "file".
    """
    if _is_date(record.run_start_s):
        return Start(record.run_start_s, "run_start")
    first_row_s = date_of_first_row(record)
    if first_row_s is not None:
        return Start(first_row_s, "first_row")
    last_change_s = Path(record.file).stat().st_mtime
    return Start(last_change_s, "file")


def date_of_first_row(record: Record) -> float | None:
    """Return the time stamp of a run's first row as Unix time in seconds; None if there is no date.

    Args:
        record: The run as read from its log.

    Returns:
        The Unix time. None if the log has no row, if the first row has no stamp, or if the stamp is not a date.
    """
    if not record.windows:
        return None
    return date_of_stamp(record.windows[0].end_s)  # a window has the stamp of its row as its end


def date_of_stamp(stamp_s: float | None) -> float | None:
    """Return the time stamp of a row as Unix time in seconds; None if it is not a date.

    The stamp of a date is either Unix time, such as 1.6e9, or seconds from the year 1, such as 6.4e10. At most one of
    the two readings gives a date from 2001 to 2286, and this reading is taken. A stamp that is a time from midnight,
    such as 43200, gives no such date.

    Args:
        stamp_s: The stamp, as an importer reads it; None if the row has none.
    """
    if stamp_s is None:
        return None
    unix_s_if_from_year_1 = stamp_s - ORDINAL_OF_1970 * SECONDS_OF_DAY
    for unix_s in (stamp_s, unix_s_if_from_year_1):
        if _is_date(unix_s):  # from 2001 to 2286
            return unix_s
    return None


def _is_date(unix_s: float | None) -> TypeGuard[float]:
    """Return whether a Unix time lies in the years of runs. None does not, nor does the time of a clock from 0."""
    return unix_s is not None and OLDEST_DATE_S < unix_s < LATEST_DATE_S
