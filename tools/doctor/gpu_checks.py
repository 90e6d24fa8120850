"""The doctor's judgement of a node's GPUs: whether each is fit for the job and free, how they are linked and bound."""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

import pynvml

from harness import env, memory, nvidia, provenance
from runlog.digits import six_digits
from runlog.verdict import FATAL, OK, WARNING, Verdict
from tools.doctor.cuda import CudaStart, System
from tools.doctor.process_checks import judge_processes
from tools.doctor.rows import CAPABILITIES, FAULTS, NOT_SAID, Facts, gpu_name, judge_check, ok_if
from tools.doctor.topology_checks import judge_topology

# GPU code inside paddlepaddle-gpu 2.6.2: it runs on the same major version at the same minor or a later one.
GPU_CODE = (61, 70, 75, 80, 86, 90) if provenance.is_for_cuda_12() else (61, 70, 75, 80, 86)


class CudaDrivers(NamedTuple):
    """NVIDIA's drivers for a version of CUDA."""

    bundled: str  # with this CUDA
    oldest: str  # that runs it, by minor-version compatibility


# CUDA's release notes, tables 2 and 3.
DRIVERS = (
    CudaDrivers("530.30.02", "525.60.13") if provenance.is_for_cuda_12() else CudaDrivers("520.61.05", "450.80.02")
)
# PTX is NVIDIA's code for any GPU. No PTX is needed: Paddle, cuDNN and DALI have machine code for GPU_CODE.
WHY_AN_OLDER_DRIVER_RUNS = (
    f"older than {DRIVERS.bundled}, it runs CUDA by minor-version compatibility, which compiles no PTX"
)
JPEG_UNIT_DRIVER = "455"  # DALI's documentation of fn.decoders.image
JPEG_UNIT_IS_UNUSED = f"before {JPEG_UNIT_DRIVER} DALI leaves the GPU's JPEG decoder unused, and input is slower"
CUDA_VERSION = 12010 if provenance.is_for_cuda_12() else 11080  # of this Paddle, as cuDriverGetVersion has it
NO_NVML = "NVML Shared Library Not Found"  # in the message of NVML's error if the library is missing
ROW_REMAPPING_FROM = 80  # compute capability of the first GPUs that replace rows of their memory
COMPUTE_MODES = {  # nvml.h: nvmlComputeMode_t
    pynvml.NVML_COMPUTEMODE_DEFAULT: "Default",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "Exclusive_Thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process",
}


