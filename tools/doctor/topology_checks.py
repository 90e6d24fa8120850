"""The doctor's judgement of how a node's GPUs are linked, and whether their ranks run on cores next to them."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness import env, nvidia_smi
from runlog.schema import Topology
from runlog.verdict import OK, WARNING, Verdict
from tools.doctor.rows import CAPABILITIES, Facts, gpu_name, judge_check, ok_if


def judge_topology(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on the links between the job's GPUs, and on whether each rank may run on cores near its GPU.

    If nvidia-smi shows no links at all, there is one verdict, which says why.

    Args:
        facts: What was seen of the node: "topology" is the table of links (None: unknown) and "topology_error" says why
            it is unknown.
        job: Settings of the training job, with the number of GPUs that a node uses (DGXNGPU).
    """
    topology: Topology | None = facts["topology"]
    if topology is None:
        yield _unknown_topology(facts["topology_error"], job)
        return
    gpus_of_job = facts["gpus"][: job.cluster.dgxngpu]  # the job uses the first ones in CUDA's order
    names = [gpu_name(gpu) for gpu in gpus_of_job]
    missing = [name for name in names if name not in topology.devices]
    if any(gpu.index is None for gpu in gpus_of_job):
        yield _unknown_topology("NVML does not say by which numbers nvidia-smi topo -m shows the GPUs", job)
    elif missing:
        yield _unknown_topology(f"nvidia-smi topo -m shows no {', '.join(missing)}", job)
    else:
        yield _judge_links(topology, names, job)
    yield _judge_binding(topology, facts, job)


def _unknown_topology(error: str, job: env.Job) -> Verdict:
    """Return the verdict, a warning, for a node on which the links between the job's GPUs are unknown.

    Args:
        error: Why nvidia-smi did not show the links; empty if there is no nvidia-smi.
        job: Settings of the training job, for the texts of the verdict.
    """
    found = error
    fix = "run nvidia-smi topo -m on the host, and mend what it says"
    if not error:
        found = "there is no nvidia-smi"
        fix = f"put it into the container (NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES})"
    return judge_check(job, "gpu.topology", WARNING, found=found, fix=fix)


def _judge_links(topology: Topology, names: list[str], job: env.Job) -> Verdict:
    """Return the verdict on the links between the job's GPUs: a warning if some have an NVLink and others have none.

    Args:
        topology: How the node's devices are linked, by nvidia-smi.
        names: The job's GPUs, such as ["GPU0", "GPU1"].
        job: Settings of the training job, for the texts of the verdict.
    """
    gpu_rows = [row for row, device in enumerate(topology.devices) if device in names]  # rows of the topology's table
    found = f"pairs: {_kinds_in_words(topology, gpu_rows) or 'one GPU'}"
    without_nvlink = [topology.devices[row] for row in gpu_rows if not _has_nvlink(topology, row, gpu_rows)]
    all_are_alike = len(without_nvlink) in (0, len(gpu_rows))  # all have an NVLink, or none has
    if all_are_alike:
        return judge_check(job, "gpu.topology", OK, found=found)
    found += f"; without NVLink: {', '.join(without_nvlink)}"
    return judge_check(job, "gpu.topology", WARNING, found=found)


def _kinds_in_words(topology: Topology, rows: Sequence[int]) -> str:
    """Return how many pairs of some devices have which kind of link, as text: "2 x NV4, 4 x SYS".

    Args:
        topology: How the node's devices are linked, by nvidia-smi.
        rows: Rows of the topology's table, one for each device to pair.

    Returns:
        The text; empty if there is no pair.
    """
    kinds = [topology.links[row][other_row] for row, other_row in itertools.combinations(rows, 2)]
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(Counter(kinds).items()))


def _has_nvlink(topology: Topology, row: int, columns: Sequence[int]) -> bool:
    """Return whether a device has an NVLink to at least one of some devices.

    Args:
        topology: The table of links by nvidia-smi. An NVLink is named "NV" with a number, such as "NV4".
        row: Row of the device in the table.
        columns: Columns of the other devices.
    """
    return any(topology.links[row][column].startswith("NV") for column in columns)


