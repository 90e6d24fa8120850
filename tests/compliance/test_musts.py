"""`python -m compliance rules` names each demand of the training rules with checks that exist."""

from compliance import COMMANDS
from compliance.official.rule_files import keys, versions
from compliance.rules import load
from compliance.submission.rules import read_demands
from tests.compliance.altered import answer, compliance


def test_each_check_that_a_demand_names_exists() -> None:
    keys_of_rulesets = [keys(version) for version in versions()]
    known = {*load(versions()[-1]).strict, *COMMANDS}.union(*keys_of_rulesets)
    for demand in read_demands():
        assert set(demand.checks) <= known, demand
        assert demand.checks or demand.remark, demand  # where there is none, it says why
        assert set(demand.versions.split()) <= {"0.7", "1.0", "6.0"}, demand


def test_each_rule_that_refuses_by_the_training_rules_holds_a_demand() -> None:
    """A strict rule whose source quotes training_rules.adoc is named by a demand."""
    named = {check for demand in read_demands() for check in demand.checks}
    rows = load("4.1.0").strict.values()
    quoting = {row.name for row in rows if row.kind == "rule" and "training_rules.adoc, section" in row.source}
    assert quoting - named == set()


def test_the_command_prints_each_demand_and_its_checks() -> None:
    status, out, _ = compliance("rules", "--ruleset", "4.0.0")
    assert status == 0
    assert "You must flush the cache or restart the system prior to benchmarking" in out
    assert "seed-present (from 4.1.0 on)" in out and "\n      none (no log shows it" in out
    assert len(answer("rules")["musts"]) == len(read_demands()) >= 35
