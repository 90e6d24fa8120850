"""Fast steps of an acceptance beside the plain one: units, merged LARS, and a captured step."""

import contextlib
import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness import env, workload
from harness.job import job_of, with_values
from program import build
from program.strategy import in_words
from tests import jobs
from tests.null_gpu import door
from tests.tools.test_acceptance import GOLDEN, SHORT, Accepted, planned
from tools.acceptance import CHECKS, fast
from tools.acceptance import checks as acceptance
from tools.acceptance.machine import Machine, NotPossible

CONTROLS = str(Path(__file__).with_name("fast_controls.py"))


def with_one(change: float) -> np.ndarray:
    """The recorded losses of two ranks, one of which is off."""
    losses = np.array([GOLDEN, GOLDEN], np.float32)
    losses[1, 9] += np.float32(change)
    return losses


EXACT, STILL, NAN = with_one(0), *(np.full((2, 4), loss, np.float32) for loss in (2.5, np.nan))


@pytest.mark.parametrize(
    ("launched", "replayed", "status", "said"),
    [
        (EXACT, EXACT, "ok", "20 of 20 losses alike bit for bit"),
        (EXACT, with_one(np.spacing(EXACT[1, 9])), "fatal", "1 of 20 losses differ, first at step 10, by "),
        (EXACT, with_one(np.nan), "fatal", "1 of 20 losses differ, first at step 10, by nan"),
        (STILL, STILL, "fatal", "4 losses are alike, and none differs from the one before: nothing was trained"),
        (NAN, NAN, "fatal", "a launched step's loss is not finite"),
    ],
    ids=["alike", "one bit", "nan", "nothing trained", "not finite"],
)
def test_losses_of_a_captured_step_are_the_launched_ones_in_every_bit(
    launched: np.ndarray, replayed: np.ndarray, status: str, said: str
) -> None:
    verdict = acceptance.judge_replayed_losses(launched, replayed)
    assert verdict.status == status and verdict.found.startswith(said)


def test_a_captured_step_is_the_last_check_of_its_job() -> None:
    assert all(checks[-1] == "captured" and "captured" not in checks[:-1] for checks in CHECKS.values())


@pytest.mark.null_gpu
@pytest.mark.xdist_group("ranks")
def test_a_captured_step_stands_beside_the_launched_one(tmp_path: Path) -> None:
    """On two null GPUs, which compute nothing: both have all of its steps, and what was not trained has not passed."""
    copy = planned(tmp_path, '{"amp_o2": ("captured",)}')
    settings = {**door.FEW, "DGXNGPU": 2, "NULLGPU_OUT": tmp_path}
    (line,) = Accepted(1, tmp_path, str(door.RUN), "./run_and_time.sh", "--acceptance", cwd=copy, **settings).lines
    assert line["found"] == "20 losses are alike, and none differs from the one before: nothing was trained"
    assert np.shape(line["figures"]["replayed"]) == (2, 20)
    for process in door.read(tmp_path):
        launched = [step for step in process.training if step.of("cudnn work")]
        assert (len(launched), len(process.replayed)) == (20, 20)
        assert all(step.counts["graph", "launch"] == 1 for step in process.replayed)
        everything = sum((step.counts for step in process.steps), start=Counter[tuple[str, str]]())
        assert not everything["graph", "refused"] and not everything["graph", "stale copy"]


# ---- units and merged LARS beside the plain step


class Trained:
    """A stand-in of a machine: each training has the next one of the losses that are given."""

    def __init__(self, *losses: np.ndarray, precision: str) -> None:
        self.job = job_of(device="gpu", precision=precision)
        self.kept_by_check = {"losses": EXACT}
        self.trainings: list[tuple[str, str]] = []  # STRATEGY and optimizer of each
        self._losses = list(losses)

    def plan(self, **values: str) -> build.Plan:
        return workload.plan_of(with_values(self.job, **values))

    def kept_by(self, check: str) -> np.ndarray:
        return self.kept_by_check[check]

    def train(self, plan: build.Plan, other_recipe: Any = None) -> np.ndarray:
        optimizer = other_recipe.optimizer.kind if other_recipe else "sgd"
        self.trainings.append((in_words(plan.strategy), optimizer))
        return self._losses.pop(0)


