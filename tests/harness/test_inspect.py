"""`python -m harness.inspect`: counts of the published configurations against golden ones, goals, and its errors."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import inspect
from tests.harness import golden_programs, programs
from tests.jobs import REPOSITORY, environment

GOLDEN = json.loads(golden_programs.GOLDEN.read_text())
# Leaner than the best public programs on this wheel (docs/program.md): kernel operators, casts, GB a step.
GOALS = {
    "amp_o2_b256_n8": (262, 2, 69.5),  # the best public one: 69.7
    "amp_o1_b256_n8": (370, 117, 70.0),
    "fp32_b256_n8": (365, 0, 175.0),
    "tf32_b256_n8": (365, 0, 175.0),
}


@pytest.mark.parametrize("name", ["amp_o2_b256_n8", "amp_o1_b256_n8", "fp32_b256_n8", "fp32_b128_n1"])
def test_a_published_configuration_has_its_golden_counts(name: str) -> None:
    assert golden_programs.count(*golden_programs.PUBLISHED[name]) == GOLDEN[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hrnet_fp32_b2_n1", "hrnet_fp32_b8_n8", "hrnet_amp_o1_b8_n8", "hrnet_amp_o2_b8_n8"])
def test_a_published_configuration_of_hrnet_has_its_golden_counts(name: str) -> None:
    assert golden_programs.count(*golden_programs.PUBLISHED[name]) == GOLDEN[name]


def test_hrnets_program_is_leaner_than_a_plain_construction() -> None:
    """Of PaddleSeg's model: 3,263 operators and 28.7 GB a step at batch 2 in FP32."""
    found = GOLDEN["hrnet_fp32_b2_n1"]
    assert found["all_operators"] < 3263
    assert found["bytes_gb"] < 28.7
    assert found["casts"] <= 3  # of labels, and none of images
    assert found["transposes"] == 0


def test_hrnets_normalizations_span_the_ranks_in_every_precision() -> None:
    for name in ("fp32", "amp_o1", "amp_o2"):
        operators = GOLDEN[f"hrnet_{name}_b8_n8"]["operators"]
        assert operators["sync_batch_norm"] == operators["sync_batch_norm_grad"] == 306
        assert "batch_norm" not in operators
    alone = GOLDEN["hrnet_fp32_b8_n1"]["operators"]
    assert alone["batch_norm"] == 306 and "sync_batch_norm" not in alone


def test_hrnets_half_precision_moves_little_more_than_half_the_bytes() -> None:
    full, *halves = (GOLDEN[f"hrnet_{name}_b8_n8"] for name in ("fp32", "amp_o1", "amp_o2"))
    for half in halves:
        assert half["bytes_gb"] < 0.56 * full["bytes_gb"]
    o1, o2 = halves
    assert o1["casts"] - o2["casts"] == 2 * o1["operators"]["conv2d"]  # weights and their gradients


def test_gradients_of_sums_are_no_copies() -> None:
    for name in ("fp32_b256_n8", "tf32_b256_n8"):
        assert "fused_elemwise_add_activation_grad" not in GOLDEN[name]["operators"]
    assert GOLDEN["hrnet_fp32_b8_n8"]["operators"]["fused_elemwise_add_activation_grad"] == 1
    assert GOLDEN["hrnet_fp32_b8_n8"]["operators"]["elementwise_add_grad"] == 7


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
    # Statistics first, then the output: the image is read twice, and its gradient too.
    assert works["batch_norm"].again_bytes == (4 * out,)
    assert works["batch_norm_grad"].again_bytes == (4 * out, 4 * out)
    assert works["relu"].again_bytes == ()
    parameters = 64 * 3 * 49 + 2 * 64 + 65 * programs.CLASSES
    # Parameters and velocities are read and written, gradients are read.
    assert works["merged_momentum"].moved_bytes == 4 * 5 * parameters


