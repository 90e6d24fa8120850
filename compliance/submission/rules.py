"""`python -m compliance rules`: each "must" of the training rules, with the checks that hold it."""

import argparse
import json
from dataclasses import asdict, dataclass

from compliance.official.rule_files import keys, versions
from compliance.rules import Ruleset, load, read_rules

NO_CHECK = "none"


@dataclass(frozen=True, kw_only=True)
class Must:
    """A demand of training_rules.adoc. `checks` are strict rules, keys of official rule files, or commands."""

    section: str
    must: str
    stands: str  # the versions of the text that have it
    checks: list[str]
    why: str  # what the checks do not see


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance rules`: print the demands. Returns 0."""
    demands = musts()
    if options.json:
        print(json.dumps({"musts": [asdict(must) for must in demands]}, indent=2))
    else:
        print(as_text(demands, load(options.ruleset)), end="")
    return 0


def musts() -> list[Must]:
    """Return the demands of the training rules, in the order of its text."""
    return [Must(**row) for row in read_rules("musts.yaml")]


def as_text(demands: list[Must], ruleset: Ruleset) -> str:
    """Return the demands as text, each below the section of the training rules that makes it.

    For instance:

        System and framework
          "The same system and framework must be used for a submission result set" [0.7 1.0 6.0]
              same-configuration, system-description (others' logs name no system)

    The square brackets have the versions of the training rules that make the demand. The next line names its checks,
    and says what they do not see. A check that is not yet in force in `ruleset` is shown with the first ruleset that
    has it. The last line counts the demands with and without a check.
    """
    lines: list[str] = []
    section = ""
    for must in demands:
        if must.section != section:
            section = must.section
            lines.append(section)
        why = f" ({must.why})" if must.why else ""
        checks = ", ".join(_check_in_words(check, ruleset) for check in must.checks) or NO_CHECK
        lines.append(f'  "{must.must}" [{must.stands}]')
        lines.append(f"      {checks}{why}")
    with_check = sum(bool(must.checks) for must in demands)
    without_check = len(demands) - with_check
    lines.append(f"{len(demands)} demands, {with_check} with a check, {without_check} with none")
    return "\n".join(lines) + "\n"


def _check_in_words(check: str, ruleset: Ruleset) -> str:
    """Return the name of a check; if it is not yet in force in `ruleset`, with the first ruleset that has it."""
    rule = ruleset.strict.get(check)
    if rule is not None and not rule.in_force:
        return f"{check} (from {rule.since} on)"
    return check


def known_checks() -> set[str]:
    """Return all names that a demand's `checks` may have: strict rules, and the keys of any ruleset."""
    names: set[str] = set(load(versions()[-1]).strict)
    for version in versions():
        names |= keys(version)
    return names
