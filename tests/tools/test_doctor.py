"""The doctor, on this machine through its command, and on recorded answers of machines with GPUs."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pynvml
import pytest

from harness import env, nvidia, nvidia_smi, provenance
from harness.job import job_of, with_values
from runlog.schema import Topology
from runlog.verdict import Verdict, worst
from tests import jobs
from tests.harness.recorded import A100, A100_NUMA, A100_TOPOLOGY, H100, NO_ECC, V100, recorded_nvml
from tools.doctor import checks as doctor_checks
from tools.doctor import node as doctor_node

KEYS = {"check", "status", "found", "wanted", "fix"}
GPU_JOB = job_of(device="gpu", dgxngpu=8, batchsize=96)
LOADED = dict.fromkeys(doctor_node.CUDA_LIBRARIES, "loads") | {"libnccl.so.2": "22105", "libcudnn.so.8": "8600"}


def run(*arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it."""
    return jobs.run([sys.executable, "-m", "tools.doctor", *arguments], **variables)


def by_check(results: list[Verdict], check: str) -> list[Verdict]:
    found = [result for result in results if result.check == check]
    assert found, f"no check {check}"
    return found


def v100_topology(reports: Path) -> Topology:
    """The matrix in OneFlow's report of four DGX-1-like servers."""
    text = next(reports.glob("004_*")).read_text(encoding="utf-8", errors="replace")
    return nvidia_smi.parse_topology(text[text.index("        GPU0    GPU1") : text.index("## Test Descriptions")])


def machine(*gpus: dict[str, Any], topology: Topology | None = None, **changes: Any) -> dict[str, Any]:
    """Facts of a sound node with these GPUs."""
    with recorded_nvml(*gpus), nvidia.opened() as (handles, absence):
        described = [nvidia.gpu_of(handle) for handle in handles]
    disk = {"folder": "results", "free_gib": 900.0, "writable": True}
    facts = {
        **{"host": "node0", "gpus": described, "gpu_absence": absence, "topology": topology, "topology_error": ""},
        "source": {"commit": "a" * 40, "dirty": False, "lock_sha256": "b" * 64, "image_digest": "sha256:c"},
        **{"libraries": LOADED, "imports": {"paddle": ("", "")}, "code_sha256": "d" * 64, "data": None},
        **{"rank_cores": [list(range(48))] * 8, "numa": {"node0": "0-23", "node1": "24-47"}, "drop_caches": True},
        **{"cgroup_memory_gib": None, "cgroup_cpus": None},
        **{"memory_gib": 300.0, "shm_mib": 65536.0, "open_files": 1048576, "locked_memory": -1},
        **{"logs": disk, "checkpoints": disk, "interfaces": {"eth0": "10.0.0.1 25000 Mbit/s"}},
        **{"infiniband": {"mlx5_0:1": "ACTIVE 100 Gb/sec (4X EDR)"}, "can_open_infiniband": True},
        "peermem": "nvidia_peermem",
    }
    return facts | changes


def judged(check: str, *gpus: dict[str, Any], job: env.Job = GPU_JOB, **facts: Any) -> list[Verdict]:
    """The verdicts of a check on a node with these GPUs, else sound."""
    return by_check(doctor_checks.judge_all([machine(*gpus, **facts)], job), check)


# ---- the command on this machine


def test_this_machine_as_json():
    done = run("--json", LOGDIR="results")
    results = json.loads(done.stdout)
    assert done.returncode == (1 if any(r["status"] == "fatal" for r in results) else 0), done.stderr
    assert all(set(result) == KEYS and all(isinstance(v, str) for v in result.values()) for result in results)
    assert all(result["status"] == "ok" or result["fix"] for result in results), "a finding must say what to do"
    assert {r["check"]: r["status"] for r in results}["mpi.start"] == "ok"
    done = run(BATCHSIZE="many")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: BATCHSIZE='many'")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_nodes_are_gathered_over_mpi():
    """Two ranks, each bound to a core of its own, may use two."""
    script = "import os, runpy; os.sched_setaffinity(0, [int(os.environ['OMPI_COMM_WORLD_LOCAL_RANK'])]); {}"
    script = script.format("runpy.run_module('tools.doctor', run_name='__main__')")
    for nodes, status in ((1, "ok"), (2, "fatal")):
        done = jobs.on_ranks(2, "-c", script, "--json", DGXNNODES=nodes)
        found = {r["check"]: (r["status"], r["found"]) for r in json.loads(done.stdout)}
        assert (done.returncode == 0) == (status == "ok") and found["mpi.ranks"][0] == status, done.stdout + done.stderr
        assert found["clock.difference"][0] == "ok"
        assert found["python.paddle"][1] == found["python.dali"][1] == "imported"
        assert found["cpu.cores"][1].startswith("2 (0-1; NUMA ")


