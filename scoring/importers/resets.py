"""Over how many steps the averages of a printed row are, in a program that resets them at one step of each epoch."""

from typing import NamedTuple

from scoring.importers.table import RowPosition

_FIRST_POSITION = RowPosition(epoch=1, step=0)  # of a run


def averaged_steps_of_epoch(step: int, *, first_step: int, reset_step: int) -> int:
    """Return how many steps of its own epoch a row's averages cover.

    The averages cover the steps since the reset, if the row is at the reset step or later, else those since the first
    step. With first step 0 and a reset at step 5, they cover 3 steps (0 to 2) in a row at step 2, and 6 steps (5 to 10)
    in a row at step 10.

    Args:
        step: The step of the row, as printed.
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
        """Return how many steps there are from the last reset of the averages up to a row. Both ends count.

        The last reset is in the row's epoch if the row is at the reset step or later, else in the epoch before. With a
        reset at step 5 of epochs of 26 steps:

            step 20    -> 16: steps 5 to 20
            step 2     -> 24: steps 5 to 25 of the epoch before, and 0 to 2

        Args:
            position: Epoch and step of the row. Before the first reset of a run, the result is too high, as there is no
                epoch before.

        Returns:
            The number of steps. None if epochs are too short to have the step of the reset, so that none ever comes.
        """
        has_reset_in_this_epoch = position.step >= self.reset_step
        if has_reset_in_this_epoch:
            return position.step - self.reset_step + 1  # the step of the reset and that of the row both count
        if not self.come_in_epochs:  # epochs of 4 steps never get to a reset at step 5
            return None
        steps_of_epoch_before = self.steps_of_epoch - self.reset_step
        steps_of_this_epoch = position.step + 1  # steps count from 0
        return steps_of_epoch_before + steps_of_this_epoch

    def steps_between(self, earlier: RowPosition, later: RowPosition) -> int | None:
        """Return how many steps came after one row up to a later row of its epoch or of the next epoch.

        In epochs of 26 steps, step 20 and step 0 of the next epoch give 6: steps 21 to 25, and 0.

        Args:
            earlier: Epoch and step of the one row, whose step does not count.
            later: Epoch and step of the other one, whose step counts.

        Returns:
            The number of steps. In the same epoch, None if the later row's step is not higher. In another epoch, None
            if it is not the next one, or if the earlier row's step is beyond the last one of an epoch.
        """
        if later.epoch == earlier.epoch:
            return later.step - earlier.step if later.step > earlier.step else None

        # Each row prints its epoch, so that `or 0` never acts. It is there for the type checker.
        is_next_epoch = (later.epoch or 0) == (earlier.epoch or 0) + 1
        is_step_of_epoch = earlier.step < self.steps_of_epoch  # else the row is garbled
        if not is_next_epoch or not is_step_of_epoch:
            return None
        rest_of_epoch = self.steps_of_epoch - 1 - earlier.step  # the last step of an epoch is `steps_of_epoch` - 1
        steps_of_next_epoch = later.step + 1
        return rest_of_epoch + steps_of_next_epoch

    def had_reset_between(self, earlier: RowPosition, later: RowPosition) -> bool:
        """Return whether the averages were reset between two successive rows: after the earlier, up to the later one.

        Both are counted back from the later row. With a reset at step 5 of epochs of 26 steps:

            step 20, and step 0 of the next epoch   -> False: 22 steps since the reset, only 6 since the earlier row
            step 20, and step 10 of the next epoch  -> True: 6 steps since the reset, 16 since the earlier row

        Args:
            earlier: Epoch and step of the first of the two rows.
            later: Epoch and step of the second.
        """
        since_reset = self.steps_since_reset(later)  # counts the step of the reset
        if since_reset is None:  # epochs are too short to have a reset
            return False
        since_earlier_row = self.steps_between(earlier, later)  # does not count the step of the earlier row
        if since_earlier_row is None:  # a whole epoch with its reset lies between, or another run has begun
            return True
        return since_reset <= since_earlier_row  # equal: the reset is at the first step after the earlier row

    def steps_of_row_average(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return how many steps a row averages in a program that begins new averages after each row and at each reset.

        With a reset at step 5 of epochs of 26 steps, rows that are printed every 10 steps average

            step 0 of the first epoch   -> 1 step
            step 10                     -> 6 steps: 5 to 10, since the reset
            step 20                     -> 10 steps: 11 to 20, since the row before
            step 0 of the second epoch  -> 6 steps: 21 to 25, and 0

        Args:
            last: Epoch and step of the row before, or None for the first row of the log.
            position: Epoch and step of this row.

        Returns:
            The number of steps. None for a first row that is not at step 0 of the first epoch: rows before it may be
            missing.
        """
        if last is None:
            return 1 if position == _FIRST_POSITION else None
        since_row = self.steps_between(last, position)  # 10 from step 10 to step 20
        if since_row is None:  # rows are missing, or a run began anew: count from the reset or start of this epoch
            return averaged_steps_of_epoch(position.step, first_step=0, reset_step=self.reset_step)
        since_reset = self.steps_since_reset(position)  # with the step of the reset: 6 from step 5 to step 10
        if since_reset is None:  # epochs are too short to have a reset
            return since_row
        return min(since_row, since_reset)  # the later of the two began the averages

    def steps_of_running_average(
        self, last: RowPosition | None, averaged_by_last: int | None, position: RowPosition
    ) -> int | None:
        """Return how many steps a row averages in a program that begins new averages only at the reset of each epoch.

        With a reset at step 5 of epochs of 26 steps, rows that are printed every 10 steps average

            step 0 of the first epoch   -> 1 step
            step 10                     -> 6 steps: 5 to 10
            step 20                     -> 16 steps: 5 to 20
            step 0 of the second epoch  -> 22 steps: the 16 of the row before, and the 6 since then

        Args:
            last: Epoch and step of the row before, or None for the first row of the log.
            averaged_by_last: How many steps the row before averages. None if that is not known.
            position: Epoch and step of this row.

        Returns:
            The number of steps. None is only returned for a row before its epoch's reset: if rows before it are missing
            or the run began anew at it, or if its averages go on from a row of which the number is not known. Before
            the first row of a log no rows are missing if it is of the first epoch.
        """
        has_reset_in_this_epoch = position.step >= self.reset_step
        is_at_start_of_run = last is None and position.epoch == _FIRST_POSITION.epoch
        if is_at_start_of_run or has_reset_in_this_epoch:  # count from the reset, or else from step 0
            return averaged_steps_of_epoch(position.step, first_step=0, reset_step=self.reset_step)
        if last is None:  # the averages may go on from the epoch before, whose rows the log lacks
            return None

        # The row is before the reset of its epoch, so that the averages go on from the row before.
        since_row = self.steps_between(last, position)
        if since_row is None:  # rows are missing, or a run began anew
            return None
        if self.had_reset_between(last, position):  # in the epoch before, after the last row printed there
            return self.steps_since_reset(position)
        return None if averaged_by_last is None else averaged_by_last + since_row
