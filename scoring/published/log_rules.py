"""The rules of `published_logs.csv`: which published figure a log stands behind, and how its publisher scored it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scoring.published.table import Published, select
from scoring.record import InputError

LOGS_CSV = Path(__file__).with_name("published_logs.csv")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the publisher made a figure from a log (or from several: the five runs of an MLPerf submission)."""

    names: tuple[str, ...]  # ends of the logs' paths, as shell patterns
    sha256: tuple[str, ...]  # of the logs, if they are known
    table: str
    metric: str
    framework: str
    accelerator: str
    precision: str | None
    devices: int
    protocol: str
    skip: int | None
    devices_unsaid: int | None  # stands in if the log does not say its devices
    batch_unsaid: int | None  # stands in if the log does not say its batch per device
    factor: float | None  # that the publisher applied to the score
    rule: str  # "published", or "assumed": as in the publisher's other logs, because it does not say
    line: int

    @property
    def is_assumed(self) -> bool:
        """Return whether the publisher does not say its rule, so that the one of its other logs is taken."""
        return self.rule == "assumed"


def find_rule(rules: Sequence[Rule], path: Path, sha256: str) -> Rule | None:
    """Return the rule that says how a log's publisher made a figure from it.

    A rule that lists the SHA-256 of the log goes before all others. Otherwise the path of the log must match one of the
    names of the rule. If several rules match, the name with the most folders decides: `8gpu/log.txt` before `log.txt`.

    Args:
        rules: The rules.
        path: The log.
        sha256: SHA-256 of the log as a hexadecimal text.

    Returns:
        The rule, or None if no rule knows the log.
    """
    for rule in rules:
        if sha256 in rule.sha256:
            return rule

    matches = []
    for rule in rules:
        matches += [(rule, name) for name in rule.names if path.match(name)]
    if not matches:
        return None
    rule_with_most_folders, _ = max(matches, key=lambda match: match[1].count("/"))
    return rule_with_most_folders


def published_of(rule: Rule, rows: Sequence[Published]) -> Published:
    """Return the one published figure that belongs to the logs of a rule.

    The figure has the table, metric, devices, accelerator and precision of the rule. Its framework begins with that of
    the rule, as "Paddle 1.8.3.post107" does with "Paddle".

    Args:
        rule: The rule: a row of `published_logs.csv`.
        rows: All published figures.

    Raises:
        InputError: No figure matches the rule, or several match.
    """
    conditions = {name: getattr(rule, name) for name in ("table", "metric", "devices", "accelerator", "precision")}
    figures = [row for row in select(rows, **conditions) if row.framework.startswith(rule.framework)]
    if len(figures) != 1:
        raise InputError(f"table of logs, line {rule.line}: {len(figures)} published figures match, want one")
    return figures[0]