def test_paddles_build_for_cuda_12_is_judged_by_cuda_12(tmp_path):
    """By its name alone: no lock of it can be made here."""
    build = tmp_path / "paddlepaddle_gpu-2.6.2.post120.dist-info/METADATA"
    build.parent.mkdir()
    build.write_text("Name: paddlepaddle-gpu\nVersion: 2.6.2.post120")
    script = "from tools.doctor import checks, node; print(*node.CUDA_LIBRARIES, *checks.DRIVERS, checks.GPU_CODE[-1])"
    named = jobs.run([sys.executable, "-c", script], PYTHONPATH=f"{tmp_path}:{jobs.REPOSITORY}").stdout.split()
    assert named[1:4] == ["libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12"]
    assert {"libcufft.so.11", "libcusparse.so.12", "libcusolver.so.11"} < set(named)
    assert named[-3:] == ["530.30.02", "525.60.13", "90"]


def by_packager(debian: str, library: str) -> str:
    return f"apt-get install {debian}, or by dnf, yum or zypper '{library}.so.1()(64bit)'"


def test_a_library_that_an_import_misses_is_named_with_its_package(tmp_path, monkeypatch):
    """Paddle by the linker's own search: a libgomp.so.1 that is none goes before the system's."""
    (tmp_path / "libgomp.so.1").write_text("no library")
    done = run("--json", LD_LIBRARY_PATH=str(tmp_path))
    (paddle,) = (v for v in json.loads(done.stdout) if v["check"] == "python.paddle")
    assert (done.returncode, paddle["status"], paddle["fix"]) == (1, "fatal", by_packager("libgomp1", "libgomp"))
    assert "libgomp.so.1: file too short" in paddle["found"] and paddle["wanted"] == "can be imported"
    monkeypatch.setattr(doctor_node, "IMPORT_S", 1.0)
    killed = doctor_node._try_import("os; os.kill(os.getpid(), 9)")
    hanging = doctor_node._try_import("time; time.sleep(60)")
    assert (killed.error, hanging.error) == ("ended by signal 9", "not done in 1 s")
    assert "faulthandler" in killed.fix and "faulthandler" in hanging.fix  # and nothing to install
    missing = "ImportError: libgcc_s.so.1: cannot open shared object file: No such file or directory"
    assert doctor_node.install_advice(missing) == by_packager("libgcc-s1", "libgcc_s")
    assert "launch/setup.sh run" in doctor_node.install_advice("ModuleNotFoundError: No module named 'paddle'")


# ---- recorded machines


V100_NUMA = {"node0": "0-11,24-35", "node1": "12-23,36-47"}


def bound(
    numa: dict[str, str], rank_numa: str, *gpus: dict[str, Any], topology: Topology, given: Any = range(256)
) -> list[Verdict]:
    """The verdicts on a node of these NUMA nodes, its ranks bound as launch/bind.sh binds them to the given cores."""
    job = with_values(GPU_JOB, rank_numa=rank_numa)
    with (
        mock.patch.object(doctor_node, "_numa", return_value=numa),
        mock.patch.object(provenance, "own_cores", return_value=list(given)),
    ):
        facts = machine(*gpus, topology=topology, rank_cores=doctor_node.cores_by_launcher(job), numa=numa)
        return doctor_checks.judge_all([facts], job)


