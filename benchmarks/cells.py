"""A measured share beside its target, and tables of such shares in Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

MET = "met"
MISSED = "missed"
CONSERVATIVE = "conservative"  # more than asked for
NO_TARGET = "no target"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measured share beside its target."""

    row: str
    column: str
    share: float
    least: float | None = None  # that the share should be
    most: float | None = None
    of: int  # repeats, pairs or sets that the share is of

    @property
    def mark(self) -> str:
        """Return whether the share meets its target, but for two standard errors of the simulation."""
        if self.least is None and self.most is None:
            return NO_TARGET
        two_errors = 2 * (self.share * (1 - self.share) / self.of) ** 0.5
        if self.most is not None and self.share - two_errors > self.most:
            return MISSED if self.least is None else CONSERVATIVE
        if self.least is not None and self.share + two_errors < self.least:
            return MISSED
        return MET

    @property
    def target(self) -> str:
        """Return the target in words, in percent."""
        if self.least is not None and self.most is not None:
            return f"{100 * self.least:g} to {100 * self.most:g}"
        if self.most is not None:
            return f"at most {100 * self.most:g}"
        if self.least is not None:
            return f"at least {100 * self.least:g}"
        return "none"

    @property
    def shown(self) -> str:
        """Return the share in percent: bold where it is missed, with a star where it is more than asked for."""
        percent = f"{100 * self.share:.1f}"
        if self.mark == MISSED:
            return f"**{percent}**"
        if self.mark == CONSERVATIVE:
            return f"{percent} *"
        return percent


def table(cells: Sequence[Cell]) -> str:
    """Return the cells of one part as a table in Markdown; what was refused is a dash."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    lines = [f"| % | {' | '.join(columns)} | target |", "|---" * (len(columns) + 2) + "|"]
    for row in dict.fromkeys(cell.row for cell in cells):
        by_column = {cell.column: cell for cell in cells if cell.row == row}
        shown = [by_column[column].shown if column in by_column else "-" for column in columns]
        first = next(iter(by_column.values()))
        lines.append(f"| {row} | {' | '.join(shown)} | {first.target} |")
    sizes = ", ".join(f"{size:,}" for size in dict.fromkeys(cell.of for cell in cells))
    return "\n".join(lines) + f"\n\n({sizes} repeats, pairs or logs a cell.)\n"
