"""The doctor's start of CUDA and of NCCL, on libraries that stand in for the driver's and NCCL's, one fault each."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import child, nvidia
from harness.job import job_of
from runlog.digits import counted
from runlog.verdict import FATAL, OK, WARNING, Verdict, worst
from tests import jobs
from tests.jobs import need
from tools.doctor import cuda, nccl, start_checks
from tools.doctor.cuda import CudaStart, Step, System
from tools.doctor.nccl import NcclStart

# What a call does is said by the variable FAULTS, as "cuInit=802" or "cuCtxCreate_v2:3=hang" of the GPU 3.
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define MESSAGE "vm:7:7 [0] NCCL INFO Bootstrap : Using %s:10.0.0.1<0>\n"
int ncclGetVersion(int *version) { return *version = 22105, 0; }
size_t cudnnGetVersion(void) { return 8600; }
static int fault(const char *call, int gpu) {
  char key[80], *faults = getenv("FAULTS"), *found;
  snprintf(key, sizeof key, gpu < 0 ? "%s=" : "%s:%d=", call, gpu);
  if (!faults || !(found = strstr(faults, key))) return 0;
  found += strlen(key);
  if (!strncmp(found, "hang", 4)) for (;;) pause();
  if (!strncmp(found, "die", 3)) abort();
  if (!strncmp(found, "exit", 4)) exit(3);
  if (!strncmp(found, "leave", 5)) exit(0);
  return atoi(found);
}
__attribute__((destructor)) static void unload(void) { fault("unload", -1); }
int cuInit(unsigned flags) { return fault("cuInit", -1); }
int cuDriverGetVersion(int *version) { return *version = 12040, 0; }
int cuDeviceGetCount(int *count) { return *count = atoi(getenv("GPUS")), fault("cuDeviceGetCount", -1); }
int cuDeviceGet(int *device, int number) { return *device = number, fault("cuDeviceGet", number); }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { return fault("cuCtxCreate_v2", device); }
int cuCtxDestroy_v2(void *context) { return fault("cuCtxDestroy_v2", -1); }
int cuGetErrorName(int code, const char **name) { return *name = code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : 0, 1; }
int ncclGetUniqueId(void *id) {
  const char *interface = getenv("NCCL_SOCKET_IFNAME");
  int code = fault("ncclGetUniqueId", -1);
  if (!code && interface && !strcmp(interface, "^lo,docker")) code = 3;
  const char *level = getenv("NCCL_DEBUG"), *file = getenv("NCCL_DEBUG_FILE");
  int is_said = level && !strcmp(level, "INFO") && !getenv("NCCL_DEBUG_SUBSYS");
  FILE *messages = file ? fopen(file, "w") : stdout;
  if (!code && is_said) fprintf(messages, MESSAGE, interface ? interface + 1 : "lo");
  return code;
}
const char *ncclGetLastError(void *communicator) { return "Bootstrap : no socket interface found"; }
const char *ncclGetErrorString(int code) { return "internal error"; }
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver's library, NCCL's, cuDNN's and a codec's, all of them one file."""
    need(shutil.which("gcc") is not None, "gcc, which makes the libraries that answer")
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "answers.c").write_text(SOURCE)
    command = ["gcc", "-w", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(folder / "answers.c")]
    subprocess.run(command, check=True)
    for name in ("libnccl.so.2", "libcudnn.so.8", "libnvcuvid.so.1"):
        (folder / name).symlink_to("libcuda.so.1")
    return folder


def environ(libraries: Path, faults: str = "", gpus: int = 8, **more: str) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(libraries), "FAULTS": faults, "GPUS": str(gpus), **more}


SYSTEM = System(devices={"/dev/nvidia-uvm": ""}, kernel_module="525.105.17", fabric_manager="470.57.02")


def judged(start: CudaStart, *, gpus: int = 8, system: System = SYSTEM, **gpu: Any) -> list[Verdict]:
    """The verdicts on CUDA's start where NVML says this of each GPU."""
    described = [nvidia.Gpu(index=number, driver="525.105.17", **gpu) for number in range(gpus)]
    facts = {"gpus": described, "cuda_start": start, "cuda_system": system}
    return list(start_checks.judge_start(facts, job_of(device="gpu", dgxngpu=gpus)))


