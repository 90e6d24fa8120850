"""Verdicts on the digests of a fleet: a rank that computes wrongly is named with its tensor, and nobody falsely."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest

from harness import env
from harness.job import with_values
from tests import jobs
from tests.harness.recorded import A100 as A100_CARD
from tests.harness.recorded import recorded_nvml
from tests.program import programs
from tests.tools.test_fleet import report
from tests.tools.test_fleet_verdicts import record as record_of
from tools.fleet import arithmetic, digests

TENSORS = ("stem.bn.mean", "fc.w@GRAD", "fc.w")
STEPS = 10
PADDLE = f"Paddle {paddle.__version__}"
A100, V100, T4 = "A100, driver 525", "V100, driver 525", "T4, driver 525"
Flip = tuple[int, str, int]  # step from 1, tensor, bit
Repetitions = list[Flip | None]  # of a rank; None: the right bits


def from_json(flip: Flip | None, kind: str) -> list[list[str]]:
    """The digests of a repetition on a class of GPUs, with one bit flipped or none."""
    rng = np.random.default_rng(list(kind.encode()))
    table = []
    for step in range(1, STEPS + 1):
        values = {tensor: rng.standard_normal(50, dtype=np.float32) for tensor in TENSORS}
        if flip and flip[0] == step:
            values[flip[1]].view(np.uint32)[7] ^= 1 << flip[2]
        table.append([digests.digest(values[tensor]) for tensor in TENSORS])
    return table


def fleet(
    kinds: Sequence[str | None], wrong: dict[int, Repetitions] | None = None, ranks_of_a_node: int = 1
) -> dict[str, Any]:
    """A record of a fleet at equal speed whose ranks are of these classes; those in `wrong` have these repetitions."""
    tables: dict[str, Any] = {}
    ranks = []
    for rank, kind in enumerate(kinds):
        repetitions: dict[str, int] = {}
        for flip in (wrong or {}).get(rank, [None] * 4):
            table = from_json(flip, kind or "")
            name = digests.result_name(table)
            tables[name] = table
            repetitions[name] = repetitions.get(name, 0) + 1
        ranks.append(
            {
                **{"rank": rank, "unit": rank // ranks_of_a_node, "node": f"n{rank // ranks_of_a_node}"},
                **{"device": f"GPU0, GPU-{rank:04}", "class": kind, "repetitions": repetitions, "failure": None},
            }
        )
    of_all = {"steps": STEPS, "tensors": TENSORS, "tables": tables, "ranks": ranks, "took_s": 60.0}
    return record_of(len(kinds) // ranks_of_a_node) | {"digests": of_all}


def judged(folder: Path, record: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The status of each node's arithmetic by the command, and what was found."""
    document = json.loads(report(folder, record, "--json").stdout)
    verdicts = {v["where"]: v for v in document["verdicts"] if v["check"] == "arithmetic"}
    return {where: v["status"] for where, v in verdicts.items()}, {where: v["found"] for where, v in verdicts.items()}


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("bit", [0, 12, 30], ids=["low", "middle", "exponent"])
@pytest.mark.parametrize("often", [1, 4])
def test_a_flipped_bit_is_named_with_its_rank_and_tensor(tensor: str, bit: int, often: int, tmp_path: Path) -> None:
    step = 7 if often == 1 else 1
    repetitions: Repetitions = [None] * (4 - often) + [(step, tensor, bit)] * often
    hosts = tmp_path / "hosts"
    record = fleet([A100] * 4, {2: repetitions})
    done = report(tmp_path, record, "--write-hosts", hosts, "--html", tmp_path / "page.html")
    assert done.returncode == 1
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("fatal")]
    assert "arithmetic  node2  rank 2 on n2 (GPU0, GPU-0002) computes wrongly" in said
    assert f"{often} of 4 repetitions differ from " in said and " of 4 ranks of its class" in said
    assert f"first in step {step} in the " in said and said.endswith(f" {tensor}")
    assert hosts.read_text() == "node0\nnode1\nnode3\n# node2: fatal\n"
    assert f"first in step {step} in the " in (tmp_path / "page.html").read_text()


def test_the_first_tensor_of_the_first_step_is_named(tmp_path: Path) -> None:
    record = fleet([A100] * 4, {1: [(3, "fc.w", 5), (3, "fc.w@GRAD", 5), (9, "stem.bn.mean", 5)]})
    _, found = judged(tmp_path, record)
    assert found["node1"].endswith("first in step 3 in the gradient fc.w@GRAD")


