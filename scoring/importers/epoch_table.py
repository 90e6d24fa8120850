"""The reader of printed rows whose step counter starts anew in each epoch."""

from scoring.importers.table import Columns, FormatReader, RowPosition


class EpochFormatReader(FormatReader):
    """A format whose step counter starts anew in each epoch."""

    def read_first_row(self, text: str, position: RowPosition, row: Columns) -> None:
        """Lower `first_step` to the step of the first row, if that is lower: the program counts from that step."""
        self.first_step = min(self.first_step, position.step)

    def steps_of_row(self, last: RowPosition | None, position: RowPosition) -> int | None:
        """Return the number of training steps that a printed row covers, if steps are counted anew in each epoch.

        Args:
            last: Epoch and step of the row before, or None for the first row.
            position: Epoch and step of this row.

        Returns:
            The number of steps, or None for a first row before which other rows may be missing.
        """
        if last is None:
            return 1 if position.step == self.first_step else None
        if position.epoch == last.epoch and position.step >= last.step:
            return position.step - last.step
        return position.step - self.first_step + 1  # from the start of an epoch, which may be done again
