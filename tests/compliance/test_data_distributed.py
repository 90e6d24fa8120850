"""Figures of ImageNet that was shrunk beforehand are refused by the bytes of its files."""

import json
from typing import Any

import pytest

from compliance import rules
from compliance.mlperf import facts_of_run, standing
from compliance.submission.runs import check_logs
from runlog import schema
from runlog.reader import HeldLog
from tests import make_log
from tests.compliance.altered import Altered
from tests.compliance.test_strict import broken_rules

# between no padding of the archives and all of it
WHOLE: dict[str, Any] = {"train": 146_900_000_000, "eval": 6_706_000_000}
UPPER = 1_300_000_000_000  # of a data set that was enlarged


def with_passports(text: str, *, is_exact: bool = True, **bytes_of: int) -> Altered:
    """The log with passports of these sums of bytes in its header."""
    passports = {}
    for name, total in bytes_of.items():
        files = Altered(text).fields(Altered(text).at(f"{name.partition('_')[0]}_samples"))["value"]
        digest = "ab" if name.startswith("train") else "cd"
        passports[name] = schema.as_json(
            schema.Passport(files=files, bytes=total, sha256=digest * 32, is_exact=is_exact)
        )
    log = Altered(text)
    at = next(index for index, line in enumerate(log.lines) if line.startswith('# {"dataset"'))
    section = json.loads(log.lines[at][2:])["dataset"] | passports
    log.lines[at] = f"# {json.dumps({'dataset': section})}"
    return log


@pytest.mark.parametrize("division", ["closed", "open"])
@pytest.mark.parametrize(
    ("bytes_of", "is_exact", "difference"),
    [
        (WHOLE, True, ""),
        ({"train": 146_575_057_016, "eval": 6_719_323_136}, True, ""),
        ({"train": 146_575_057_015}, True, "146,575,057,015 bytes of training data"),
        ({"train": 147_239_982_592, "eval": 6_693_762_897}, True, ""),
        ({"train": 147_239_982_593}, True, "147,239,982,593 bytes of training data"),
        (WHOLE | {"eval": 6_693_762_896}, True, "6,693,762,896 bytes of evaluation data"),
        (WHOLE | {"eval": 6_719_323_137}, True, "6,719,323,137 bytes of evaluation data"),
        ({"train": UPPER, "eval": UPPER}, False, ""),
        ({"train": 48_000_000_000, "eval": UPPER}, False, "48,000,000,000 bytes of training data"),
        (WHOLE | {"train_source": 147_000_000_000, "eval_source": 6_700_000_000}, True, ""),
        (WHOLE | {"train_source": 48_000_000_000}, True, "48,000,000,000 bytes of training data"),
        (WHOLE | {"eval_source": 48_000_000}, True, "48,000,000 bytes of evaluation data"),
    ],
)
def test_images_that_are_not_imagenets_are_found_by_their_bytes(
    division: str, bytes_of: dict[str, Any], is_exact: bool, difference: str
) -> None:
    log = with_passports(make_log.closed_run(division=division), is_exact=is_exact, **bytes_of)
    actual = broken_rules("4.0.0", log.text)[0].get("data-distributed", "")
    assert difference in actual and bool(difference) == actual.startswith("not ImageNet as distributed: ")


def test_bytes_are_asked_of_no_other_data_set_benchmark_or_log() -> None:
    small: dict[str, Any] = {"train": 4_000_000, "eval": 1_000_000}
    digits = with_passports(make_log.run(), **small)
    landscapes = with_passports(make_log.closed_hrnet_run(), **small)
    unknown = make_log.closed_run()
    for text in (digits.text, landscapes.text, unknown):
        assert "data-distributed" not in broken_rules("4.0.0", text)[0]


def test_a_run_on_shrunk_images_is_no_mlperf_result() -> None:
    passport: dict[str, Any]
    for passport, is_mlperf in (({}, True), (WHOLE, True), ({"train": 48_000_000_000}, False)):
        text = make_log.closed_run()
        log = HeldLog("0/result_0.txt")
        log.data = (with_passports(text, **passport).text if passport else text).encode()
        [report] = check_logs([log], rules.load("4.0.0"))
        result = standing(facts_of_run(report.run, "4.0.0"))
        assert result.is_mlperf is is_mlperf
        assert ("not ImageNet as distributed" in result.name) != is_mlperf
