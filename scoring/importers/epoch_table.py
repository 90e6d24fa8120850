"""The reader of printed rows whose step counter starts anew in each epoch."""

from scoring.importers.table import Columns, FormatReader, RowPosition


class EpochFormatReader(FormatReader):
    """A format whose step counter starts anew in each epoch."""

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Lower `first_step` to the step of the first row, if that is lower: the program counts from that step."""
        self.first_step = min(self.first_step, position.step)

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return how many training steps a printed row covers: those since the row before, or of a new epoch so far.

        If epochs start at step 1, successive rows of a log give

            epoch 1, step 20     None: rows before the first row may be missing
            epoch 1, step 30     10: steps 21 to 30
            epoch 2, step 20     20: steps 1 to 20; steps of epoch 1 after step 30 are in no row
            epoch 2, step 10     10: steps 1 to 10, because the program was started again

        Args:
            last: Epoch and step of the row before, or None for the first row of the log.
            position: Epoch and step of this row.

        Returns:
            The number of steps, or None for a first row that is not at the first step of its epoch.
        """
        if last is None:
            return 1 if position.step == self.first_step else None
        goes_on = position.epoch == last.epoch and position.step >= last.step
        if goes_on:
            return position.step - last.step
        return position.step - self.first_step + 1
