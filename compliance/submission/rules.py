"""`python -m compliance rules`: each "must" of the training rules, with the checks that hold it."""

import argparse
import itertools
import json
from dataclasses import asdict, dataclass

from compliance.rules import Ruleset, load, read_rules
from runlog.digits import counted

NO_CHECK = "none"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A demand of training_rules.adoc. `checks` are strict rules, keys of official rule files, or commands."""

    section: str
    sentence: str  # that makes it, quoted
    versions: str  # of the text that have the sentence, as "0.7 1.0 6.0"
    checks: list[str]  # none: nothing checks it
    remark: str  # what the checks do not see; empty if there is nothing to say


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance rules`: print the demands. Returns 0."""
    demands = read_demands()
    if options.json:
        print(json.dumps({"musts": [asdict(demand) for demand in demands]}, indent=2))
    else:
        print(as_text(demands, load(options.ruleset)), end="")
    return 0


def read_demands() -> list[Demand]:
    """Return the demands of the training rules, in the order of their text."""
    return [Demand(**row) for row in read_rules("musts.yaml")]


def as_text(demands: list[Demand], ruleset: Ruleset) -> str:
    """Return the demands of the MLPerf training rules as text, each with the automated checks that cover it.

    Args:
        demands: The demands ("must" sentences) of the rules. All demands of one section must follow each other, because
            a new heading is written whenever the section changes.
        ruleset: This project's checks for one version of the rules. A check that comes into force only in a later
            version is marked with that version, such as "seed-present (from 4.1.0 on)".

    Returns:
        The text, which ends with a newline. A demand has two lines: its sentence with the versions of the rules that
        contain it, and its checks (or "none") with a remark, such as what the checks do not see. For example:

            System and framework
              "The same system and framework must be used for a submission result set" [0.7 1.0 6.0]
                  same-configuration, system-description (others' logs name no system)
            1 demand, 1 with a check, 0 with none
    """
    lines: list[str] = []
    for section, demands_of_section in itertools.groupby(demands, key=lambda demand: demand.section):
        lines.append(section)
        for demand in demands_of_section:
            lines += _lines_of_demand(demand, ruleset)
    count_with_check = sum(bool(demand.checks) for demand in demands)
    count_without_check = len(demands) - count_with_check
    lines.append(f"{counted(len(demands), 'demand')}, {count_with_check} with a check, {count_without_check} with none")
    return "\n".join(lines) + "\n"


def _lines_of_demand(demand: Demand, ruleset: Ruleset) -> list[str]:
    """Return the two lines that show a demand of the training rules and the checks that cover it, such as

          "The same system and framework must be used for a submission result set" [0.7 1.0 6.0]
              same-configuration, system-description (others' logs name no system)

    Args:
        demand: The demand, with the sentence of the rules that makes it.
        ruleset: A version of the rules. A check that is in force only from a later version on is marked with that
            version, such as "seed-present (from 4.1.0 on)".
    """
    # The names of the checks, such as "same-configuration, system-description"; "none" if nothing checks the demand.
    checks = ", ".join(_check_in_words(check, ruleset) for check in demand.checks) or NO_CHECK
    remark = f" ({demand.remark})" if demand.remark else ""  # as " (others' logs name no system)"
    return [f'  "{demand.sentence}" [{demand.versions}]', f"      {checks}{remark}"]


def _check_in_words(check: str, ruleset: Ruleset) -> str:
    """Return the name of a check, with the version from which on it is in force if that is a later one.

    Args:
        check: Name of the check, such as "same-configuration".
        ruleset: A version of the rules of MLPerf Training, with this project's own rules for it.
    """
    rule = ruleset.strict.get(check)
    if rule is not None and not rule.in_force:
        return f"{check} (from {rule.since} on)"
    return check
