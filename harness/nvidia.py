"""Answers of NVML about a node's GPUs. Any question may go unanswered; the answer is then None."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pynvml

from harness import env

Handle = Any  # a GPU of pynvml, which has no types

MIB = 2**20
GIB = 2**30
# NVML's bits of why clocks are held down. An idle GPU and clocks that an administrator chose are not a fault.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
NVLINK_MAX = 18  # links of one GPU that NVML numbers
ALL_NVLINKS = 0xFFFFFFFF  # nvml.h: the scope of a throughput counter is a link's number, and UINT_MAX the sum over all
NVLINK_SENT_KIB = 138  # nvml.h: NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
NVLINK_RECEIVED_KIB = 139  # nvml.h: NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
# From this driver on v1 of NVML's memory call counts the memory that the driver keeps for itself as used.
RESERVE_COUNTED_FROM = 510
# Errors that pynvml raises for a question without an answer: NVMLError by the driver, and NVMLLibraryMismatchError, no
# subclass of it, where a driver is older than pynvml. A pynvml before 12.560 does not have the second.
UNANSWERED = (pynvml.NVMLError, getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError))
GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)  # a GPU that answers nothing any more
TF32_CAPABILITY = 80  # the least compute capability with TF32: 80 is 8.0
UNIT_CAPABILITIES = range(80, 90)  # that have cuDNN's fused operations, which `resnet_unit` is made of
JPEG_UNIT_CAPABILITIES = (80, 90)  # A100 and A30, H100 and H200: with a unit that decodes JPEG
SERVICE_MIB = 64  # of a process that serves others, as MPS does: a context of CUDA takes over 200
COMPUTING = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")
DRAWING = ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2")


# ---- the GPUs of this process


@contextlib.contextmanager
def opened() -> Iterator[tuple[list[Handle], str]]:
    """Open NVIDIA's library NVML, and give the GPUs that CUDA shows this process, in CUDA's order.

    Yields:
        (handles, reason). `handles` are NVML's handles of the visible whole GPUs, good until the context ends. A part
        of a GPU (MIG) has no handle here. `reason` says why GPUs of the node are missing from `handles`, as
        "GPU3: GPU is lost", and is empty if none is missing.
    """
    with contextlib.ExitStack() as at_exit:
        handles, errors = _open_nvml(at_exit)  # of all GPUs of the node; errors of those that have no handle
        visible = _visible_handles(handles)
        some_are_hidden = len(visible) < len(handles)
        if some_are_hidden:
            # "whole", because the variable may also name parts of GPUs (MIG).
            how_many = f"{len(visible)} of {len(handles)}"
            yield visible, f"CUDA_VISIBLE_DEVICES={env.visible_gpus()} names {how_many} whole GPUs"
        else:
            yield visible, errors


def _open_nvml(at_exit: contextlib.ExitStack) -> tuple[list[Handle], str]:
    """Open NVML, and return the handles of the node's GPUs.

    Args:
        at_exit: Stack of callbacks on which the closing of NVML is put.

    Returns:
        (handles, why some are missing). The text is empty if none is missing. Without NVML there are no handles.
    """
    try:
        pynvml.nvmlInit()
        at_exit.callback(_ask, pynvml.nvmlShutdown)  # `_ask` ignores its errors
        return _all_handles()
    except UNANSWERED as error:
        return [], str(error)


def _visible_handles(handles: list[Handle]) -> list[Handle]:
    """Return the handles of the GPUs that CUDA_VISIBLE_DEVICES names, in its order; all of them if it is not set.

    Args:
        handles: NVML's handles of the node's GPUs, in the order of the PCI bus.
    """
    named_by_user = env.visible_gpus()
    if named_by_user is None:
        return handles
    # "" for a GPU that does not tell its UUID: no entry of the variable matches that, only the GPU's number.
    uuids = [uuid_of(handle) or "" for handle in handles]
    return [handles[number] for number in numbers_of_visible(named_by_user, uuids)]


def _all_handles() -> tuple[list[Handle], str]:
    """Return the handles of this node's GPUs, in the order of the PCI bus.

    Returns:
        (handles, why some are missing). The text is as "GPU3: GPU is lost; GPU5: ...", and empty if none is missing.

    Raises:
        pynvml.NVMLError: NVML does not tell how many GPUs there are.
    """
    handles = []
    reasons = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handles.append(_handle(index))
        except UNANSWERED as error:  # for example of a GPU that fell off the bus: it is counted, but answers nothing
            reasons.append(f"GPU{index}: {error}")
    return handles, "; ".join(reasons)


def _handle(index: int) -> Handle:
    """Return NVML's handle of a GPU, after two questions that find out whether the GPU is gone.

    The questions are asked because some drivers give a handle of a GPU that fell off the bus, too. Their answers are
    not used, and of their errors only those in GONE count: the GPU is lost, or must be reset.

    Args:
        index: NVML's number of the GPU, from 0.

    Raises:
        pynvml.NVMLError: NVML has no handle of the GPU, or the GPU is gone.
    """
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    for question in (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetMemoryInfo):
        try:
            question(handle)
        except UNANSWERED as error:
            is_gone = getattr(error, "value", None) in GONE
            if is_gone:
                raise
    return handle


def numbers_of_visible(text: str, uuids: Sequence[str]) -> list[int]:
    """Return the numbers of the GPUs that a value of CUDA_VISIBLE_DEVICES names, in its order.

    As in CUDA, an entry that does not name one whole GPU ends the list. A GPU that is named twice leaves the list
    empty.

    Args:
        text: The value. Its entries are numbers or beginnings of UUIDs, as in "1,0" or "GPU-8f2a,GPU-03".
        uuids: UUIDs of the node's GPUs by their numbers; "" for an unknown one.
    """
    numbers: list[int] = []
    for entry in text.split(","):
        matches = _numbers_of_entry(entry.strip(), uuids)
        is_one_gpu = len(matches) == 1  # not so for a MIG device, which is a part of a GPU
        if not is_one_gpu:
            break
        numbers += matches

    is_one_named_twice = len(set(numbers)) < len(numbers)
    if is_one_named_twice:  # CUDA then shows none, as PyTorch found
        return []
    return numbers


def _numbers_of_entry(entry: str, uuids: Sequence[str]) -> list[int]:
    """Return the numbers of the GPUs that one entry of CUDA_VISIBLE_DEVICES may mean; none if it means no GPU.

    Args:
        entry: A number, or the beginning of a UUID, such as "GPU-8f2a".
        uuids: UUIDs of the node's GPUs by their numbers.
    """
    if entry.startswith("GPU-"):
        return [number for number, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return [number for number in range(len(uuids)) if entry == str(number)]


# ---- asking NVML


def _ask(question: Callable[..., Any], *about: Any) -> Any:
    """Return NVML's answer to a question; None if this GPU or driver has none.

    Args:
        question: A function of pynvml.
        about: Its arguments, as the handle of a GPU.
    """
    try:
        return question(*about)
    except UNANSWERED:
        return None


def _ask_newer(name: str, *about: Any) -> Any:
    """Return NVML's answer by a function that an old pynvml or an old driver may not have; None without an answer.

    Args:
        name: Name of the function of pynvml, such as "nvmlDeviceGetMigMode".
        about: Its arguments, as the handle of a GPU.
    """
    question = getattr(pynvml, name, None)
    if question is None:
        return None
    return _ask(question, *about)


def _from_milli(value: int | None) -> float | None:
    """Return a value in thousandths of a unit, as mW, in units, as W."""
    if value is None:
        return None
    return value / 1000


def _text(answer: str | bytes | None) -> str | None:
    """Return NVML's answer that is a name as text; an old pynvml gives it as bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def uuid_of(handle: Handle) -> str | None:
    """Return a GPU's UUID, such as "GPU-8d2f0000-..."; None: no answer."""
    return _text(_ask(pynvml.nvmlDeviceGetUUID, handle))


