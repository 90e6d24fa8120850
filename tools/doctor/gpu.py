"""The doctor's checks of a node's GPUs, their links, their driver and the CUDA libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harness import env, memory, nvidia
from tools.doctor.checks import FATAL, WARNING, Result, ranges, verdict

# GPU code inside paddlepaddle-gpu 2.6.2: it runs on the same major version at the same minor or a later one.
GPU_CODE = (61, 70, 75, 80, 86)
# CUDA 11.8 release notes, table 3: its own driver, and the oldest that runs it by minor-version compatibility.
DRIVER, DRIVER_LEAST = (520, 61, 5), (450, 80, 2)
NCCL_LEAST = 20800  # 2.8; locks/cuda.lock has 2.21.5
CAPABILITIES = "compute,utility,video"  # of the driver that a container needs: NVIDIA_DRIVER_CAPABILITIES of the image
LIBRARY_FIXES = {
    "libcuda.so.1": "install the NVIDIA driver, or start the container with --gpus all",
    "libnvcuvid.so.1": f"start the container with NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES}: without this library "
    "nvJPEG leaves an A100's JPEG decoder unused, and does not say so",
}
FOREIGN_MIB = 500  # memory in use on a GPU before a run that somebody else must hold


def judge_gpus(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    """Whether the node has the job's GPUs, and each of them is fit for it."""
    gpus = facts["gpus"]
    found = f"{len(gpus)}" + (f" ({facts['gpu_absence']})" if facts["gpu_absence"] else "")
    yield verdict(
        "gpu.count",
        len(gpus) >= job.dgxngpu,
        found,
        f"at least DGXNGPU={job.dgxngpu}",
        "install the NVIDIA driver, start the container with --gpus all, or set DGXNGPU or CUDA_VISIBLE_DEVICES",
    )
    for gpu in gpus[: job.dgxngpu]:
        yield from _judge_gpu(f"GPU{gpu.index}", gpu)
        yield from _judge_health(f"GPU{gpu.index}", gpu)
        yield from _judge_memory(f"GPU{gpu.index}", gpu, job)
    topology = facts["topology"]
    if not gpus:
        return
    if topology is None:
        yield verdict(
            "gpu.topology",
            False,
            facts["topology_error"] or "nvidia-smi topo -m gives none",
            "a matrix of links",
            f"put nvidia-smi into the container (NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES})",
            bad=WARNING,
        )
        return
    yield from _judge_topology(topology, facts, job)


def code_for(capability: int | None) -> list[int]:
    """The GPU code of this Paddle that a GPU of this compute capability (as 80) runs."""
    return [
        code for code in GPU_CODE if capability is not None and code // 10 == capability // 10 and code <= capability
    ]


def _judge_gpu(name: str, gpu: nvidia.Gpu) -> Iterator[Result]:
    cc, runs = gpu.capability, code_for(gpu.capability)
    yield verdict(
        "gpu.compute_capability",
        cc in GPU_CODE,
        f"{name} {gpu.name}: {'unknown' if cc is None else cc}",
        "one of " + ", ".join(map(str, GPU_CODE)),
        f"it runs the code made for {max(runs)}: publish no figure as this GPU's best"
        if runs
        else "this Paddle has no code for it: use V100 (70), T4 (75) or A100 (80); H100 (90) needs another Paddle",
        bad=WARNING if runs else FATAL,
    )
    driver = tuple(int(number) for number in re.findall(r"\d+", gpu.driver or ""))
    yield verdict(
        "gpu.driver",
        driver >= DRIVER,
        gpu.driver or "unknown",
        "520.61.05 (CUDA 11.8), at least 450.80.02",
        "upgrade the driver to 520.61.05 or later",
        bad=WARNING if driver >= DRIVER_LEAST else FATAL,
    )