def test_sound_v100_and_a100(published_reports):
    """Each bound as its config file binds it."""
    for system, numa, gpu, topology in (
        ("DGX1", V100_NUMA, V100 | {"driver": "525.105.17"}, v100_topology(published_reports)),
        ("DGXA100", A100_NUMA, A100, LINKED),
    ):
        rank_numa = env.of_system(DGXSYSTEM=system).cluster.rank_numa
        assert rank_numa
        verdicts = bound(numa, rank_numa, *[gpu] * 8, topology=topology)
        assert [v for v in verdicts if v.status != "ok"] == []
        unbound = machine(*[gpu] * 8, topology=topology, rank_cores=[list(range(256))] * 8, numa=numa)
        assert [v for v in doctor_checks.judge_all([unbound], GPU_JOB) if v.status != "ok"] == []
    as_published = machine(*[V100] * 8, topology=v100_topology(published_reports))
    results = doctor_checks.judge_all([as_published], GPU_JOB)
    assert [(r.check, r.found) for r in results if r.status == "fatal"] == [("gpu.driver", "440.33.01")]


@pytest.mark.parametrize("gpu", [V100, A100], ids=["DGX-1", "DGX A100"])
@pytest.mark.parametrize(
    "driver", ["450.80.02", "460.106.00", "470.57.02", "495.44", "510.47.03", "520.61.05", "535.183.06", "550.54.14"]
)
def test_an_idle_machine_is_free_by_every_driver(gpu, driver, monkeypatch):
    """Some 900 MiB of the driver's own are not process of others, also where an old pynvml cannot tell them apart."""
    bound = {"rank_cores": [list(range(256))] * 8, "numa": A100_NUMA, "topology": LINKED}
    for _ in ("this pynvml", "an old one"):
        verdicts = doctor_checks.judge_all([machine(*[gpu | {"driver": driver}] * 8, **bound)], GPU_JOB)
        assert [v for v in verdicts if v.status != "ok"] == []
        monkeypatch.delattr(pynvml, "nvmlMemory_v2", raising=False)


def test_old_drivers_and_pynvml_tell_less():
    """An old driver has an older call for the processes; by no pynvml of then are the newer questions there."""
    call = "nvmlDeviceGetComputeRunningProcesses"
    with recorded_nvml(A100 | {"pids": [4711]}, lacks=(call,)), nvidia.opened() as (handles, _):
        assert nvidia.gpu_of(handles[0]).processes == (4711,)
    with recorded_nvml(A100, lacks=(call, f"{call}_v2")) as nvml, nvidia.opened() as (handles, _):
        for name in ("nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows"):
            delattr(nvml, name)
        gpu = nvidia.gpu_of(handles[0])
    assert gpu.processes is gpu.mig is gpu.remapped_rows is None


def test_a_gpu_that_fell_off_the_bus_leaves_the_others():
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    with recorded_nvml(*[A100] * 4) as nvml:
        ask = nvml.nvmlDeviceGetHandleByIndex.side_effect

        def handle_of(index: int) -> Any:
            if index == 2:
                raise lost
            return ask(index)

        nvml.nvmlDeviceGetHandleByIndex.side_effect = handle_of
        with nvidia.opened() as (handles, why):
            assert [nvidia.gpu_of(handle).index for handle in handles] == [0, 1, 3]
    assert why == "GPU2: GPU is lost"


@pytest.mark.parametrize(
    ("rank_numa", "visible", "far"),
    [
        ("1,1,3,3,7,7,5,5", "", ["rank 0's far from GPU0", "rank 3's far from GPU3"]),
        ("3,3,1,1,7,7,5,9", "", ["rank 7 none", "rank 7's far from GPU7"]),
        ("3,3", "4,5", ["rank 0's far from GPU4", "rank 1's far from GPU5"]),
    ],
    ids=["swapped", "no such node", "other GPUs"],
)
def test_a_rank_bound_far_from_its_own_gpu(rank_numa, visible, far, monkeypatch):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    verdicts = bound(A100_NUMA, rank_numa, *[A100] * 8, topology=LINKED)
    (verdict,) = by_check(verdicts, "cpu.binding")
    assert verdict.status == "warning" and all(said in verdict.found for said in far)
    assert f"set RANK_NUMA={'7,7' if visible else '3,3,1,1,7,7,5,5'}, or " in verdict.fix