@dataclass(frozen=True, kw_only=True)
class _Binding:
    """The cores that a rank may use, and the cores near its GPU."""

    rank: int
    gpu: str  # its name
    cores: list[int]  # that the rank may use
    near_cores: str  # near the GPU, as nvidia-smi lists them; empty: unknown
    numa_node: str  # of `near_cores`; "?": unknown

    @property
    def is_far(self) -> bool:
        """Return whether the rank may use none of the cores near its GPU; False if these are unknown."""
        if not self.near_cores:
            return False
        usable_near_cores = nvidia_smi.cpu_list(self.near_cores) & set(self.cores)
        return not usable_near_cores


def _judge_binding(topology: Topology, facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on whether each rank of this node may run on a CPU core near its own GPU.

    If not, the verdict is a warning. Where the cores near a GPU are unknown, the rank counts as near.

    Args:
        topology: For each GPU the cores near it, by nvidia-smi.
        facts: What was seen of the node: "rank_cores" has the cores that each rank may use, "gpus" the GPUs in CUDA's
            order, which is that of the ranks.
        job: Settings of the training job, for the texts of the verdict.
    """
    bindings = _bindings(topology, facts)
    far_bindings = [binding for binding in bindings if binding.is_far]
    found = _cores_in_words(bindings, facts["rank_cores"])
    for binding in far_bindings:
        found += f"; rank {binding.rank}'s far from {binding.gpu}"
    return judge_check(
        job,
        "cpu.binding",
        ok_if(not far_bindings, otherwise=WARNING),
        found=found,
        # These two fill the texts of checks.yaml on what is wanted, and on the fix: "set RANK_NUMA={numa}".
        near=", ".join(f"{binding.gpu} {binding.near_cores or 'unknown'}" for binding in bindings),
        numa=",".join(binding.numa_node for binding in bindings),
    )


def _cores_in_words(bindings: Sequence[_Binding], cores_of_ranks: Sequence[list[int]]) -> str:
    """Return which cores the ranks may use: "all ranks 0-47" or, if their cores differ, "rank 0 0-23, rank 1 24-47".

    Args:
        bindings: The cores of each rank that has a GPU. Ranks without one are not listed.
        cores_of_ranks: The cores of every rank of the node, at least one.
    """
    first_cores = cores_of_ranks[0]
    all_are_alike = all(cores == first_cores for cores in cores_of_ranks)
    if all_are_alike:
        return f"all ranks {ranges(first_cores) or 'none'}"
    return ", ".join(f"rank {binding.rank} {ranges(binding.cores) or 'none'}" for binding in bindings)


def _bindings(topology: Topology, facts: Facts) -> list[_Binding]:
    """Return, for each rank of this node, the cores that the rank may use and those near its GPU.

    Ranks without a GPU and GPUs without a rank are left out.

    Args:
        topology: For each GPU the cores near it, by nvidia-smi.
        facts: What was seen of the node: "gpus", "rank_cores", and "numa" with the cores of each NUMA node.
    """
    bindings = []
    for rank, (gpu, cores) in enumerate(zip(facts["gpus"], facts["rank_cores"], strict=False)):
        name = gpu_name(gpu)
        near_cores = topology.cores.get(name, "")
        numa_node = _numa_node(near_cores, facts["numa"])
        bindings.append(_Binding(rank=rank, gpu=name, cores=cores, near_cores=near_cores, numa_node=numa_node))
    return bindings


def _numa_node(cores: str, cores_of_nodes: dict[str, str]) -> str:
    """Return the number of the first NUMA node that has one of some cores; "?" if it is unknown.

    For the cores "16-31" and the nodes {"node0": "0-15", "node1": "16-31"} this is "1".

    Args:
        cores: The cores as a list of ranges; empty if they are unknown.
        cores_of_nodes: The cores of each NUMA node, by the node's name.
    """
    if cores:
        for node_name, node_cores in cores_of_nodes.items():
            if nvidia_smi.cpu_list(node_cores) & nvidia_smi.cpu_list(cores):
                return node_name.removeprefix("node")
    return "?"


def ranges(cores: Sequence[int]) -> str:
    """Return cores as text with ranges: [0, 1, 2, 5] -> "0-2,5".

    Args:
        cores: Numbers of the cores, in ascending order; without any, the text is empty.
    """
    groups: list[list[int]] = []  # of consecutive cores
    for core in cores:
        follows_last = bool(groups) and core == groups[-1][-1] + 1
        if follows_last:
            groups[-1].append(core)
        else:
            groups.append([core])
    texts = [f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0]) for group in groups]
    return ",".join(texts)
