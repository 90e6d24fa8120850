"""GPUs in the form in which NVML and `nvidia-smi` describe real machines: a DGX-1 (V100), a DGX A100 and an H100.

The V100's matrix is the published reports' (see test_doctor.py); the A100's is in the form of driver 470: tabs, an
underlined heading, NVSwitch links, a NUMA column. Values are those of idle cards of these models; "memory" is (total,
used by processes) in bytes and "reserve" what the driver keeps for itself, by public reports: 912 MiB in use by NVML's
first call and 8 by the second on an idle A100, 308 more by the first on others.
"""

import contextlib
import functools
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pynvml

from harness import nvidia

V100 = {
    "name": "Tesla V100-SXM2-16GB",
    "driver": "440.33.01",
    "capability": (7, 0),
    "memory": (16384 * 2**20, 3 * 2**20),
    "reserve": 308 * 2**20,
    "application_mhz": 1312,
    "default_application_mhz": 1312,
    "power_mw": 43125,
    "power_limit_mw": 300_000,
    "default_power_limit_mw": 300_000,
    "energy_mj": 51_234_567,
    "clocks": {pynvml.NVML_CLOCK_SM: 135, pynvml.NVML_CLOCK_MEM: 877},
    "temperature": 34,
    "links": 6,
    "pcie_generation": 3,
    "highest_mhz": 1530,
}
A100: dict[str, Any] = {
    "name": "NVIDIA A100-SXM4-40GB",
    "driver": "525.105.17",
    "capability": (8, 0),
    "memory": (40960 * 2**20, 8 * 2**20),
    "reserve": 904 * 2**20,
    "remapped_rows": (0, 0, 0, 0),
    "pages_pending": None,
    "mig": [0, 0],
    "application_mhz": 1095,
    "default_application_mhz": 1095,
    "power_mw": 52_341,
    "power_limit_mw": 400_000,
    "default_power_limit_mw": 400_000,
    "energy_mj": 912_345_678,
    "clocks": {pynvml.NVML_CLOCK_SM: 210, pynvml.NVML_CLOCK_MEM: 1215},
    "temperature": 29,
    "links": 12,
    "pcie_generation": 4,
    "highest_mhz": 1410,
}
H100 = A100 | {"name": "NVIDIA H100 80GB HBM3", "capability": (9, 0), "links": 18}
# A card of the desktop kind: no ECC, no energy counter, no NVLink.
NO_ECC = V100 | {"name": "TITAN X (Pascal)", "capability": (6, 1), "ecc": None, "energy_mj": None, "links": 0}

# Two sockets of 64 cores with two threads each, four NUMA nodes a socket; two GPUs hang on every second node.
A100_NUMA = {f"node{i}": f"{16 * i}-{16 * i + 15},{16 * i + 128}-{16 * i + 143}" for i in range(8)}
A100_RANK_NUMA = "33117755"
A100_TOPOLOGY = "\n".join(
    [
        "\t\x1b[4m" + "\t".join(f"GPU{i}" for i in range(8)) + "\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity\x1b[0m",
        *(
            "\t".join(
                [f"GPU{row}"]
                + [" X " if row == column else "NV12" for column in range(8)]
                + (["PXB", "SYS"] if row < 4 else ["SYS", "PXB"])
                + [A100_NUMA[f"node{A100_RANK_NUMA[row]}"], A100_RANK_NUMA[row]]
            )
            for row in range(8)
        ),
        "\t".join(["mlx5_0", *["PXB"] * 4, *["SYS"] * 4, " X ", "SYS", "", ""]),
        "\t".join(["mlx5_1", *["SYS"] * 4, *["PXB"] * 4, "SYS", " X ", "", ""]),
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
        "  NV#  = Connection traversing a bonded set of # NVLinks",
    ]
)


@contextlib.contextmanager
def recorded_nvml(*gpus: dict[str, Any], absent: bool = False, lacks: tuple[str, ...] = ()) -> Iterator[Any]:
    """Has the harness and the system description ask a pynvml with the answers of `gpus` of the kinds above.

    It has the real one's functions, signatures and types. What a card has no answer for raises NOT_SUPPORTED. `lacks`
    names functions of which libnvidia-ml has not the symbol that this pynvml asks for, as where the driver is older.
    """
    answers = _Answers(gpus, absent)
    nvml = mock.NonCallableMock(spec_set=pynvml)
    for name, value in vars(pynvml).items():
        if name in lacks:
            setattr(nvml, name, mock.create_autospec(value, side_effect=pynvml.NVMLLibraryMismatchError(name)))
        elif hasattr(answers, name):
            answer = functools.partial(_answered, getattr(answers, name))
            setattr(nvml, name, mock.create_autospec(value, side_effect=answer))
        elif not name.startswith("nvml") or not callable(value):
            setattr(nvml, name, value)  # constants and types
        else:
            setattr(nvml, name, functools.partial(_unrecorded, name))
    assert not {name for name in dir(answers) if name.startswith("nvml")} - set(vars(pynvml))
    with mock.patch.object(nvidia, "pynvml", nvml), mock.patch.dict(sys.modules, pynvml=nvml):
        yield nvml