def test_ranks_that_compute_the_same_bits_are_ok(tmp_path: Path) -> None:
    done = report(tmp_path, fleet([A100] * 16, ranks_of_a_node=2))
    assert done.returncode == 0, done.stdout
    said = "arithmetic        16 ranks of 1 class, at least 4 repetitions of 10 steps each, 3 digests a step\n"
    assert said in done.stdout and "unknown" not in done.stdout


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ([A100, A100, None], "2 ranks of 1 class and 1 rank of unknown class, at least 4 repetitions of"),
        ([None, A100, None], "1 rank of 1 class and 2 ranks of unknown class, at least"),
        ([A100, None, V100, None], "2 ranks of 2 classes and 2 ranks of unknown class, at least"),
        ([A100, V100], "2 ranks of 2 classes, at least"),
        ([None, None], "2 ranks of unknown class, at least"),
        ([None], "1 rank of unknown class, at least"),
    ],
)
def test_what_is_not_known_is_not_counted_as_a_class(kinds: list[str | None], said: str, tmp_path: Path) -> None:
    assert f"\narithmetic        {said} " in report(tmp_path, fleet(kinds)).stdout


def test_right_arithmetic_does_not_say_that_a_node_is_fast(tmp_path: Path) -> None:
    record = fleet([A100] * 3)
    assert set(judged(tmp_path, record)[0].values()) == {"ok"}
    assert set(json.loads(report(tmp_path, record, "--json").stdout)["nodes"].values()) == {"unknown"}


def test_classes_are_judged_apart(tmp_path: Path) -> None:
    kinds: list[str | None] = [A100, V100, A100, V100, A100, V100]
    assert set(judged(tmp_path, fleet(kinds))[0].values()) == {"ok"}
    statuses, found = judged(tmp_path, fleet(kinds, {3: [(2, "fc.w", 0)] * 4}))
    assert [host for host, status in statuses.items() if status != "ok"] == ["node3"]
    assert "2 of 3 ranks of its class" in found["node3"]


def test_a_class_of_two_is_not_decided(tmp_path: Path) -> None:
    record = fleet([A100] * 3 + [V100] * 2 + [T4], {4: [(2, "fc.w", 0)] * 4})
    statuses, found = judged(tmp_path, record)
    assert list(statuses.values()) == ["ok"] * 3 + ["unknown"] * 3
    assert found["node4"].startswith("not decided: 2 of its class") and found["node5"].startswith("not decided: 1 of")
    done = report(tmp_path, record)
    assert done.returncode == 0 and "\narithmetic        unknown for 2 (node3, node4): not decided: 2 of" in done.stdout


def chance(rank: int, outcomes: int) -> Repetitions:
    """Repetitions of a rank whose kernels add up in one of so many orders."""
    rng = np.random.default_rng([rank, outcomes])
    return [(1, "fc.w@GRAD", int(order)) for order in rng.integers(0, outcomes, 12)]


@pytest.mark.parametrize("outcomes", [2, 3, 32])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_random_order_everywhere_accuses_nobody(outcomes: int, count: int, tmp_path: Path) -> None:
    record = fleet([A100] * count, {rank: chance(rank, outcomes) for rank in range(count)})
    statuses, found = judged(tmp_path, record)
    assert set(statuses.values()) == {"unknown"}
    assert found["node0"].startswith("not repeatable here: ")
    assert report(tmp_path, record).returncode == 0


NO_USUAL_BITS = "not repeatable here: its repetitions differ, and no result came out in more than half of them"
NO_MAJORITY = "no majority of the 4 ranks of its class has the same bits, and one is needed to tell who is wrong"


@pytest.mark.parametrize(
    ("kinds", "wrong", "statuses", "said"),
    [
        # One rank whose repetitions all differ: alone it says nothing, beside others that repeat it is at fault.
        ([A100], {0: [(1, "fc.w", bit) for bit in range(4)]}, "unknown", NO_USUAL_BITS),
        ([A100] * 4, {0: [(1, "fc.w", bit) for bit in range(4)]}, "fatal ok ok ok", "4 of 4 repetitions"),
        ([A100], {0: [None, None, None, (4, "fc.w", 3)]}, "fatal", "1 of 4 repetitions differ from the others of its"),
        ([A100] * 4, {0: [(1, "fc.w", 1)] * 4, 1: [(1, "fc.w", 2)] * 4}, "unknown " * 4, NO_MAJORITY),
        # What several hosts agree on is another library or setting, and no corruption.
        ([A100] * 5, {0: [(1, "fc.w", 1)] * 4, 1: [(1, "fc.w", 1)] * 4}, "unknown unknown ok ok ok", "2 hosts agree"),
        ([None, A100, A100, A100], {}, "unknown ok ok ok", "model, driver or cuDNN is not known"),
    ],
)
def test_who_is_accused(
    kinds: Sequence[str | None], wrong: dict[int, Repetitions], statuses: str, said: str, tmp_path: Path
) -> None:
    by_node, found = judged(tmp_path, fleet(kinds, wrong))
    assert list(by_node.values()) == statuses.split()
    assert said in found["node0"]