def test_a_sound_machine_starts_cuda_on_every_gpu(libraries: Path) -> None:
    for gpus in (1, 8, 16):
        start = cuda.try_start(environ(libraries, gpus=gpus), gpus)
        assert start == CudaStart(
            library=str(libraries / "libcuda.so.1"),
            version=12040,
            shown_gpus=gpus,
            step_by_gpu={number: Step(call="cuCtxDestroy_v2", code=0) for number in range(gpus)},
        )
        (verdict,) = judged(start, gpus=gpus)
        assert (verdict.check, verdict.status) == ("cuda.start", OK)
        assert verdict.found == f"a context on {counted(gpus, 'GPU')}; the driver's CUDA is 12.4"


@pytest.mark.parametrize(
    ("faults", "found", "fix"),
    [
        ("cuInit=802", "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802): ", "nvidia-fabricmanager of exactly the driver's"),
        ("cuInit=803", "cuInit: CUDA_ERROR (803): ", "restart the host, or unload"),
        ("cuInit=100", "cuInit: CUDA_ERROR (100): CUDA shows this process no GPU", "CUDA_VISIBLE_DEVICES"),
        ("cuInit=999", "cuInit: CUDA_ERROR (999): ", "nvidia-modprobe -u -c=0"),
        ("cuInit=34", "cuInit: CUDA_ERROR (34): /", "take the stubs' folder out of LD_LIBRARY_PATH"),
        ("cuInit=4711", "cuInit: CUDA_ERROR (4711): a fault of the driver", "Xid"),
        ("cuInit=die", "cuInit ended by signal 6 (SIGABRT): ", "reinstall the driver"),
        ("cuInit=exit", "cuInit ended with status 3: ", "reinstall the driver"),
        ("cuDeviceGetCount=3", "cuDeviceGetCount: CUDA_ERROR (3): the driver is not initialized", "nvidia-modprobe"),
    ],
)
def test_a_start_that_fails_is_told_with_its_cause_and_what_to_do(
    libraries: Path, faults: str, found: str, fix: str
) -> None:
    start = cuda.try_start(environ(libraries, faults), 8)
    (verdict,) = judged(start)
    assert (verdict.check, verdict.status) == ("cuda.start", FATAL)
    assert verdict.found.startswith(found) and fix in verdict.fix
    assert verdict.wanted == "cuInit and a context on each of 8 GPUs"


def test_a_driver_that_dies_behind_a_failed_start_has_died(libraries: Path) -> None:
    """Its death at the process's exit says more than the result before it."""
    start = cuda.try_start(environ(libraries, "cuInit=802,unload=die"), 8)
    assert start.failed_driver_step == Step(call="exit", hang_or_death="ended by signal 6 (SIGABRT)")
    assert not start.step_by_gpu


def test_fabric_managers_version_stands_next_to_the_drivers(libraries: Path) -> None:
    start = cuda.try_start(environ(libraries, "cuCtxCreate_v2:0=802 cuCtxCreate_v2:1=802", gpus=2), 2)
    first, second = judged(start, gpus=2)
    assert first.found.startswith("GPU0: cuCtxCreate_v2: CUDA_ERROR_SYSTEM_NOT_READY (802): ")
    assert "driver 525.105.17, Fabric Manager 470.57.02" in second.found and second.found.startswith("GPU1: ")
    (verdict, _) = judged(start, gpus=2, system=dataclasses.replace(SYSTEM, fabric_manager=None))
    assert "Fabric Manager unknown here: systemctl status nvidia-fabricmanager on the host" in verdict.found


UVM = dataclasses.replace(SYSTEM, devices={"/dev/nvidiactl": "", "/dev/nvidia-uvm": "No such file or directory"})


