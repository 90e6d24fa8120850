"""`python -m tools.inspect`: counts of the published configurations against golden ones, goals, and its errors.

python -m tests.tools.test_inspect [NAME...]   writes golden/programs.json anew; look at the difference
"""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import paddle
import pytest
import yaml
from paddle import static

from harness import env
from harness.job import job_of
from program import count
from program.ops import size_bytes
from scoring.published.table import figures_of, nearest, read_cards, read_published, select
from tests import jobs
from tests.program import programs
from tools import inspect
from tools import roofline as rooflines

GOLDEN_FILE = Path(__file__).with_name("golden") / "programs.json"
# Precision, images a device and ranks of each figure of Paddle's on one node that says its precision, where it says AMP
# and no level of both; PaddleSeg's recipe (batch 2), and O1 beside HRNet's O2. The system changes no program.
PUBLISHED = sorted(
    {"hrnet_fp32_b2_n1", "hrnet_amp_o1_b8_n8"}
    | {
        f"{'hrnet_' if 'hrnet' in row.model else ''}{precision}_b{row.batch_per_device}_n{row.devices}"
        for row in select(read_published(), metric="throughput")
        if row.framework.startswith("Paddle") and row.precision and row.devices and row.devices <= 8
        for precision in (("amp_o1", "amp_o2") if row.precision == "amp" else (row.precision,))
    }
)
KEPT = (
    *("operators", "kernel_operators", "all_operators", "transposes", "casts", "all_reduces", "all_reduce_mib"),
    *("fused", "bytes_gb", "addto_reads_gb", "flops"),
)
GOLDEN = json.loads(GOLDEN_FILE.read_text())
CARDS = read_cards()
CARD_OF_KIND = {(card.name, card.memory_gib): card for card in CARDS}
V100_32, A100_40 = CARD_OF_KIND["V100", 32], CARD_OF_KIND["A100", 40]
# Leaner than the best public programs on this wheel (docs/program.md): kernel operators, casts, GB a step.
GOALS = {
    "amp_o2_b256_n8": (262, 2, 69.5),  # the best public one: 69.7
    "amp_o1_b256_n8": (370, 117, 70.0),
    "fp32_b256_n8": (365, 0, 175.0),
    "tf32_b256_n8": (365, 0, 175.0),
    "hrnet_fp32_b2_n1": (3262, 3, 28.7),  # a plain construction of PaddleSeg's: 3,263; casts of labels, none of images
}


# Slow are all but ResNet-50's largest batch on all GPUs, and on one in the precision that is the fastest.
FAST = [name for name in PUBLISHED if re.fullmatch(r"\w+_b256_n8|amp_o2_b256_n1", name) and "hrnet" not in name]


def counted(name: str) -> dict[str, Any]:
    """The kept counts of one configuration."""
    parts = re.fullmatch(r"(hrnet_)?(\w+)_b(\d+)_n(\d+)", name)
    assert parts is not None, name
    hrnet, precision, batch, ranks = parts.groups()
    recipe = "cityscapes_80k" if batch == "2" else "cityscapes_benchmark"
    workload = {"WORKLOAD": "hrnet", "RECIPE": recipe} if hrnet else {}
    sizes = {"PRECISION": precision, "BATCHSIZE": batch, "DGXNNODES": "1", "DGXNGPU": ranks}
    found = count.counts_of(inspect.build(env.of_system(DGXSYSTEM="DGXA100", **workload, **sizes)).main)
    kept = {key: found[key] for key in KEPT}
    for key in ("all_reduce_mib", "bytes_gb", "addto_reads_gb"):
        kept[key] = round(kept[key], 4)
    of_bucket = ("mib", "issued_after_operators", "bytes_left_to_hide_it")
    return kept | {"buckets": [{key: round(bucket[key], 4) for key in of_bucket} for bucket in found["buckets"]]}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in PUBLISHED])
def test_a_published_configuration_has_its_golden_counts(name: str) -> None:
    assert counted(name) == GOLDEN[name]


