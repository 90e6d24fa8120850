"""The doctor's judgement of a node's GPUs: whether each is fit for the job and free, how they are linked and bound."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pynvml

from harness import env, memory, nvidia, nvidia_smi, provenance
from runlog.schema import Topology
from runlog.verdict import FATAL, WARNING, Verdict
from tools.doctor.cuda import CudaStart, System
from tools.doctor.rows import FAULTS, Facts, row

# GPU code inside paddlepaddle-gpu 2.6.2: it runs on the same major version at the same minor or a later one.
GPU_CODE = (61, 70, 75, 80, 86, 90) if provenance.is_for_cuda_12() else (61, 70, 75, 80, 86)
# CUDA's release notes, tables 2 and 3: its own driver, and the oldest that runs it by minor-version compatibility.
DRIVERS = ("530.30.02", "525.60.13") if provenance.is_for_cuda_12() else ("520.61.05", "450.80.02")
CUDA_VERSION = 12010 if provenance.is_for_cuda_12() else 11080  # of this Paddle, as cuDriverGetVersion has it
NO_NVML = "NVML Shared Library Not Found"
NOT_SAID = "NVML does not say it: look at nvidia-smi -q on the host"
CAPABILITIES = "compute,utility,video"  # of the driver that a container needs: NVIDIA_DRIVER_CAPABILITIES of the image
FOREIGN_MIB = 500  # memory in use on a GPU before a run that somebody else must hold
RESERVE_MIB = (
    1500  # the most that a driver keeps for itself, where NVML does not tell it apart; up to 1000 was reported
)
ROW_REMAPPING_FROM = 80  # compute capability of the first GPUs that replace rows of their memory
COMPUTE_MODES = {  # nvml.h: nvmlComputeMode_t
    pynvml.NVML_COMPUTEMODE_DEFAULT: "Default",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "Exclusive_Thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process",
}


def code_for(capability: int | None) -> list[int]:
    """The GPU code of this Paddle that a GPU of this compute capability (as 80) runs."""
    if capability is None:
        return []
    return [code for code in GPU_CODE if code // 10 == capability // 10 and code <= capability]


def judge_gpus(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether the node has the job's GPUs, each of them is fit for it, and they are linked alike."""
    gpus: list[nvidia.Gpu] = facts["gpus"]
    topology = facts["topology"]
    yield _judge_count(facts, job)

    of_job = gpus[: job.cluster.dgxngpu]
    for gpu in of_job:
        yield from _judge_model(gpu, job)
        yield _judge_driver(gpu, facts, job)
        yield from _judge_health(gpu, job)
        yield from _judge_mode(gpu, job)
        yield from judge_memory(gpu, job)
    if gpus and topology:
        yield _judge_links(topology, [_name(gpu) for gpu in of_job], job)
        yield _judge_binding(topology, facts, job)
    elif gpus:
        found, fix = facts["topology_error"], "run nvidia-smi topo -m on the host, and mend what it says"
        if not found:
            found = "there is no nvidia-smi"
            fix = f"put it into the container (NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES})"
        yield row(job, "gpu.topology", False, found, fix=fix)


def _name(gpu: nvidia.Gpu) -> str:
    return "GPU of unknown number" if gpu.index is None else f"GPU{gpu.index}"


def _judge_count(facts: Facts, job: env.Job) -> Verdict:
    """Whether NVML has the job's GPUs, and by its own words why not. A run counts them by NVML, so CUDA's do not do."""
    absence: str = facts["gpu_absence"]
    count = len(facts["gpus"])
    found = f"{count} ({absence})" if absence else str(count)
    fix = next((fix for words, fix in FAULTS["nvml"].items() if words in absence), "")
    start: CudaStart | None = facts.get("cuda_start")
    if NO_NVML in absence and start is not None and (start.count or 0) >= job.cluster.dgxngpu:
        found += f", while CUDA shows {start.count}"
        fix = f"start the container with NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES}: it has CUDA and no NVML"
    return row(job, "gpu.count", count >= job.cluster.dgxngpu, found, fix=fix)


# ---- one GPU