def test_an_all_reduce_reads_and_writes_its_bucket() -> None:
    for knobs, bytes_ in (("", 4), ("fp16_allreduce=1", 2)):
        main = programs.build(device="gpu", ranks=8, knobs=knobs).main
        sent = [w.moved_bytes for w in inspect.works(main) if w.kind == "c_allreduce_sum"]
        elements = sum(math.prod(p.shape) for p in main.all_parameters() if p.trainable)
        assert sum(sent) == 2 * bytes_ * elements
        casts = [w.moved_bytes for w in inspect.works(main) if w.kind == "cast" and w.role & inspect.BACKWARD_ROLE]
        assert sum(casts) == (2 * 6 * elements if knobs else 0)  # to FP16 and back


def test_a_transpose_is_counted() -> None:
    import paddle
    from paddle import static

    built = programs.build(stages=())
    with static.program_guard(built.main, built.startup):
        paddle.transpose(built.main.global_block().var("image"), [0, 2, 3, 1])
    assert inspect.describe(built.main)["transposes"] == 1


def test_the_roofline_counts_every_micro_step() -> None:
    once, merged = (
        inspect.estimate(
            inspect.in_order(programs.build(name="amp_o2", device="gpu", ranks=8, batch=batch, knobs=knobs).main),
            math_mode="float16",
            batch=batch,
            ranks=8,
            device=inspect.DEVICES[0],
        )
        for batch, knobs in ((4, ""), (8, "gradient_merge=2"))
    )
    assert once and merged
    assert merged["flops_time_s"] == pytest.approx(2 * once["flops_time_s"])
    assert once["step_time_s"] < merged["step_time_s"] - once["step_time_s"] / 2


def test_the_roofline_knows_what_a_device_lacks_and_what_hides_behind_the_backward_pass() -> None:
    built = programs.build(name="amp_o2", device="gpu", ranks=8)
    operators, v100 = inspect.in_order(built.main), inspect.DEVICES[0]
    found = inspect.estimate(operators, math_mode="float16", batch=4, ranks=8, device=v100)
    assert found is not None
    assert found["step_time_s"] >= max(found["flops_time_s"], found["bytes_time_s"])
    assert 0 < found["exposed_all_reduce_s"] < found["step_time_s"]
    small, large = (
        inspect.estimate(
            operators,
            math_mode="float16",
            batch=4,
            ranks=8,
            device=dataclasses.replace(v100, on_chip_bytes=size),
        )
        for size in (0, v100.on_chip_bytes)
    )
    assert small and large == found
    again_s = sum(sum(w.again_bytes) for w in inspect.works(built.main)) / v100.memory_bytes_per_s
    assert small["bytes_time_s"] == pytest.approx(found["bytes_time_s"] + again_s)
    assert inspect.estimate(operators, math_mode="tf32", batch=4, ranks=8, device=v100) is None
    assert inspect.estimate(operators, math_mode="float16", batch=4, ranks=16, device=v100) is None
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
    for entry, (rate, published) in zip(found["estimate"], ((1000.0, [800.0]), (None, []), (500.0, [])), strict=True):
        entry["images_per_s"] = rate
        entry["published"] = [{"images_per_s": p, "table": "t", "error": rate / p - 1} for p in published if rate]
    shown = inspect.text(found | {"micro_steps": 2}).splitlines()
    assert "counted is the last of 2 micro-steps, which has the update" in shown
    assert "casts          2" in shown and "transposes     0" in shown
    assert sum(line.endswith("are left to hide it") for line in shown) == len(found["buckets"])
    assert "  V100 32 GB: 1000 images/s; 800 published (t), error +25 %" in shown
    assert "  A100 40 GB: no estimate (no such arithmetic, or beyond one node)" in shown
    assert "  A100 80 GB: 500 images/s; no figure" in shown


def test_a_config_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config_BAD.sh").write_text('echo "no such file" >&2\nfalse\n')
    monkeypatch.setattr(inspect, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"config_BAD\.sh: no such file: correct the file"):
        inspect.system_environment("BAD")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--system", "NONE"), "there is no config_NONE.sh; there are:"),
        (("--system", "DGXA100", "--ranks", "0"), "DGXNGPU=0: must be at least 1"),
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
