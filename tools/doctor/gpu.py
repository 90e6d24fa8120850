"""The doctor's checks of a node's GPUs, their links, their driver, the CUDA libraries and what training imports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harness import env, memory, nvidia, provenance
from runlog.verdict import FATAL, WARNING, Verdict
from tools.doctor.checks import CAPABILITIES, ranges, row

# GPU code inside paddlepaddle-gpu 2.6.2: it runs on the same major version at the same minor or a later one.
GPU_CODE = (61, 70, 75, 80, 86) + (90,) * provenance.is_for_cuda_12()
# CUDA 11.8 release notes, table 3: its own driver, and the oldest that runs it by minor-version compatibility.
DRIVER, DRIVER_LEAST = (520, 61, 5), (450, 80, 2)
NCCL_LEAST = 20800  # 2.8; locks/cuda.lock has 2.21.5
LIBRARY_FIXES = {
    "libcuda.so.1": "install the NVIDIA driver, or start the container with --gpus all",
    "libnvcuvid.so.1": f"start the container with NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES}: without this library "
    "nvJPEG leaves an A100's JPEG decoder unused, and does not say so",
}
FOREIGN_MIB = 500  # memory in use on a GPU before a run that somebody else must hold


def judge_gpus(facts: dict[str, Any], job: env.Job) -> Iterator[Verdict]:
    """Whether the node has the job's GPUs, and each of them is fit for it."""
    gpus = facts["gpus"]
    found = f"{len(gpus)}" + (f" ({facts['gpu_absence']})" if facts["gpu_absence"] else "")
    yield row(job, "gpu.count", len(gpus) >= job.dgxngpu, found)
    for gpu in gpus[: job.dgxngpu]:
        yield from _judge_gpu(f"GPU{gpu.index}", gpu, job)
        yield from _judge_health(f"GPU{gpu.index}", gpu, job)
        yield from _judge_memory(f"GPU{gpu.index}", gpu, job)
    if gpus and facts["topology"]:
        yield _judge_links(facts["topology"], gpus[: job.dgxngpu], job)
        yield _judge_binding(facts["topology"], facts, job)
    elif gpus:
        found = facts["topology_error"] or "nvidia-smi topo -m gives none"
        fix = f"put nvidia-smi into the container (NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES})"
        yield row(job, "gpu.topology", False, found, fix=fix)


def code_for(capability: int | None) -> list[int]:
    """The GPU code of this Paddle that a GPU of this compute capability (as 80) runs."""
    return [
        code for code in GPU_CODE if capability is not None and code // 10 == capability // 10 and code <= capability
    ]


