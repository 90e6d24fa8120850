"""Writes the log of a run: the one file that calls mllog. runlog/schema.py says what it may write.

Every line is on the disk before the next step begins.
"""

import contextlib
import errno
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from runlog import schema
from runlog.errors import INTERRUPTED, RunError
from runlog.reader import Event, read_log
from runlog.text import MAX_LINE_CHARS, visible

V = TypeVar("V")
REPOSITORY = Path(__file__).resolve().parents[1]
# {error number: what to do} of a log that cannot be written
REMEDIES = {
    errno.ENOSPC: "free some of its disk, or set LOGDIR to another",
    errno.EDQUOT: "free some of your quota, or set LOGDIR to another disk",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
}
STACK_OFFSET = 2  # frames of the call stack from mllog up to the caller of a method of RunLog


class UnwritableLogError(RunError, OSError):
    """A line of the log could not be written, which ends the run; the message is one line."""


def _explained(error: BaseException | None) -> str:
    """Return why a log cannot be written and, if that is known, what to do.

    Args:
        error: The error of the system, or another one.

    Returns:
        As "No space left on device: free some of its disk, or set LOGDIR to another".
    """
    if not isinstance(error, OSError) or error.strerror is None:  # it has a text of its own
        return str(error)
    remedy = REMEDIES.get(error.errno or 0)
    return f"{error.strerror}: {remedy}" if remedy else error.strerror


class _Lines(logging.FileHandler):
    """Writes to the log; a line that cannot be written ends the run (logging would print and go on)."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if not Path(self.baseFilename).exists():
            problem = "the log is gone: it was removed or moved during the run"
            raise UnwritableLogError(f"{self.baseFilename}: {problem}")

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        raise UnwritableLogError(f"{self.baseFilename}: cannot write the log: {_explained(error)}") from error


def _open_lines(path: Path, *, append: bool) -> _Lines:
    """Return a logging handler that writes each record as a line of a log file.

    The file and its folder are created if they are missing.

    Args:
        path: Path of the log file.
        append: Whether the file may exist already, and is written on at its end.

    Raises:
        ValueError: The file exists and `append` is False, or it cannot be created or opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _Lines(path, mode="a" if append else "x", encoding="utf-8")
    except FileExistsError:
        raise ValueError(f"{path}: exists, results are never overwritten: move it or set LOGDIR") from None
    except OSError as error:
        why = f"cannot be created ({error.strerror}): set LOGDIR to a writable folder"
        raise ValueError(f"{path}: {why}") from error
    lines.setFormatter(logging.Formatter("%(message)s"))
    return lines


class RunLog:
    """Rank 0's log; `RunLog(None)` is the one of every other rank and writes nothing."""

    def __init__(self, path: Path | None, *, append: bool = False) -> None:
        """Open the log of a run for writing.

        Args:
            path: Path of the log file; None for a rank that writes no log, so that nothing is ever written.
            append: Whether lines are added to a file that may exist. Otherwise the file must be new, because results
                are never overwritten.

        Raises:
            ValueError: The file exists and `append` is False, or it cannot be created or opened.
        """
        from mlperf_logging.mllog.mllog import MLLogger  # only a training run has it

        logger = logging.Logger("run-log")
        if path is None:
            logger.addHandler(logging.NullHandler())
        else:
            logger.addHandler(_open_lines(path, append=append))
        self._lines = logger
        # mllog writes into each event the line of code that logged the event. STACK_OFFSET makes it pass over the
        # methods `event` and `mark` of this class, so that the line is the one that calls them.
        # It takes `root_dir` for a regular expression, by which it shortens the file's path to that in the repository.
        root = re.escape(str(REPOSITORY))
        self._mllogger = MLLogger(logger, default_stack_offset=STACK_OFFSET, root_dir=root)

    def section(self, section: schema.Section[V], value: V) -> None:
        """Write a section of the header as one line, `# {"<section>": value}`.

        Args:
            section: Which section it is: an entry of `runlog/schema.py`.
            value: Its value, of the type that `section` declares.
        """
        self._lines.info("# %s", json.dumps({section.name: schema.as_json(value)}, ensure_ascii=False, allow_nan=False))

    def text(self, line: str) -> None:
        """Write a line for people.

        Args:
            line: The line. It must not look like a header section (`# {`). What does not print in it is escaped, and so
                is the mark of an event (`:::MLLOG`): the name of a file may hold either.
        """
        assert not line.startswith("# {")
        self._lines.info("%s", visible(line, MAX_LINE_CHARS).replace(":::MLLOG", "::\\:MLLOG"))

    def event(self, point: schema.Point[V], value: V, where: object = None) -> None:
        """Write an event that is a point in time as a line of the log.

        Args:
            point: Which event it is: an entry of `runlog/schema.py`, which says its key and types.
            value: The value of the event, of the type that `point` declares.
            where: What stands next to the value (its metadata), of the named tuple that `point` declares; None if it
                declares none.
        """
        declared_type = point.metadata or type(None)
        assert isinstance(where, declared_type), point.key
        self._mllogger.event(point.key, schema.as_json(value), schema.as_json(where))

    def mark(self, mark: schema.Mark, where: object = None) -> None:
        """Write the start or the end of an interval as a line of the log.

        Args:
            mark: Which start or end it is: an entry of `runlog/schema.py`, such as RUN_STOP.
            where: Its metadata, of the named tuple that `mark` declares; None if it declares none.
        """
        declared_type = mark.metadata or type(None)
        assert isinstance(where, declared_type), mark.key
        write = self._mllogger.start if mark.event_type == "INTERVAL_START" else self._mllogger.end
        write(mark.key, None, schema.as_json(where))

    def aborted(self, reason: str) -> None:
        """Write the last two lines of the log of a run that failed: why, and `run_stop` as aborted.

        Args:
            reason: Why the run ended. It is written on one line.
        """
        self.event(schema.ABORT_REASON, " ".join(reason.split()))
        self.mark(schema.RUN_STOP, schema.Ended(status="aborted"))

    def close(self) -> None:
        """Close the file."""
        for handler in self._lines.handlers:
            handler.close()


