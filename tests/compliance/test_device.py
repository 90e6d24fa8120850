"""A log whose header calls the device a GPU is of a run on GPUs."""

from collections.abc import Callable

import pytest

from tests.compliance import altered as by
from tests.compliance.altered import Altered
from tests.compliance.test_header_claims import on_gpus
from tests.compliance.test_strict import broken_rules


def _without_memory(log: Altered) -> Altered:
    return by.each(log, "step_window", lambda fields: fields["value"].update(gpu_memory_mib=None))


def _without_choice_of_gpu(log: Altered) -> Altered:
    return by.replaced(log, ('"FLAGS_selected_gpus": "0"', '"FLAGS_new_executor_serial_run": "1"'))


def _with_computing(log: Altered) -> Altered:
    computing = {"compute_least_s": 1.0, "compute_median_s": 1.0, "compute_most_s": 1.0, "compute_rank": 0}
    return log.inside("rank_times", 2, compute_host="node0", **computing)


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (_without_memory, "step_windows without a GPU's memory, of a run on GPUs"),
        (_without_choice_of_gpu, "a run on GPUs, and no FLAGS_selected_gpus in the environment"),
        (_with_computing, "no rank_times of this run: "),
    ],
)
def test_what_only_a_cpu_shows_is_of_no_run_on_gpus(forge: Callable[[Altered], Altered], says: str) -> None:
    assert broken_rules("4.0.0", on_gpus().text) == ({},)
    [found] = broken_rules("4.0.0", forge(on_gpus()).text)
    assert found["own-log"].startswith(says)