@pytest.mark.parametrize(
    ("code", "gpu", "system", "cause"),
    [
        (100, {"mig": True}, SYSTEM, "MIG divides GPU0"),
        (46, {"mig": True, "compute_mode": 2}, SYSTEM, "MIG divides GPU0"),
        (46, {"compute_mode": 2}, SYSTEM, "GPU0 in compute mode Prohibited"),
        (101, {"compute_mode": 2}, SYSTEM, "GPU0 in compute mode Prohibited"),
        (46, {"compute_mode": 3}, SYSTEM, "another process has the GPU"),
        (999, {}, UVM, "/dev/nvidia-uvm cannot be opened (No such file or directory)"),
        (304, {}, UVM, "/dev/nvidia-uvm cannot be opened"),
        (304, {}, SYSTEM, "the driver cannot open its devices"),
        (802, {"mig": True, "compute_mode": 2}, UVM, "the NVSwitches are not set up"),
        (214, {}, UVM, "ECC found an error that it cannot correct"),
    ],
)
def test_what_nvml_and_the_system_say_names_the_cause(
    code: int, gpu: dict[str, Any], system: System, cause: str
) -> None:
    step = Step(call="cuCtxCreate_v2", code=code, code_name="CUDA_ERROR")
    (verdict,) = judged(CudaStart(shown_gpus=1, step_by_gpu={0: step}), gpus=1, system=system, **gpu)
    assert verdict.status == FATAL and f"({code}): {cause}" in verdict.found


@pytest.mark.parametrize("fault", ["hang", "die", "leave"])
def test_a_gpu_that_hangs_or_kills_leaves_the_others_asked(
    libraries: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "SILENT_S", 1.0)
    start = cuda.try_start(environ(libraries, f"cuCtxCreate_v2:2={fault} cuCtxCreate_v2:3=214", gpus=5), 5)
    assert sorted(start.step_by_gpu) == [0, 1, 2, 3, 4]
    hung, ecc = judged(start, gpus=5)
    died = {"die": "ended by signal 6", "leave": "ended with status 0"}
    ended = ({"hang": "no answer in 1 s: the driver does not answer"} | died)[fault]
    assert hung.found.startswith(f"GPU2: cuCtxCreate_v2 {ended}") and hung.status == FATAL
    assert ecc.found.startswith("GPU3: cuCtxCreate_v2: CUDA_ERROR (214): ")


def test_a_start_that_hangs_is_ended_and_told(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "SILENT_S", 0.7)
    (verdict,) = judged(cuda.try_start(environ(libraries, "cuInit=hang"), 8))
    assert verdict.found == "cuInit no answer in 0.7 s: the driver does not answer" and "dmesg" in verdict.fix


def test_no_further_gpu_is_asked_when_the_time_is_over(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "ALL_S", 0.0)
    start = cuda.try_start(environ(libraries, "cuCtxCreate_v2:1=die"), 8)
    assert sorted(start.step_by_gpu) == [0, 1] and worst(judged(start)) == FATAL


def test_fewer_gpus_than_ranks_and_none_of_a_driver(libraries: Path, tmp_path: Path) -> None:
    start = cuda.try_start(environ(libraries, gpus=7), 8)
    (verdict,) = judged(start)
    assert verdict.found.startswith("CUDA shows 7 GPUs: ") and "set CUDA_VISIBLE_DEVICES" in verdict.fix
    (verdict,) = judged(cuda.try_start(environ(libraries, gpus=1), 8), mig=True)
    assert verdict.found.startswith("CUDA shows 1 GPU: MIG divides GPU0, ")
    (tmp_path / "libcuda.so.1").write_text("no library")
    (verdict,) = judged(cuda.try_start(environ(tmp_path), 8))
    assert "libcuda.so.1: file too short" in verdict.found and "--gpus all" in verdict.fix


