"""Over how many steps the averages of a printed row are, in a program that resets them at one step of each epoch."""

from typing import NamedTuple

from scoring.importers.table import RowPosition


def averaged_steps_of_epoch(step: int, *, first_step: int, reset_step: int) -> int:
    """Return how many steps of one epoch its averages cover at a step, by the reset in this epoch.

    With first step 0 and a reset at step 5, they cover 3 steps (0 to 2) at step 2, and 6 steps (5 to 10) at step 10.

    Args:
        step: The step, as printed.
        first_step: Number of the first step of an epoch.
        reset_step: The first step that the averages cover after the reset.
    """
    if step >= reset_step:
        return step - reset_step + 1
    return step - first_step + 1


class Resets(NamedTuple):
    """At which step of each epoch a program resets its averages. They run on where one epoch ends and the next begins.

    Steps count from 0 in each epoch.
    """

    reset_step: int  # the first step that the averages cover after the reset
    steps_of_epoch: int

    @property
    def come_in_epochs(self) -> bool:
        """Whether epochs are long enough to have the step of the reset. If not, the averages are never reset."""
        return self.reset_step < self.steps_of_epoch

    def steps_since_reset(self, position: RowPosition) -> int | None:
        """Return how many steps came since the last reset, up to a row. An epoch must have come before that of the row.

        With a reset at step 5 of 26:

            step 20    -> 16: steps 5 to 20
            step 2     -> 24: steps 5 to 25 of the epoch before, and 0 to 2

        Args:
            position: Epoch and step of the row. The step counts, too.

        Returns:
            The number. None if epochs are too short to have a reset.
        """
        if position.step >= self.reset_step:
            return position.step - self.reset_step + 1
        if not self.come_in_epochs:
            return None
        steps_of_epoch_before = self.steps_of_epoch - self.reset_step
        return steps_of_epoch_before + position.step + 1

    def steps_between(self, earlier: RowPosition, later: RowPosition) -> int | None:
        """Return how many steps came after one row up to a later row of its epoch or of the next epoch.

        Step 20 of 26 and step 0 of the next epoch give 6: steps 21 to 25, and 0.

        Args:
            earlier: Epoch and step of the one row.
            later: Epoch and step of the other one, which counts, too.

        Returns:
            The number. None if the rows lie otherwise, or if the step of the earlier row is too high for an epoch.
        """
        if later.epoch == earlier.epoch:
            return later.step - earlier.step if later.step > earlier.step else None
        is_next_epoch = (later.epoch or 0) == (earlier.epoch or 0) + 1
        if is_next_epoch and earlier.step < self.steps_of_epoch:
            return self.steps_of_epoch - earlier.step + later.step
        return None

    def were_between(self, earlier: RowPosition, later: RowPosition) -> bool:
        """Return whether the averages were reset between two successive rows.

        With a reset at step 5 of 26:

            step 20, and step 0 of the next epoch   -> False: 22 steps since the reset, 6 since the row
            step 20, and step 10 of the next epoch  -> True: 6 steps since the reset, 16 since the row

        Args:
            earlier: Epoch and step of the first of the two rows.
            later: Epoch and step of the second.
        """
        since_reset = self.steps_since_reset(later)
        if since_reset is None:
            return False
        since_row = self.steps_between(earlier, later)
        # Where that is not known, a whole epoch with its reset lies between, or another run has begun.
        return since_row is None or since_reset <= since_row

    def steps_of_row_average(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return how many steps a row averages in a program that resets its averages after each row, too.

        With a reset at step 5 of 26, rows that are printed every 10 steps average

            step 0 of the first epoch   -> 1 step
            step 10                     -> 6 steps: 5 to 10, since the reset
            step 20                     -> 10 steps: 11 to 20, since the row before
            step 0 of the second epoch  -> 6 steps: 21 to 25, and 0

        Args:
            last: Epoch and step of the row before, or None for the first row of the log.
            position: Epoch and step of this row.

        Returns:
            The number of steps. None for a first row that is not at step 0: rows before it may be missing.
        """
        if last is None:
            return 1 if position.step == 0 else None
        since_row = self.steps_between(last, position)
        if since_row is None:  # rows are missing: only the steps of this epoch are known
            return averaged_steps_of_epoch(position.step, first_step=0, reset_step=self.reset_step)
        since_reset = self.steps_since_reset(position)
        return since_row if since_reset is None else min(since_row, since_reset)

    def steps_of_running_average(
        self, last: RowPosition | None, last_steps: int | None, position: RowPosition
    ) -> int | None:
        """Return how many steps a row averages in a program that resets its averages only once in an epoch.

        With a reset at step 5 of 26, rows that are printed every 10 steps average

            step 0 of the first epoch   -> 1 step
            step 10                     -> 6 steps: 5 to 10, since the reset
            step 20                     -> 16 steps: 5 to 20
            step 0 of the second epoch  -> 22 steps: 5 to 25, and 0

        Args:
            last: Epoch and step of the row before, or None for the first row of the log.
            last_steps: How many steps the row before averages, if that is known.
            position: Epoch and step of this row.

        Returns:
            The number of steps. None if it depends on rows that are missing.
        """
        if last is None or position.step >= self.reset_step:
            return averaged_steps_of_epoch(position.step, first_step=0, reset_step=self.reset_step)
        since_row = self.steps_between(last, position)
        if since_row is None:
            return None
        if self.were_between(last, position):
            return self.steps_since_reset(position)
        return None if last_steps is None else last_steps + since_row
