"""The doctor's judgement of a node's GPUs: whether each is fit for the job and free, how they are linked and bound."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pynvml

from harness import env, memory, nvidia, provenance
from runlog.digits import six_digits
from runlog.verdict import FATAL, OK, WARNING, Verdict
from tools.doctor.cuda import CudaStart, System
from tools.doctor.rows import CAPABILITIES, FAULTS, Facts, gpu_name, judge_check
from tools.doctor.topology_checks import judge_topology

# GPU code inside paddlepaddle-gpu 2.6.2: it runs on the same major version at the same minor or a later one.
GPU_CODE = (61, 70, 75, 80, 86, 90) if provenance.is_for_cuda_12() else (61, 70, 75, 80, 86)
# CUDA's release notes, tables 2 and 3: the driver bundled with this CUDA, and the oldest driver that runs it by
# minor-version compatibility.
DRIVERS = ("530.30.02", "525.60.13") if provenance.is_for_cuda_12() else ("520.61.05", "450.80.02")
CUDA_VERSION = 12010 if provenance.is_for_cuda_12() else 11080  # of this Paddle, as cuDriverGetVersion has it
NO_NVML = "NVML Shared Library Not Found"
NOT_SAID = "NVML does not say it: look at nvidia-smi -q on the host"
FOREIGN_MIB = 500  # memory in use on a GPU before a run that somebody else must hold
RESERVE_MIB = 1500  # the most that a driver may keep for itself, if NVML reports only a sum; up to 1000 was seen
ROW_REMAPPING_FROM = 80  # compute capability of the first GPUs that replace rows of their memory
COMPUTE_MODES = {  # nvml.h: nvmlComputeMode_t
    pynvml.NVML_COMPUTEMODE_DEFAULT: "Default",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "Exclusive_Thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process",
}


def code_for(capability: int | None) -> list[int]:
    """Return which machine codes of this Paddle a GPU of this compute capability runs: 86 -> [80, 86].

    A GPU runs code made for the same major version and for the same or an earlier minor version. The list is empty for
    an unknown capability (None).
    """
    if capability is None:
        return []
    return [code for code in GPU_CODE if code // 10 == capability // 10 and code <= capability]


def judge_gpus(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield the verdicts on a node's GPUs: their number, each GPU of the job by itself, and how they are linked.

    The job uses the first DGXNGPU GPUs in CUDA's order. If NVML shows no GPU, the only verdict is on the number.
    """
    gpus: list[nvidia.Gpu] = facts["gpus"]
    yield _judge_count(facts, job)
    for gpu in gpus[: job.cluster.dgxngpu]:
        yield _judge_compute_capability(gpu, job)
        yield _judge_driver(gpu, facts, job)
        yield from _judge_health(gpu, job)
        yield from _judge_mode(gpu, job)
        yield from judge_memory(gpu, job)
    if gpus:
        yield from judge_topology(facts, job)


