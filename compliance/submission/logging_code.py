"""The lines of code that logged the events of a run, held against the code of the commit that the log names.

mllog writes into each event the file and the line that logged it. So code that differed from the commit shows in a log,
whatever its header says of it: a line that was added above moves all lines below it.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compliance.check import Report
from compliance.logged_run import is_count
from compliance.submission.refusals import Refusal
from runlog import schema
from runlog.reader import Event
from runlog.text import printable

_CALL_OF_LOG = re.compile(r"\.(?:event|mark)\(")  # the methods of RunLog that write an event
_NAME_IN_SCHEMA = re.compile(r"\bschema\.([A-Z][A-Z_]*)\b")  # such as RUN_START


def refusals_by_logging_code(checked: Sequence[Report], code: Path) -> Iterator[Refusal]:
    """Yield a reason to refuse a package for each run that has an event which the package's code does not log there.

    Of each key only the first event of a log is looked at, and of each log only the first such event is named.

    Args:
        checked: The reports on the logs.
        code: Folder of the package's code, which is that of the commit that the logs name.
    """
    for report in checked:
        for key, event in report.run.first_events.items():
            if key in schema.EVENTS and not _may_log(_line_of_code(event, code), key):
                place = f"line {printable(event.metadata.get('lineno'))} of {printable(event.metadata.get('file'))}"
                what = f"by its line {event.line}, {key} was logged by {place}, which does not log it in the commit"
                yield Refusal(report.path.name, f"{what} that the log names: run the code of the commit")
                break


def _line_of_code(event: Event, code: Path) -> str:
    """Return the line of code that an event states as the one that logged it; empty if the code has no such line.

    Args:
        event: The event, whose metadata should have `file`, a path in the code, and `lineno`, from 1.
        code: Folder of the code.
    """
    file = event.metadata.get("file")
    number: Any = event.metadata.get("lineno")
    if not isinstance(file, str) or "\0" in file or not is_count(number):
        return ""
    path = (code / file).resolve()
    if not path.is_relative_to(code.resolve()) or not path.is_file():
        return ""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")  # as Python counts them
    return lines[int(number) - 1] if number <= len(lines) else ""


def _may_log(line: str, key: str) -> bool:
    """Return whether a line of code may log an event of a key.

    These lines may log a run_start, whose name in the schema is RUN_START:

        log.mark(schema.RUN_START)
        log.event(event, value)

    Args:
        line: The line, such as `log.mark(schema.RUN_STOP, schema.Ended(status="success"))`.
        key: The key, such as "run_start".
    """
    if _CALL_OF_LOG.search(line) is None:
        return False
    named = [getattr(schema, name, None) for name in _NAME_IN_SCHEMA.findall(line)]
    keys = [event.key for event in named if isinstance(event, schema.Point | schema.Mark)]
    return not keys or key in keys  # without a name, any event may be meant