def test_the_systems_part_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version:  gcc 9"
    )
    (tmp_path / "version").write_text(version)
    jobs.script(tmp_path / "nv-fabricmanager", '#!/bin/sh\necho "Fabric Manager version is : 470.57.02"\n')
    monkeypatch.setattr(cuda, "KERNEL_MODULE", tmp_path / "version")
    monkeypatch.setattr(cuda, "DEVICES", ("/dev/null", "/dev/nvidia-nothing"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    devices = {"/dev/null": "", "/dev/nvidia-nothing": "No such file or directory"}
    assert cuda.system() == System(devices=devices, kernel_module="470.57.02", fabric_manager="470.57.02")
    monkeypatch.setattr(cuda, "KERNEL_MODULE", tmp_path / "none")
    monkeypatch.setenv("PATH", "/nowhere")
    assert cuda.system() == System(devices=devices, kernel_module=None, fabric_manager=None)


def test_a_message_of_a_library_is_no_answer() -> None:
    said = child.Talk(lines=("{not json}", "7", '{"begin": "start"}', '{"end": "st'), hang_or_death="")
    assert said.answers() == [{"begin": "start"}]


# ---- NCCL


def nccl_judged(start: NcclStart, *, nodes: int = 1, **facts: Any) -> list[Verdict]:
    given = {"nccl_start": start, "nccl_settings": {}, "infiniband": {}, "address": "10.0.0.1"} | facts
    return list(start_checks.judge_start(given, job_of(device="gpu", dgxnnodes=nodes)))


def test_nccl_starts_and_tells_where_it_meets(libraries: Path) -> None:
    """Whatever the job asks of NCCL's messages."""
    unsaid: dict[str, Any] = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/null", "NCCL_DEBUG_SUBSYS": "COLL"}
    start = nccl.try_start(environ(libraries, NCCL_SOCKET_IFNAME="=eth0", **unsaid))
    assert start == NcclStart(
        code=0, message="Bootstrap : no socket interface found", interface="eth0", address="10.0.0.1"
    )
    (verdict,) = nccl_judged(start, nccl_settings={"NCCL_SOCKET_IFNAME": "=eth0"})
    assert (verdict.check, verdict.status) == ("nccl.start", OK)
    assert verdict.found == "meets on eth0 10.0.0.1; settings: NCCL_SOCKET_IFNAME==eth0"


def test_nccl_that_finds_no_interface_is_fatal(libraries: Path) -> None:
    start = nccl.try_start(environ(libraries, NCCL_SOCKET_IFNAME="^lo,docker"))
    (verdict,) = nccl_judged(start, nccl_settings={"NCCL_SOCKET_IFNAME": "^lo,docker"})
    assert verdict.status == FATAL
    assert verdict.found.startswith("ncclGetUniqueId: 3, Bootstrap : no socket interface found")
    assert verdict.fix == "see that NCCL's settings are of this node: NCCL_SOCKET_IFNAME=^lo,docker"


def test_a_brace_in_a_setting_is_shown_as_it_is() -> None:
    start = NcclStart(code=3, message="no socket interface found")
    (verdict,) = nccl_judged(start, nccl_settings={"NCCL_SOCKET_IFNAME": "{eth0"})
    assert verdict.fix == "see that NCCL's settings are of this node: NCCL_SOCKET_IFNAME={eth0"


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("ncclGetUniqueId=hang", "ncclGetUniqueId no answer in 1 s"),
        ("ncclGetUniqueId=die", "ncclGetUniqueId ended by signal 6"),
        *((f"ncclGetUniqueId={code}", f"ncclGetUniqueId: {code}, ") for code in range(1, 9)),
    ],
)
def test_every_other_end_of_nccls_start_is_fatal(
    libraries: Path, fault: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "SILENT_S", 1.0)
    (verdict,) = nccl_judged(nccl.try_start(environ(libraries, fault)))
    assert verdict.status == FATAL and verdict.fix and verdict.found.startswith(found)


def test_an_nccl_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_text("no library")
    (verdict,) = nccl_judged(nccl.try_start(environ(tmp_path)))
    assert "libnccl.so.2: file too short" in verdict.found and "locks/cuda.lock" in verdict.fix


PORTS = [f"mlx5_{number}:1" for number in (0, 1, 2, 10, 11)] + ["mlx4_0:2"]


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("", PORTS),
        ("mlx5_1", ["mlx5_1:1", "mlx5_10:1", "mlx5_11:1"]),
        ("=mlx5_1,mlx5_2", ["mlx5_1:1", "mlx5_2:1"]),
        ("^mlx5_1", ["mlx5_0:1", "mlx5_2:1", "mlx4_0:2"]),
        ("^=mlx5_1", [port for port in PORTS if port != "mlx5_1:1"]),
        ("mlx4_0:1", []),
        ("=mlx4_0:2", ["mlx4_0:2"]),
        ("mlx", PORTS),
        ("^", []),
        (" mlx5_0", []),  # NCCL takes a blank for a part of the name
    ],
)
def test_a_setting_takes_ports_as_nccl_matches_them(value: str, taken: list[str]) -> None:
    assert nccl.names_taken(value, PORTS) == taken