def test_the_automatic_mode_is_priced_by_its_own_types_and_beside_no_figure() -> None:
    update = programs.build(name="amp_o2", device="gpu", ranks=8).update
    job = job_of(precision="fp32", batchsize=128, dgxngpu=8, strategy="auto")
    for card, entry in zip(CARDS, inspect.estimates(update, job), strict=True):
        assert entry["peaks"]["flops_per_s"] == {"float16": card.float16}
        assert entry["published"] is None


def test_the_nearest_figure_is_of_the_card_and_precision() -> None:
    """FleetX's states no memory, and is of either V100; NVIDIA's AMP states no level, and is of both."""
    found = {
        (precision, f"{card.name} {card.memory_gib}"): row and (row.table, row.value)
        for precision in ("fp32", "amp_o1", "amp_o2")
        for card in CARDS
        for row in [nearest(figures_of(card, model="resnet50_v1.5", precision=precision), batch=120, devices=8)]
    }
    assert {key: figure for key, figure in found.items() if figure} == {
        ("fp32", "V100 16"): ("fleetx", 2506.47),
        ("fp32", "V100 32"): ("fleetx", 2506.47),
        ("amp_o1", "V100 16"): ("fleetx", 7313.09),
        ("amp_o1", "V100 32"): ("fleetx", 7313.09),
        ("amp_o1", "A100 80"): ("nvidia_paddle", 20267.0),
        ("amp_o2", "V100 32"): ("perf_rn50", 10936.815),
        ("amp_o2", "A100 40"): ("perf_rn50", 17587.654),
        ("amp_o2", "A100 80"): ("nvidia_paddle", 20267.0),
    }


@pytest.mark.parametrize("name", GOALS)
def test_the_program_is_leaner_than_the_public_ones(name: str) -> None:
    found, buckets = GOLDEN[name], GOLDEN[name]["buckets"]
    for count_of, goal in zip(("kernel_operators", "casts", "bytes_gb"), GOALS[name], strict=True):
        assert found[count_of] <= goal, count_of
    assert found["transposes"] == 0 and found["all_reduces"] < 21
    assert all(bucket["mib"] <= 16.0 for bucket in buckets)
    assert not buckets or (buckets[0]["issued_after_operators"] <= 0.05 and buckets[-1]["mib"] <= 1.0)


def test_the_config_of_the_closed_division_has_the_fast_program() -> None:
    """Units, merged LARS and a captured step on 8 x 408 images; 127 kernel operators, and 2 that look the rate up."""
    job = env.of_system(DGXSYSTEM="DGXA100_mlperf")
    training = inspect.build(job)
    counts = count.counts_of(training.main)
    made = {kind: counts["operators"][kind] for kind in ("resnet_unit", "lars_momentum", "gather", "increment")}
    assert made == {"resnet_unit": 48, "lars_momentum": 3, "gather": 1, "increment": 1}
    assert (counts["kernel_operators"], counts["casts"], counts["all_reduces"]) == (129, 2, 6)
    assert counts["bytes_gb"] == pytest.approx(101.12, abs=0.01)
    proved = "; ".join(training.verified)
    assert "a fixed loss scale of 4096 taken off by the update" in proved
    assert "cuda_graph: 337 operators that a graph can hold" in proved


def test_flops_and_bytes_are_those_counted_by_hand() -> None:
    works = {w.kind: w for w in count.works(programs.build(stages=()).main)}  # stem, pool, fc
    batch, side = programs.BATCH, programs.SIDE // 2
    assert works["conv2d"].flops == 2 * batch * side * side * 64 * 3 * 7 * 7
    assert works["conv2d_grad"].flops == works["conv2d"].flops  # the image needs no gradient
    image, weights, out = batch * 3 * (2 * side) ** 2, 64 * 3 * 49, batch * 64 * side * side
    assert works["conv2d"].moved_bytes == 4 * (image + weights + out)
    assert works["relu"].moved_bytes == 4 * 2 * out
    assert works["mul"].flops == 2 * batch * 64 * programs.CLASSES
    assert works["mul_grad"].flops == 2 * works["mul"].flops
    # Statistics first, then the output: the image is read twice, and its gradient too.
    again = {kind: works[kind].twice_read_sizes for kind in ("batch_norm", "batch_norm_grad", "relu")}
    assert again == {"batch_norm": [4 * out], "batch_norm_grad": [4 * out, 4 * out], "relu": []}
    parameters = 64 * 3 * 49 + 2 * 64 + 65 * programs.CLASSES
    # Parameters and velocities are read and written, gradients are read.
    assert works["merged_momentum"].moved_bytes == 4 * 5 * parameters