def test_ranks_are_bound_to_none_but_the_cores_that_a_container_has(published_reports: Path) -> None:
    """As by docker --cpuset-cpus: of NUMA node 0 four cores, of node 1 none, where launch/bind.sh refuses to start."""
    verdicts = bound(
        V100_NUMA, "0,0,0,0,1,1,1,1", *[V100] * 8, topology=v100_topology(published_reports), given=range(4)
    )
    (cores,) = by_check(verdicts, "cpu.cores")
    assert (cores.status, cores.found) == ("warning", "4 (0-3; NUMA 0-11,24-35, 12-23,36-47)")
    (binding,) = by_check(verdicts, "cpu.binding")
    assert binding.status == "warning" and "rank 3 0-3, rank 4 none" in binding.found


def test_numa_nodes_of_memory_alone_are_passed_over(
    published_reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of CXL, and of each V100 on POWER9; here they come before the node of the GPU."""
    for number, cores in (("0", ""), ("1", "0-23,24-47"), ("252", "")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(f"{cores}\n")
    monkeypatch.setattr(doctor_node, "NUMA_NODES", tmp_path)
    numa = doctor_node._numa()
    assert numa == {"node1": "0-23,24-47"}
    facts = machine(*[V100] * 8, topology=v100_topology(published_reports), numa=numa)
    verdicts = doctor_checks.judge_all([facts], GPU_JOB)
    assert by_check(verdicts, "cpu.cores")[0].found == "48 (0-47; NUMA 0-23,24-47)"
    assert by_check(verdicts, "cpu.binding")[0].status == "ok"


def test_an_unknown_number_of_corrected_errors_is_said_to_be_unknown() -> None:
    facts = machine(*[A100] * 8)
    facts["gpus"] = [dataclasses.replace(gpu, ecc_corrected=None) for gpu in facts["gpus"]]
    (ecc, *_) = by_check(doctor_checks.judge_all([facts], GPU_JOB), "gpu.ecc")
    assert (ecc.status, ecc.found) == ("ok", "GPU0: 0 uncorrected, unknown corrected")


ECC_UNCORRECTED, ECC_CORRECTED = (
    {"ecc": {kind: count}}
    for kind, count in ((pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 2), (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, 1))
)
HELD_BACK = ("HwThermalSlowdown", "ApplicationsClocksSetting")
HOT, SET = ({"throttle": getattr(pynvml, f"nvmlClocksThrottleReason{reason}")} for reason in HELD_BACK)


def lacks(library: str) -> dict[str, Any]:
    return {"libraries": LOADED | {library: f"error: {library}: cannot open shared object file"}}


LINKED = nvidia_smi.parse_topology(A100_TOPOLOGY)
LOST_LINK = nvidia_smi.parse_topology(
    A100_TOPOLOGY.replace("GPU5\t" + "NV12\t" * 5 + " X \tNV12\tNV12", "GPU5\t" + "SYS\t" * 5 + " X \tSYS\tSYS")
)
ON_ONE_SOCKET = {"rank_cores": [list(range(64))] * 8, "numa": A100_NUMA, "topology": LINKED}


def disk(free_gib: float, writable: bool = True) -> dict[str, Any]:
    return {"folder": "r", "free_gib": free_gib, "writable": writable}


@pytest.mark.parametrize(
    ("gpu", "facts", "check", "wanted", "said"),
    [
        *((gpu, {}, "gpu.compute_capability", "ok", "") for gpu in (V100, A100, NO_ECC)),
        (H100, {}, "gpu.compute_capability", "fatal", "GPU7 NVIDIA H100 80GB HBM3: 90"),
        (A100 | {"capability": (7, 2)}, {}, "gpu.compute_capability", "warning", "GPU7"),
        (A100 | {"capability": (8, 9)}, {}, "gpu.compute_capability", "warning", "GPU7"),
        (A100 | {"capability": (5, 2)}, {}, "gpu.compute_capability", "fatal", "GPU7"),
        (A100 | ECC_UNCORRECTED, {}, "gpu.ecc", "fatal", "GPU7: 2 uncorrected"),
        (A100 | ECC_CORRECTED, {}, "gpu.ecc", "warning", "GPU7: 0 uncorrected, 1 corrected"),
        (A100 | {"ecc": None}, {}, "gpu.ecc", "warning", "GPU7: unknown"),
        (A100 | HOT, {}, "gpu.throttling", "warning", "GPU7: thermal, by hardware"),
        (A100 | SET, {}, "gpu.throttling", "ok", ""),
        (A100 | {"pids": [4711]}, {}, "gpu.processes", "fatal", "GPU7: pids 4711"),
        (A100 | {"memory": (42949672960, 9 * 2**30)}, {}, "gpu.processes", "fatal", "GPU7: pids none, 9216 MiB"),
        (A100 | {"memory": (40960 * 2**20, 501 * 2**20)}, {}, "gpu.processes", "fatal", "GPU7: pids none, 501 MiB"),
        (A100 | {"memory": None}, {}, "gpu.processes", "warning", "GPU7: pids none, memory in use unknown"),
        (A100 | {"persistence": 0}, {}, "gpu.persistence", "warning", "GPU7: off"),
        (A100 | {"persistence": None}, {}, "gpu.persistence", "warning", "GPU7: unknown"),
        (A100 | {"mig": [1, 1]}, {}, "gpu.mig", "fatal", "GPU7: MIG on"),
        (A100 | {"mig": [0, 1]}, {}, "gpu.mig", "warning", "GPU7: MIG off, on after a reset"),
        (A100 | {"compute_mode": 2}, {}, "gpu.compute_mode", "fatal", "GPU7: Prohibited"),
        (A100 | {"compute_mode": 3}, {}, "gpu.compute_mode", "warning", "GPU7: Exclusive_Process"),
        (A100 | {"compute_mode": 1}, {}, "gpu.compute_mode", "warning", "GPU7: Exclusive_Thread"),
        (A100 | {"compute_mode": 9}, {}, "gpu.compute_mode", "warning", "GPU7: 9"),
        (A100 | {"remapped_rows": (0, 3, 0, 0)}, {}, "gpu.remapped_rows", "ok", ""),
        (
            A100 | {"remapped_rows": (1, 0, 1, 0)},
            {},
            "gpu.remapped_rows",
            "warning",
            "GPU7: 1 after corrected errors, 0",
        ),
        (A100 | {"remapped_rows": (0, 8, 0, 1)}, {}, "gpu.remapped_rows", "fatal", "GPU7: 0 after corrected errors, 8"),
        (A100 | {"remapped_rows": None}, {}, "gpu.remapped_rows", "warning", "GPU7: unknown"),
        (V100 | {"pages_pending": 1}, {}, "gpu.remapped_rows", "warning", "GPU7: a page is retired at the next reset"),
        (A100 | {"application_mhz": 1080}, {}, "gpu.clocks", "warning", "GPU7: 1080 MHz of 1095 by default"),
        (A100 | {"application_mhz": 1410}, {}, "gpu.clocks", "ok", ""),
        (A100 | {"application_mhz": None}, {}, "gpu.clocks", "ok", ""),
        (A100, lacks("libcudnn.so.8"), "cuda.libcudnn", "fatal", "libcudnn.so.8: cannot open"),
        (A100, lacks("libnvcuvid.so.1"), "cuda.libnvcuvid", "warning", "libnvcuvid.so.1: cannot open"),
        (A100, {"libraries": LOADED | {"libnccl.so.2": "20708"}}, "nccl.version", "fatal", "2.7.8"),
        (A100, {"topology": LOST_LINK}, "gpu.topology", "warning", "pairs: 26 x NV12, 2 x SYS; without NVLink: GPU5"),
        (A100, ON_ONE_SOCKET, "cpu.binding", "warning", "all ranks 0-63; rank 4's far from GPU4; rank 5's far"),
        (A100, {"shm_mib": 64.0}, "memory.shared", "fatal", "64 MiB free"),
        (A100, {"shm_mib": 200.0}, "memory.shared", "warning", "200 MiB free"),
        (A100, {"memory_gib": 4.0}, "memory.free", "warning", "4.0 GiB"),
        (A100, {"cgroup_memory_gib": 4.0}, "memory.free", "warning", "4.0 GiB left by the limit of the job's cgroup"),
        (A100, {"cgroup_memory_gib": 400.0}, "memory.free", "ok", "300.0 GiB"),
        (A100, {"open_files": 1024}, "limits.open_files", "warning", "1024"),
        (A100, {"locked_memory": 65536}, "limits.locked_memory", "warning", "64 KiB"),
        (A100, {"logs": disk(9.0, writable=False)}, "disk.logs", "fatal", "r: 9.0 GiB free, not writable"),
        (A100, {"logs": disk(0.01)}, "disk.logs", "fatal", "r: 0.0 GiB free"),
        (A100, {"checkpoints": disk(0.3)}, "disk.checkpoints", "warning", "r: 0.3 GiB free"),
        (A100, {"gpu_absence": "GPU8: GPU is lost"}, "gpu.count", "ok", "8 (GPU8: GPU is lost)"),
        (A100, {"infiniband": {"mlx5_0:1": "DOWN 10 Gb/sec"}}, "network.infiniband", "ok", ""),
        (A100, {"drop_caches": False}, "data.page_cache", "warning", "cannot be flushed by this user"),
        (A100, {"rank_cores": [[0, 1]] * 8}, "cpu.cores", "warning", "2 (0-1; NUMA 0-23, 24-47)"),
        (
            A100,
            {"cgroup_cpus": 1.5},
            "cpu.cores",
            "warning",
            "48 (0-47; NUMA 0-23, 24-47), and by the cgroup's quota the",
        ),
        (A100, {"cgroup_cpus": 8.0}, "cpu.cores", "ok", ""),
        (A100, {"rank_cores": [[]] * 8}, "cpu.cores", "warning", "0 (none; NUMA 0-23, 24-47)"),
    ],
)
def test_what_is_not_in_order(gpu: dict[str, Any], facts: dict[str, Any], check: str, wanted: str, said: str) -> None:
    """Of the node, or of the last of its eight GPUs."""
    found = judged(check, *[A100] * 7, gpu, **facts)
    assert worst(found) == wanted
    (bad, *_) = [verdict for verdict in found if verdict.status == wanted]
    assert wanted == "ok" or (bad.fix and bad.found.startswith(said))


def test_the_jobs_gpus_are_those_that_cuda_shows(monkeypatch):
    """Two of eight GPUs, of which others are busy and lost their links."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,4")
    gpus = [A100 | {"pids": [4711]}] * 5 + [A100 | {"persistence": 0}] * 3
    topology = nvidia_smi.parse_topology(A100_TOPOLOGY.replace("NV12", "SYS"))
    job = with_values(GPU_JOB, dgxngpu=2)
    results = doctor_checks.judge_all([machine(*gpus, topology=topology, rank_cores=[list(range(112, 128))] * 2)], job)
    assert [r.found for r in by_check(results, "gpu.persistence")] == ["GPU5: off", "GPU4: on"]
    assert [r.status for r in by_check(results, "gpu.processes")] == ["ok", "fatal"]
    assert worst(by_check(results, "gpu.count") + by_check(results, "cpu.binding")) == "ok"
    assert by_check(results, "gpu.topology")[0].found == "pairs: 1 x SYS"
    (count,) = judged("gpu.count", *gpus)
    assert (count.status, count.found) == ("fatal", "2 (CUDA_VISIBLE_DEVICES=5,4 names 2 of 8 whole GPUs)")


