"""Whether runs may stand in one figure: repeats of one system, and each run once."""

import itertools
from collections.abc import Sequence

from runlog.text import called
from scoring.record import InputError, Record

# Fields that repeats have in common, as far as the logs say them.
IN_COMMON = ("devices", "nodes", "batch_per_device", "global_batch", "precision", "mode", "model", "data", "machine")


def refuse_unless_repeats(records: Sequence[Record]) -> None:
    """Raise an error if some runs are not repeats of one system, or if two logs are of the same run.

    Args:
        records: The runs as read from their logs. A value that a log does not give agrees with any other.

    Raises:
        InputError: Two runs differ in a fact of the system, such as the devices or the framework. Also if a run is
            given twice, or in two parts.
    """
    for name in IN_COMMON:
        _refuse_difference(name, records, [getattr(record, name) for record in records])

    names_of_frameworks = [_framework_if_named(record) for record in records]
    _refuse_difference("framework", records, names_of_frameworks)
    if None in names_of_frameworks:  # the format of the log stands in for a framework that is not named
        _refuse_difference("format", records, [record.format for record in records])
    refuse_same_run_twice(records)  # also in two parts, if one log goes on where the other ends
    resumed = [record for record in records if record.is_resumed]  # few of many: all pairs of 1,000 logs take a second
    for earlier, later in itertools.product(records, resumed):  # no run is the earlier part of itself
        _refuse_resumed_part(earlier, later)


def _framework_if_named(record: Record) -> str | None:
    """Return the framework that a log names, without its version; None if it names none."""
    if not record.framework:
        return None  # `framework_name` would be the log's format
    return record.framework_name


def _refuse_difference(name: str, records: Sequence[Record], values: Sequence[object]) -> None:
    """Raise an error if two runs differ in one fact.

    Args:
        name: Name of the fact, such as "precision", for the error.
        records: The runs as read from their logs, whose files the error names.
        values: The value of the fact for each run. None agrees with any value.

    Raises:
        InputError: There are two different values.
    """
    first_file_by_value: dict[object, str] = {}
    for record, value in zip(records, values, strict=True):
        if value is not None:
            first_file_by_value.setdefault(value, record.file)
    if len(first_file_by_value) > 1:
        where = ", ".join(f"{value} in {file}" for value, file in first_file_by_value.items())
        fix = f"set them side by side with `{called('scoring')} compare`"
        raise InputError(f"runs of different {name} ({where}) are not repeats of one system; {fix}")


def refuse_same_run_twice(records: Sequence[Record]) -> None:
    """Raise an error if a run is given twice, or in two parts: one log then goes on where another ends.

    Args:
        records: The runs as read from their logs.

    Raises:
        InputError: Two logs are of one run.
    """
    for one, other in itertools.combinations(records, 2):
        if one.is_of_same_run(other):
            raise InputError(f"{other.file} and {one.file} are of the same run: one run counts once")
    for earlier, later in itertools.permutations(records, 2):  # each pair in both orders: either may be the earlier
        _refuse_continuation(earlier, later)


def _refuse_continuation(earlier: Record, later: Record) -> None:
    """Raise an error if two logs are parts of one run: one goes on where the other ends.

    Args:
        earlier: The log that may have the earlier part of the run.
        later: The log that may have the later part of the run.

    Raises:
        InputError: `later` goes on where `earlier` ends.
    """
    if later.is_continuation_of(earlier):
        first_line = later.windows[0].line  # of the first row of training figures
        message = (
            f"{later.file} goes on, on line {first_line}, where {earlier.file} ends: "
            "parts of one run are not repeats; join them with `cat`"
        )
        raise InputError(message)


def _refuse_resumed_part(earlier: Record, later: Record) -> None:
    """Raise an error if a run stopped in one log and went on from a checkpoint in another.

    Args:
        earlier: The log that may have the run until it stopped.
        later: The log that may have the rest.

    Raises:
        InputError: The two logs are parts of one run.
    """
    if later.resumes_run_of(earlier):
        says = "parts of one run are not repeats; give one of them"
        raise InputError(f"{later.file} went on from a checkpoint of the run of {earlier.file}: {says}")