def serial_of(handle: Handle) -> str | None:
    """Return a GPU's serial number; None: no answer."""
    return _text(_ask(pynvml.nvmlDeviceGetSerial, handle))


def throttled(handle: Handle) -> tuple[str, ...] | None:
    """Return the reasons that slow a GPU down now, of those in THROTTLE_REASONS; None: no answer.

    Args:
        handle: NVML's handle of the GPU.

    Returns:
        Words as "power cap". Empty if none of these reasons holds.
    """
    bits = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if bits is None:
        return None
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


def energy_j(handle: Handle) -> float | None:
    """Return the energy in joules that a GPU has used since the driver was loaded; None: no answer.

    GPUs before Volta give none.

    Args:
        handle: NVML's handle of the GPU.
    """
    return _from_milli(_ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle))


def nvlinks(handle: Handle) -> int:
    """Return how many NVLinks of a GPU are up."""
    states = [_ask(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(NVLINK_MAX)]
    return states.count(1)


# ---- a GPU's memory


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of a GPU in bytes; None: no answer."""

    total: int | None = None
    used: int | None = None  # by processes
    used_or_reserved: int | None = None  # by processes and the driver together, where NVML does not tell them apart


def memory_of(handle: Handle) -> Memory:
    """Return how much memory a GPU has and how much of it processes use, in bytes.

    Args:
        handle: NVML's handle of the GPU.

    Returns:
        The amounts. A field is None if NVML does not tell it. If the use may include what the driver reserves for
        itself, 0.3 to 1 GiB, it is in `used_or_reserved` and not in `used`.
    """
    by_v2 = _memory_by_v2(handle)  # by the second version of NVML's query, which tells the reserve apart
    if by_v2 is not None:
        return Memory(total=by_v2.total or None, used=by_v2.used)

    by_v1 = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if by_v1 is None:
        return Memory()
    generation = _driver_generation(driver_version())
    may_count_reserve = generation is None or generation >= RESERVE_COUNTED_FROM  # driver 510
    if may_count_reserve:
        return Memory(total=by_v1.total or None, used_or_reserved=by_v1.used)
    return Memory(total=by_v1.total or None, used=by_v1.used)


def _memory_by_v2(handle: Handle) -> Any:
    """Return NVML's answer to version 2 of its query for a GPU's memory, in which processes' use is told apart.

    Args:
        handle: NVML's handle of the GPU.

    Returns:
        The answer, with `total` and `used` in bytes. None if pynvml or the driver does not have this version.
    """
    version_2 = getattr(pynvml, "nvmlMemory_v2", None)
    return None if version_2 is None else _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, version_2)


def driver_version() -> str | None:
    """Return the version of the driver that is loaded, such as "525.105.17"; None: no answer."""
    return _text(_ask(pynvml.nvmlSystemGetDriverVersion))


def _driver_generation(version: str | None) -> int | None:
    """Return the first number of a driver's version, as 525 of "525.105.17"; None where it is not known."""
    first, _, _ = (version or "").partition(".")
    return int(first) if first.isdecimal() else None


# ---- a GPU before a run


class RemappedRows(NamedTuple):
    """Rows of a GPU's memory that others stand in for (Ampere and later)."""

    correctable: int  # rows replaced after errors that ECC corrected
    uncorrectable: int  # rows replaced after errors that it did not
    pending: bool  # a row is replaced at the next reset
    failed: bool  # a row could not be replaced: the GPU is for replacement


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU's fixed properties, and the states that a run should find in order; None: no answer."""

    index: int | None = None  # as nvidia-smi numbers it
    name: str | None = None
    driver: str | None = None
    capability: int | None = None  # 80 is compute capability 8.0
    memory_gib: float | None = None
    memory_used_mib: int | None = None  # by processes
    memory_used_or_reserved_mib: int | None = None  # with the driver's reserve, where it is not told apart
    persistence: int | None = None  # 1: on
    compute_mode: int | None = None  # NVML_COMPUTEMODE_*
    mig: bool | None = None  # whether the GPU is divided into MIG instances
    mig_after_reset: bool | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    application_clock_mhz: int | None = None  # of the SMs, by nvidia-smi -ac
    default_application_clock_mhz: int | None = None
    ecc_corrected: int | None = None  # errors since the driver was loaded
    ecc_uncorrected: int | None = None
    remapped_rows: RemappedRows | None = None
    retired_pages_pending: bool | None = None  # before Ampere: a page of memory is retired at the next reset
    throttle: tuple[str, ...] | None = None  # why it is slowed down now
    processes: tuple[int, ...] | None = None  # pids of those that compute
    services: tuple[int, ...] = ()  # of these, the ones that hold at most SERVICE_MIB
    displays: tuple[int, ...] = ()  # pids of those that draw, which may be listed as computing too


def gpu_of(handle: Handle) -> Gpu:
    """Return a GPU's properties and its state before a run, as NVML tells them.

    Args:
        handle: NVML's handle of the GPU.

    Returns:
        The GPU. A field is None if NVML does not answer; `services` and `displays` are then empty.
    """
    memory = memory_of(handle)
    # Whether the GPU is divided into MIG instances: now, and after its next reset.
    mig, mig_after_reset = _ask_newer("nvmlDeviceGetMigMode", handle) or (None, None)
    processes = _processes(COMPUTING, handle)
    services = [process for process in processes or () if _is_service(process)]  # as MPS, which holds little memory
    may_be_in_use = bool(processes) or _holds_more_than_service(memory)
    displays = _processes(DRAWING, handle) if may_be_in_use else None  # not asked for on an idle GPU
    return Gpu(
        index=_ask(pynvml.nvmlDeviceGetIndex, handle),
        name=_text(_ask(pynvml.nvmlDeviceGetName, handle)),
        driver=driver_version(),
        capability=_capability(handle),
        memory_gib=_gib(memory.total),
        memory_used_mib=_mib(memory.used),
        memory_used_or_reserved_mib=_mib(memory.used_or_reserved),
        persistence=_ask(pynvml.nvmlDeviceGetPersistenceMode, handle),
        compute_mode=_ask(pynvml.nvmlDeviceGetComputeMode, handle),
        mig=_flag(mig),
        mig_after_reset=_flag(mig_after_reset),
        power_limit_w=_from_milli(_ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle)),
        default_power_limit_w=_from_milli(_ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
        application_clock_mhz=_ask(pynvml.nvmlDeviceGetApplicationsClock, handle, pynvml.NVML_CLOCK_SM),
        default_application_clock_mhz=_ask(pynvml.nvmlDeviceGetDefaultApplicationsClock, handle, pynvml.NVML_CLOCK_SM),
        ecc_corrected=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        remapped_rows=_remapped_rows(handle),
        retired_pages_pending=_flag(_ask_newer("nvmlDeviceGetRetiredPagesPendingStatus", handle)),
        throttle=throttled(handle),
        processes=None if processes is None else tuple(process.pid for process in processes),
        services=tuple(process.pid for process in services),
        displays=tuple(process.pid for process in displays or ()),
    )


def _holds_more_than_service(memory: Memory) -> bool:
    """Return whether more memory of a GPU is used than a service process such as MPS would hold.

    Then the GPU may be in use even if NVML lists no process on it, as NVML may leave one out.

    Args:
        memory: Memory of the GPU. It counts as unused if NVML tells nothing.
    """
    used_bytes = memory.used or memory.used_or_reserved or 0  # 0 if NVML tells neither
    return used_bytes > SERVICE_MIB * MIB


def _capability(handle: Handle) -> int | None:
    """Return a GPU's compute capability as one number, 80 for 8.0; None: no answer."""
    answer = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    if answer is None:
        return None
    major, minor = answer
    return int(10 * major + minor)


def _remapped_rows(handle: Handle) -> RemappedRows | None:
    """Return how many rows of a GPU's memory were replaced (remapped) after errors, and whether one is still to be.

    Args:
        handle: NVML's handle of the GPU.

    Returns:
        The numbers of rows by the kind of error, whether one is still to be replaced, and whether a replacement failed.
        None if the GPU cannot replace rows, as before Ampere, or gives no answer.
    """
    answer = _ask_newer("nvmlDeviceGetRemappedRows", handle)
    if answer is None:
        return None
    correctable, uncorrectable, pending, failed = answer
    return RemappedRows(correctable, uncorrectable, bool(pending), bool(failed))


def _flag(answer: int | None) -> bool | None:
    """Return NVML's 0 or 1 as a truth value; None stays None."""
    if answer is None:
        return None
    return bool(answer)


def _mib(size: int | None) -> int | None:
    """Return bytes as whole MiB; None stays None."""
    if size is None:
        return None
    return round(size / MIB)


def _gib(size: int | None) -> float | None:
    """Return bytes as GiB with one decimal; None stays None."""
    if size is None:
        return None
    return round(size / GIB, 1)


def _ecc_errors(handle: Handle, kind: int) -> int | None:
    """Return the number of a GPU's ECC errors since the driver was loaded; None if ECC is off or not there.

    Args:
        handle: NVML's handle of the GPU.
        kind: pynvml's number of a kind of error: corrected or uncorrected.
    """
    errors: int | None = _ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
    return errors


def _processes(questions: Sequence[str], handle: Handle) -> list[Any] | None:
    """Return the processes on a GPU by the first call of NVML that answers; None if none does.

    Args:
        questions: Names of functions of pynvml that ask for processes, the preferred one first.
        handle: NVML's handle of the GPU.
    """
    for question in questions:
        processes: list[Any] | None = _ask_newer(question, handle)
        if processes is not None:
            return processes
    return None


def _is_service(process: Any) -> bool:
    """Return whether a process on a GPU is a service, as MPS: it holds too little memory for a context of CUDA.

    Args:
        process: NVML's entry of the process. If it does not tell the memory, the result is False.
    """
    used_bytes = getattr(process, "usedGpuMemory", None) or 0
    return 0 < used_bytes <= SERVICE_MIB * MIB


# ---- a GPU during a run


def sample(handle: Handle, *, nvlink: bool = False) -> dict[str, Any]:
    """Read the sensors of one GPU now, and return the readings by the names that the telemetry file uses.

    Args:
        handle: The GPU's handle in NVML, NVIDIA's library for monitoring.
        nvlink: Whether to read the NVLink counters. If False, "nvlink_tx_kib" and "nvlink_rx_kib" are None.

    Returns:
        {name with its unit: reading}, such as {"power_w": 250.5, "temperature_c": 61, "throttle": ["power cap"], ...}.
        The keys are always the same. A reading is None if NVML does not tell it. Only "throttle", the list of reasons
        that slow the GPU down now, is empty in that case, as it is if there are no such reasons. "energy_j" and the
        NVLink counters (KiB over all links of the GPU) count from when the driver was loaded.
    """
    utilization = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    bytes_used_by_processes = memory_of(handle).used
    sent_kib = received_kib = None
    if nvlink:
        sent_kib, received_kib = _nvlink_kib(handle)
    return {
        "utilization_percent": None if utilization is None else utilization.gpu,
        "memory_mib": None if bytes_used_by_processes is None else round(bytes_used_by_processes / MIB, 1),
        "power_w": _from_milli(_ask(pynvml.nvmlDeviceGetPowerUsage, handle)),
        "energy_j": energy_j(handle),
        "sm_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        "temperature_c": _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "throttle": list(throttled(handle) or ()),
        "nvlink_tx_kib": sent_kib,
        "nvlink_rx_kib": received_kib,
        # NVML measures each of these two over an interval of 20 ms, not over the time since the last sample.
        "pcie_tx_kb_per_s": _ask(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_rx_kb_per_s": _ask(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
    }


def _nvlink_kib(handle: Handle) -> tuple[int | None, int | None]:
    """Return the KiB that a GPU has sent and received over all its NVLinks since the driver was loaded.

    That NVML sums over the links is by nvml.h; no machine with NVLink has confirmed it to us.

    Args:
        handle: NVML's handle of the GPU.

    Returns:
        (sent, received), each None if NVML does not tell it.
    """
    questions = [(NVLINK_SENT_KIB, ALL_NVLINKS), (NVLINK_RECEIVED_KIB, ALL_NVLINKS)]
    answers = _ask(pynvml.nvmlDeviceGetFieldValues, handle, questions)
    if answers is None:
        return None, None
    sent, received = answers
    return _field_value(sent), _field_value(received)


def _field_value(answer: Any) -> int | None:
    """Return one counter of an answer of NVML to several questions; None if its own return code is an error.

    Args:
        answer: NVML's answer for one field.
    """
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    value: int = answer.value.ullVal
    return value
