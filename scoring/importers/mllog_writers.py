"""The processes that write one MLLOG log together, each of which may log the whole run."""

from dataclasses import dataclass
from typing import BinaryIO

from runlog import schema
from runlog.reader import Event, read_stream

Writer = int | str  # a rank, or else the label of a container or host, such as `node02:`; both stand before a line


@dataclass
class _Part:
    """The events of a log behind one label."""

    first_line: int
    last_line: int
    event_count: int = 0
    has_run_start: bool = False


def writer_of(event: Event) -> Writer:
    """Return the rank that wrote an event or, if no launcher names it, the label before the event; mostly empty."""
    return event.label if event.rank is None else event.rank


def writers_of_copies(stream: BinaryIO) -> set[Writer]:
    """Return the writers whose events repeat those of another writer of the same run.

    A writer that logs the start of the run is taken to log all of it. If ranks 0 to 3 log it, the result is {1, 2, 3}.

    Args:
        stream: The log at its beginning, to which it is set back.
    """
    ranks: set[int] = set()  # that log the start of the run
    part_by_label: dict[str, _Part] = {}
    for entry in read_stream(stream):
        if not isinstance(entry, Event):
            continue
        is_run_start = entry.key == schema.RUN_START.key
        if entry.rank is not None:
            if is_run_start:
                ranks.add(entry.rank)
            continue
        if is_run_start and entry.label == "":  # a launcher puts prefixes before all lines or before none
            break
        part = part_by_label.setdefault(entry.label, _Part(entry.line, entry.line))
        part.last_line = entry.line
        part.event_count += 1
        part.has_run_start = part.has_run_start or is_run_start
    stream.seek(0)
    ranks_of_copies: set[Writer] = {rank for rank in ranks if rank != min(ranks)}
    return ranks_of_copies | _labels_of_copies(part_by_label)


def _labels_of_copies(part_by_label: dict[str, _Part]) -> set[Writer]:
    """Return the labels whose events repeat those behind another label, which has at least as many events.

    Labels write one run together if each stands at a start of the run and their parts of the log overlap. The parts of
    two runs, one after the other, do not.

    Args:
        part_by_label: The events behind each label.
    """
    parts = [(label, part) for label, part in part_by_label.items() if part.has_run_start]
    parts.sort(key=_most_events_first)  # of as many, in the order of the log
    kept: list[_Part] = []
    copies: set[Writer] = set()
    for label, part in parts:
        overlaps = [part.first_line < other.last_line and other.first_line < part.last_line for other in kept]
        if any(overlaps):
            copies.add(label)
        else:
            kept.append(part)
    return copies


def _most_events_first(labelled_part: tuple[str, _Part]) -> int:
    """Return a key that sorts parts of a log by their number of events, the largest number first."""
    _, part = labelled_part
    return -part.event_count