def test_traffic_adds_what_a_second_kernel_reads() -> None:
    main = programs.build(name="amp_o2", device="gpu", ranks=8, knobs="enable_addto=1").main
    block = main.global_block()
    found = [(block.ops[work.index], work) for work in count.works(main)]
    gradients = [(op, work) for op, work in found if work.kind == "conv2d_grad"]
    for op, work in gradients:
        arrives, made = size_bytes(block.var(op.input("Output@GRAD")[0])), op.output("Input@GRAD")
        added = size_bytes(block.var(made[0])) if made and op.attr("use_addto") else 0
        assert (work.reread_bytes, work.added_to_bytes) == (arrives if made else 0, added)
    assert {bool(op.attr("use_addto")) for op, _ in gradients} == {False, True}
    (norm, *_) = (work for _, work in found if work.kind == "fused_batch_norm_act")
    assert norm.traffic_bytes(on_chip_bytes=0) == norm.moved_bytes + sum(norm.twice_read_sizes)
    assert norm.traffic_bytes(on_chip_bytes=2**40) == norm.moved_bytes
    by_class = inspect.traffic_gb(rooflines.operators_in_order((main,)), V100_32)
    assert {"convolution", "convolution gradient", "batch norm gradient", "optimizer", "all-reduce"} <= set(by_class)


def test_synchronized_statistics_are_read_for_apart_and_a_transpose_is_counted() -> None:
    built = programs.build(device="gpu", ranks=8, stages=())
    for op in built.main.global_block().ops:
        if op.type in ("batch_norm", "batch_norm_grad"):
            op.desc.set_type(f"sync_{op.type}")
    forward, backward = (w for w in count.works(built.main) if w.kind.startswith("sync_batch_norm"))
    (image,), both = forward.twice_read_sizes, backward.twice_read_sizes
    assert forward.traffic_bytes(2**40) == forward.moved_bytes + image
    assert backward.traffic_bytes(2**40) == backward.moved_bytes + 2 * sum(both)
    with static.program_guard(built.main, built.startup):
        paddle.transpose(built.main.global_block().var("image"), [0, 2, 3, 1])
    assert count.counts_of(built.main)["transposes"] == 1


def roofline(main_or_update: Any, *, card: Any = V100_32, tf32: bool = False, batch: int = 4, ranks: int = 8) -> Any:
    operators = rooflines.operators_in_order(main_or_update)
    return rooflines.roofline(operators, tf32=tf32, batch=batch, ranks=ranks, card=card)


def test_the_roofline_counts_every_micro_step() -> None:
    once, merged = (
        roofline(programs.build(name="amp_o2", device="gpu", ranks=8, batch=batch, knobs=knobs).update, batch=batch)
        for batch, knobs in ((4, ""), (8, "gradient_merge=2"))
    )
    assert merged["flops_time_s"] == pytest.approx(2 * once["flops_time_s"])
    assert once["step_time_s"] < merged["step_time_s"] - once["step_time_s"] / 2


def test_the_roofline_knows_what_a_device_lacks_and_what_hides_behind_the_backward_pass() -> None:
    main = programs.build(name="amp_o2", device="gpu", ranks=8).main
    found = roofline((main,))
    assert found["step_time_s"] >= max(found["flops_time_s"], found["bytes_time_s"])
    assert 0 < found["exposed_all_reduce_s"] < found["step_time_s"]
    small, large = (
        roofline((main,), card=dataclasses.replace(V100_32, on_chip_kib=size)) for size in (0, V100_32.on_chip_kib)
    )
    assert large == found
    again_s = sum(sum(w.twice_read_sizes) for w in count.works(main)) / V100_32.memory_bytes_per_s
    assert small["bytes_time_s"] == pytest.approx(found["bytes_time_s"] + again_s)
    assert roofline((main,), ranks=16) is None
    full = programs.build(device="gpu", ranks=8).update
    assert roofline(full, tf32=True) is None
    plain, tf32 = (roofline(full, tf32=tf32, card=A100_40) for tf32 in (False, True))
    assert plain["flops_time_s"] == pytest.approx(156 / 19.5 * tf32["flops_time_s"])