def test_the_image_asks_for_what_the_doctor_wants():
    (result,) = judged("cuda.libnvcuvid", *[A100] * 8, **lacks("libnvcuvid.so.1"))
    assert f"NVIDIA_DRIVER_CAPABILITIES={doctor_checks.CAPABILITIES}:" in result.fix
    dockerfile = (jobs.REPOSITORY / "Dockerfile").read_text()
    assert f"NVIDIA_DRIVER_CAPABILITIES={doctor_checks.CAPABILITIES} " in dockerfile


def test_topology_of_the_reports(published_reports):
    # Paddle's report has the output with its line breaks lost.
    text = next(published_reports.glob("001_*")).read_text(encoding="utf-8", errors="replace")
    begin = text.index("nvidia-smi topo -m GPU0") + len("nvidia-smi topo -m ")
    v100, other = v100_topology(published_reports), nvidia_smi.parse_topology(text[begin : begin + 2000])
    assert v100.devices[7:9] == ["GPU7", "mlx5_0"] and v100.cores["GPU7"] == "12-23,36-47"
    assert v100.links[0] == ["X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS", "NODE"]
    assert other.cores == {f"GPU{i}": "0-19" for i in range(8)} and other.links[7][3] == "NV2"
    for matrix in (v100, other, LINKED):
        assert list(map(list, zip(*matrix.links, strict=True))) == matrix.links  # the way back is the way there