def code_for(capability: int | None) -> list[int]:
    """Return which machine codes of this Paddle a GPU of some compute capability runs: 86 -> [80, 86].

    They are those for the same major version, and for the same or an earlier minor one.

    Args:
        capability: The GPU's compute capability as an integer, 86 for 8.6; None if it is unknown.

    Returns:
        Capabilities that code was compiled for, ascending; empty if the GPU runs none, or for None.
    """
    if capability is None:
        return []
    return [code for code in GPU_CODE if code // 10 == capability // 10 and code <= capability]


def judge_gpus(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield the verdicts on a node's GPUs: their number, each GPU of the job by itself, and how they are linked.

    The job uses the first DGXNGPU GPUs in CUDA's order.

    Args:
        facts: What was seen of the node, as `node.probe` returns it. "gpus" has the GPUs in CUDA's order.
        job: Settings of the training job, with the number of GPUs that a node uses (DGXNGPU).
    """
    gpus: list[nvidia.Gpu] = facts["gpus"]
    yield _judge_count(facts, job)
    for gpu in gpus[: job.cluster.dgxngpu]:
        yield _judge_compute_capability(gpu, job)
        yield _judge_driver(gpu, facts, job)
        yield from _judge_health(gpu, job)
        yield from _judge_modes(gpu, job)
        yield from judge_memory(gpu, job)
    if gpus:
        yield from judge_topology(facts, job)


def _judge_count(facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on whether NVML, NVIDIA's library for monitoring, shows as many GPUs as the job needs.

    Too few are fatal, even if CUDA shows enough of them: a container can be started with CUDA and without NVML, and a
    run counts its GPUs by NVML.

    Args:
        facts: What was seen of the node: "gpus" has those that NVML shows, "gpu_absence" says why it does not show some
            (empty: it shows all), "cuda_start" has CUDA's own count.
        job: Settings of the training job, with the number of GPUs that a node uses (DGXNGPU).
    """
    needed_gpus = job.cluster.dgxngpu
    shown_by_nvml = len(facts["gpus"])
    shown_by_cuda = _count_by_cuda(facts)
    reason: str = facts["gpu_absence"]  # why NVML does not show some GPUs; empty if it shows all
    found = str(shown_by_nvml)
    if reason:
        found += f" ({reason})"

    if shown_by_nvml >= needed_gpus:
        return judge_check(job, "gpu.count", OK, found=found)
    nvml_is_missing = NO_NVML in reason
    if nvml_is_missing and shown_by_cuda >= needed_gpus:
        found += f", while CUDA shows {shown_by_cuda}"
        fix = f"start the container with NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES}: it has CUDA and no NVML"
        return judge_check(job, "gpu.count", FATAL, found=found, fix=fix)
    return judge_check(job, "gpu.count", FATAL, found=found, fix=_advice_on_nvml(reason))


def _count_by_cuda(facts: Facts) -> int:
    """Return how many GPUs CUDA shows; 0 if it was not started or does not say it.

    Args:
        facts: What was seen of the node: "cuda_start" is the result of starting CUDA.
    """
    start: CudaStart | None = facts.get("cuda_start")
    if start is None or start.shown_gpus is None:
        return 0
    return start.shown_gpus


def _advice_on_nvml(reason: str) -> str:
    """Return what faults.yaml advises for NVML's reason for missing GPUs; empty if it has no advice for the reason.

    Args:
        reason: Why NVML does not show some GPUs, as text; empty if it shows all.
    """
    for words, fix in FAULTS["nvml"].items():
        if words in reason:
            return str(fix)
    return ""


# ---- one GPU


def _judge_compute_capability(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether this build of Paddle has machine code for the GPU.

    - OK: Paddle has code for the GPU's own compute capability.
    - WARNING: it only has code for an earlier capability, which does not run at the GPU's best, or the capability is
    unknown.
    - FATAL: it has no code that the GPU runs.

    Args:
        gpu: Properties of the GPU by NVML; the field `capability` is 80 for compute capability 8.0.
        job: Settings of the training job, for the texts of the verdict.
    """
    verdict = functools.partial(
        judge_check,
        job,
        "gpu.compute_capability",
        found=f"{gpu_name(gpu)} {gpu.name or 'of unknown name'}: {gpu.capability or 'unknown'}",
        codes=", ".join(str(code) for code in GPU_CODE),
    )
    if gpu.capability is None:
        return verdict(WARNING, fix=NOT_SAID)
    if gpu.capability in GPU_CODE:
        return verdict(OK)
    runnable_codes = code_for(gpu.capability)
    if runnable_codes:
        fix = f"it runs the code made for {max(runnable_codes)}: publish no figure as this GPU's best"
        return verdict(WARNING, fix=fix)
    return verdict(FATAL)


def _judge_driver(gpu: nvidia.Gpu, facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on whether the GPU's driver runs the CUDA of this Paddle.

    DRIVERS.bundled is the driver that comes with this CUDA, DRIVERS.oldest the oldest one that runs this CUDA.

    Args:
        gpu: Properties of the GPU by NVML, with the driver's version.
        facts: What was seen of the node, with the result of starting CUDA and the kernel module's version.
        job: Settings of the training job, for the texts of the verdict. They also say whether the JPEG unit would be
            used.
    """
    driver = _driver_version(gpu, facts)
    shown_driver = driver or "unknown"
    verdict = functools.partial(judge_check, job, "gpu.driver", bundled=DRIVERS.bundled, oldest=DRIVERS.oldest)
    if _is_at_least(driver, DRIVERS.bundled):
        return verdict(OK, found=shown_driver)
    if _is_at_least(driver, DRIVERS.oldest):
        # The GPU has a JPEG unit, as A100 and H100 have, and the job's input takes memory for the unit: `unit_mib` is 0
        # if the unit would decode nothing, as for synthetic data.
        would_use_jpeg_unit = gpu.capability in nvidia.JPEG_UNIT_CAPABILITIES and memory.input_memory(job).unit_mib > 0
        if would_use_jpeg_unit and _is_too_old_for_jpeg_unit(gpu):
            return verdict(WARNING, found=f"{shown_driver}: {JPEG_UNIT_IS_UNUSED}")
        return verdict(OK, found=f"{shown_driver}: {WHY_AN_OLDER_DRIVER_RUNS}")
    # From here on the driver is older than DRIVERS.oldest, or its version is unknown (None).
    if _cuda_has_started(facts):  # all the same, in the version of this Paddle or a later one
        library = _library_of_start(facts["cuda_start"], is_driver_too_old=driver is not None)
        version = facts["cuda_start"].version_words
        return verdict(OK, found=f"{shown_driver}: {library} runs CUDA {version} on it")
    if driver is None:
        return verdict(WARNING, found=shown_driver, fix=NOT_SAID)
    return verdict(FATAL, found=shown_driver)


def _library_of_start(start: CudaStart, *, is_driver_too_old: bool) -> str:
    """Return the file of the library that started CUDA, such as "/usr/local/cuda/compat/libcuda.so.1 (cuda-compat)".

    Args:
        start: The result of starting CUDA.
        is_driver_too_old: Whether the driver is too old for this CUDA. Then only the library of NVIDIA's package
            cuda-compat can have started it, and the package is named.
    """
    return f"{start.library} (cuda-compat)" if is_driver_too_old else start.library


def _driver_version(gpu: nvidia.Gpu, facts: Facts) -> str | None:
    """Return the version of the GPU's driver, such as "535.104.05"; None if it is unknown.

    The version is the one that NVML states for the GPU. If NVML states none, it is the version of the driver's kernel
    module that is loaded on the node.

    Args:
        gpu: Properties of the GPU by NVML. `gpu.driver` is the version that NVML states, or None.
        facts: What was seen of the node. "cuda_system", which may be missing, has the kernel module's version, or None.
    """
    system: System | None = facts.get("cuda_system")
    if gpu.driver is None and system is not None:  # NVML does not state the version
        return system.kernel_module
    return gpu.driver


def _cuda_has_started(facts: Facts) -> bool:
    """Return whether CUDA has started on the node, in the version of this Paddle or a later one.

    Args:
        facts: What was seen of the node: "cuda_start" is the result of starting CUDA.
    """
    start: CudaStart | None = facts.get("cuda_start")
    return start is not None and start.runs(CUDA_VERSION)


def _is_at_least(version: str | None, wanted: str) -> bool:
    """Return whether a driver is as new as another one, or newer.

    Args:
        version: Version of the driver, such as "535.104.05"; None, an unknown one, gives False.
        wanted: Version of the other driver.
    """
    return version is not None and _numbers(version) >= _numbers(wanted)


def _is_too_old_for_jpeg_unit(gpu: nvidia.Gpu) -> bool:
    """Return whether the GPU's driver is so old that DALI leaves a JPEG unit unused; an unknown one is not.

    Args:
        gpu: Properties of the GPU by NVML, which DALI asks, too.
    """
    return gpu.driver is not None and not _is_at_least(gpu.driver, JPEG_UNIT_DRIVER)


def _numbers(version: str) -> list[int]:
    """Return the numbers of a version, to compare versions: "470.82.01" -> [470, 82, 1]."""
    return [int(digits) for digits in re.findall(r"\d+", version)]


def _judge_health(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on whether the GPU computes without errors, at full clocks and for this job alone.

    Args:
        gpu: Properties of the GPU by NVML.
        job: Settings of the training job, for the texts of the verdicts.
    """
    yield _judge_ecc(gpu, job)
    yield from _judge_memory_repair(gpu, job)
    yield _judge_throttling(gpu, job)
    yield _judge_clocks(gpu, job)
    yield from _judge_power_limit(gpu, job)
    yield judge_processes(gpu, job)
    yield _judge_persistence(gpu, job)


def _judge_throttling(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether something slows the GPU down now, such as heat; if so, a warning.

    Args:
        gpu: Properties of the GPU by NVML. Its `throttle` has the reasons; None: unknown, which is a warning, too.
        job: Settings of the training job, for the texts of the verdict.
    """
    if gpu.throttle is None:
        return judge_check(job, "gpu.throttling", WARNING, found=f"{gpu_name(gpu)}: unknown", fix=NOT_SAID)
    reasons = ", ".join(gpu.throttle) or "none"
    status = ok_if(not gpu.throttle, otherwise=WARNING)
    return judge_check(job, "gpu.throttling", status, found=f"{gpu_name(gpu)}: {reasons}")


def _judge_persistence(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether the driver stays loaded on the GPU while no process uses it; if not, a warning.

    Args:
        gpu: Properties of the GPU by NVML. Its `persistence` is None if unknown, which is a warning, too.
        job: Settings of the training job, for the texts of the verdict.
    """
    state = "unknown"
    if gpu.persistence is not None:
        state = "on" if gpu.persistence else "off"
    status = ok_if(state == "on", otherwise=WARNING)
    return judge_check(job, "gpu.persistence", status, found=f"{gpu_name(gpu)}: {state}")


def _judge_ecc(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on the memory errors that ECC has counted since the driver was loaded.

    Uncorrected errors are fatal, and corrected ones a warning. ECC that is off has no count, which is a warning, too.

    Args:
        gpu: Properties of the GPU by NVML. Its counts `ecc_uncorrected` and `ecc_corrected` are None if unknown.
        job: Settings of the training job, for the texts of the verdict.
    """
    uncorrected = gpu.ecc_uncorrected
    if uncorrected is None:
        fix = "ECC is off or not there: nvidia-smi -e 1 and a reset turn it on"
        return judge_check(job, "gpu.ecc", WARNING, found=f"{gpu_name(gpu)}: unknown", fix=fix)
    corrected = "unknown" if gpu.ecc_corrected is None else gpu.ecc_corrected
    found = f"{gpu_name(gpu)}: {uncorrected} uncorrected, {corrected} corrected"
    if uncorrected > 0:
        return judge_check(job, "gpu.ecc", FATAL, found=found)
    if gpu.ecc_corrected:
        return judge_check(job, "gpu.ecc", WARNING, found=found)
    return judge_check(job, "gpu.ecc", OK, found=found)


def _judge_memory_repair(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on whether the broken parts of the GPU's memory are out of use.

    GPUs from Ampere on replace broken rows of memory, and earlier ones retire broken pages, both at the next reset. All
    verdicts are of the check "gpu.remapped_rows". There is one on the rows if the GPU reports them or should, and one
    on the pages if a page is to be retired: none, one or two.

    Args:
        gpu: Properties of the GPU by NVML: `remapped_rows` has the counts of replaced rows (None: no answer), and
            `retired_pages_pending` says whether a page waits for the next reset.
        job: Settings of the training job, for the texts of the verdicts.
    """
    # A GPU of unknown capability may be one from Ampere on.
    should_report_rows = gpu.capability is None or gpu.capability >= ROW_REMAPPING_FROM
    if gpu.remapped_rows is not None:
        yield _judge_remapped_rows(gpu_name(gpu), gpu.remapped_rows, job)
    elif should_report_rows:
        yield judge_check(job, "gpu.remapped_rows", WARNING, found=f"{gpu_name(gpu)}: unknown", fix=NOT_SAID)

    if gpu.retired_pages_pending:
        found = f"{gpu_name(gpu)}: a page is retired at the next reset"
        yield judge_check(job, "gpu.remapped_rows", WARNING, found=found)


def _judge_remapped_rows(gpu_name: str, rows: nvidia.RemappedRows, job: env.Job) -> Verdict:
    """Return the verdict on a GPU's broken rows of memory, which the GPU replaces by spare ones at the next reset.

    It is fatal if a row could not be replaced, and a warning if a row waits for the next reset.

    Args:
        gpu_name: Name of the GPU, such as "GPU0".
        rows: Counts of the replaced rows, and whether a row waits for replacement or could not be replaced.
        job: Settings of the training job, for the texts of the verdict.
    """
    found = f"{gpu_name}: {rows.correctable} after corrected errors, {rows.uncorrectable} after uncorrected ones"
    if rows.failed:
        found += ", one could not be replaced"
        fix = "the GPU has no spare row left there: replace it (RMA)"
        return judge_check(job, "gpu.remapped_rows", FATAL, found=found, fix=fix)
    if rows.pending:
        return judge_check(job, "gpu.remapped_rows", WARNING, found=f"{found}, more at the next reset")
    return judge_check(job, "gpu.remapped_rows", OK, found=found)


def _judge_clocks(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether somebody has set the GPU's application clock below the card's default.

    A lower clock is a warning. It is ok if no application clock is known, as some cards have none. What slows a GPU
    down is a matter of another check, "gpu.throttling".

    Args:
        gpu: Properties of the GPU by NVML, with both clocks in MHz; None: no answer.
        job: Settings of the training job, for the texts of the verdict.
    """
    set_mhz = gpu.application_clock_mhz
    default_mhz = gpu.default_application_clock_mhz
    if set_mhz is None or default_mhz is None:
        return judge_check(job, "gpu.clocks", OK, found=f"{gpu_name(gpu)}: no application clock is known")
    found = f"{gpu_name(gpu)}: {set_mhz} MHz of {default_mhz} by default"
    return judge_check(job, "gpu.clocks", ok_if(set_mhz >= default_mhz, otherwise=WARNING), found=found)


def _judge_power_limit(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield a warning if the GPU's power limit is set below the card's default, else an ok.

    The limit itself is compared, because an idle GPU shows no throttling by a low limit.

    Args:
        gpu: Properties of the GPU by NVML. There is no verdict if one of the two limits is unknown.
        job: Settings of the training job, for the texts of the verdict.
    """
    limit_w, default_w = gpu.power_limit_w, gpu.default_power_limit_w
    if limit_w is None or default_w is None:
        return
    found = f"{gpu_name(gpu)}: {limit_w:.0f} W of {default_w:.0f} W by default"
    status = ok_if(limit_w >= default_w, otherwise=WARNING)
    yield judge_check(job, "gpu.power", status, found=found, default=f"{default_w:.0f}")


def _judge_modes(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield a verdict on each of two modes of the GPU, MIG and the compute mode, that the GPU reports.

    Args:
        gpu: Properties of the GPU by NVML. A mode that is None has no verdict.
        job: Settings of the training job, for the texts of the verdicts.
    """
    if gpu.mig is not None:
        yield _judge_mig(gpu, job)
    if gpu.compute_mode is not None:
        yield _judge_compute_mode(gpu_name(gpu), gpu.compute_mode, job)


def _judge_mig(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether the GPU's MIG mode, which divides a GPU into several, is off and stays off.

    It is fatal if the mode is on, and a warning if it is on after the next reset.

    Args:
        gpu: Properties of the GPU by NVML.
        job: Settings of the training job, for the texts of the verdict.
    """
    state = "on" if gpu.mig else "off"
    state_after_reset = "on" if gpu.mig_after_reset else "off"
    found = f"{gpu_name(gpu)}: MIG {state}"
    if state != state_after_reset:
        found += f", {state_after_reset} after a reset"
    if gpu.mig:
        return judge_check(job, "gpu.mig", FATAL, found=found)
    return judge_check(job, "gpu.mig", ok_if(not gpu.mig_after_reset, otherwise=WARNING), found=found)


def _judge_compute_mode(gpu_name: str, mode: int, job: env.Job) -> Verdict:
    """Return the verdict on a GPU's compute mode: how many processes may use the GPU.

    By default any number may, which is ok. A mode that lets no process in is fatal, and any other a warning.

    Args:
        gpu_name: Name of the GPU, such as "GPU0".
        mode: The mode by NVML (NVML_COMPUTEMODE_*).
        job: Settings of the training job, for the texts of the verdict.
    """
    found = f"{gpu_name}: {COMPUTE_MODES.get(mode, mode)}"
    if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        return judge_check(job, "gpu.compute_mode", FATAL, found=found)
    is_default = mode == pynvml.NVML_COMPUTEMODE_DEFAULT  # the remaining modes let one process in
    return judge_check(job, "gpu.compute_mode", ok_if(is_default, otherwise=WARNING), found=found)


def judge_memory(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Yield the verdict on whether the job's training fits into the GPU's memory; if not, a warning.

    It fits if its estimated need leaves a margin free. The need is that of the training program, cuDNN's workspace, the
    input pipelines, and CUDA's context with its libraries.

    Args:
        gpu: Properties of the GPU by NVML, with the size of its memory in GiB.
        job: Settings of the training job, which determine the need.

    Yields:
        One verdict. None is given if the size of the memory is unknown, or if no measurement tells what the
        program takes.
    """
    program_mib = memory.program_mib(job)
    if gpu.memory_gib is None or program_mib is None:
        return
    need = _MemoryNeed(
        program_mib=program_mib,
        workspace_mib=_workspace_mib(gpu.memory_gib, job),
        input_memory=memory.input_memory(job),
        has_jpeg_unit=gpu.capability in nvidia.JPEG_UNIT_CAPABILITIES and not _is_too_old_for_jpeg_unit(gpu),
    )
    margin_gib = memory.MARGIN * gpu.memory_gib  # MARGIN is a share of the memory
    fits = need.gib + margin_gib <= gpu.memory_gib
    yield judge_check(
        job,
        "gpu.memory",
        ok_if(fits, otherwise=WARNING),
        found=f"{gpu_name(gpu)}: {six_digits(gpu.memory_gib)} GiB",
        need=f"{need.gib:.1f} GiB at BATCHSIZE={job.model.batchsize}: {need.parts}; and {margin_gib:.1f} GiB left over",
        limit=memory.WORKSPACE_LIMIT,
    )


class _MemoryNeed(NamedTuple):
    """The estimated memory of a GPU that a training takes."""

    program_mib: float  # the peak of its program, by measured ones
    workspace_mib: int  # of cuDNN
    input_memory: memory.InputMemory
    has_jpeg_unit: bool  # which DALI uses, and which takes memory of its own

    @property
    def input_mib(self) -> float:
        """Return the MiB that the input pipelines take."""
        unit_mib = self.input_memory.unit_mib if self.has_jpeg_unit else 0.0
        return self.input_memory.device_mib + unit_mib

    @property
    def gib(self) -> float:
        """Return the GiB that all parts take together."""
        return (self.program_mib + self.workspace_mib + self.input_mib + memory.BESIDE_MIB) / 1024

    @property
    def parts(self) -> str:
        """Return the GiB of each part in words."""
        unit = ", with the JPEG unit as on an H200" if self.has_jpeg_unit and self.input_memory.unit_mib else ""
        return (
            f"program {self.program_mib / 1024:.1f}, cuDNN's workspace {self.workspace_mib / 1024:.1f}, "
            f"input {self.input_mib / 1024:.1f} ({self.input_memory.words}{unit}), "
            f"context and libraries {memory.BESIDE_MIB / 1024:.1f} (assumed)"
        )


def _workspace_mib(memory_gib: float, job: env.Job) -> int:
    """Return the MiB that cuDNN may take for its workspace.

    The first that is set counts: the setting in STRATEGY, the user's environment variable, the project's own limit.

    Args:
        memory_gib: Size of the GPU's memory in GiB, by which the project's own limit is chosen.
        job: Settings of the training job, with those of STRATEGY.

    Raises:
        ValueError: The user's environment variable is not a whole number.
    """
    by_strategy = job.model.knobs.conv_workspace_size_limit
    if by_strategy is not None:
        return by_strategy
    by_user = env.libraries().get(memory.WORKSPACE_LIMIT)
    if by_user:
        try:
            return int(by_user)
        except ValueError:
            raise ValueError(f"{memory.WORKSPACE_LIMIT}={by_user!r}: must be a whole number, of MiB") from None
    return int(memory.workspace_limit_mib(memory_gib))
