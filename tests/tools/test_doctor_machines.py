"""The doctor on machines that differ from a sound DGX in one thing: what it says of each, and what it tells to do."""

import dataclasses
import functools
import re
import select
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

import harness.__main__
from harness import child, env, network, nvidia, nvidia_smi, provenance
from harness.job import Job, with_values
from runlog.errors import RunError
from runlog.verdict import FATAL, OK, WARNING, Verdict
from tests import jobs
from tests.harness.recorded import A100, V100, recorded_nvml
from tests.jobs import need
from tests.tools.test_doctor import GPU_JOB, LINKED, by_check, machine
from tools.doctor import checks as doctor_checks
from tools.doctor import cuda, node, start_checks
from tools.doctor.alike import with_equal_gpus_in_one
from tools.doctor.cuda import CudaStart, Step, System
from tools.doctor.nccl import NcclStart

TWO_NODES = with_values(GPU_JOB, dgxnnodes=2)
SYSTEM = System(devices=dict.fromkeys(cuda.DEVICES, ""), kernel_module="525.105.17", fabric_manager=None)
SOUND = CudaStart(
    library="/usr/lib/x86_64-linux-gnu/libcuda.so.525.105.17",
    version=12000,
    shown_gpus=8,
    step_by_gpu={number: Step(call="cuCtxDestroy_v2", code=0) for number in range(8)},
)
ON_ETHERNET = NcclStart(code=0, message="", interface="eth0", address="10.0.0.1")
PORTS = {f"mlx5_{number}:1": "ACTIVE 200 Gb/sec (4X HDR)" for number in range(12)}
STORAGE_DOWN = PORTS | {"mlx5_4:1": "DOWN 40 Gb/sec (4X QDR)", "mlx5_5:1": "INIT 40 Gb/sec (4X QDR)"}
ONE_GPU = nvidia_smi.parse_topology("\tGPU0\tCPU Affinity\nGPU0\t X \t0-127\n")
CORES: dict[str, Any] = {"rank_cores": [list(range(256))] * 8, "topology": LINKED}


def judged(*gpus: dict[str, Any], job: Any = GPU_JOB, **facts: Any) -> list[Verdict]:
    """All verdicts on the node of `started_machine`."""
    return doctor_checks.judge_all([started_machine(*gpus, **facts)], job)