def _answered(answer: Callable[..., Any], *about: Any, **more: Any) -> Any:
    """The answer about a GPU, unless its "error" is all that it answers."""
    if about and isinstance(about[0], ChainMap) and about[0].get("error"):
        raise pynvml.NVMLError(about[0]["error"])
    return answer(*about, **more)


def _unrecorded(name: str, *about: Any) -> None:
    raise AssertionError(f"{name}{about} is not recorded")


def _given(value: Any) -> Any:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _generation(gpu: dict[str, Any]) -> int:
    return int(gpu["driver"].partition(".")[0])


def _processes(gpu: dict[str, Any], name: str, since: int) -> list[Any]:
    """Processes of a GPU, each of "process_mib", by a call that drivers have since a generation."""
    if _generation(gpu) < since:
        raise pynvml.NVMLLibraryMismatchError(name)
    size = gpu.get("process_mib", 0) * 2**20
    return [
        pynvml.nvmlStructToFriendlyObject(pynvml.c_nvmlProcessInfo_v2_t(pid=pid, usedGpuMemory=size))
        for pid in gpu.get(name, [])
    ]


# What a card has where its kind above does not say it.
USUAL = {"persistence": 1, "throttle": pynvml.nvmlClocksThrottleReasonGpuIdle, "pcie_kb": 350, "pcie_width": 16}
USUAL |= {"compute_mode": pynvml.NVML_COMPUTEMODE_DEFAULT, "mig": None, "remapped_rows": None, "pages_pending": 0}
USUAL |= {"serial": None}
# Questions that one value of a card answers.
PLAIN = {
    "nvmlDeviceGetIndex": "index",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetCudaComputeCapability": "capability",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "throttle",
    "nvmlDeviceGetPowerManagementLimit": "power_limit_mw",
    "nvmlDeviceGetPowerManagementDefaultLimit": "default_power_limit_mw",
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_mj",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetPcieThroughput": "pcie_kb",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetMaxClockInfo": "highest_mhz",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetRemappedRows": "remapped_rows",
    "nvmlDeviceGetRetiredPagesPendingStatus": "pages_pending",
    "nvmlDeviceGetApplicationsClock": "application_mhz",
    "nvmlDeviceGetDefaultApplicationsClock": "default_application_mhz",
}


class _Answers:
    """Under the names of pynvml's functions, what the driver answers beside PLAIN."""

    def __init__(self, gpus: tuple[dict[str, Any], ...], absent: bool) -> None:
        self._gpus, self._absent = gpus, absent
        for question, name in PLAIN.items():
            setattr(self, question, functools.partial(self._plain, name))

    def _plain(self, name: str, gpu: dict[str, Any], *which: int) -> Any:
        return _given((USUAL | dict(gpu))[name])

    def nvmlInit(self) -> None:
        if self._absent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return ChainMap({"index": index}, self._gpus[index])

    def nvmlSystemGetDriverVersion(self) -> str:
        return self._gpus[0]["driver"]

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> str:
        return f"GPU-8d2f{gpu['index']:04x}-0000-0000-0000-000000000000"

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any], version: int | None = None) -> Any:
        """By the first call a driver of 510 or later counts its reserve as used; an older one has the first alone."""
        total, used = _given(gpu["memory"])
        reserve, counted = gpu["reserve"], _generation(gpu) >= 510
        if version is None:
            taken = used + reserve if counted else used
            return pynvml.c_nvmlMemory_t(total, total - taken, taken)
        if not counted:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return pynvml.c_nvmlMemory_v2_t(version, total, reserve, total - used - reserve, used)

    def nvmlDeviceGetTotalEccErrors(self, gpu: dict[str, Any], kind: int, counter: int) -> int:
        return _given(gpu.get("ecc", {})).get(kind, 0)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: dict[str, Any]) -> list[Any]:
        return _processes(gpu, "pids", 510)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu: dict[str, Any]) -> list[Any]:
        return _processes(gpu, "pids", 460)

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: dict[str, Any]) -> list[Any]:
        return _processes(gpu, "displays", 510)

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, gpu: dict[str, Any]) -> list[Any]:
        return _processes(gpu, "displays", 460)

    def nvmlDeviceGetNvLinkState(self, gpu: dict[str, Any], link: int) -> int:
        if link >= gpu["links"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, Any]) -> Any:
        return pynvml.c_nvmlUtilization_t(gpu.get("busy", 0), 0)

    def nvmlDeviceGetFieldValues(self, gpu: dict[str, Any], fields: list[tuple[int, int]]) -> Any:
        """NVLink counters as nvml.h has them, 1000 KiB and the field's number on each link; never seen on a machine."""
        found = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, (field, scope) in zip(found, fields, strict=True):
            links = gpu["links"] if scope == 2**32 - 1 else int(scope < gpu["links"])
            value.nvmlReturn = pynvml.NVML_SUCCESS if links else pynvml.NVML_ERROR_INVALID_ARGUMENT
            value.value.ullVal = links * (1000 + field)
        return found

    def nvmlDeviceGetClockInfo(self, gpu: dict[str, Any], clock: int) -> int:
        return gpu["clocks"][clock]
