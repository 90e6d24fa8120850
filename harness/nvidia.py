"""What NVML and `nvidia-smi` say of a node's GPUs; every question may go unanswered, and the answer is then None."""

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from harness import env
from runlog.schema import Topology

MIB = 2**20
# NVML's bits of why clocks are held down. An idle GPU and clocks that an administrator chose are no fault.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
NVLINK_MAX = 18  # links of one GPU that NVML numbers
ALL_NVLINKS = 0xFFFFFFFF  # nvml.h: the scope of a throughput counter is a link's number, and UINT_MAX the sum over all
# What pynvml raises for a question without an answer; the second, no subclass, where a driver is older than pynvml.
UNANSWERED = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)


@contextlib.contextmanager
def opened() -> Iterator[tuple[list[Any], str]]:
    """Handles of the GPUs that CUDA shows this process, in CUDA's order, and why some or all are missing."""
    with contextlib.ExitStack() as exit_stack:
        handles, why = [], ""
        try:
            pynvml.nvmlInit()
            exit_stack.callback(_ask, pynvml.nvmlShutdown)
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except UNANSWERED as error:
            why = str(error)
        text = env.visible_gpus()
        if handles and text is not None:
            named = visible(text, [_ask(pynvml.nvmlDeviceGetUUID, handle) or "" for handle in handles])
            if len(named) < len(handles):
                why = f"CUDA_VISIBLE_DEVICES={text} names {len(named)} of {len(handles)} whole GPUs"
            handles = [handles[number] for number in named]
        yield handles, why


def visible(text: str, uuids: Sequence[str]) -> list[int]:
    """Numbers of the GPUs that CUDA_VISIBLE_DEVICES=`text` names, of those with these UUIDs, in CUDA's order.

    As CUDA reads it: each entry is a number or the beginning of one UUID, what is neither ends the list (here also a
    MIG device, which is part of a GPU), and a GPU named twice leaves none (so PyTorch found). NVML numbers GPUs by PCI
    bus, CUDA the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID: the same where all GPUs of a node are equal.
    """
    numbers: list[int] = []
    for entry in map(str.strip, text.split(",")):
        named = [
            number
            for number, uuid in enumerate(uuids)
            if entry == str(number) or (entry.startswith("GPU-") and uuid.startswith(entry))
        ]
        if len(named) != 1:
            break
        numbers += named
    return numbers if len(set(numbers)) == len(numbers) else []


def _ask(question: Callable[..., Any], *about: Any, to: Callable[[Any], Any] | None = None) -> Any:
    """An answer of NVML, as `to` turns it; None where this GPU or driver has none."""
    try:
        return to(question(*about)) if to else question(*about)
    except UNANSWERED:
        return None


def _from_milli(found: int) -> float:
    return found / 1000


def throttled(handle: Any) -> list[str]:
    """Reasons that slow a GPU down now."""
    bits = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return [name for bit, name in THROTTLE_REASONS.items() if bits and bits & bit]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What of a GPU stays as it is during a run, and what a run should find in order; None: no answer."""

    index: int | None = None  # as nvidia-smi numbers it
    name: str | None = None
    driver: str | None = None
    capability: int | None = None  # 80 is compute capability 8.0
    memory_gib: float | None = None
    memory_used_mib: int | None = None
    persistence: int | None = None  # 1: on
    power_limit_w: float | None = None
    ecc_corrected: int | None = None  # errors since the driver was loaded
    ecc_uncorrected: int | None = None
    throttle: tuple[str, ...] = ()  # why it is slowed down now
    processes: tuple[int, ...] | None = None  # pids


def gpu_of(handle: Any) -> Gpu:
    """What NVML says of a GPU."""
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    corrected, uncorrected = (
        _ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
        for kind in (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    )
    return Gpu(
        index=_ask(pynvml.nvmlDeviceGetIndex, handle),
        name=_ask(pynvml.nvmlDeviceGetName, handle),
        driver=_ask(pynvml.nvmlSystemGetDriverVersion),
        capability=_ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle, to=lambda pair: 10 * pair[0] + pair[1]),
        memory_gib=None if memory is None else round(memory.total / 2**30, 1),
        memory_used_mib=None if memory is None else round(memory.used / MIB),
        persistence=_ask(pynvml.nvmlDeviceGetPersistenceMode, handle),
        power_limit_w=_ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle, to=_from_milli),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        throttle=tuple(throttled(handle)),
        processes=_ask(
            pynvml.nvmlDeviceGetComputeRunningProcesses, handle, to=lambda found: tuple(one.pid for one in found)
        ),
    )


def energy_j(handle: Any) -> float | None:
    """Energy since the driver was loaded, in joules (Volta and later)."""
    found: float | None = _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle, to=_from_milli)
    return found


def nvlinks(handle: Any) -> int:
    """NVLinks of a GPU that are up."""
    return sum(_ask(pynvml.nvmlDeviceGetNvLinkState, handle, link) == 1 for link in range(NVLINK_MAX))


def sample(handle: Any, *, nvlink: bool = False) -> dict[str, Any]:
    """What a GPU does now; `nvlink`: whether to ask for KiB of data over all its links since the driver was loaded."""
    # By nvml.h; that NVML sums them so, no machine with NVLink has confirmed to us.
    sums = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
    of_links = [(counter, ALL_NVLINKS) for counter in sums]
    counters = _ask(pynvml.nvmlDeviceGetFieldValues, handle, of_links) if nvlink else None
    tx_kib, rx_kib = (c.value.ullVal if c.nvmlReturn == 0 else None for c in counters) if counters else (None, None)
    return {
        "utilization_percent": _ask(pynvml.nvmlDeviceGetUtilizationRates, handle, to=lambda use: use.gpu),
        "memory_mib": _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, to=lambda memory: round(memory.used / MIB, 1)),
        "power_w": _ask(pynvml.nvmlDeviceGetPowerUsage, handle, to=_from_milli),
        "energy_j": energy_j(handle),
        "sm_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        "temperature_c": _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "throttle": throttled(handle),
        "nvlink_tx_kib": tx_kib,
        "nvlink_rx_kib": rx_kib,
        # NVML measures these over 20 ms each, in KB/s.
        "pcie_tx_kb_per_s": _ask(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_rx_kb_per_s": _ask(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
    }


# ---- topology

_LINK = r"(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB)"


def parse_topology(text: str) -> Topology:
    """Reads `nvidia-smi topo -m` of any driver since the first with NVLink. Raises ValueError where it is none."""
    head, column, rows = re.sub(r"\x1b\[[0-9;]*m", "", text).partition("CPU")
    devices = head.split()
    if not column:
        raise ValueError("no matrix of nvidia-smi topo -m: there is no column 'CPU Affinity'")
    links, cores = [], {}
    for number, name in enumerate(devices):
        found = re.search(rf"\s{name}((?:\s+{_LINK}(?!\S)){{{len(devices)}}})(?:\s+([0-9,-]*\d[0-9,-]*)(?!\S))?", rows)
        entries = found[1].split() if found else []
        if not found or entries[number] != "X":
            raise ValueError(f"no matrix of nvidia-smi topo -m: {name} has a column and no whole row")
        links.append(entries)
        if found[2]:
            cores[name] = found[2]
    return Topology(devices=devices, links=links, cores=cores)


def topology() -> Topology | None:
    """This node's; None without nvidia-smi or GPUs."""
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=5, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return parse_topology(done.stdout) if done.returncode == 0 and "GPU0" in done.stdout else None


def cpu_list(text: str) -> set[int]:
    """Cores of a list such as "0-11,24-35"."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores
