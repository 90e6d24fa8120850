"""Whether runs may stand in one figure: repeats of one system, and each run once."""

import itertools
from collections.abc import Sequence

from runlog.text import called
from scoring.record import InputError, Record

# Fields that repeats have in common, as far as the logs say them.
IN_COMMON = ("devices", "batch_per_device", "global_batch", "precision", "mode", "model", "machine")


def repeats_of_one_system(records: Sequence[Record]) -> None:
    """Check that runs are repeats of one system. Raises InputError where two logs differ, or are of the same run.

    A fact that only one of two logs says is no difference.
    """
    for name in IN_COMMON:
        _in_common(name, records, [getattr(record, name) for record in records])
    frameworks = [record.framework_name if record.framework else None for record in records]
    _in_common("framework", records, frameworks)
    if None in frameworks:  # what logs of one format do not say, they do not deny
        _in_common("format", records, [record.format for record in records])
    once(records)


def _in_common(name: str, records: Sequence[Record], values: Sequence[object]) -> None:
    """Check that the records' values of the fact `name` agree, None left out. Raises InputError where they differ."""
    first_file: dict[object, str] = {}
    for record, value in zip(records, values, strict=True):
        if value is not None:
            first_file.setdefault(value, record.file)
    if len(first_file) > 1:
        where = ", ".join(f"{value} in {file}" for value, file in first_file.items())
        fix = f"set them side by side with `{called('scoring')} compare`"
        raise InputError(f"runs of different {name} ({where}) are no repeats of one system; {fix}")


def once(records: Sequence[Record]) -> None:
    """Check that each run counts once. Raises InputError for two logs of one run, or two parts of its log."""
    files: dict[object, str] = {}
    for record in records:
        if record.run_id in files:
            raise InputError(f"{record.file} and {files[record.run_id]} are of the same run: one run counts once")
        files[record.run_id] = record.file
    for one, other in itertools.permutations(records, 2):
        if other.goes_on_from(one):
            says = "parts of one run are no repeats; join them with `cat`"
            raise InputError(f"{other.file} goes on, on line {other.windows[0].line}, where {one.file} ends: {says}")
