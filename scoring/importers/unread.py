"""The rows of a log whose figures cannot be read."""

from runlog.digits import counted
from scoring.importers.text import first_line_in_words


class UnreadRows:
    """The lines that begin as rows of training figures, but print no rate or time that can be read."""

    def __init__(self) -> None:
        self.lines: list[int] = []  # in their order

    def note(self, line: int) -> None:
        """Note that a row of this line cannot be read."""
        self.lines.append(line)

    def forget(self, line: int) -> None:
        """Take back that the row noted last cannot be read, if it is of this line: a later line had its second half."""
        if self.lines and self.lines[-1] == line:
            self.lines.pop()

    def in_words(self, *, rows_read: int) -> str:
        """Return in words how many rows are left out, as a problem of the record.

        Args:
            rows_read: Number of rows that could be read.
        """
        count = len(self.lines)
        left_out = f"{count} of {counted(count + rows_read, 'row')} left out"
        return f"{first_line_in_words(self.lines)}: {left_out}, without a rate or time that can be read"