def _judge_model(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether Paddle has code for the GPU."""
    codes = code_for(gpu.capability)
    found = f"{_name(gpu)} {gpu.name or 'of unknown name'}: {gpu.capability or 'unknown'}"
    all_codes = ", ".join(str(code) for code in GPU_CODE)
    bad = fix = ""
    if gpu.capability is None:
        bad = WARNING
        fix = NOT_SAID
    elif codes:
        bad = WARNING
        fix = f"it runs the code made for {max(codes)}: publish no figure as this GPU's best"
    good = gpu.capability in GPU_CODE
    yield row(job, "gpu.compute_capability", good, found, bad=bad, fix=fix, codes=all_codes)


def _judge_driver(gpu: nvidia.Gpu, facts: Facts, job: env.Job) -> Verdict:
    """Whether the driver runs this Paddle's CUDA: by itself, by minor-version compatibility, or by cuda-compat.

    By NVIDIA's CUDA Compatibility a driver as old as DRIVERS[1] runs all that was built for the same major version,
    except PTX, which it does not compile. Paddle, cuDNN and DALI have the machine code of each GPU in GPU_CODE.
    """
    own, least = DRIVERS
    driver = gpu.driver
    system: System | None = facts.get("cuda_system")
    if driver is None and system is not None:
        driver = system.kernel_module
    found = driver or "unknown"
    good = _numbers(driver) >= _numbers(least)
    if good and _numbers(driver) < _numbers(own):
        found += f": older than {own}, it runs CUDA by minor-version compatibility, which compiles no PTX"

    start: CudaStart | None = facts.get("cuda_start")
    if not good and start is not None and (start.version or 0) >= CUDA_VERSION and start.is_sound:
        good = True
        found += f": {start.library} (cuda-compat) runs CUDA {start.version_words} on it"
    bad = fix = ""
    if driver is None:
        bad = WARNING
        fix = NOT_SAID
    return row(job, "gpu.driver", good, found, bad=bad, fix=fix, own=own, least=least)


def _numbers(version: str | None) -> list[int]:
    """The numbers of a version, which compare as versions do; none of an unknown one."""
    return [int(digits) for digits in re.findall(r"\d+", version or "")]


def _judge_health(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether the GPU computes without errors, at full clocks, for this job alone."""
    yield _judge_ecc(gpu, job)
    yield from _judge_memory_repair(gpu, job)
    if gpu.throttle is None:
        yield row(job, "gpu.throttling", False, f"{_name(gpu)}: unknown", fix=NOT_SAID)
    else:
        yield row(job, "gpu.throttling", not gpu.throttle, f"{_name(gpu)}: {', '.join(gpu.throttle) or 'none'}")
    yield _judge_clocks(gpu, job)
    yield _judge_processes(gpu, job)
    on = {None: "unknown", 0: "off"}.get(gpu.persistence, "on")
    yield row(job, "gpu.persistence", on == "on", f"{_name(gpu)}: {on}")


def _judge_ecc(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    errors = gpu.ecc_uncorrected
    if errors is None:
        fix = "ECC is off or not there: nvidia-smi -e 1 and a reset turn it on"
        return row(job, "gpu.ecc", False, f"{_name(gpu)}: unknown", fix=fix)
    found = f"{_name(gpu)}: {errors} uncorrected, {gpu.ecc_corrected} corrected"
    bad = FATAL if errors else WARNING
    return row(job, "gpu.ecc", errors == 0 and not gpu.ecc_corrected, found, bad=bad)


def _judge_memory_repair(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether broken rows or pages of the GPU's memory are all replaced."""
    check, rows = "gpu.remapped_rows", gpu.remapped_rows
    if rows is not None:
        counts = f"{rows.correctable} after corrected errors, {rows.uncorrectable} after uncorrected ones"
        if rows.failed:
            fix = "the GPU has no spare row left there: replace it (RMA)"
            yield row(job, check, False, f"{_name(gpu)}: {counts}, one could not be replaced", bad=FATAL, fix=fix)
        elif rows.pending:
            yield row(job, check, False, f"{_name(gpu)}: {counts}, more at the next reset")
        else:
            yield row(job, check, True, f"{_name(gpu)}: {counts}")
    elif gpu.capability is None or gpu.capability >= ROW_REMAPPING_FROM:
        yield row(job, check, False, f"{_name(gpu)}: unknown", fix=NOT_SAID)

    if gpu.retired_pages_pending:
        yield row(job, check, False, f"{_name(gpu)}: a page is retired at the next reset")


def _judge_clocks(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Whether nobody has set the SMs' clock below the card's default."""
    set_mhz, default_mhz = gpu.application_clock_mhz, gpu.default_application_clock_mhz
    if set_mhz is None or default_mhz is None:  # as of cards without application clocks: throttling shows what slows
        return row(job, "gpu.clocks", True, f"{_name(gpu)}: no application clock is known")
    return row(job, "gpu.clocks", set_mhz >= default_mhz, f"{_name(gpu)}: {set_mhz} MHz of {default_mhz} by default")


def _judge_processes(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Whether the GPU is free. Where NVML lists no processes of others, as in a container, the memory tells."""
    used_mib, most_mib, how = gpu.memory_used_mib, FOREIGN_MIB, "in use"
    if used_mib is None:
        used_mib, most_mib = gpu.memory_used_or_reserved_mib, FOREIGN_MIB + RESERVE_MIB
        how = "in use or kept by the driver"

    computing = tuple(pid for pid in gpu.processes or () if pid not in gpu.displays)
    others = tuple(pid for pid in computing if pid not in gpu.services)
    pids = "pids unknown" if gpu.processes is None else f"pids {_pids(computing)}"
    if gpu.displays:
        pids += f", of a display {_pids(gpu.displays)}"
    used = "memory in use unknown" if used_mib is None else f"{used_mib} MiB {how}"
    is_full = used_mib is not None and used_mib > most_mib

    bad, fix = WARNING, ""
    if others or (is_full and not gpu.displays):
        bad = FATAL
    elif is_full:
        fix = "the display takes this memory: end it (systemctl isolate multi-user.target), or leave this GPU out"
    elif computing:
        fix = "a service holds the GPU, as nvidia-cuda-mps-server does: end it before a run that is published"
    elif used_mib is None:
        fix = NOT_SAID
    good = not is_full and not computing and used_mib is not None
    return row(job, "gpu.processes", good, f"{_name(gpu)}: {pids}, {used}", bad=bad, fix=fix, most=most_mib)


def _pids(pids: Iterable[int]) -> str:
    return ", ".join(str(pid) for pid in pids) or "none"


def _judge_mode(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether the GPU is whole and lets a rank in; nothing is said of a mode that the GPU does not have."""
    if gpu.mig is not None:
        state = "on" if gpu.mig else "off"
        after_reset = "on" if gpu.mig_after_reset else "off"
        found = f"{_name(gpu)}: MIG {state}"
        if state != after_reset:
            found += f", {after_reset} after a reset"
        bad = FATAL if gpu.mig else WARNING
        yield row(job, "gpu.mig", not gpu.mig and state == after_reset, found, bad=bad)

    if gpu.compute_mode is not None:
        found = f"{_name(gpu)}: {COMPUTE_MODES.get(gpu.compute_mode, gpu.compute_mode)}"
        bad = FATAL if gpu.compute_mode == pynvml.NVML_COMPUTEMODE_PROHIBITED else WARNING
        yield row(job, "gpu.compute_mode", gpu.compute_mode == pynvml.NVML_COMPUTEMODE_DEFAULT, found, bad=bad)


def judge_memory(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether training fits, where the card's memory and the job's peak are known."""
    if gpu.memory_gib is None:
        return
    workspace_mib = job.model.knobs.conv_workspace_size_limit
    if workspace_mib is None:
        set_by_user = env.libraries().get(memory.WORKSPACE_LIMIT)
        workspace_mib = int(set_by_user or memory.workspace_limit_mib(gpu.memory_gib))
    program_mib = memory.program_mib(job)
    if program_mib is None:
        return

    input_memory = memory.input_memory(job)
    need_gib = (program_mib + workspace_mib + input_memory.device_mib + memory.BESIDE_MIB) / 1024
    margin_gib = memory.MARGIN * gpu.memory_gib
    need = (
        f"{need_gib:.1f} GiB at BATCHSIZE={job.model.batchsize}: program {program_mib / 1024:.1f}, cuDNN's workspace "
        f"{workspace_mib / 1024:.1f}, input {input_memory.device_mib / 1024:.1f} ({input_memory.words}), context and "
        f"libraries {memory.BESIDE_MIB / 1024:.1f} (assumed); and {margin_gib:.1f} GiB left over"
    )
    fits = need_gib + margin_gib <= gpu.memory_gib
    found = f"{_name(gpu)}: {gpu.memory_gib:g} GiB"
    yield row(job, "gpu.memory", fits, found, need=need, limit=memory.WORKSPACE_LIMIT)


# ---- GPUs among each other, and the cores of their ranks


def _judge_links(topology: Topology, names: list[str], job: env.Job) -> Verdict:
    """Whether NVLink reaches each of the job's GPUs, or none."""
    rows = [number for number, device in enumerate(topology.devices) if device in names]
    pairs = []
    nvlinked = set()
    for first in rows:
        for second in rows:
            link = topology.links[first][second]
            if first < second:
                pairs.append(link)
            if link.startswith("NV"):
                nvlinked.add(first)

    found = "pairs: " + (", ".join(f"{pairs.count(kind)} x {kind}" for kind in sorted(set(pairs))) or "one GPU")
    alone = [topology.devices[number] for number in rows if nvlinked and number not in nvlinked]
    if alone:
        found += f"; without NVLink: {', '.join(alone)}"
    return row(job, "gpu.topology", not alone, found)


@dataclass(frozen=True, kw_only=True)
class _Binding:
    """The cores of a rank and those next to its GPU."""

    rank: int
    gpu: str
    cores: list[int]  # that the rank may use
    near: str  # to the GPU, as nvidia-smi lists them; empty: unknown
    numa_node: str  # of these; "?" where it is unknown

    @property
    def is_far(self) -> bool:
        """Whether the rank may use none of the cores next to its GPU."""
        return bool(self.near) and not nvidia_smi.cpu_list(self.near) & set(self.cores)


def _judge_binding(topology: Topology, facts: Facts, job: env.Job) -> Verdict:
    """Whether each rank may use a core next to its own GPU: the first GPU that CUDA shows is local rank 0's."""
    bindings = []
    for rank, (gpu, cores) in enumerate(zip(facts["gpus"], facts["rank_cores"], strict=False)):
        near = topology.cores.get(_name(gpu), "")
        numa_node = _numa_node(near, facts["numa"])
        bindings.append(_Binding(rank=rank, gpu=_name(gpu), cores=cores, near=near, numa_node=numa_node))

    first_cores = facts["rank_cores"][0]
    if all(cores == first_cores for cores in facts["rank_cores"]):
        found = f"all ranks {ranges(first_cores)}"
    else:
        found = ", ".join(f"rank {binding.rank} {ranges(binding.cores) or 'none'}" for binding in bindings)
    far = [binding for binding in bindings if binding.is_far]
    for binding in far:
        found += f"; rank {binding.rank}'s far from {binding.gpu}"
    near_each = ", ".join(f"{binding.gpu} {binding.near or 'unknown'}" for binding in bindings)
    numa = ",".join(binding.numa_node for binding in bindings)
    return row(job, "cpu.binding", not far, found, near=near_each, numa=numa)


def _numa_node(cores: str, nodes: dict[str, str]) -> str:
    """The number of the first NUMA node that has one of these cores; "?" where none has."""
    if cores:
        for name, own in nodes.items():
            if nvidia_smi.cpu_list(own) & nvidia_smi.cpu_list(cores):
                return name.removeprefix("node")
    return "?"


def ranges(cores: Sequence[int]) -> str:
    """Cores in ascending order, [0, 1, 2, 5], as "0-2,5"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ",".join(texts)