def moved(tolerance: acceptance.Tolerance, share: float) -> np.ndarray:
    """Losses of two ranks, one of which is off by this share of what is tolerated."""
    losses = EXACT.copy()
    losses[1] *= 1 + share * tolerance.by_step(20)
    return losses


@pytest.mark.parametrize(("share", "status"), [(0.0, "ok"), (0.9, "ok"), (1.1, "fatal")])
def test_units_are_compared_with_the_losses_of_the_plain_step(share: float, status: str) -> None:
    machine: Any = Trained(moved(fast.UNITS, share), precision="amp_o2")
    assert fast.units(machine).status == status
    assert machine.trainings == [("resnet_unit=1", "sgd")]


@pytest.mark.parametrize(("share", "status"), [(0.0, "ok"), (0.9, "ok"), (1.1, "fatal")])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp_o1", "amp_o2"])
def test_merged_lars_is_compared_with_an_update_a_parameter(precision: str, share: float, status: str) -> None:
    tolerance = fast.LARS_FP32 if precision == "fp32" else fast.LARS_ROUNDED
    machine: Any = Trained(EXACT, moved(tolerance, share), precision=precision)
    verdict = fast.lars(machine)
    assert verdict.status == status
    assert ("TF32" in verdict.wanted) == (precision != "fp32")
    assert machine.trainings == [("", "lars"), ("merged_lars=1", "lars")]


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (STILL, "4 losses are alike, and none differs from the one before: nothing was trained"),
        (NAN, "a plain step's loss is not finite"),
    ],
)
def test_steps_that_train_nothing_do_not_pass(losses: np.ndarray, said: str) -> None:
    machine: Any = Trained(losses, losses, precision="amp_o2")
    verdict = fast.lars(machine)
    assert (verdict.status, verdict.found) == ("fatal", said)


@pytest.mark.parametrize(
    ("capability", "lacks"),
    [(80, ""), (86, ""), (89, ""), (70, r"resnet_unit needs compute capability 8\.0 to 8\.9, not 7\.0")],
)
def test_units_run_on_the_gpus_that_have_their_kernel(capability: int, lacks: str) -> None:
    machine: Any = SimpleNamespace(job=job_of(device="gpu", precision="amp_o2"), capabilities=[capability])
    with pytest.raises(NotPossible, match=lacks) if lacks else contextlib.nullcontext():
        Machine.raise_if_not_possible(machine, "units")


def test_no_job_of_a_cpu_has_units() -> None:
    """Paddle has no CPU kernel of them, so they can never be ok there."""
    on_cpu = [precision for precision in CHECKS if not env.refusal(DEVICE="cpu", PRECISION=precision)]
    assert on_cpu == ["fp32"] and "units" not in CHECKS["fp32"]
    assert all("units" in CHECKS[precision] for precision in ("amp_o1", "amp_o2"))


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("faulty", [False, True])
def test_merged_lars_passes_on_a_cpu_and_a_faulty_one_fails(faulty: bool, tmp_path: Path) -> None:
    copy = planned(tmp_path, '{"fp32": ("lars",)}')
    if faulty:
        (copy / "program").unlink()
        shutil.copytree(jobs.REPOSITORY / "program", copy / "program")
        updates = copy / "program" / "passes" / "updates.py"
        text = updates.read_text()
        decays = 'attrs["lars_weight_decay"] += op.attr("lars_weight_decay")'
        assert decays in text
        updates.write_text(text.replace(decays, 'attrs["lars_weight_decay"] += [0.0]'))
    (line,) = Accepted(int(faulty), tmp_path, *SHORT, cwd=copy, THREADS=1).lines
    assert line["status"] == ("fatal" if faulty else "ok"), line["found"]


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize(
    ("control", "tolerance"),
    [("lars", fast.LARS_FP32), ("lars-half", fast.LARS_ROUNDED), ("units", fast.UNITS)],
)
def test_a_control_takes_an_eighth_of_its_tolerance(control: str, tolerance: acceptance.Tolerance) -> None:
    """As the CPU that set it found, within a factor of two."""
    done = jobs.on_ranks(1, CONTROLS, control, timeout_s=1800, THREADS=1, HANG_TIMEOUT_S=0)
    assert done.returncode == 0, done.stderr[-3000:]
    changes = np.array(json.loads(done.stdout.splitlines()[-1]))
    assert changes.any()
    assert (changes / tolerance.by_step(20)).max() < 1 / 4, changes.tolist()