def test_interfaces_have_no_port() -> None:
    assert nccl.names_taken("eth0:1,ib", ["eth0", "eth1", "ib0", "lo"]) == ["eth0", "ib0"]


@pytest.mark.parametrize(
    ("value", "status", "said"),
    [
        ("=mlx5_0,mlx5_1", OK, "takes mlx5_0:1, mlx5_1:1"),
        ("mlx5_0,mlx5_1", WARNING, "mlx5_10, mlx5_11 by the beginning of a name"),
        ("mlx5", OK, "takes mlx5_0:1, "),  # meant so: there is no device of this name
        ("mlx5_1,mlx5", OK, "takes mlx5_0:1, "),
        ("mlx5_1,mlx4", WARNING, "mlx5_10, mlx5_11 by the beginning of a name"),
        ("=mlx5_7", WARNING, "takes no port, none of them ACTIVE"),
        ("=mlx5_2", WARNING, "takes mlx5_2:1, none of them ACTIVE"),
    ],
)
def test_ports_that_nccl_takes_are_shown(value: str, status: str, said: str) -> None:
    ports = {port: "DOWN 10 Gb/sec" if port == "mlx5_2:1" else "ACTIVE 100 Gb/sec" for port in PORTS}
    start = NcclStart(code=0, message="", interface="eth0", address="10.0.0.1")
    _, _, verdict = nccl_judged(start, nodes=2, infiniband=ports, nccl_settings={"NCCL_IB_HCA": value})
    assert (verdict.check, verdict.status) == ("nccl.ports", status) and said in verdict.found


@pytest.mark.parametrize(
    ("interface", "address", "status"),
    [
        ("eth0", "10.0.0.1", OK),
        ("ib0", "192.168.7.1", OK),
        ("br-4f2a", "172.18.0.1", WARNING),
        ("br-lan", "10.0.0.1", OK),  # a bridge that has the node's own address
        ("virbr0", "192.168.122.1", WARNING),
        ("lo", "127.0.0.1", FATAL),
    ],
)
def test_nccl_must_meet_where_other_nodes_reach_it(interface: str, address: str, status: str) -> None:
    start = NcclStart(code=0, message="", interface=interface, address=address)
    first, *rest = nccl_judged(start, nodes=2)
    assert [(verdict.check, verdict.status) for verdict in rest] == [("nccl.interface", status)]
    assert nccl_judged(start) == [first], "one node alone meets where it wants"


# ---- by the command


def test_the_command_asks_each_library_and_starts_cuda_and_nccl_as_the_ranks_do(
    libraries: Path, tmp_path: Path
) -> None:
    """A broken library is named; a profile that leaves lo out ends no job of one node."""
    (tmp_path / "libcufft.so.10").write_text("no library")
    variables: dict[str, Any] = environ(libraries, "cuCtxCreate_v2:1=46", NCCL_SOCKET_IFNAME="^lo,docker")
    variables["LD_LIBRARY_PATH"] = f"{libraries}:{tmp_path}"
    done = jobs.run([sys.executable, "-m", "tools.doctor", "--json"], DEVICE="gpu", DGXNGPU=2, **variables)
    found = {v["check"]: (v["status"], v["found"]) for v in json.loads(done.stdout)}
    assert (done.returncode, found["gpu.count"][0]) == (1, FATAL)
    assert (found["cuda.libnccl"], found["cuda.libcudnn"]) == ((OK, "22105"), (OK, "8600"))
    assert found["nccl.version"] == (OK, "2.21.5") and found["cuda.libnvcuvid"] == (OK, "loads")
    assert found["cuda.libcufft"][0] == FATAL and "libcufft.so.10" in found["cuda.libcufft"][1]
    assert found["cuda.start"][1].startswith("CUDA's GPU 1: cuCtxCreate_v2: CUDA_ERROR (46): "), done.stderr
    assert found["nccl.start"] == (OK, "meets on lo 10.0.0.1; settings: none is set")
