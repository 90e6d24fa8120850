"""The doctor's judgement of how a node's GPUs are linked, and whether their ranks run on cores next to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness import env, nvidia_smi
from runlog.schema import Topology
from runlog.verdict import Verdict
from tools.doctor.rows import CAPABILITIES, Facts, gpu_name, judge_check


def judge_topology(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield two verdicts: on the links between the job's GPUs, and on whether each rank runs on cores next to its GPU.

    If nvidia-smi does not say how the GPUs are linked, the only verdict says why. `facts["gpus"]` are in the order
    in which CUDA shows them: the job takes the first DGXNGPU.
    """
    topology: Topology | None = facts["topology"]
    if topology is None:
        yield _unknown_topology(facts["topology_error"], job)
        return
    names = [gpu_name(gpu) for gpu in facts["gpus"][: job.cluster.dgxngpu]]
    yield _judge_links(topology, names, job)
    yield _judge_binding(topology, facts, job)


def _unknown_topology(error: str, job: env.Job) -> Verdict:
    """Return the verdict if nvidia-smi does not say how GPUs are linked; an empty `error` means there is none."""
    found = error
    fix = "run nvidia-smi topo -m on the host, and mend what it says"
    if not error:
        found = "there is no nvidia-smi"
        fix = f"put it into the container (NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES})"
    return judge_check(job, "gpu.topology", good=False, found=found, fix=fix)


def _judge_links(topology: Topology, names: list[str], job: env.Job) -> Verdict:
    """Return the verdict on the links between the job's GPUs: NVLink must reach each of them, or none.

    `names` are the GPUs of the job, as ["GPU0", "GPU1"]. `topology.links[row][column]` is how two devices are linked;
    "NV4" is NVLink by four links. The verdict counts the pairs of each kind, and names the GPUs that NVLink leaves out.
    """
    gpu_rows = [row for row, device in enumerate(topology.devices) if device in names]
    kind_of_pairs: list[str] = []
    with_nvlink: set[int] = set()  # rows
    for row in gpu_rows:
        for column in gpu_rows:
            kind = topology.links[row][column]
            if row < column:  # a pair counts once
                kind_of_pairs.append(kind)
            if kind.startswith("NV"):
                with_nvlink.add(row)

    counts = [f"{kind_of_pairs.count(kind)} x {kind}" for kind in sorted(set(kind_of_pairs))]
    found = f"pairs: {', '.join(counts) or 'one GPU'}"
    left_out: list[str] = []
    if with_nvlink:
        left_out = [topology.devices[row] for row in gpu_rows if row not in with_nvlink]
    if left_out:
        found += f"; without NVLink: {', '.join(left_out)}"
    return judge_check(job, "gpu.topology", good=not left_out, found=found)


@dataclass(frozen=True, kw_only=True)
class _Binding:
    """The cores of a rank and those next to its GPU."""

    rank: int
    gpu: str
    cores: list[int]  # that the rank may use
    near: str  # to the GPU, as nvidia-smi lists them; empty: unknown
    numa_node: str  # of these; "?" if it is unknown

    @property
    def is_far(self) -> bool:
        """Return whether the rank may use none of the cores next to its GPU."""
        return bool(self.near) and not nvidia_smi.cpu_list(self.near) & set(self.cores)


def _judge_binding(topology: Topology, facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on whether each rank of this node may use a core next to its own GPU.

    The first GPU, in the order in which CUDA shows them, is local rank 0's, and so on. The verdict says which cores
    each rank may use, and which ranks may use none next to their GPU. Its other texts, in checks.yaml, have the cores
    next to each GPU and their NUMA node.
    """
    bindings = _bindings(topology, facts)
    far_bindings = [binding for binding in bindings if binding.is_far]
    cores_of_ranks: list[list[int]] = facts["rank_cores"]
    first_cores = cores_of_ranks[0]
    if all(cores == first_cores for cores in cores_of_ranks):
        found = f"all ranks {ranges(first_cores)}"
    else:
        found = ", ".join(f"rank {binding.rank} {ranges(binding.cores) or 'none'}" for binding in bindings)
    for binding in far_bindings:
        found += f"; rank {binding.rank}'s far from {binding.gpu}"
    near_each = ", ".join(f"{binding.gpu} {binding.near or 'unknown'}" for binding in bindings)
    numa_nodes = ",".join(binding.numa_node for binding in bindings)
    return judge_check(job, "cpu.binding", good=not far_bindings, found=found, near=near_each, numa=numa_nodes)


def _bindings(topology: Topology, facts: Facts) -> list[_Binding]:
    """Return each local rank with its GPU, its cores and the cores next to the GPU, as far as both are there."""
    bindings = []
    for rank, (gpu, cores) in enumerate(zip(facts["gpus"], facts["rank_cores"], strict=False)):
        near = topology.cores.get(gpu_name(gpu), "")
        numa_node = _numa_node(near, facts["numa"])
        bindings.append(_Binding(rank=rank, gpu=gpu_name(gpu), cores=cores, near=near, numa_node=numa_node))
    return bindings


def _numa_node(cores: str, cores_of_nodes: dict[str, str]) -> str:
    """Return the number of the first NUMA node that has one of these cores, as "1"; "?" if none has.

    Cores are as Linux lists them, "0-15,32-47"; `cores_of_nodes` is by the name of the node, as "node1".
    """
    if cores:
        for name, own in cores_of_nodes.items():
            if nvidia_smi.cpu_list(own) & nvidia_smi.cpu_list(cores):
                return name.removeprefix("node")
    return "?"


def ranges(cores: Sequence[int]) -> str:
    """Return cores in ascending order, as [0, 1, 2, 5], as the text "0-2,5"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ",".join(texts)