@pytest.mark.parametrize(
    "text", ["", "No devices were found", "GPU0 CPU\nGPU0 Y 0-3", "GPU0 GPU1 CPU\nGPU0 X", "GPU) CPU\nGPU0 X 0-3"]
)
def test_no_topology(text):
    with pytest.raises(ValueError, match="no matrix of nvidia-smi"):
        nvidia_smi.parse_topology(text)


@pytest.mark.parametrize("what", ["commit", "lock_sha256", "image_digest"])
def test_nodes_that_differ(what: str) -> None:
    first, check = machine(*[A100] * 8), f"code.{what.partition('_')[0]}"
    for value, status in ((first["source"][what], "ok"), ("e" * 40, "fatal")):
        other = first | {"host": "node1", "source": first["source"] | {what: value}}
        results = doctor_checks.judge_all([first, other], with_values(GPU_JOB, dgxnnodes=2))
        (result,) = by_check(results, check)
        assert result.status == status and ("node1 eeeee" in result.found) == (status == "fatal")


@pytest.mark.parametrize(
    ("dirty", "status", "found"),
    [
        (False, "ok", "as committed"),
        (True, "warning", "differs from the commit on node1"),
        (None, "warning", "unknown on node1: no git and no image"),
    ],
)
def test_code_that_another_node_has_changed_is_seen(dirty: bool | None, status: str, found: str) -> None:
    first = machine(*[A100] * 8)
    other = first | {"host": "node1", "source": first["source"] | {"dirty": dirty}}
    (verdict,) = by_check(doctor_checks.judge_all([first, other], with_values(GPU_JOB, dgxnnodes=2)), "code.clean")
    assert (verdict.status, verdict.found) == (status, found)
    # Who has the files of an archive has no changes to commit.
    assert status == "ok" or "or start in a clone" in verdict.fix