def _judge_health(name: str, gpu: nvidia.Gpu) -> Iterator[Result]:
    """Whether it computes without errors, at full clocks, for this job alone."""
    errors, corrected = gpu.ecc_uncorrected, gpu.ecc_corrected
    yield verdict(
        "gpu.ecc",
        errors == 0 and not corrected,
        f"{name}: " + ("unknown" if errors is None else f"{errors} uncorrected, {corrected} corrected"),
        "ECC on, no errors since the driver was loaded",
        "ECC is off or not there: nvidia-smi -e 1"
        if errors is None
        else "reset the GPU (nvidia-smi --gpu-reset) or replace it",
        bad=FATAL if errors else WARNING,
    )
    yield verdict(
        "gpu.throttling",
        not gpu.throttle,
        f"{name}: {', '.join(gpu.throttle) or 'none'}",
        "none before the run",
        "look at power limit, cooling and power supply (nvidia-smi -q -d PERFORMANCE)",
        bad=WARNING,
    )
    others, used = gpu.processes, gpu.memory_used_mib
    # Inside a container NVML lists no processes of others: the memory tells.
    foreign = bool(others) or (used is not None and used > FOREIGN_MIB)
    yield verdict(
        "gpu.processes",
        not foreign and others is not None,
        f"{name}: pids {', '.join(map(str, others)) or 'none' if others is not None else 'unknown'}, {used} MiB in use",
        f"no process, under {FOREIGN_MIB} MiB in use",
        "end the other processes on this GPU",
        bad=FATAL if foreign else WARNING,
    )
    yield verdict(
        "gpu.persistence",
        gpu.persistence == 1,
        f"{name}: {'unknown' if gpu.persistence is None else 'on' if gpu.persistence else 'off'}",
        "on",
        "nvidia-smi -pm 1, or start nvidia-persistenced: else the first step pays for loading the driver",
        bad=WARNING,
    )


def _judge_memory(name: str, gpu: nvidia.Gpu, job: env.Job) -> Iterator[Result]:
    """Whether training fits, where the card's memory and the job's peak are known."""
    has_gib = gpu.memory_gib
    if has_gib is None:
        return
    set_mib = job.knobs.conv_workspace_size_limit
    if set_mib is None:
        set_mib = int(env.libraries().get(memory.WORKSPACE_LIMIT, memory.workspace_limit_mib(has_gib)))
    need = memory.need(job, workspace_mib=set_mib)
    if need is None:
        return
    yield verdict(
        "gpu.memory",
        need.gib <= has_gib,
        f"{name}: {has_gib:g} GiB",
        f"{need.gib:.1f} GiB at BATCHSIZE={job.batchsize}: program {need.program / 1024:.1f}, cuDNN's workspace "
        f"{need.workspace / 1024:.1f}, context, libraries and DALI {need.beside / 1024:.1f} (assumed)",
        f"lower BATCHSIZE, set {memory.WORKSPACE_LIMIT} to less MiB, or STRATEGY=gradient_merge=N",
        bad=WARNING,
    )


def _judge_topology(topology: nvidia.Topology, facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    names = {f"GPU{gpu.index}" for gpu in facts["gpus"][: job.dgxngpu]}
    rows = [row for row in topology.gpus if topology.devices[row] in names]
    pairs = [topology.links[a][b] for a in rows for b in rows if a < b]
    counts = ", ".join(f"{pairs.count(kind)} x {kind}" for kind in sorted(set(pairs))) or "one GPU"
    nvlinked = {a for a in rows for b in rows if topology.links[a][b].startswith("NV")}
    alone = [topology.devices[a] for a in rows if nvlinked and a not in nvlinked]
    yield verdict(
        "gpu.topology",
        not alone,
        f"pairs: {counts}" + (f"; without NVLink: {', '.join(alone)}" if alone else ""),
        "NVLink to every GPU, or to none",
        "look at nvidia-smi nvlink --status: a link is down",
        bad=WARNING,
    )
    allowed = set(facts["cores"])
    far = [
        topology.devices[a]
        for a in rows
        if (cores := topology.cores.get(topology.devices[a])) and not nvidia.cpu_list(cores) & allowed
    ]
    yield verdict(
        "cpu.binding",
        not far,
        f"this job may use {ranges(facts['cores'])}" + (f"; none is next to {', '.join(far)}" if far else ""),
        "cores next to each GPU: " + ", ".join(f"{gpu} {cores}" for gpu, cores in topology.cores.items()),
        "start the job without a binding (docker --cpuset-cpus, srun --cpu-bind=none)",
        bad=WARNING,
    )


def judge_libraries(libraries: dict[str, str]) -> Iterator[Result]:
    """Whether each CUDA library loads; `libraries` has what each of them said."""
    for name, answer in libraries.items():
        good = not answer.startswith("error: ")
        yield verdict(
            f"cuda.{name.partition('.')[0]}",
            good,
            answer.removeprefix("error: "),
            "loads",
            LIBRARY_FIXES.get(name, "use the image, whose CUDA 11.8 libraries are locks/cuda.lock"),
            bad=WARNING if name.startswith("libnvcuvid") else FATAL,
        )
        if name.startswith("libnccl") and good:
            version = int(answer)
            yield verdict(
                "nccl.version",
                version >= NCCL_LEAST,
                f"{version // 10000}.{version % 10000 // 100}.{version % 100}",
                "2.8 or later (locks/cuda.lock: 2.21.5)",
                "use the image's NCCL",
            )