def _judge_count(facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on whether NVML shows as many GPUs as the job needs.

    If NVML lacks some or all GPUs, the verdict quotes NVML's reason and has the advice of faults.yaml. A run counts its
    GPUs by NVML, so GPUs that only CUDA shows do not count. If CUDA shows enough GPUs but the NVML library is missing,
    as in a wrongly started container, the verdict says how to get NVML.
    """
    reason: str = facts["gpu_absence"]  # why NVML does not show some or all GPUs; empty if it shows all
    shown_by_nvml = len(facts["gpus"])
    found = f"{shown_by_nvml} ({reason})" if reason else str(shown_by_nvml)
    fix = _advice_on_nvml(reason)
    start: CudaStart | None = facts.get("cuda_start")
    shown_by_cuda = 0
    if start is not None and start.count is not None:
        shown_by_cuda = start.count
    if NO_NVML in reason and shown_by_cuda >= job.cluster.dgxngpu:  # as in a wrongly started container
        found += f", while CUDA shows {shown_by_cuda}"
        fix = f"start the container with NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES}: it has CUDA and no NVML"
    return judge_check(job, "gpu.count", good=shown_by_nvml >= job.cluster.dgxngpu, found=found, fix=fix)


def _advice_on_nvml(reason: str) -> str:
    """Return what faults.yaml advises for NVML's reason for missing GPUs; empty if it does not know the reason."""
    for words, fix in FAULTS["nvml"].items():
        if words in reason:
            return str(fix)
    return ""


# ---- one GPU


def _judge_compute_capability(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether this build of Paddle has machine code for the GPU.

    - GPU_CODE has code for exactly its compute capability: ok.
    - Its compute capability is unknown: a warning.
    - It runs only code that was made for an earlier compute capability: a warning.
    - It runs none of the code: fatal.
    """
    has_own_code = gpu.capability in GPU_CODE
    runnable_codes = code_for(gpu.capability)
    # Status and fix are used only if the GPU does not have its own code.
    if gpu.capability is None:
        bad_status = WARNING
        fix = NOT_SAID
    elif runnable_codes:
        bad_status = WARNING
        fix = f"it runs the code made for {max(runnable_codes)}: publish no figure as this GPU's best"
    else:
        bad_status = FATAL
        fix = ""  # empty: judge_check takes the fix of checks.yaml
    return judge_check(
        job,
        "gpu.compute_capability",
        good=has_own_code,
        found=f"{gpu_name(gpu)} {gpu.name or 'of unknown name'}: {gpu.capability or 'unknown'}",
        bad_status=bad_status,
        fix=fix,
        codes=", ".join(str(code) for code in GPU_CODE),
    )


def _judge_driver(gpu: nvidia.Gpu, facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on whether the GPU's driver runs the CUDA of this Paddle.

    DRIVERS has the driver bundled with this CUDA, and the oldest driver that runs it.

    - At least as new as the bundled driver: ok.
    - Older, but at least as new as the oldest driver: ok by NVIDIA's minor-version compatibility.
    - Older still or unknown, but CUDA has started: ok. An old driver then runs CUDA by the package cuda-compat.
    - Unknown, and CUDA has not started: a warning.
    - Older than the oldest driver, and CUDA has not started: fatal.
    """
    bundled_driver, oldest_driver = DRIVERS
    driver = _driver_version(gpu, facts)
    found = driver or "unknown"
    if _numbers(driver) >= _numbers(bundled_driver):  # False for an unknown driver, which has no numbers
        return _driver_verdict(job, good=True, found=found)
    if _numbers(driver) >= _numbers(oldest_driver):
        # Paddle, cuDNN and DALI need no PTX: they have machine code for GPU_CODE.
        found += f": older than {bundled_driver}, it runs CUDA by minor-version compatibility, which compiles no PTX"
        return _driver_verdict(job, good=True, found=found)
    if _cuda_has_started(facts):  # the best proof, whatever the version says
        start: CudaStart = facts["cuda_start"]
        found += f": {start.library} (cuda-compat) runs CUDA {start.version_words} on it"
        return _driver_verdict(job, good=True, found=found)
    if driver is None:
        return _driver_verdict(job, good=False, found=found, bad_status=WARNING, fix=NOT_SAID)
    return _driver_verdict(job, good=False, found=found, bad_status=FATAL)


def _driver_version(gpu: nvidia.Gpu, facts: Facts) -> str | None:
    """Return the version of the GPU's driver: NVML's answer, else that of the loaded kernel module; None if unknown."""
    system: System | None = facts.get("cuda_system")
    if gpu.driver is None and system is not None:
        return system.kernel_module
    return gpu.driver


def _cuda_has_started(facts: Facts) -> bool:
    """Return whether CUDA has started on the node, in the version of this Paddle or a later one."""
    start: CudaStart | None = facts.get("cuda_start")
    return start is not None and start.runs(CUDA_VERSION)


def _driver_verdict(job: env.Job, *, good: bool, found: str, bad_status: str = "", fix: str = "") -> Verdict:
    """Return a verdict of the check "gpu.driver". Its texts in checks.yaml have the placeholders {own} and {least}."""
    bundled_driver, oldest_driver = DRIVERS
    return judge_check(
        job,
        "gpu.driver",
        good=good,
        found=found,
        bad_status=bad_status,
        fix=fix,
        own=bundled_driver,
        least=oldest_driver,
    )


def _numbers(version: str | None) -> list[int]:
    """Return the numbers of a version, to compare versions: "470.82.01" -> [470, 82, 1]; None -> []."""
    return [int(digits) for digits in re.findall(r"\d+", version or "")]


def _judge_health(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on whether the GPU computes without errors, at full clocks and for this job alone."""
    yield _judge_ecc(gpu, job)
    yield from _judge_memory_repair(gpu, job)
    yield _judge_throttling(gpu, job)
    yield _judge_clocks(gpu, job)
    yield _judge_processes(gpu, job)
    yield _judge_persistence(gpu, job)


def _judge_throttling(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether something slows the GPU down now, such as heat or a power limit."""
    if gpu.throttle is None:
        return judge_check(job, "gpu.throttling", good=False, found=f"{gpu_name(gpu)}: unknown", fix=NOT_SAID)
    reasons = ", ".join(gpu.throttle) or "none"
    return judge_check(job, "gpu.throttling", good=not gpu.throttle, found=f"{gpu_name(gpu)}: {reasons}")


def _judge_persistence(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether the driver stays loaded on the GPU while no process uses it."""
    state = "unknown"
    if gpu.persistence is not None:
        state = "on" if gpu.persistence else "off"
    return judge_check(job, "gpu.persistence", good=state == "on", found=f"{gpu_name(gpu)}: {state}")


def _judge_ecc(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on the memory errors that ECC has counted since the driver was loaded.

    - ECC is off or missing, so that there is no count: a warning.
    - There are uncorrected errors: fatal.
    - There are only corrected errors: a warning.
    - There are none: ok.
    """
    uncorrected = gpu.ecc_uncorrected
    if uncorrected is None:
        fix = "ECC is off or not there: nvidia-smi -e 1 and a reset turn it on"
        return judge_check(job, "gpu.ecc", good=False, found=f"{gpu_name(gpu)}: unknown", fix=fix)
    found = f"{gpu_name(gpu)}: {uncorrected} uncorrected, {gpu.ecc_corrected} corrected"
    has_errors = uncorrected > 0 or bool(gpu.ecc_corrected)
    bad_status = FATAL if uncorrected else WARNING
    return judge_check(job, "gpu.ecc", good=not has_errors, found=found, bad_status=bad_status)


def _judge_memory_repair(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on whether the broken parts of the GPU's memory are out of use.

    GPUs from Ampere on replace broken rows of memory by spare ones. Earlier GPUs retire broken pages. Both happen at
    the next reset of the GPU; until then the broken part is in use.

    - The GPU reports its rows: a verdict on them.
    - The GPU does not report its rows, though it may be of Ampere or later: a verdict that they are unknown.
    - A page waits for its retirement: a bad verdict, beside the one on rows if there is one.

    All verdicts are of the check "gpu.remapped_rows".
    """
    rows = gpu.remapped_rows
    may_replace_rows = gpu.capability is None or gpu.capability >= ROW_REMAPPING_FROM
    if rows is not None:
        yield _judge_remapped_rows(gpu_name(gpu), rows, job)
    elif may_replace_rows:
        yield judge_check(job, "gpu.remapped_rows", good=False, found=f"{gpu_name(gpu)}: unknown", fix=NOT_SAID)

    if gpu.retired_pages_pending:
        # GPUs before Ampere have such pages. They are reported by the same check as rows.
        found = f"{gpu_name(gpu)}: a page is retired at the next reset"
        yield judge_check(job, "gpu.remapped_rows", good=False, found=found)


def _judge_remapped_rows(gpu_name: str, rows: nvidia.RemappedRows, job: env.Job) -> Verdict:
    """Return the verdict on a GPU's broken rows of memory.

    - A row could not be replaced, because no spare one is left: fatal.
    - A row will be replaced at the next reset: a warning.
    - All broken rows were replaced, or there are none: ok.
    """
    found = f"{gpu_name}: {rows.correctable} after corrected errors, {rows.uncorrectable} after uncorrected ones"
    if rows.failed:
        found += ", one could not be replaced"
        fix = "the GPU has no spare row left there: replace it (RMA)"
        return judge_check(job, "gpu.remapped_rows", good=False, found=found, bad_status=FATAL, fix=fix)
    if rows.pending:
        return judge_check(job, "gpu.remapped_rows", good=False, found=f"{found}, more at the next reset")
    return judge_check(job, "gpu.remapped_rows", good=True, found=found)


def _judge_clocks(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether somebody has set the GPU's application clock below the card's default.

    An unknown clock is ok, too: some cards have no application clocks. The check "gpu.throttling" then shows what slows
    the GPU down.
    """
    set_mhz = gpu.application_clock_mhz
    default_mhz = gpu.default_application_clock_mhz
    if set_mhz is None or default_mhz is None:
        return judge_check(job, "gpu.clocks", good=True, found=f"{gpu_name(gpu)}: no application clock is known")
    found = f"{gpu_name(gpu)}: {set_mhz} MHz of {default_mhz} by default"
    return judge_check(job, "gpu.clocks", good=set_mhz >= default_mhz, found=found)


def _judge_processes(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether the GPU is free for the job.

    A process of another job is fatal, and so is much memory in use without a display. A display, a service such as MPS,
    or an unknown use of memory is a warning.
    """
    memory_in_use = _memory_in_use(gpu)
    computing = [pid for pid in gpu.processes or () if pid not in gpu.displays]
    pids = "pids unknown" if gpu.processes is None else f"pids {_pids(computing)}"
    if gpu.displays:
        pids += f", of a display {_pids(gpu.displays)}"

    status, fix = _status_by_use(gpu, computing, memory_in_use)
    return judge_check(
        job,
        "gpu.processes",
        good=status == OK,
        found=f"{gpu_name(gpu)}: {pids}, {memory_in_use.words}",
        bad_status=status,
        fix=fix,
        most=memory_in_use.most_mib,
    )


@dataclass(frozen=True, kw_only=True)
class _MemoryInUse:
    """The memory of a GPU that is in use before a run."""

    mib: int | None  # None: unknown
    most_mib: int  # the most that is tolerated
    words: str  # "1024 MiB in use"

    @property
    def is_too_much(self) -> bool:
        """Return whether so much is in use that somebody else must hold some of it; False if unknown."""
        return self.mib is not None and self.mib > self.most_mib


def _memory_in_use(gpu: nvidia.Gpu) -> _MemoryInUse:
    """Return how much of a GPU's memory is in use before a run, and the most that is tolerated.

    - The driver reports what processes use: up to FOREIGN_MIB is tolerated.
    - It reports only the sum of that and of what it keeps for itself: RESERVE_MIB more is tolerated.
    - It reports neither: `mib` is None.
    """
    mib = gpu.memory_used_mib
    most_mib = FOREIGN_MIB
    kind = "in use"
    if mib is None:
        mib = gpu.memory_used_or_reserved_mib
        most_mib = FOREIGN_MIB + RESERVE_MIB
        kind = "in use or kept by the driver"
    words = "memory in use unknown" if mib is None else f"{mib} MiB {kind}"
    return _MemoryInUse(mib=mib, most_mib=most_mib, words=words)


def _status_by_use(gpu: nvidia.Gpu, computing: list[int], memory_in_use: _MemoryInUse) -> tuple[str, str]:
    """Return a GPU's status by what uses it, and what to do. If the latter is empty, checks.yaml says it.

    `computing` are the processes on the GPU, without those of displays.
    """
    is_used_by_other_job = any(pid not in gpu.services for pid in computing)
    # A container does not see the processes outside it, but it sees their memory.
    has_unseen_process = memory_in_use.is_too_much and not gpu.displays
    if is_used_by_other_job or has_unseen_process:
        return FATAL, ""
    if memory_in_use.is_too_much:
        fix = "the display takes this memory: end it (systemctl isolate multi-user.target), or leave this GPU out"
        return WARNING, fix
    if computing:  # only services
        return WARNING, "a service holds the GPU, as nvidia-cuda-mps-server does: end it before a run that is published"
    if memory_in_use.mib is None:
        return WARNING, NOT_SAID
    return OK, ""


def _pids(pids: Iterable[int]) -> str:
    """Return pids as text, comma-separated; "none" if there are none."""
    return ", ".join(str(pid) for pid in pids) or "none"


def _judge_mode(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield a verdict on each of the GPU's two modes; none on a mode that the GPU does not report.

    MIG mode divides a GPU into several:

    - off, now and after the next reset: ok;
    - on: fatal;
    - off now, on after the next reset: a warning.

    The compute mode says how many processes may use the GPU:

    - the default, any number: ok;
    - prohibited, none: fatal;
    - another one, only one process: a warning.
    """
    if gpu.mig is not None:
        state = "on" if gpu.mig else "off"
        state_after_reset = "on" if gpu.mig_after_reset else "off"
        found = f"{gpu_name(gpu)}: MIG {state}"
        if state != state_after_reset:
            found += f", {state_after_reset} after a reset"
        good = state == "off" and state_after_reset == "off"
        yield judge_check(job, "gpu.mig", good=good, found=found, bad_status=FATAL if gpu.mig else WARNING)

    if gpu.compute_mode is not None:
        found = f"{gpu_name(gpu)}: {COMPUTE_MODES.get(gpu.compute_mode, gpu.compute_mode)}"
        good = gpu.compute_mode == pynvml.NVML_COMPUTEMODE_DEFAULT
        bad_status = FATAL if gpu.compute_mode == pynvml.NVML_COMPUTEMODE_PROHIBITED else WARNING
        yield judge_check(job, "gpu.compute_mode", good=good, found=found, bad_status=bad_status)


def judge_memory(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield the verdict on whether the job's training fits into the GPU's memory.

    The estimated need is the sum of the program's measured peak, cuDNN's workspace, the input pipeline, and what CUDA
    and its libraries take. A margin must be left over. The verdict lists all parts.

    Nothing is yielded if the GPU's memory is unknown, or if the peak of the job's program was never measured.
    """
    program_mib = memory.program_mib(job)
    if gpu.memory_gib is None or program_mib is None:
        return
    workspace_mib = _workspace_mib(gpu.memory_gib, job)
    input_memory = memory.input_memory(job)
    need_gib = (program_mib + workspace_mib + input_memory.device_mib + memory.BESIDE_MIB) / 1024
    margin_gib = memory.MARGIN * gpu.memory_gib
    need = (
        f"{need_gib:.1f} GiB at BATCHSIZE={job.model.batchsize}: program {program_mib / 1024:.1f}, cuDNN's workspace "
        f"{workspace_mib / 1024:.1f}, input {input_memory.device_mib / 1024:.1f} ({input_memory.words}), context and "
        f"libraries {memory.BESIDE_MIB / 1024:.1f} (assumed); and {margin_gib:.1f} GiB left over"
    )
    fits = need_gib + margin_gib <= gpu.memory_gib
    found = f"{gpu_name(gpu)}: {six_digits(gpu.memory_gib)} GiB"
    yield judge_check(job, "gpu.memory", good=fits, found=found, need=need, limit=memory.WORKSPACE_LIMIT)


def _workspace_mib(memory_gib: float, job: env.Job) -> int:
    """Return the MiB that cuDNN may take for its workspace.

    The first that is set counts: the knob of STRATEGY, the user's environment variable, the project's own limit.
    """
    by_strategy = job.model.knobs.conv_workspace_size_limit
    if by_strategy is not None:
        return by_strategy
    by_user = env.libraries().get(memory.WORKSPACE_LIMIT)
    return int(by_user or memory.workspace_limit_mib(memory_gib))
