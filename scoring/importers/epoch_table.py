"""The reader of printed rows whose step counter starts anew in each epoch."""

from scoring.importers.table import Columns, FormatReader, RowPosition


class EpochFormatReader(FormatReader):
    """A format whose step counter starts anew in each epoch."""

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Lower `first_step` to the step of the first row, if that is lower: the program counts from that step."""
        self.first_step = min(self.first_step, position.step)

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return how many training steps a printed row covers, in a log whose step numbers start anew in each epoch.

        A row covers the steps after the row before, up to the step of the row itself. An epoch starts at step
        `first_step`, mostly 0 or 1. If `first_step` is 1, successive rows of a log give

            epoch 1, step 20     None: rows before the first row may be missing
            epoch 1, step 30     10: steps 21 to 30
            epoch 2, step 20     20: steps 1 to 20 of a new epoch; the steps of epoch 1 after step 30 are in no row
            epoch 2, step 10     10: steps 1 to 10; the step went back: taken as a new start of the program

        Args:
            last: Epoch and step of the row before, or None for the first row of the log.
            position: Epoch and step of this row.

        Returns:
            The number of steps. For the first row of the log, the result is 1 if the row is at `first_step`, and None
            if the row is at any other step.
        """
        if last is None:
            # A first row at `first_step` covers this step alone: its epoch has no lower step.
            return 1 if position.step == self.first_step else None
        if position.epoch == last.epoch and position.step >= last.step:
            return position.step - last.step
        return position.step - self.first_step + 1  # from `first_step` on: a new epoch, or a step that went back
