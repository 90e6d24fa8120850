"""The reader of printed rows whose step counter starts anew in each epoch."""

from scoring.importers.table import Columns, FormatReader, RowPosition


class EpochFormatReader(FormatReader):
    """A format whose step counter starts anew in each epoch."""

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Lower `first_step` to the step of the first row, if that is lower: the program counts from that step."""
        self.first_step = min(self.first_step, position.step)

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return the number of training steps that a printed row covers, if steps are counted anew in each epoch.

        An epoch's first step has the number `first_step`, mostly 0 or 1.

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.

        Returns:
            The number of steps:

            - For the first row of a log, 1 if it is at `first_step`. Otherwise None: rows before it may be missing.
            - For a row of the same epoch as the row before, and of no lower step, the steps since that row.
            - For any other row, the steps from `first_step` on: an epoch or a run has begun. The steps between an
              epoch's last row and its end are in no row.
        """
        if last is None:
            return 1 if position.step == self.first_step else None
        if position.epoch == last.epoch and position.step >= last.step:
            return position.step - last.step
        return position.step - self.first_step + 1
