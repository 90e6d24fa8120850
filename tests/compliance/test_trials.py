"""Trials of one job that are handed in without those between them are asked for."""

from pathlib import Path

import pytest

from tests import make_log
from tests.compliance import altered as by
from tests.compliance.altered import Altered, write
from tests.compliance.test_check import check

JOB = "/logs/CPU/rn50"


def asked_for(tmp_path: Path, result_files: list[str], **more: list[int]) -> list[str]:
    """Return what is found of the rule on logs whose headers state these paths of their results and more settings."""
    texts = []
    for index, path in enumerate(result_files):
        its_settings = {name: values[index] for name, values in more.items()}
        log = Altered(make_log.run(seed=its_settings.get("SEED", index)))
        texts.append(by.settings(log, **{"RESULT_FILE": path, "SEED": -1} | its_settings).text)
    status, files = check(*write(tmp_path, *texts))
    findings = [finding for file in files for finding in file["findings"] if finding["rule"] == "trials-consecutive"]
    assert all(finding["severity"] == "warning" for finding in findings), "a trial that was lost may have no log"
    assert status == 0
    return [finding["actual"] for finding in findings]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0, 1, 2], []),
        ([2, 4, 3], []),  # of a longer job, in any order
        ([7, 0, 5], [(4, 0, 5), (1, 5, 7)]),
        ([9, 10], []),
        ([0, 0], []),  # of two nodes, each with a folder of that path
    ],
)
def test_trials_without_those_between(numbers: list[int], expected: list[tuple[int, int, int]], tmp_path: Path) -> None:
    found = asked_for(tmp_path, [f"{JOB}/result_{number}.txt" for number in numbers])
    said = []
    for missing, earlier, later in expected:
        trials = "1 trial" if missing == 1 else f"{missing} trials"
        said.append(f"not among these logs: {trials} of its job between trials {earlier} and {later}")
    assert sorted(found) == sorted(said)


@pytest.mark.parametrize(
    ("later", "settings", "is_one_job"),
    [
        (f"{JOB}/result_5.txt", {}, True),
        ("/other/CPU/rn50/result_5.txt", {}, False),
        (f"{JOB}/result_5.txt", {"SEED": [0, 5]}, True),  # later trials count up
        (f"{JOB}/result_5.txt", {"SEED": [0, 1]}, False),
        (f"{JOB}/result_5.txt", {"NEXP": [5, 10]}, False),
        (f"{JOB}/result_5.txt", {"NEXP": [10, 10]}, True),
    ],
)
def test_trials_of_two_jobs_are_not_compared(
    later: str, settings: dict[str, list[int]], is_one_job: bool, tmp_path: Path
) -> None:
    assert bool(asked_for(tmp_path, [f"{JOB}/result_0.txt", later], **settings)) == is_one_job


@pytest.mark.parametrize("path", ["", "result.txt", f"{JOB}/result_2.txt.gz", f"{JOB}/result_x.txt"])
def test_a_path_that_is_no_trials_says_nothing(path: str, tmp_path: Path) -> None:
    assert asked_for(tmp_path, [f"{JOB}/result_0.txt", path]) == []