ODD: Flip = (3, "fc.w", 1)  # of a sum that has two orders


@pytest.mark.parametrize(
    ("wrong", "count"),
    [
        ({1: [None] * 11 + [ODD], 2: [None] * 11 + [ODD]}, 6),
        ({2: [None, ODD, None], 3: [ODD, ODD, None]}, 4),
        ({1: [ODD] * 3, 2: [None, ODD, None], 3: [ODD, ODD, None]}, 4),
    ],
    ids=["rarely", "often", "no majority"],
)
def test_other_bits_that_several_hosts_have_now_and_then_accuse_nobody(
    wrong: dict[int, Repetitions], count: int, tmp_path: Path
) -> None:
    record = fleet([A100] * count, wrong)
    statuses, found = judged(tmp_path, record)
    assert "fatal" not in statuses.values()
    assert "hosts have the same other bits in some repetitions" in found["node2"]
    assert report(tmp_path, record).returncode == 0


def test_bits_of_its_own_beside_those_that_others_have_still_accuse(tmp_path: Path) -> None:
    record = fleet([A100] * 6, {1: [None] * 3 + [ODD], 4: [None, None, None, ODD, (1, "fc.w", 9)]})
    statuses, found = judged(tmp_path, record)
    assert list(statuses.values()) == ["ok", "unknown", "ok", "ok", "fatal", "ok"]
    assert "2 of 5 repetitions differ" in found["node4"]


def test_a_large_fleet_is_judged_in_as_many_looks_as_it_has_ranks() -> None:
    """Each rank's repetitions are added up a few times, not once for each other rank."""
    record = fleet([A100] * 300)
    counting = mock.PropertyMock(return_value=4)
    with mock.patch.object(arithmetic.Rank, "repetition_count", counting):
        assert {verdict.status for verdict in arithmetic.judge(record)} == {"ok"}
    assert counting.call_count <= 10 * 300


def test_a_node_is_as_bad_as_its_worst_rank_and_names_each(tmp_path: Path) -> None:
    same = [(1, "fc.w", 1)] * 4  # both ranks of one host: its libraries may be damaged
    statuses, found = judged(tmp_path, fleet([A100] * 8, {2: list(same), 3: list(same)}, ranks_of_a_node=2))
    assert list(statuses.values()) == ["ok", "fatal", "ok", "ok"]
    assert "rank 2 on n1" in found["node1"] and "; rank 3 on n1" in found["node1"]


def test_a_rank_that_failed_is_named(tmp_path: Path) -> None:
    record = fleet([A100] * 4)
    record["digests"]["ranks"][1] |= {"repetitions": {}, "failure": "an illegal memory access"}
    statuses, found = judged(tmp_path, record)
    assert list(statuses.values()) == ["ok", "fatal", "ok", "ok"]
    assert found["node1"] == "rank 1 on n1 (GPU0, GPU-0001) failed: an illegal memory access"


def test_a_rank_of_unknown_class_that_failed_is_fatal(tmp_path: Path) -> None:
    record = fleet([A100] * 3 + [None] * 2)
    record["digests"]["ranks"][4] |= {"repetitions": {}, "failure": "no CUDA-capable device"}
    statuses, found = judged(tmp_path, record)
    assert list(statuses.values()) == ["ok"] * 3 + ["unknown", "fatal"]
    assert found["node3"].startswith("not decided: its GPU's model")
    assert found["node4"] == "rank 4 on n4 (GPU0, GPU-0004) failed: no CUDA-capable device"


def test_a_table_that_the_record_does_not_keep_still_names_the_rank(tmp_path: Path) -> None:
    record = fleet([A100] * 4, {2: [(1, "fc.w", 1)] * 4})
    (wrong,) = record["digests"]["ranks"][2]["repetitions"]
    del record["digests"]["tables"][wrong]
    assert judged(tmp_path, record)[1]["node2"].endswith("the record does not keep where")


