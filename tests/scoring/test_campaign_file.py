"""A campaign's file that is wrong is refused, with the field and what it wants."""

from pathlib import Path

import pytest
import yaml

from scoring.published import plan as campaigns
from scoring.record import InputError

STEPS = {"PRINT_STEPS": 20, "MEASURED_STEPS": 100}


@pytest.mark.parametrize(
    "change, text",
    [
        ({"protocol": "none"}, "no protocol 'none'"),
        ({"protocol": 3}, "protocol is 3; want the name of one"),
        ({"protocol": "mlperf"}, "protocol mlperf needs whole trainings"),
        ({"workload": "bert"}, "workload is 'bert'; want one of rn50, hrnet"),
        ({"environment": {"DATA": "real"}, "protocol": "perf"}, "PRINT_STEPS is None; want a whole number over 0"),
        ({"environment": ["DATA"]}, "environment is ['DATA']; want a table"),
        ({"environment": STEPS | {"PRINT_STEPS": -20}}, "PRINT_STEPS is '-20'; want a whole number over 0"),
        ({"environment": STEPS | {"MEASURED_STEPS": 60}}, "MEASURED_STEPS is 60; the protocol dlperf takes 100"),
        ({"environment": STEPS | {"DATA": True}}, "DATA is True; want a text or a whole number"),
        ({"environment": STEPS | {"RECIPE": "a b"}}, "RECIPE is 'a b'; want it without spaces"),
        ({"environment": STEPS | {"BATCHSIZE": 64}}, "BATCHSIZE follows from the report or the protocol"),
        ({"environment": STEPS | {3: "real"}}, "3 is not a name of a variable"),
        ({"steps": 3}, "no field steps; known are workload, protocol, environment, frameworks, note"),
        ({"note": ["a"]}, "note is ['a']; want a text"),
        ({"frameworks": ["OneFlow", "Keras"]}, "no throughput of Keras"),
        ({"frameworks": ["Paddle", "Paddle"]}, "frameworks has Paddle twice"),
        ({"frameworks": [1]}, "frameworks has 1; want a list of names"),
        ({"frameworks": ["Keras"]}, "no throughput of Keras"),
        ({"frameworks": []}, "frameworks is not a list of names"),
        ({"frameworks": "Paddle"}, "frameworks is not a list of names"),
    ],
)
def test_a_file_that_is_no_campaign_is_refused_with_what_is_wrong(tmp_path: Path, change: dict, text: str) -> None:
    raw = yaml.safe_load((campaigns.CAMPAIGNS / "dlperf.yaml").read_text(encoding="utf-8"))
    (tmp_path / "dlperf.yaml").write_text(yaml.safe_dump(raw | change))
    with pytest.raises(InputError, match=r"dlperf\.yaml: not a campaign") as error:
        campaigns.read_campaign("dlperf", tmp_path)
    assert text in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "want lines such as `workload: rn50`"),
        ("- rn50", "want lines such as `workload: rn50`"),
        ('{"workload": "rn50"', "line 1: expected ',' or '}'"),
        ("workload: rn50\nprotocol: dlperf\nprotocol: perf\n", "line 3: protocol is given twice"),
        ("environment: {DATA: real, DATA: synthetic}", "line 1: DATA is given twice"),
        ("{{NAME}}: rn50", "line 1: found unhashable key"),
        ("note: \xe9", "is not YAML"),
        ("[" * 5000, "is nested too deeply"),
        ("workload: rn50\n", "the field protocol, environment, frameworks is missing"),
    ],
)
def test_a_file_that_holds_no_fields_of_a_campaign_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "dlperf.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"dlperf\.yaml: not a campaign") as error:
        campaigns.read_campaign("dlperf", tmp_path)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_campaign_is_named_after_a_published_table(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes((campaigns.CAMPAIGNS / "dlperf.yaml").read_bytes())
    with pytest.raises(InputError, match=r"mine\.yaml: not a campaign \(published\.csv has no table mine"):
        campaigns.read_campaign("mine", tmp_path)