def test_all_reduces_beside_the_backward_pass_cost_less_than_alone_and_more_on_a_narrow_network() -> None:
    """The first and the last row by hand."""
    operators = rooflines.operators_in_order(programs.build(name="amp_o2", device="gpu", ranks=8).update)
    summed_bytes = sum(operation.summed_bytes or 0 for operation in operators)
    narrow, wide = (
        rooflines.scaling(operators, tf32=False, card=V100_32, network_bytes_per_s=rate) for rate in (1e8, 1e12)
    )
    assert narrow and wide
    assert [row["gpus"] for row in narrow] == [8, 16, 32, 64]
    first, last = narrow[0], narrow[-1]
    assert first["all_reduce_s"] == pytest.approx(2 * 7 / 8 * summed_bytes / V100_32.link_bytes_per_s)
    assert last["all_reduce_s"] == pytest.approx(2 * 63 / 64 * summed_bytes / 1e8)
    assert wide[-1]["all_reduce_s"] == pytest.approx(2 * 63 / 64 * summed_bytes / V100_32.link_bytes_per_s)
    alone_s = first["step_time_s"] - first["exposed_all_reduce_s"]
    assert last["of_linear"] == pytest.approx(first["step_time_s"] / (alone_s + last["exposed_all_reduce_s"]))
    unhidden = (alone_s + first["all_reduce_s"]) / (alone_s + last["all_reduce_s"])
    assert last["of_linear_nothing_hidden"] == pytest.approx(unhidden)
    for row in (*narrow, *wide):
        assert 0 < row["exposed_all_reduce_s"] < row["all_reduce_s"]
    assert last["of_linear"] < narrow[1]["of_linear"] < wide[1]["of_linear"] <= 1
    assert (
        rooflines.scaling(
            rooflines.operators_in_order(programs.build(device="gpu", ranks=8).update),
            tf32=True,
            card=V100_32,
            network_bytes_per_s=1e9,
        )
        is None
    )


def test_a_captured_step_hides_nothing() -> None:
    operators = rooflines.operators_in_order(
        programs.build(name="amp_o2", device="gpu", ranks=8, knobs="cuda_graph=1").update
    )
    rows = rooflines.scaling(operators, tf32=False, card=V100_32, network_bytes_per_s=1e9)
    assert rows
    for row in rows:
        assert row["exposed_all_reduce_s"] == pytest.approx(row["all_reduce_s"])
        assert row["of_linear"] == pytest.approx(row["of_linear_nothing_hidden"])


def test_published_scaling_is_that_of_the_card_and_precision() -> None:
    """Perf's 39,972.131 on four nodes of 10,936.815."""
    (perf,) = (
        table
        for table in rooflines.published_scaling(V100_32, model="resnet50_v1.5", precision="amp_o2")
        if "perf_rn50" in table["table"]
    )
    assert perf["of_linear"] == {4: pytest.approx(39972.131 / (4 * 10936.815))}
    assert rooflines.published_scaling(A100_40, model="resnet50_v1.5", precision="amp_o2") == []