@contextlib.contextmanager
def open_log(path: Path | None) -> Iterator[RunLog]:
    """Create the log of a run for a `with` block, and close it after the block.

    If the block raises an error, or is ended by Ctrl-C, the log says so as the end of the run. It is closed, and the
    error is raised again. SystemExit is let through: the log is left as it stands.

    Args:
        path: Path of the log file, which must be new; None for a rank that writes no log.

    Yields:
        The log, to write to.

    Raises:
        ValueError: The log exists already, or cannot be created.
    """
    log = RunLog(path)
    try:
        yield log
    except KeyboardInterrupt:
        _abort(log, INTERRUPTED)
        raise
    except Exception as error:
        _abort(log, str(error) or type(error).__name__)  # an error may have no text
        raise
    log.close()


def _abort(log: RunLog, reason: str) -> None:
    """Log that a run ended before its time, and close the log; do what a full disk allows.

    Args:
        log: The log of the run.
        reason: Why the run ended. If it cannot be written here, launch/trial.py prints it.
    """
    with contextlib.suppress(OSError):
        log.aborted(reason)
    with contextlib.suppress(OSError):
        log.close()


def close_log_of_killed_run(path: Path, reason: str) -> str:
    """Write the end of the log of a run that was killed before it could write this itself.

    A log that has its end already stays as it is. A log that does not exist is not created.

    Args:
        path: Path of the log.
        reason: Why the run was aborted. The end of the log states it.

    Returns:
        Why the run ended: the reason that the log states, if it had its end already and states one; else `reason`.

    Raises:
        RunError: The log cannot be read or written, or the path leads to no file, as to a folder. The message is
            `reason`, and why the log cannot be closed, if that is something else.
    """
    try:
        return _close_log_of_killed_run(path, reason)
    except (OSError, ValueError) as error:
        explained = _explained(error)
        why = "" if explained == reason else f": {explained}"  # the run may have ended for want of room, too
        raise RunError(f"{reason}; the log cannot be closed as aborted{why}") from error


def _close_log_of_killed_run(path: Path, reason: str) -> str:
    """Write the end of a dead run's log, that it was aborted and why, and return why the run ended.

        nothing at `path`:                  nothing is written, `reason` is returned
        the log has its end with a reason:  nothing is written, that reason is returned
        the log has its end without one:    nothing is written, `reason` is returned
        the log has no end:                 the end is written with `reason`, which is returned

    Args:
        path: Path of the log.
        reason: Why the run was aborted.

    Raises:
        OSError: The log cannot be read, opened for writing, or written.
        ValueError: The path leads to no file, as to a folder.
    """
    if not path.exists():
        return reason

    events = [entry for entry in read_log(path) if isinstance(entry, Event)]
    has_ended = any(event.key == schema.RUN_STOP.key for event in events)
    if has_ended:
        logged_reasons = [event.value for event in events if event.key == schema.ABORT_REASON.key]
        if not logged_reasons:
            return reason
        return str(logged_reasons[-1])

    _complete_last_line(path)
    log = RunLog(path, append=True)
    log.aborted(reason)
    log.close()
    return reason


def _complete_last_line(path: Path) -> None:
    """Add a line feed to a log whose last line was cut off, so that no further line runs into it.

    Args:
        path: Path of the log. If it ends with a line feed or is empty, it stays as it is.
    """
    content = path.read_bytes()
    was_cut_off = content != b"" and not content.endswith(b"\n")
    with path.open("ab") as file:
        if was_cut_off:
            file.write(b"\n")
