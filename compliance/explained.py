"""A rule in words: what it asks for, why, what to do, and its source."""

from difflib import get_close_matches

from compliance.official.checks import read_check
from compliance.official.rule_files import VERSION, files, keys, load
from compliance.rules import Ruleset, StrictRule
from runlog.digits import six_digits


def explain(name: str, ruleset: Ruleset) -> str:
    """Return a text on a rule: what it asks for, why, what to do, and its source.

    Args:
        name: A strict rule (`seed-present`), a key of events (`run_stop`), a rule about one (`run_stop.order`), the
            rule that there are events (`events.count`), or `all`.
        ruleset: The rules of one version.

    Raises:
        ValueError: There is no rule of this name. The message names similar ones, if there are any.
    """
    known_keys = keys(ruleset.version)
    if name == "all":
        return "\n".join(explain(one, ruleset) for one in [*sorted(known_keys), *sorted(ruleset.strict)])
    if name in ruleset.strict:
        return _explain_strict(ruleset.strict[name])
    key = name.partition(".")[0]  # `run_stop` of `run_stop.order`
    if key == "events":  # of the rule `events.count`, which is about no key
        return f"events.count\n  expects: at least one event\n  source: mlperf-logging {VERSION}, mlp_compliance\n"
    if key in known_keys:
        return _explain_key(key, ruleset)
    similar = get_close_matches(name, [*known_keys, *ruleset.strict], n=3, cutoff=0.4)
    hint = f"; near it: {', '.join(similar)}" if similar else ""
    raise ValueError(f"no rule {name}{hint}; `--explain all` lists them")


def _explain_strict(rule: StrictRule) -> str:
    """Return a text on a strict rule, which mlperf-logging's checker does not have.

    Args:
        rule: The rule. Its bounds are the numbers that it compares a log with.
    """
    lines = [
        f"{rule.name} ({rule.severity}, class {rule.kind}; stricter than the official checker)",
        f"  expects: {rule.expected}",
        f"  why: {rule.why}",
        f"  do: {rule.fix}",
        f"  applies to: {rule.scope}",
    ]
    if rule.bounds:
        bounds = [f"{name} {six_digits(bound)}" for name, bound in rule.bounds.items()]
        lines.append(f"  bounds: {', '.join(bounds)}")
        lines.append(f"  bounds from: {rule.bound_from}")
    lines.append(f"  source: {rule.source}")
    return "\n".join(lines) + "\n"


def _explain_key(key: str, ruleset: Ruleset) -> str:
    """Return a text on what the rules ask of the events of a key, with the source of each rule.

    First come the official rules, such as `exactly one seed`: one for each of the version's rule files that has one for
    the key. Then come this project's stricter rules.

    Args:
        key: The key, such as `seed`.
        ruleset: The rules of one version.
    """
    lines = [f"{key} (ruleset {ruleset.version})"]
    for name in files(ruleset.version):  # such as training_4.0.0/common.yaml
        official_rules = load(name).rules  # of this rule file, by their keys
        if key in official_rules:
            lines.append(f"  {official_rules[key].describe()} (official)")
            lines.append(f"      source: {load(name).source}")
    # The texts of MLPerf ask more of closed runs of ResNet than the official checker does.
    stricter_rules = [rule for rule in ruleset.written if rule.key == key]
    for rule in stricter_rules:
        words = read_check(rule.check).words  # such as `above 0` for the check v['value'] > 0
        optimizer = f", {rule.opt_name}" if rule.opt_name else ""
        lines.append(f"  {words} (closed resnet{optimizer}; stricter than the official checker)")
        lines.append(f"      source: {rule.source}")
    if len(lines) == 1:  # such as lr_rates in 4.0.0, which only files of older versions have a rule for
        lines.append(f"  nothing is asked of it: no rule file of {ruleset.version} has a rule for this key")
        lines.append(f"      source: mlperf-logging {VERSION}, mlp_compliance")
    return "\n".join(lines) + "\n"
