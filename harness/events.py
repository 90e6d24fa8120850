"""The log of a run: the one file that calls mllog, and the definition of the events that mllog lacks.

A log opens with provenance as lines `# {"section": ...}` of JSON, goes on with MLLOG lines of rank 0 (ruleset 4.0.0)
and holds lines for people between them. Every line is on the disk before the next step begins.

Our own events, all POINT_IN_TIME; times are seconds by the monotonic clock, `images` counts all ranks:

| key | value | metadata |
|---|---|---|
| `run_summary` | what a score must know of the run: harness/session.py's `run_summary` | |
| `step_window` | steps, images, time_s, data_wait_s, loss, gpu_memory_mib, power_w | step, epoch_num, phase |
| `epoch_throughput` | images, time_s, images_per_s = images / time_s, data_wait_s | epoch_num |
| `telemetry_summary` | the highest memory and temperature of a GPU, energy: harness/telemetry.py's `summarize` | |
| `checkpoint` | step, file, mib, blocked_s: what training waited for it, write_s: of the thread | |
| `abort_reason` | one line of text | |
| `clock_set` | seconds by which somebody set the system's clock (below 0: back); durations stay right | step |

`time_s` of a window runs from the end of the last one (or the start of the epoch) to its own last step; evaluation is
outside. `data_wait_s` is the part of it that rank 0 waited for input. `loss` is the mean over ranks of the last step's
loss. `power_w` is that of the job's GPUs of rank 0's node at the last sample. `telemetry_summary` is defined in
harness/telemetry.py; a run that failed has none, and its nodes' telemetry files beside the log tell what was sampled.
What was not measured is null.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants as keys
from mlperf_logging.mllog.mllog import MLLogger

FORMAT = {"format": "paddle-reference-log", "version": 1}
REPOSITORY = Path(__file__).resolve().parents[1]
OURS = 2  # frames between mllog and the caller of a method of RunLog


class _Lines(logging.FileHandler):
    """Writes to the log; a line that cannot be written ends the run (logging would print and go on)."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if not Path(self.baseFilename).exists():
            raise OSError(f"{self.baseFilename}: the log is gone: it was removed or moved during the run")

    def handleError(self, record: logging.LogRecord) -> None:
        raise OSError(f"{self.baseFilename}: cannot write the log: {sys.exc_info()[1]}") from sys.exc_info()[1]


class RunLog:
    """Rank 0's log; `RunLog(None)` is the one of every other rank and writes nothing."""

    def __init__(self, path: Path | None, *, append: bool = False) -> None:
        """Makes the log.

        Raises:
            ValueError: the file exists (results are never overwritten), or its folder cannot be written.
        """
        logger = logging.Logger("run-log")
        if path is None:
            logger.addHandler(logging.NullHandler())
        else:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handler = _Lines(path, mode="a" if append else "x", encoding="utf-8")
            except FileExistsError:
                raise ValueError(f"{path}: exists, results are never overwritten: move it or set LOGDIR") from None
            except OSError as error:
                raise ValueError(
                    f"{path}: cannot be created ({error.strerror}): set LOGDIR to a writable folder"
                ) from error
            handler.setFormatter(logging.Formatter("%(message)s"))
            logger.addHandler(handler)
        self._lines = logger
        self._mllogger = MLLogger(logger, default_stack_offset=OURS, root_dir=str(REPOSITORY))

    def header(self, sections: dict[str, Any]) -> None:
        """Opens the log with provenance, one line for each section."""
        for name, value in {"log": FORMAT, **sections}.items():
            self.section(name, value)

    def section(self, name: str, value: Any) -> None:
        """One line of provenance."""
        self._lines.info("# %s", json.dumps({name: value}, ensure_ascii=False, allow_nan=False))

    def text(self, line: str) -> None:
        """A line for people."""
        assert not line.startswith("# {") and ":::MLLOG" not in line
        self._lines.info("%s", line)

    def event(self, key: str, value: Any = None, metadata: dict[str, Any] | None = None) -> None:
        """A point in time."""
        self._mllogger.event(key, value, metadata)

    def start(self, key: str, metadata: dict[str, Any] | None = None) -> None:
        """Start of an interval."""
        self._mllogger.start(key, None, metadata)

    def stop(self, key: str, metadata: dict[str, Any] | None = None) -> None:
        """End of an interval."""
        self._mllogger.end(key, None, metadata)

    def aborted(self, reason: str) -> None:
        """Ends the log of a run that failed."""
        self._mllogger.event("abort_reason", " ".join(reason.split()))
        self._mllogger.end(keys.RUN_STOP, None, {"status": "aborted"})

    def close(self) -> None:
        """Closes the file."""
        for handler in self._lines.handlers:
            handler.close()


@contextlib.contextmanager
def open_log(path: Path | None) -> Iterator[RunLog]:
    """The log of a run; an exception that leaves the block ends it with `run_stop` aborted."""
    log = RunLog(path)
    try:
        yield log
    except Exception as error:
        # A full disk takes no last line either: the trial loop says it again from outside.
        with contextlib.suppress(OSError):
            log.aborted(str(error) or type(error).__name__)
        with contextlib.suppress(OSError):
            log.close()
        raise
    log.close()


def close_for_dead(path: Path, reason: str) -> str:
    """Ends the log that a killed rank 0 left open; one that has its `run_stop` stays as it is.

    Returns:
        Why the run ended: the log's own reason where it has one, else `reason`.
    """
    if not path.is_file():
        return reason
    content = path.read_bytes()
    if b'"key": "run_stop"' in content:
        own = re.search(rb'^:::MLLOG (\{.*"key": "abort_reason".*\})$', content, re.MULTILINE)
        return str(json.loads(own[1])["value"]) if own else reason
    with path.open("ab") as file:
        if content and not content.endswith(b"\n"):
            file.write(b"\n")
    log = RunLog(path, append=True)
    log.aborted(reason)
    log.close()
    return reason


def main() -> int:
    """`python -m harness.events LOG REASON`: closes the log of a run whose ranks are gone, and prints why it ended."""
    parser = argparse.ArgumentParser(prog="python -m harness.events", description=main.__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("reason")
    args = parser.parse_args()
    try:
        print(close_for_dead(args.log, args.reason))
    except OSError as error:
        print(f"{args.reason}; the log cannot be closed as aborted: {error.strerror}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
