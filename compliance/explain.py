"""`--explain`: a rule in words."""

from difflib import get_close_matches

from compliance.official.rule_files import VERSION, keys, read_check, rules_in_words
from compliance.rules import Ruleset


def explain(name: str, ruleset: Ruleset) -> str:
    """What the rule `name` asks for, why, what to do and where it comes from; all rules for `all`.

    `name` is a strict rule, a key, or the rule of a finding (`run_stop.order`). Raises ValueError if unknown.
    """
    known = keys(ruleset.version)
    if name == "all":
        return "\n".join(explain(one, ruleset) for one in [*sorted(known), *sorted(ruleset.strict)])
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
        return f"events.count\n  expects: at least one event\n  source: mlperf-logging {VERSION}, mlp_compliance\n"
    if key in known:
        lines = [f"{key} (ruleset {ruleset.version})"]
        for source, words in rules_in_words(ruleset.version, key):
            lines.append(f"  {words} (official)\n      source: {source}")
        for written in ruleset.written:
            if written.key == key:
                where = f"closed resnet{f', {written.opt_name}' if written.opt_name else ''}"
                words = read_check("written.yaml", key, written.check).words
                lines.append(f"  {words} ({where}; stricter than the official checker)\n      source: {written.source}")
        return "\n".join(lines) + "\n"
    near = get_close_matches(name, [*known, *ruleset.strict], n=3, cutoff=0.4)
    hint = f"; near it: {', '.join(near)}" if near else ""
    raise ValueError(f"no rule {name}{hint}; `--explain all` lists them")
