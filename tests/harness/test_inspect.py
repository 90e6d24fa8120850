"""`python -m harness.inspect`: counts of the published configurations against golden ones, goals, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from harness import inspect
from tests.harness import golden_programs, programs
from tests.jobs import REPOSITORY, environment

GOLDEN = json.loads(golden_programs.GOLDEN.read_text())
# Leaner than the best public programs on this wheel (docs/program.md): kernel operators, casts, GB a step.
GOALS = {
    "amp_o2_b256_n8": (262, 2, 69.05),
    "amp_o1_b256_n8": (370, 117, 70.0),
    "fp32_b256_n8": (365, 0, 205.0),
    "tf32_b256_n8": (365, 0, 205.0),
}


@pytest.mark.parametrize("name", ["amp_o2_b256_n8", "amp_o1_b256_n8", "fp32_b256_n8", "fp32_b128_n1"])
def test_a_published_configuration_has_its_golden_counts(name: str) -> None:
    assert golden_programs.count(*golden_programs.PUBLISHED[name]) == GOLDEN[name]


@pytest.mark.parametrize("name", GOALS)
def test_the_program_is_leaner_than_the_public_ones(name: str) -> None:
    operators, casts, gigabytes = GOALS[name]
    found = GOLDEN[name]
    assert found["kernel_operators"] <= operators
    assert found["casts"] <= casts
    assert found["transposes"] == 0
    assert found["bytes_gb"] <= gigabytes
    assert found["all_reduces"] < 21
    buckets = found["buckets"]
    assert buckets[0]["issued_after_operators"] <= 0.05
    assert buckets[-1]["mib"] <= 1.0
    assert max(b["mib"] for b in buckets) <= 16.0


def test_flops_and_bytes_are_those_counted_by_hand() -> None:
    built = programs.build(stages=())  # stem, pool, fc
    works = {w.kind: w for w in inspect.works(built.main)}
    batch, side = programs.BATCH, programs.SIDE // 2
    assert works["conv2d"].flops == 2 * batch * side * side * 64 * 3 * 7 * 7
    assert works["conv2d_grad"].flops == works["conv2d"].flops  # the image needs no gradient
    image, weights, out = batch * 3 * (2 * side) ** 2, 64 * 3 * 49, batch * 64 * side * side
    assert works["conv2d"].moved_bytes == 4 * (image + weights + out)
    assert works["relu"].moved_bytes == 4 * 2 * out
    assert works["mul"].flops == 2 * batch * 64 * programs.CLASSES
    assert works["mul_grad"].flops == 2 * works["mul"].flops


def test_a_transpose_is_counted() -> None:
    import paddle
    from paddle import static

    built = programs.build(stages=())
    with static.program_guard(built.main, built.startup):
        paddle.transpose(built.main.global_block().var("image"), [0, 2, 3, 1])
    assert inspect.describe(built.main)["transposes"] == 1


def test_the_roofline_knows_what_a_device_lacks_and_what_hides_behind_the_backward_pass() -> None:
    built = programs.build(name="amp_o2", device="gpu", ranks=8)
    v100 = inspect.DEVICES[0]
    found = inspect.estimate(built.main, math_mode="float16", batch=4, ranks=8, device=v100)
    assert found is not None
    assert found["step_time_s"] >= max(found["flops_time_s"], found["bytes_time_s"])
    assert 0 < found["exposed_all_reduce_s"] < found["step_time_s"]
    assert inspect.estimate(built.main, math_mode="tf32", batch=4, ranks=8, device=v100) is None
    assert inspect.estimate(built.main, math_mode="float16", batch=4, ranks=16, device=v100) is None
    figures = inspect.published(v100, workload="rn50", precision="fp32", batch=256, ranks=1)
    assert [f["images_per_s"] for f in figures] == [393.561]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.inspect", *arguments],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_command_prints_json() -> None:
    done = run("--system", "DGXA100", "--workload", "rn50", "--precision", "amp_o2", "--batch", "32", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert {"operators", "transposes", "casts", "all_reduces", "all_reduce_mib", "fused", "bytes_gib", "flops"} <= set(
        found
    )
    assert found["ranks"] == 8 and found["batch_per_device"] == 32
    assert found["verified"][0] == "161 gradients summed over 8 ranks once, scaled by 1/8 once"
    assert [e["device"] for e in found["estimate"]] == ["V100 32 GB", "A100 40 GB", "A100 80 GB"]
    assert all("not measured" in e["kind"] for e in found["estimate"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--system", "NONE"), "there is no config_NONE.sh; there are:"),
        (("--system", "DGXA100", "--ranks", "0"), "must be a whole number"),
        (("--system", "DGXA100", "--batch", "0"), "BATCHSIZE=0: must be at least 1"),
        (("--system", "DGXA100", "--strategy", "fuse_bn_act_ops=1", "--precision", "fp32"), "takes FP16 in NHWC only"),
        (("--system", "DGXA100", "--strategy", "localsgd=1"), "localsgd is refused"),
    ],
)
def test_wrong_use_ends_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and words in lines[0]
    assert "Traceback" not in done.stderr
