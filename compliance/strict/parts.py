"""The parts of a run, which are blocks, epochs and evaluations: one that has started, and the time of one that is over.

A block is several epochs together. Its event has the number of the first epoch, and how many there are.
"""

from dataclasses import dataclass
from typing import NamedTuple

from runlog import schema
from runlog.reader import Event

START_KEYS = frozenset({schema.BLOCK_START.key, schema.EPOCH_START.key, schema.EVAL_START.key})
STOP_KEYS = frozenset({schema.BLOCK_STOP.key, schema.EPOCH_STOP.key, schema.EVAL_STOP.key})
# The field in the metadata of a part's events that has its number.
NUMBER_FIELD_BY_KIND = {"block": "first_epoch_num", "epoch": "epoch_num", "eval": "epoch_num"}


@dataclass(frozen=True)
class OpenPart:
    """A part of the run that has started. `number` is the number of its first epoch; None if the event states none.

    Only a block has more than one epoch. `possible_numbers` are those that its first epoch could have when it started;
    empty if they were not known.
    """

    start: Event
    number: int | None
    epochs: int = 1
    possible_numbers: tuple[int, ...] = ()

    @property
    def expected_numbers(self) -> tuple[int, ...]:
        """The numbers that later events of this part may state: that of its start; without one, `possible_numbers`."""
        return self.possible_numbers if self.number is None else (self.number,)

    @property
    def last_epoch(self) -> int | None:
        """The number of its last epoch; None if its event states no number."""
        return None if self.number is None else self.number + self.epochs - 1

    def was_started_by_another_rank(self, open_part: "OpenPart | None") -> bool:
        """Return whether the open part of this kind is the same part, and its start was logged by another rank.

        Args:
            open_part: The open part; None if there is none. Parts without a number are taken for different ones.
        """
        if open_part is None or open_part.start.rank == self.start.rank:
            return False
        return self.number is not None and self.number == open_part.number

    def __str__(self) -> str:
        kind = self.start.key.partition("_")[0]  # "block" of block_start
        return f"the {kind} of line {self.start.line}"


class TrainedPart(NamedTuple):
    """The time of an epoch, or the mean time of the epochs of a block, and the line where it ended."""

    epoch_ms: float
    line: int


class TimedEvaluation(NamedTuple):
    """How long an evaluation took, and the line of its eval_stop."""

    took_ms: float
    line: int