def started_machine(*gpus: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """The facts of a node of these GPUs, on which CUDA and NCCL start unless `facts` say otherwise."""
    started: dict[str, Any] = {
        "cuda_start": SOUND,
        "cuda_system": SYSTEM,
        "nccl_start": ON_ETHERNET,
        "nccl_settings": {},
    }
    network_facts = {"address": "10.0.0.1", "peermem": "nvidia_peermem", "can_open_infiniband": True}
    return machine(*gpus, **CORES | started | network_facts | facts)


def failed(call: str, code: int) -> CudaStart:
    return CudaStart(
        library="/usr/lib/libcuda.so.525.105.17", failed_driver_step=Step(call=call, code=code, code_name="CUDA_ERROR")
    )


# ---- machines on which nothing is wrong

OF_16_GB = V100 | {"driver": "470.57.02"}
OF_32_GB = OF_16_GB | {"name": "Tesla V100-SXM2-32GB", "memory": (32510 * 2**20, 0), "driver": "450.119.04"}
PCIE = OF_16_GB | {"name": "Tesla V100-PCIE-16GB", "links": 0, "driver": "460.32.03"}
OF_80_GB = A100 | {"name": "NVIDIA A100-SXM4-80GB", "memory": (81920 * 2**20, 2**20), "reserve": 541 * 2**20}
DOWN_BUT_UNUSED = {"infiniband": STORAGE_DOWN, "nccl_settings": {"NCCL_IB_HCA": "^=mlx5_4,mlx5_5"}}
RUN_BY_COMPAT = {"cuda_start": dataclasses.replace(SOUND, version=11080, library="/usr/local/cuda/compat/libcuda.so.1")}


@pytest.mark.parametrize(
    ("gpu", "job", "facts"),
    [
        (OF_16_GB, GPU_JOB, {}),
        (OF_32_GB, GPU_JOB, {}),
        (PCIE, GPU_JOB, {}),
        (OF_80_GB | {"driver": "510.47.03"}, GPU_JOB, {}),
        (OF_80_GB | {"driver": "545.23.08"}, GPU_JOB, {}),
        (A100 | {"driver": "450.80.02"}, GPU_JOB, {}),  # its NVML lists no processes by this pynvml's calls
        (V100 | {"driver": "418.226.00"}, GPU_JOB, RUN_BY_COMPAT),
        (A100 | {"displays": [1500], "memory": (40960 * 2**20, 63 * 2**20)}, GPU_JOB, {}),
        (A100 | {"displays": [1500], "pids": [1500]}, GPU_JOB, {}),  # a desktop that computes too
        (A100 | {"application_mhz": None, "default_application_mhz": None}, GPU_JOB, {}),
        (A100, GPU_JOB, {"infiniband": STORAGE_DOWN}),
        (A100, GPU_JOB, {"infiniband": {}, "can_open_infiniband": False, "peermem": ""}),
        (A100, TWO_NODES, {"infiniband": {"mlx5_bond_0:1": "ACTIVE 100 Gb/sec (4X EDR)"}}),
        (A100, TWO_NODES, DOWN_BUT_UNUSED),
        (A100, TWO_NODES, {"infiniband": PORTS, "nccl_settings": {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_10:1"}}),
        (A100, TWO_NODES, {"infiniband": PORTS, "peermem": "nv_peer_mem"}),
        (A100, TWO_NODES, {"infiniband": {"mlx5_0:1": "ACTIVE 100 Gb/sec (4X EDR), Ethernet"}}),  # RoCE alone
    ],
)
def test_nothing_is_wrong_with_a_sound_machine(gpu: dict[str, Any], job: Any, facts: dict[str, Any]) -> None:
    assert [verdict for verdict in judged(*[gpu] * 8, job=job, **facts) if verdict.status != OK] == []


@pytest.mark.parametrize(
    ("name", "address", "own"),
    [
        ("ib0", "192.168.7.1", "10.0.0.1"),
        ("bond0", "10.0.0.1", "10.0.0.1"),
        ("enp225s0f0np0", "10.0.0.1", ""),
        ("eth0.100", "fd00::7", "10.0.0.1"),
        ("docker0", "172.17.0.1", "172.17.0.1"),
    ],
)
def test_an_interface_that_leads_to_other_nodes(name: str, address: str, own: str) -> None:
    start = NcclStart(code=0, message="", interface=name, address=address)
    verdicts = judged(*[A100] * 8, job=TWO_NODES, nccl_start=start, address=own)
    assert [verdict for verdict in verdicts if verdict.status != OK] == []


# ---- machines on which one thing is wrong

LOST = {"error": pynvml.NVML_ERROR_GPU_IS_LOST}
MUTE = dict.fromkeys(("capability", "persistence", "throttle", "remapped_rows", "memory", "ecc", "pages_pending"))
SERVICE = {"pids": [812], "process_mib": 10}
DESKTOP = {"displays": [99], "memory": (40960 * 2**20, 700 * 2**20)}
SEVEN = {"cuda_start": dataclasses.replace(SOUND, shown_gpus=7, step_by_gpu={})}
BROKEN_STEP = Step(call="cuCtxCreate_v2", code=999, code_name="")
ONE_BROKEN = dataclasses.replace(SOUND, step_by_gpu={**SOUND.step_by_gpu, 7: BROKEN_STEP})
NO_UVM = dataclasses.replace(SYSTEM, devices={"/dev/nvidia-uvm": "Operation not permitted"})


@pytest.mark.parametrize(
    ("gpu", "facts", "check", "status", "found", "fix"),
    [
        (LOST, {}, "gpu.count", FATAL, "7 (GPU7: GPU is lost)", "Xid 79"),
        (LOST, SEVEN, "cuda.start", FATAL, "CUDA shows 7 GPUs: NVML has lost a GPU (GPU7: GPU is lost)", "Xid"),
        (LOST, {"cuda_start": failed("cuInit", 999)}, "cuda.start", FATAL, "cuInit: CUDA_ERROR (999): NVML has", "Xid"),
        ({"error": 16}, {}, "gpu.count", FATAL, "7 (GPU7: GPU requires restart)", "--gpu-reset"),
        (MUTE, {}, "gpu.compute_capability", WARNING, "GPU7 NVIDIA A100-SXM4-40GB: unknown", "NVML does not"),
        (MUTE, {}, "gpu.throttling", WARNING, "GPU7: unknown", "NVML does not"),
        (MUTE, {}, "gpu.remapped_rows", WARNING, "GPU7: unknown", "NVML does not"),
        (MUTE, {}, "gpu.processes", WARNING, "GPU7: pids none, memory in use unknown", "NVML does not"),
        (MUTE, {}, "gpu.persistence", WARNING, "GPU7: unknown", "-pm 1"),
        ({"error": 4}, {}, "gpu.compute_capability", WARNING, "GPU of unknown number of unknown name", "NVML does"),
        (SERVICE, {}, "gpu.processes", WARNING, "GPU7: pids 812, 8 MiB", "mps-server"),
        (SERVICE | {"process_mib": 310}, {}, "gpu.processes", FATAL, "GPU7: pids 812, 8 MiB", "end the other"),
        (DESKTOP, {}, "gpu.processes", WARNING, "GPU7: pids none, of a display 99, 700", "multi-user.target"),
        (DESKTOP | {"pids": [7]}, {}, "gpu.processes", FATAL, "GPU7: pids 7, of a display 99", "end the other"),
        ({"power_limit_mw": 250_000}, {}, "gpu.power", WARNING, "GPU7: 250 W of 400 W", "-i NUMBER -pl 400"),
        ({"mig": [1, 1]}, SEVEN, "cuda.start", FATAL, "CUDA shows 7 GPUs: MIG divides GPU7", "-mig 0"),
        ({"mig": [1, 1]}, {}, "gpu.mig", FATAL, "GPU7: MIG on", "by their UUID"),
        ({}, SEVEN, "cuda.start", FATAL, "CUDA shows 7 GPUs: CUDA shows fewer", "where a GPU is missing look for Xid"),
        ({}, {"cuda_start": ONE_BROKEN}, "cuda.start", FATAL, "GPU7: cuCtxCreate_v2: CUDA_ERROR (999)", "modprobe"),
        (
            {},
            {"cuda_start": failed("cuInit", 3), "cuda_system": NO_UVM},
            "cuda.start",
            FATAL,
            "cuInit: CUDA_ERROR (3): /dev/nvidia-uvm cannot be opened (Operation not permitted)",
            "nvidia-modprobe",
        ),
        ({}, {"topology": None, "topology_error": "no answer in 20 s"}, "gpu.topology", WARNING, "no answer", "host"),
        ({}, {"topology": None}, "gpu.topology", WARNING, "there is no nvidia-smi", "CAPABILITIES"),
        ({"error": 4}, {"topology": LINKED}, "gpu.topology", WARNING, "NVML does not say by which numbers", "on the h"),
        ({}, {"topology": ONE_GPU}, "gpu.topology", WARNING, "nvidia-smi topo -m shows no GPU1, GPU2", "on the host"),
    ],
)
def test_one_gpu_of_eight_is_not_in_order(
    gpu: dict[str, Any], facts: dict[str, Any], check: str, status: str, found: str, fix: str
) -> None:
    verdicts = by_check(judged(*[A100] * 7, A100 | gpu, **facts), check)
    (bad,) = (verdict for verdict in verdicts if verdict.status != OK)
    assert bad.status == status and bad.found.startswith(found) and fix in bad.fix


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("NVML Shared Library Not Found", "install the NVIDIA driver"),
        ("Driver Not Loaded", "modprobe nvidia"),
        (str(pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)), "restart the host"),
        ("Driver/library version mismatch", "restart the host"),
        ("Unknown Error", "daemon-reload"),
        ("Insufficient Permissions", "--gpus all"),
        ("NVML has not answered nvmlInit: no answer in 30 s", "the driver hangs"),
        ("CUDA_VISIBLE_DEVICES=MIG-5a names 0 of 8 whole GPUs", "unset CUDA_VISIBLE_DEVICES"),
    ],
)
def test_nvml_says_why_it_has_no_gpu(words: str, fix: str) -> None:
    (count,) = by_check(judged(gpu_absence=words, cuda_start=None), "gpu.count")
    assert (count.status, count.found) == (FATAL, f"0 ({words})") and fix in count.fix


def test_gpus_that_are_alike_share_a_line_for_people() -> None:
    """There were eight equal warnings, of one setting."""
    low = A100 | {"power_limit_mw": 250_000, "persistence": 0}
    lower = low | {"power_limit_mw": 200_000}
    shown = with_equal_gpus_in_one(judged(low, low, lower, *[low] * 5))
    assert [verdict.found for verdict in shown if verdict.status != OK] == [
        "GPU0-1,3-7: 250 W of 400 W by default",
        "GPU0-7: off",
        "GPU2: 200 W of 400 W by default",
    ]
    assert by_check(shown, "gpu.compute_capability")[0].found == "GPU0-7 NVIDIA A100-SXM4-40GB: 80"
    of_two_nodes = doctor_checks.judge_all([started_machine(*[low] * 8), started_machine(low, host="node1")], TWO_NODES)
    power = by_check(with_equal_gpus_in_one(of_two_nodes), "gpu.power")
    assert [verdict.found[:11] for verdict in power] == ["node0: GPU0", "node1: GPU0"]


def test_a_container_that_has_cuda_alone_needs_the_drivers_capability_utility() -> None:
    (count,) = by_check(judged(gpu_absence="NVML Shared Library Not Found"), "gpu.count")
    assert count.status == FATAL and count.found.endswith(", while CUDA shows 8") and "utility" in count.fix


def test_an_unknown_driver_is_the_one_of_the_kernel_module() -> None:
    gpus = [nvidia.Gpu(index=number, capability=80) for number in range(8)]
    (driver,) = by_check(judged(gpus=gpus), "gpu.driver")
    assert (driver.status, driver.found) == (OK, "525.105.17")
    unknown = dataclasses.replace(SYSTEM, kernel_module=None)
    (driver,) = by_check(judged(gpus=gpus, cuda_system=unknown, cuda_start=None), "gpu.driver")
    assert (driver.status, driver.found) == (WARNING, "unknown") and "nvidia-smi" in driver.fix
    (driver,) = by_check(judged(gpus=gpus, cuda_system=unknown, **RUN_BY_COMPAT), "gpu.driver")
    assert driver.found == "unknown: /usr/local/cuda/compat/libcuda.so.1 runs CUDA 11.8 on it"
    (driver, *_) = by_check(judged(*[V100 | {"driver": "418.226.00"}] * 8, **RUN_BY_COMPAT), "gpu.driver")
    assert driver.found.startswith("418.226.00: ") and "(cuda-compat) runs CUDA 11.8" in driver.found


def test_ranks_that_may_use_no_core_have_none() -> None:
    (binding,) = by_check(judged(*[A100] * 8, rank_cores=[[]] * 8), "cpu.binding")
    assert binding.status == WARNING and binding.found.startswith("all ranks none; rank 0's far from GPU0; ")


def test_a_driver_of_minor_version_compatibility_is_told_so() -> None:
    (driver,) = by_check(judged(*[A100 | {"driver": "470.57.02"}] * 8), "gpu.driver")
    assert "minor-version compatibility" in driver.found and driver.status == OK
    for version in ("440.33.01", "450.36.06"):
        (driver,) = by_check(judged(*[V100 | {"driver": version}] * 8, cuda_start=failed("cuInit", 36)), "gpu.driver")
        assert (driver.status, driver.found) == (FATAL, version) and "520.61.05" in driver.fix


def test_a_driver_before_455_leaves_an_a100s_jpeg_decoder_unused() -> None:
    """As DALI documents it. The driver was ok, and gpu.memory counted what the decoder would take."""
    reads_jpeg = env.of_system(DGXSYSTEM="DGXA100", DATADIR="/no/data")
    verdicts = judged(*[A100 | {"driver": "450.80.02"}] * 8, job=reads_jpeg)
    driver, *_ = by_check(verdicts, "gpu.driver")
    assert driver.status == WARNING and driver.found.startswith("450.80.02: ") and "520.61.05" in driver.fix
    assert "JPEG" in driver.found and "JPEG" not in by_check(verdicts, "gpu.memory")[0].wanted
    for gpu in (V100 | {"driver": "450.80.02"}, A100 | {"driver": "455.23.04"}):
        verdicts = judged(*[gpu] * 8, job=reads_jpeg)
        assert by_check(verdicts, "gpu.driver")[0].status == OK
    assert "JPEG" in by_check(verdicts, "gpu.memory")[0].wanted


# ---- the network of several nodes


@pytest.mark.parametrize(
    ("facts", "check", "found", "fix"),
    [
        ({"peermem": ""}, "network.peermem", "no module is loaded", "modprobe nvidia_peermem"),
        ({"infiniband": STORAGE_DOWN}, "network.infiniband", "mlx5_0:1 ACTIVE", "bring mlx5_4:1, mlx5_5:1 up"),
        ({"infiniband": {}, "peermem": ""}, "network.infiniband", "none", "over TCP"),
        ({"can_open_infiniband": False}, "network.infiniband", "mlx5_0:1 ACTIVE", "--device /dev/infiniband"),
        (
            {"nccl_settings": {"NCCL_IB_HCA": "^mlx5_1"}, "infiniband": PORTS},
            "nccl.ports",
            "NCCL_IB_HCA=^mlx5_1 takes mlx5_0:1",
            "NCCL_IB_HCA=^=mlx5_1",
        ),
        (
            {"infiniband": PORTS | {"mlx5_4:1": "ACTIVE 100 Gb/sec (4X EDR), Ethernet"}},
            "nccl.ports",
            "NCCL_IB_HCA= takes mlx5_0:1",
            "names of the ports",
        ),
        ({"nccl_settings": {"NCCL_IB_HCA": "mlx5_bond_0"}}, "nccl.ports", "NCCL_IB_HCA=mlx5_bond_0 takes no", "ibstat"),
    ],
)
def test_the_network_is_not_in_order(facts: dict[str, Any], check: str, found: str, fix: str) -> None:
    (bad,) = (verdict for verdict in judged(*[A100] * 8, job=TWO_NODES, **facts) if verdict.status != OK)
    assert (bad.check, bad.status) == (check, WARNING) and bad.found.startswith(found) and fix in bad.fix


@pytest.mark.parametrize(
    ("name", "address"),
    [("br-1a2b", "172.18.0.1"), ("cni0", "10.244.0.1"), ("vnet0", "fe80::1"), ("usb0", "169.254.3.1"), ("lxdbr0", "")],
)
def test_an_interface_that_leads_nowhere(name: str, address: str) -> None:
    start = NcclStart(code=0, message="", interface=name, address=address)
    (bad,) = (verdict for verdict in judged(job=TWO_NODES, nccl_start=start) if verdict.check == "nccl.interface")
    assert bad.status == WARNING and "unset NCCL_SOCKET_IFNAME" in bad.fix


def test_ranks_of_several_nodes_need_locked_memory() -> None:
    (locked,) = by_check(judged(*[A100] * 8, job=TWO_NODES, locked_memory=65536), "limits.locked_memory")
    assert locked.status == FATAL


def test_no_gpudirect_is_looked_for_without_infiniband() -> None:
    links: dict[str, str]
    for links in ({}, {"mlx5_0:1": "DOWN 10 Gb/sec"}):
        verdicts = judged(*[A100] * 8, job=TWO_NODES, peermem="", infiniband=links)
        assert not [verdict for verdict in verdicts if verdict.check == "network.peermem"]


def test_what_lets_infiniband_read_a_gpu(tmp_path: Path) -> None:
    is_open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  525.105.17"
    for module in ("nv_peer_mem", "nvidia_peermem"):  # of an old MOFED, and of a driver since 470
        (tmp_path / module).mkdir()
        assert node._peermem(tmp_path, "4.15.0", "") == module
    nothing = tmp_path / "none"
    assert node._peermem(nothing, "5.15.0-105-generic", is_open).startswith("DMA-BUF of kernel 5.15")
    assert node._peermem(nothing, "5.4.0-150-generic", is_open) == ""
    assert node._peermem(nothing, "6.8.0", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.105.17") == ""
    assert node._can_open_one([nothing, tmp_path]) and not node._can_open_one([nothing])


def test_the_address_of_a_node_in_several_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, by name, and by a name that the node itself takes for loopback."""
    resolved = {"10.0.0.1": "10.0.0.1", "dgx-1.site": "10.0.0.1", "dgx-1": "127.0.1.1", "10.0.0.2": "10.0.0.2"}
    monkeypatch.setattr(socket, "gethostbyname", resolved.__getitem__)
    monkeypatch.setattr(network, "interface_of", {"10.0.0.1": "bond0", "127.0.0.1": "lo"}.get)
    for name in ("10.0.0.1", "dgx-1.site"):
        job = with_values(TWO_NODES, hosts=f"{name},10.0.0.2")
        assert network.nccl_settings(job.cluster, 0) == {"NCCL_SOCKET_IFNAME": "=bond0"}
    assert (
        network.nccl_settings(with_values(TWO_NODES, hosts="10.0.0.2,10.0.0.1").cluster, 0) == {}
    )  # of no interface here
    # To 127.0.0.1 the kernel itself goes by loopback, which is not an address for others.
    assert network.nccl_settings(with_values(TWO_NODES, hosts="dgx-1,127.0.0.1").cluster, 0) == {}


# ---- NVML itself


def test_an_old_pynvml_is_enough() -> None:
    """One before 12.560 has no NVMLLibraryMismatchError, one before 11.510 no second memory call."""
    script = "import pynvml; del pynvml.NVMLLibraryMismatchError, pynvml.nvmlMemory_v2; from harness import nvidia; "
    script += "handles = nvidia.opened().__enter__(); print(handles)"
    done = jobs.run([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr


NVML = """
#include <stdlib.h>
#include <unistd.h>
int nvmlInit_v2(void) { for (;;) pause(); }
int nvmlInitWithFlags(unsigned flags) { %s }
const char *nvmlErrorString(int code) { return "Driver Not Loaded"; }
"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("for (;;) pause();", "NVML has not answered nvmlInit: no answer in 1 s"),
        ("abort();", "NVML has not answered nvmlInit: ended by signal 6 (SIGABRT)"),
        ("return 9;", ""),
    ],
)
def test_an_nvml_that_hangs_ends_no_doctor(
    answer: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(shutil.which("gcc") is not None, "gcc, which makes the library that answers")
    (tmp_path / "nvml.c").write_text(NVML % answer)
    command = ["gcc", "-w", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(tmp_path / "nvml.c")]
    subprocess.run(command, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    listen = child._listen

    def listen_from_first_word(descriptor: int, silent_s: float) -> tuple[bytes, bool]:
        select.select([descriptor], [], [])  # how long Python takes to start is the machine's load
        return listen(descriptor, silent_s)

    monkeypatch.setattr(child, "_listen", listen_from_first_word)
    if "no answer in 1 s" in said:  # the others answer or die, however late
        monkeypatch.setattr(child, "NVML_S", 1.0)
    monkeypatch.setattr(child, "hanging_call_of_nvml", functools.cache(child.hanging_call_of_nvml.__wrapped__))
    assert child.hanging_call_of_nvml() == said
    # A rank asks too, before it counts its GPUs, and is told what NVML has answered already.
    monkeypatch.delattr(child, "talk")
    error, words = (RunError, f": {said}: look for NVRM and Xid") if said else (ValueError, "has 0 GPUs")
    with recorded_nvml(absent=True), pytest.raises(error, match=re.escape(words)):
        harness.__main__._usable_gpus(GPU_JOB, checks_precision=True)


def test_nvml_stays_open_until_cuda_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a driver without persistence is unloaded, and loaded again by cuInit; one that hangs is not opened."""
    monkeypatch.setattr(node, "_try_import", lambda module: node._ImportFailure("", ""))
    monkeypatch.setattr(node, "_libraries", dict)
    is_closed = []

    def start(nvml: Any, job: Job, number: int) -> dict[str, Any]:
        is_closed.append(nvml.nvmlShutdown.called)
        return {}

    for silence, gpus in (("", 8), ("NVML has not answered nvmlInit", 0)):
        monkeypatch.setattr(child, "hanging_call_of_nvml", lambda said=silence: said)
        with recorded_nvml(*[A100] * 8) as nvml:
            monkeypatch.setattr(node, "_start_cuda_and_nccl", functools.partial(start, nvml))
            facts = node.probe(GPU_JOB, rank_cores=[[0]] * 8, node=0)
            assert (len(facts["gpus"]), facts["gpu_absence"], nvml.nvmlInit.called) == (gpus, silence, bool(gpus))
    assert is_closed == [False, False]


def test_the_topology_says_why_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    message = "Unable to determine the device handle for GPU 0000:07:00.0: GPU is lost.  Reboot the system"
    jobs.script(tmp_path / "nvidia-smi", f'#!/bin/sh\necho "{message}"\nexit 15\n')
    with pytest.raises(ValueError, match=r"ended with status 15: Unable to determine .* GPU is lost"):
        nvidia_smi.topology()
    jobs.script(tmp_path / "nvidia-smi", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(nvidia_smi, "SMI_S", 0.2)
    with pytest.raises(ValueError, match=r"no answer in 0\.2 s"):
        nvidia_smi.topology()
    monkeypatch.setenv("PATH", "/nowhere")
    assert nvidia_smi.topology() is None


def test_a_folder_of_path_that_this_user_may_not_use_hides_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root's own folder where a user keeps root's PATH; files that nobody may start stand in for it."""
    for name in ("nvidia-smi", "git"):
        (tmp_path / name).touch(mode=0o600)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.topology() is None
    assert provenance.source("", "").commit is None


def test_files_that_set_nccls_variables_are_shown() -> None:
    facts = {"nccl_start": ON_ETHERNET, "nccl_settings": {}, "nccl_files": ["/etc/nccl.conf"]}
    (verdict,) = start_checks.judge_start(facts, GPU_JOB)
    assert verdict.found.endswith("settings: none is set, and those of /etc/nccl.conf")


def test_a_value_that_a_node_does_not_know_is_unknown() -> None:
    facts = started_machine(*[A100] * 8)
    unknown = facts | {"source": facts["source"] | {"commit": None, "image_digest": None}}

    of_one = doctor_checks.judge_all([unknown], GPU_JOB)
    assert [by_check(of_one, name)[0].found for name in ("code.commit", "code.image")] == ["unknown", "unknown"]

    of_two = doctor_checks.judge_all([facts | {"host": "node0"}, unknown | {"host": "node1"}], TWO_NODES)
    assert by_check(of_two, "code.commit")[0].found == f"node0 {'a' * 40}, node1 unknown"