def _judge_gpu(name: str, gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    cc, runs = gpu.capability, code_for(gpu.capability)
    found, codes = f"{name} {gpu.name}: {'unknown' if cc is None else cc}", ", ".join(map(str, GPU_CODE))
    bad, fix = (
        (WARNING, f"it runs the code made for {max(runs)}: publish no figure as this GPU's best") if runs else ("", "")
    )
    yield row(job, "gpu.compute_capability", cc in GPU_CODE, found, bad=bad, fix=fix, codes=codes)
    driver = tuple(int(number) for number in re.findall(r"\d+", gpu.driver or ""))
    bad = WARNING if driver >= DRIVER_LEAST else FATAL
    yield row(job, "gpu.driver", driver >= DRIVER, gpu.driver or "unknown", bad=bad)


def _judge_health(name: str, gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether it computes without errors, at full clocks, for this job alone."""
    errors, corrected = gpu.ecc_uncorrected, gpu.ecc_corrected
    found, fix = f"{name}: {errors} uncorrected, {corrected} corrected", ""
    if errors is None:
        found, fix = f"{name}: unknown", "ECC is off or not there: nvidia-smi -e 1"
    yield row(job, "gpu.ecc", errors == 0 and not corrected, found, bad=FATAL if errors else "", fix=fix)
    yield row(job, "gpu.throttling", not gpu.throttle, f"{name}: {', '.join(gpu.throttle) or 'none'}")
    others, used = gpu.processes, gpu.memory_used_mib
    # Inside a container NVML lists no processes of others: the memory tells.
    foreign = bool(others) or (used is not None and used > FOREIGN_MIB)
    pids = "unknown" if others is None else ", ".join(map(str, others)) or "none"
    found, good = f"{name}: pids {pids}, {used} MiB in use", not foreign and others is not None
    yield row(job, "gpu.processes", good, found, bad=FATAL if foreign else "", most=FOREIGN_MIB)
    on = "unknown" if gpu.persistence is None else "on" if gpu.persistence else "off"
    yield row(job, "gpu.persistence", gpu.persistence == 1, f"{name}: {on}")


def _judge_memory(name: str, gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether training fits, where the card's memory and the job's peak are known."""
    has_gib = gpu.memory_gib
    if has_gib is None:
        return
    set_mib = job.knobs.conv_workspace_size_limit
    if set_mib is None:
        set_mib = int(env.libraries().get(memory.WORKSPACE_LIMIT, memory.workspace_limit_mib(has_gib)))
    peak = memory.need(job, workspace_mib=set_mib)
    if peak is None:
        return
    need = (
        f"{peak.gib:.1f} GiB at BATCHSIZE={job.batchsize}: program {peak.program / 1024:.1f}, cuDNN's workspace "
        f"{peak.workspace / 1024:.1f}, context, libraries and DALI {peak.beside / 1024:.1f} (assumed)"
    )
    found = f"{name}: {has_gib:g} GiB"
    yield row(job, "gpu.memory", peak.gib <= has_gib, found, need=need, limit=memory.WORKSPACE_LIMIT)


def _judge_links(topology: nvidia.Topology, gpus: list[nvidia.Gpu], job: env.Job) -> Verdict:
    """Whether the job's GPUs are linked alike."""
    names = {f"GPU{gpu.index}" for gpu in gpus}
    rows = [i for i, device in enumerate(topology.devices) if device in names]
    pairs = [topology.links[a][b] for a in rows for b in rows if a < b]
    counts = ", ".join(f"{pairs.count(kind)} x {kind}" for kind in sorted(set(pairs))) or "one GPU"
    nvlinked = {a for a in rows for b in rows if topology.links[a][b].startswith("NV")}
    alone = [topology.devices[a] for a in rows if nvlinked and a not in nvlinked]
    found = f"pairs: {counts}" + (f"; without NVLink: {', '.join(alone)}" if alone else "")
    return row(job, "gpu.topology", not alone, found)


def _judge_binding(topology: nvidia.Topology, facts: dict[str, Any], job: env.Job) -> Verdict:
    """Whether each rank may use a core next to its own GPU: the first GPU that CUDA shows is local rank 0's."""
    numa = {number.removeprefix("node"): nvidia.cpu_list(cores) for number, cores in facts["numa"].items()}
    found, far, near, nodes = [], [], [], []
    for rank, (gpu, cores) in enumerate(zip(facts["gpus"], facts["rank_cores"], strict=False)):
        text = topology.cores.get(f"GPU{gpu.index}", "")
        beside = nvidia.cpu_list(text) if text else set()
        found.append(f"rank {rank} {ranges(cores) or 'none'}")
        near.append(f"GPU{gpu.index} {text or 'unknown'}")
        nodes.append(next((number for number, of in numa.items() if of & beside), "?"))
        if beside and not beside & set(cores):
            far.append(f"rank {rank}'s far from GPU{gpu.index}")
    if len({tuple(cores) for cores in facts["rank_cores"]}) == 1:
        found = [f"all ranks {ranges(facts['rank_cores'][0])}"]
    bindings = ", ".join(found) + "".join(f"; {text}" for text in far)
    return row(job, "cpu.binding", not far, bindings, near=", ".join(near), numa=",".join(nodes))


def judge_libraries(libraries: dict[str, str], job: env.Job) -> Iterator[Verdict]:
    """Whether each CUDA library loads; `libraries` has what each of them said."""
    for name, answer in libraries.items():
        good, fix = not answer.startswith("error: "), LIBRARY_FIXES.get(name, "")
        bad = WARNING if name.startswith("libnvcuvid") else ""
        yield row(job, f"cuda.{name.partition('.')[0]}", good, answer.removeprefix("error: "), bad=bad, fix=fix)
        if name.startswith("libnccl") and good:
            version = int(answer)
            found = f"{version // 10000}.{version % 10000 // 100}.{version % 100}"
            yield row(job, "nccl.version", version >= NCCL_LEAST, found)
