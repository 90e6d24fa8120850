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
            The number of steps. None for a first row that is not at `first_step`, the number of an epoch's first step,
            mostly 0 or 1: rows before it may be missing.
        """
        if last is None:
            return 1 if position.step == self.first_step else None  # at the first step of all, it covers just that one
        if position.epoch == last.epoch and position.step >= last.step:
            return position.step - last.step
        # Of another epoch, or of the same one from its start, if a run was started again.
        return position.step - self.first_step + 1