@pytest.mark.parametrize("more", [{}, {"digests": None}], ids=["older record", "no kernels for this GPU"])
def test_a_record_without_digests_says_so(more: dict[str, None], tmp_path: Path) -> None:
    done = report(tmp_path, record_of() | more)
    assert done.returncode == 0 and "\narithmetic        not measured\n" in done.stdout


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: d["ranks"][0].update(repetitions={}), "rank 0 has neither repetitions nor a failure"),
        (lambda d: d["ranks"][0].update(repetitions={"x": 0}), "rank 0 has 0 repetitions of a table"),
        (lambda d: d["ranks"][0].update(unit=99), "no rank of node0 has digests or a failure"),
        (lambda d: d["ranks"].append(d["ranks"][0] | {"rank": 4, "unit": -1}), "a rank of host -1, of 4 hosts"),
        (lambda d: d["ranks"].pop(), "no rank of node3 has digests or a failure"),
        (lambda d: d["ranks"][0].update(rank=3), "ranks are not numbered from 0 to 3"),
        (lambda d: next(iter(d["tables"].values()))[0].__setitem__(0, float("nan")), "damaged (TypeError"),
        (lambda d: d["ranks"][0].pop("class"), "damaged (KeyError"),
        (lambda d: d.update(tensors=["fc.w"]), "has not 1 digests in each of 10 steps"),
        (lambda d: d.update(steps=3), "has not 3 digests in each of 3 steps"),
    ],
)
def test_damaged_digests_are_refused(damage: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    record = fleet([A100] * 4)
    damage(record["digests"])
    done = report(tmp_path, record)
    assert done.returncode == 2 and said in done.stderr


# ---- on real ranks


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_ranks_that_flip_a_bit_are_named(tmp_path: Path) -> None:
    result = tmp_path / "digests.json"
    script = str(Path(__file__).with_name("ranks_that_flip.py"))
    done = jobs.on_ranks(4, script, str(result), BATCHSIZE=2, IMAGE_SIZE=32, THREADS=1)
    assert done.returncode == 0, done.stderr
    taken = json.loads(result.read_text())
    named = {
        "gradient, low, in one step": ("node1", "1 of 3 repetitions", "step 2 in the gradient fc.w@GRAD"),
        "statistic, middle, in each repetition": (
            *("node2", "3 of 3 repetitions"),
            "step 1 in the batch-norm statistic stem.bn.mean",
        ),
        "update, exponent, in one step": ("node3", "1 of 3 repetitions", "step 2 in the updated weight stage1.0.1."),
    }
    for case, (host, often, where) in named.items():
        statuses, found = judged(tmp_path, record_of(4) | {"digests": taken[case]})
        assert [other for other, status in statuses.items() if status != "ok"] == [host], case
        assert often in found[host] and where in found[host], found[host]

    healthy, _ = judged(tmp_path, record_of(4) | {"digests": taken["healthy"]})
    assert list(healthy.values()) == ["ok"] * 4
    assert len(taken["healthy"]["tables"]) == 1
    in_random_order, _ = judged(tmp_path, record_of(4) | {"digests": taken["random order"]})
    assert list(in_random_order.values()) == ["unknown"] * 4


# ---- what a GPU would be called, and the program that it would run


def devices(cudnn: int | None) -> list[digests.Device]:
    """The first three devices of a job on two A100, of which one has a serial number."""
    cluster = with_values(env.read()[0], device="gpu", dgxngpu=2).cluster
    gpus = (A100_CARD | {"serial": "1324520012345"}, A100_CARD)
    with (
        recorded_nvml(*gpus),
        mock.patch.object(paddle, "get_cudnn_version", return_value=cudnn),
    ):
        return [digests.device_of(cluster, local_rank) for local_rank in range(3)]


def test_a_gpu_is_named_so_that_it_is_found_and_classed_by_what_decides_its_bits() -> None:
    first, second, absent = devices(cudnn=8600)
    uuid = "GPU-8d2f0000-0000-0000-0000-000000000000"
    assert first.title == f"GPU0, NVIDIA A100-SXM4-40GB, {uuid}, serial 1324520012345"
    assert second.title.startswith("GPU1, NVIDIA A100-SXM4-40GB, GPU-8d2f0001") and "serial" not in second.title
    assert first.class_name == second.class_name == f"NVIDIA A100-SXM4-40GB, driver 525.105.17, cuDNN 8600, {PADDLE}"
    assert absent == digests.Device(title="GPU 2 of the job", class_name=None)
    for unknown in (None, -1):  # as Paddle says it at the first question, and later
        assert devices(cudnn=unknown)[0].class_name is None


@pytest.mark.parametrize("precision", ["fp32", "amp_o1", "amp_o2"])
def test_what_is_digested_is_still_there_after_a_step_on_a_gpu(precision: str) -> None:
    """Buffers are shared there, and a tensor whose buffer another one takes would be read as that one."""
    main = programs.build(device="gpu", name=precision, ranks=2, loss_scale=128.0).main
    watched = digests.digested_tensors(main)
    parameters = {parameter.name for parameter in main.all_parameters()}
    gradients = [name for name in watched if name.endswith("@GRAD")]
    assert parameters < set(watched) and len(gradients) == sum(p.trainable for p in main.all_parameters())
    assert any("_master_" in name for name in watched) == (precision == "amp_o2")
    assert watched[0] == "stem.bn.mean" and watched.index(gradients[-1]) < watched.index("fc.w")

    sharing = [op for op in main.global_block().ops if op.type == "share_buffer"]
    given_away = {name for op in sharing for name in op.input_arg_names}
    assert given_away and not given_away & set(watched)
