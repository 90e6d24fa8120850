"""`--explain`: a rule in words."""

from difflib import get_close_matches

from compliance.official import rules as newer
from compliance.rules import Ruleset, describe_row


def explain(name: str, ruleset: Ruleset) -> str:
    """What the rule `name` asks for, why, what to do and where it comes from; all rules for `all`.

    `name` is a strict rule, a key, or the rule of a finding (`run_stop.order`). Raises ValueError if unknown.
    """
    keys = {row.key for row in ruleset.rows} or set(newer.keys(ruleset.version))
    if name == "all":
        return "\n".join(explain(one, ruleset) for one in [*sorted(keys), *sorted(ruleset.strict)])
    if name in ruleset.strict:
        rule = ruleset.strict[name]
        when = ", ".join(f"{key} {value}" for key, value in rule.when.items()) or "every log"
        return (
            f"{rule.name} ({rule.severity}, class {rule.kind}; stricter than the official checker)\n"
            f"  expects: {rule.expected}\n  why: {rule.why}\n  do: {rule.fix}\n"
            f"  applies to: {when}\n  source: {rule.source}\n"
        )
    key = name.partition(".")[0]
    if key == "events":
        return "events.count\n  expects: at least one event\n  source: mlperf-logging 4.1.68, mlp_compliance\n"
    if key in keys:
        lines = [f"{key} (ruleset {ruleset.version})"]
        if ruleset.newer:
            for file, said in newer.rules_in_words(ruleset.version, key):
                lines.append(f"  {said} (official)\n      source: mlperf-logging 4.1.68, {file}")
        for row in ruleset.rows:
            if row.key == key:
                who = "official" if row.official else "stricter than the official checker"
                lines.append(f"  {describe_row(row)} ({who})\n      source: {' '.join(row.source.split())}")
        return "\n".join(lines) + "\n"
    near = get_close_matches(name, [*keys, *ruleset.strict], n=3, cutoff=0.4)
    hint = f"; near it: {', '.join(near)}" if near else ""
    raise ValueError(f"no rule {name}{hint}; `--explain all` lists them")