def test_the_command_prints_json() -> None:
    job = ("--system", "DGXA100", "--workload", "rn50", "--precision", "amp_o2", "--batch", "32", "--network", "1600")
    command = [sys.executable, "-m", "tools.inspect", *job, "--json"]
    done = jobs.run(command, UCX_LOG_LEVEL="info")  # a library that talks
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.keys() >= {"operators", "transposes", "casts", "all_reduces", "all_reduce_mib", "fused", "flops"}
    assert found["ranks"] == 8 and found["batch_per_device"] == 32
    assert found["verified"][0] == "161 gradients summed over 8 ranks once, scaled by 1/8 once"
    assert found["products"] == {"float16": 108}
    assert [e["device"] for e in found["estimate"]] == ["V100 16 GB", "V100 32 GB", "A100 40 GB", "A100 80 GB"]
    assert all("not measured" in e["kind"] for e in found["estimate"])
    assert all(set(e["traffic_gb"]) >= {"convolution gradient", "optimizer"} for e in found["estimate"])
    assert all([row["gpus"] for row in e["scaling"]] == [8, 16, 32, 64] for e in found["estimate"])
    shown = yaml.safe_load(inspect.text(found))
    assert shown["verified"] == found["verified"] and shown["estimate"][1]["published"]["images_per_s"] == 10936.8
    assert shown["bytes_gb"] == pytest.approx(found["bytes_gb"], rel=1e-5)


def test_more_ranks_than_a_node_has_are_built_by_the_recipes_own_epochs() -> None:
    """The 64 ranks are not those of RANK_NUMA, and 31 epochs of warm-up have 589 steps, of 1,722 to the end rate."""
    job = "--system DGXA100 --recipe mlperf_lars --precision amp_o2 --batch 1024 --ranks 64"
    done = jobs.called(inspect.main, *job.split(), "--json")
    assert done.returncode == 0, done.stderr
    assert "161 gradients summed over 64 ranks once, scaled by 1/64 once" in json.loads(done.stdout)["verified"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--system NONE", "there is no config_NONE.sh; there are:"),
        ("--system DGXA100 --ranks 0", "DGXNGPU=0: must be at least 1"),
        ("--system DGXA100 --batch 0", "BATCHSIZE=0: must be at least 1"),
        ("--system DGXA100 --batch 1000000", "cuDNN takes tensors of 2147483647 at most: lower "),
        ("--system CPU --batch 1000000", "cuDNN takes tensors of 2147483647 at most: lower "),
        ("--system DGXA100 --strategy fuse_bn_act_ops=1 --precision fp32", "takes FP16 in NHWC only"),
        ("--system DGXA100 --network 0", "--network 0: must be above 0 and finite, as 100"),
        ("--system DGXA100 --network inf", "--network inf: must be above 0 and finite, as 100"),
        ("--system DGXA100 --network 100 --ranks 1", "--network: the program of one rank has no all-reduce"),
        ("--system DGXA100 --strategy localsgd=1", "localsgd is refused"),
        ("--system DGX1 --precision amp_o1 --strategy auto --ranks 4", "STRATEGY=auto: "),
    ],
)
def test_wrong_use_ends_in_one_line(arguments: str, words: str) -> None:
    done = jobs.called(inspect.main, *arguments.split())
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, done.stdout) == (2, "") and words in error


def test_transposes_inside_a_kernel_are_counted() -> None:
    """Of NHWC images in another type than FP16: two of a normalization and of a convolution, three of each gradient."""
    for name, layout in (("fp32", "NCHW"), ("amp_o2", "NHWC")):
        main = programs.build(name=name, device="gpu", layout=layout).main
        assert count.counts_of(main)["hidden_transposes_gb"] == 0
    main = programs.build(name="fp32", device="gpu", layout="NHWC").main
    found = {w.kind: w for w in count.works(main)}
    (op,) = [op for op in main.global_block().ops if op.type == "batch_norm"][-1:]
    image = size_bytes(main.global_block().var(op.input("X")[0]))
    assert count.counts_of(main)["hidden_transposes_gb"] > 0
    assert found["batch_norm"].transposed_bytes == 2 * 2 * image and found["batch_norm"].moved_bytes > 3 * 2 * image
    assert found["batch_norm_grad"].transposed_bytes % (2 * 3) == 0


if __name__ == "__main__":
    for name in sys.argv[1:] or PUBLISHED:
        GOLDEN[name] = counted(name)
        print(name, f"{GOLDEN[name]['kernel_operators']} kernel operators, {GOLDEN[name]['bytes_gb']} GB", flush=True)
    GOLDEN_FILE.write_text(json.dumps({name: GOLDEN[name] for name in GOLDEN if name in PUBLISHED}, indent=1) + "\n")
