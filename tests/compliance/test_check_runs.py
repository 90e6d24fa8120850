"""`python -m compliance check` of several logs, and of logs beside their system description."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import make_log
from tests.compliance.altered import Altered, foreign, write
from tests.compliance.test_check import check, rules_broken
from tests.compliance.test_package import description


def test_another_configuration_is_warned_of_by_name(tmp_path: Path, capsys) -> None:
    other = make_log.run(seed=2, hyperparameters=make_log.SGD | {"sgd_opt_base_learning_rate": 0.2})
    write(tmp_path, make_log.run(seed=1), other)
    status, [_, file] = check(capsys, tmp_path)
    [warning] = [f for f in file["findings"] if f["severity"] == "warning"]
    assert (status, warning["rule"]) == (0, "same-configuration")
    assert warning["actual"] == "; ".join(
        f"{name} is 0.2, in result_0.txt 0.1"
        for name in ("sgd_opt_base_learning_rate", "config RECIPE.base_learning_rate")
    )


def _closed(folder: Path, *last_epochs: int, status: str = "success", **changes: Any) -> None:
    texts = []
    for seed, epochs in enumerate(last_epochs):
        rising = [round(2.8 * (i + 1) / epochs, 4) + seed / 1000 for i in range(epochs // 4)]
        text = make_log.closed_run(seed=seed, epochs=epochs, accuracies=(*rising[:-1], 0.7604), **changes)
        texts.append(text)
    write(folder, *texts)


@pytest.mark.parametrize(
    ("epochs", "batch", "broken"),
    [
        ((36, 36, 36, 36, 36), 408, False),
        ((32, 36, 36, 36, 36), 408, False),  # the best is dropped
        ((32, 32, 36, 36, 36), 408, False),  # 34.67 of 34.31
        ((32, 32, 32, 36, 36), 408, True),  # 33.33
        ((36, 36, 36, 36, 36), 4, False),  # below the least point: as long as the reference
        ((32, 32, 32, 32, 36), 4, True),
        ((36, 36, 36, 36, 36), 9000, True),  # above the largest point
        ((36, 36, 36, 36, 36), 2000, True),  # between two points
        ((48, 48, 48, 48, 48), 2000, False),
    ],
)
def test_convergence_against_the_reference_points(epochs, batch: int, broken: bool, tmp_path: Path, capsys) -> None:
    _closed(tmp_path, *epochs, batch=batch, epoch_ms=72_000)  # no step of a batch of 32 in 1 ms
    status, files = check(capsys, tmp_path)
    assert status == broken
    assert [rules_broken(file) for file in files] == [{"rcp-convergence"} if broken else set()] * 5


def test_four_runs_get_no_convergence_test_and_say_so(tmp_path: Path, capsys) -> None:
    _closed(tmp_path, 32, 32, 32, 32)
    status, files = check(capsys, tmp_path)
    assert status == 0
    for file in files:
        [note] = [f for f in file["findings"] if f["rule"] == "rcp-convergence"]
        assert note["actual"] == "not applied: it takes 5 runs of one submission, 4 given"


def test_hyperparameters_that_differ_from_the_reference_point_are_warned_of(tmp_path: Path, capsys) -> None:
    log = Altered(make_log.closed_run(hyperparameters=make_log.LARS | {"lars_opt_base_learning_rate": 11}))
    write(tmp_path, log.text)
    status, [file] = check(capsys, tmp_path)
    [warning] = [f for f in file["findings"] if f["severity"] == "warning"]
    assert (status, warning["rule"], warning["line"]) == (
        *(0, "rcp-hyperparameters", log.at("lars_opt_base_learning_rate") + 1),
    )
    assert warning["actual"] == "lars_opt_base_learning_rate is 11; the reference point has 10.5"


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"submitter": "Other"}, False),
        ({"division": "closed"}, False),
        ({"status": "research"}, True),  # the log's own word
        ({"status": "research, development, or internal (RDI)"}, True),
        ({"status": "Preview"}, False),
        ({"status": "Available cloud"}, False),
        ({"number_of_nodes": "2"}, False),
        ({"accelerators_per_node": "8"}, False),
        ({"framework": "PaddlePaddle 3.0"}, False),
        ({"host_processor_core_count": "999"}, False),
        ({"host_processor_core_count": "1"}, True),  # 2 threads
        ({"host_memory_capacity": "9 TB"}, False),
        ({"host_memory_capacity": "25 GB"}, True),
        ({"operating_system": "Windows 3.1"}, False),
        ({"operating_system": "Debian 12, Linux 6.1"}, True),
        ({"host_processor_model_name": "Other CPU 80"}, False),
        ({"host_processor_model_name": "Example(R) 9000 @ 3 GHz"}, True),
        ({"accelerator_model_name": "NVIDIA A100-SXM4-80GB (400 W)", "accelerators_per_node": "2"}, True),
        ({"accelerator_model_name": "NVIDIA A100-SXM4-40GB", "accelerators_per_node": "2"}, False),
        ({"accelerator_model_name": "NVIDIA A100-SXM4-80GB", "accelerators_per_node": "8"}, False),
    ],
)
def test_log_and_system_description_must_agree(changes, good: bool, tmp_path: Path, capsys) -> None:
    gpus = json.dumps([{"name": "NVIDIA A100-SXM4-80GB", "memory_gib": 80.0, "driver": "520.61.05"}] * 2)
    text = make_log.run()
    [path] = write(tmp_path, text.replace('"gpus": []', f'"gpus": {gpus}') if len(changes) > 1 else text)
    status, [file] = check(capsys, path, "--system", description(tmp_path, **changes))
    assert (status, rules_broken(file)) == ((0, set()) if good else (1, {"system-description"}))


@pytest.mark.parametrize(("faster", "found"), [(1, False), (10, True)])
def test_no_run_is_faster_than_its_described_cards(faster: int, found: bool, tmp_path: Path, capsys) -> None:
    """A published rate of 8 A100, 26,500 images/s, and ten times that; of a log without epochs, too."""
    log = Altered(foreign(make_log.closed_run(epoch_ms=48_300 // faster))).drop_all("epoch_start", "epoch_stop")
    [path] = write(tmp_path, log.text)
    for card, known in (("NVIDIA A100-SXM4-80GB", True), ("Other 9", False)):
        cards = {"accelerators_per_node": "8", "accelerator_model_name": card}
        _, [file] = check(capsys, path, "--system", description(tmp_path, division="closed", **cards))
        assert ("system-description" in rules_broken(file)) == (found and known)
