"""The runs of a submission have one configuration; the check names what differs."""

from pathlib import Path

import pytest

from tests import make_log
from tests.compliance import altered as by
from tests.compliance.altered import write
from tests.compliance.test_check import check


def test_another_configuration_is_warned_of_by_name(tmp_path: Path) -> None:
    other = make_log.run(seed=2, hyperparameters=make_log.SGD | {"sgd_opt_base_learning_rate": 0.2})
    write(tmp_path, make_log.run(seed=1), other)
    status, [_, file] = check(tmp_path)
    [warning] = [f for f in file["findings"] if f["severity"] == "warning"]
    assert (status, warning["rule"]) == (0, "same-configuration")
    assert warning["actual"] == "; ".join(
        f"{name} is 0.2, in result_0.txt 0.1"
        for name in ("sgd_opt_base_learning_rate", "config RECIPE.base_learning_rate")
    )


@pytest.mark.parametrize(
    ("variables", "warns"),
    [('"OMP_NUM_THREADS": "2"', True), ('"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3"', False)],
)
def test_runs_with_other_threads_are_no_one_configuration(variables: str, warns: bool, tmp_path: Path) -> None:
    write(tmp_path, make_log.run(seed=1), make_log.run(seed=2).replace('"OMP_NUM_THREADS": "1"', variables))
    _, [_, file] = check(tmp_path)
    warnings = [f["actual"] for f in file["findings"] if f["severity"] == "warning"]
    assert warnings == (['environment OMP_NUM_THREADS is "2", in result_0.txt "1"'] if warns else [])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"memory_gib": 23.4', '"memory_gib": 23.5', ""),  # another node of the kind
        ('"node0"', '"node1"', ""),  # in the header, and wherever an event names the node
        ('"memory_gib": 23.4', '"memory_gib": 47.0', "header node 0.memory_gib is 47.0, in result_0.txt 23.4"),
        ('"lock_sha256": "1', '"lock_sha256": "2', 'header source.lock_sha256 is "2111'),
        ('"conv2d": 53', '"conv2d": 54', "header program.operators.conv2d is 54, in result_0.txt 53"),
        ('"bytes": 48283200', '"bytes": 48283201', "header dataset.eval.bytes is 48283201, in result_0.txt 48283200"),
    ],
)
def test_the_field_of_a_header_that_differs_is_named(old: str, new: str, says: str, tmp_path: Path) -> None:
    other = make_log.run(seed=2)
    assert old in other
    write(tmp_path, make_log.run(seed=1), other.replace(old, new))
    status, [_, file] = check(tmp_path)
    warnings = [f["actual"] for f in file["findings"] if f["severity"] == "warning"]
    assert (status, len(warnings)) == (0, 1 if says else 0)
    assert not says or warnings[0].startswith(says)


def test_a_launcher_that_goes_on_and_a_further_job_make_no_other_configuration(tmp_path: Path) -> None:
    """launch/mpirun.sh with a spare and launch/slurm.sub set these themselves."""
    by_launcher = {"KEEP_TRIALS": 1, "JOB_KEY": "/results/.job_key_8", "SSH_PORT": 20008}
    first = by.settings(by.Altered(make_log.run(seed=1)), KEEP_TRIALS=0, JOB_KEY="/results/.job_key_7", SSH_PORT=20007)
    write(tmp_path, first.text, by.settings(by.Altered(make_log.run(seed=2)), **by_launcher).text)
    status, files = check(tmp_path)
    assert (status, [f["rule"] for f in files[1]["findings"] if f["severity"] == "warning"]) == (0, [])


def test_a_run_that_went_on_keeps_its_seed_and_differs_by_that_alone(tmp_path: Path) -> None:
    resumed = make_log.run(seed=1, summary={"resumed": True}).replace('"time_ms": 17', '"time_ms": 18')
    first = by.settings(by.Altered(make_log.run(seed=1)), RESUME="auto").text
    for order in ((first, resumed), (resumed, first)):
        write(tmp_path, *order)
        _, files = check(tmp_path)
        findings = [found for file in files for found in file["findings"]]
        assert "seeds-differ" not in {found["rule"] for found in findings}
        [differs] = [found for found in findings if found["rule"] == "same-configuration"]
        assert differs["actual"].startswith("run_summary.resumed is ") and differs["line"] is not None