def test_clocks_that_differ():
    results = doctor_checks.judge_ranks(["a", "b"], [0.0, -3.2], job_of(dgxnnodes=2, dgxngpu=1))
    assert [(v.check, v.status) for v in results] == [("mpi.ranks", "ok"), ("clock.difference", "warning")]


def test_ports_of_infiniband_and_the_folder_of_the_logs(tmp_path):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    assert doctor_node._infiniband(tmp_path) == {"mlx5_0:1": "ACTIVE 100 Gb/sec (4X EDR)"}
    assert doctor_node._infiniband(tmp_path / "none") == {}
    (port / "link_layer").write_text("Ethernet\n")
    assert doctor_node._infiniband(tmp_path) == {"mlx5_0:1": "ACTIVE 100 Gb/sec (4X EDR), Ethernet"}
    assert doctor_node._disk(tmp_path / "a" / "b")["writable"]
    assert not doctor_node._disk(port / "state")["writable"]
    if os.geteuid():
        tmp_path.chmod(0o500)
        assert not doctor_node._disk(tmp_path / "a")["writable"]


def test_pinned_memory_of_the_decoders_counts_on_the_host() -> None:
    """8 ranks of 6 threads: 28 GiB that no other process can have."""
    job = env.of_system(DGXSYSTEM="DGXA100", DATADIR="/no/data")
    for memory_gib, status in ((50.0, "ok"), (40.0, "warning")):
        (found,) = by_check(doctor_checks.judge_all([machine(*[A100] * 8, memory_gib=memory_gib)], job), "memory.free")
        assert (
            found.status == status and found.wanted == "5.4 GiB (3.4 pinned by the GPU's decoders) for each of 8 ranks"
        )
