"""What is read of cgroups: the folders of both versions as containers and batch jobs show them."""

import os
from pathlib import Path
from unittest import mock

import pytest

from harness import cgroup, job

MIB = 2**20
UNLIMITED = {"memory.limit_in_bytes": 0x7FFFFFFFFFFFF000, "memory.usage_in_bytes": 5 * MIB}


def left(folder: Path, membership: str, files: dict[str, object]) -> tuple[int | None, float | None]:
    """Free MiB and CPUs by cgroups with these files, each named by its path below /sys/fs/cgroup."""
    root = folder / "cgroup"
    root.mkdir()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    (folder / "membership").write_text(f"{membership}\n")
    free_bytes = cgroup.free_memory_bytes(root, folder / "membership")
    return None if free_bytes is None else free_bytes // MIB, cgroup.cpus(root, folder / "membership")


@pytest.mark.parametrize(
    ("membership", "files", "wanted"),
    [
        ("0::/", {"cgroup.procs": 1}, (None, None)),  # a host: the root has no limits
        (  # a container of version 2: its own cgroup is the root that it sees
            "0::/",
            {
                **{"memory.max": 4096 * MIB, "memory.current": 3000 * MIB, "cpu.max": "150000 100000"},
                "memory.stat": f"anon {2000 * MIB}\ninactive_file {700 * MIB}\nactive_file {200 * MIB}\nfile 9999",
            },
            (1996, 1.5),
        ),
        (  # Slurm: the step has no limit, and the job above it has; a sibling's does not matter
            "0::/slurm/job_7/step_0",
            {
                **{"slurm/job_7/step_0/memory.max": "max", "slurm/job_7/step_0/memory.current": 0},
                **{"slurm/job_7/memory.max": 100 * MIB, "slurm/job_7/memory.current": 40 * MIB},
                **{"slurm/job_8/memory.max": 1 * MIB, "slurm/job_8/memory.current": 0},
                **{"slurm/job_7/step_0/cpu.max": "max 100000", "slurm/job_7/cpu.max": "800000 100000"},
            },
            (60, 8.0),
        ),
        (  # docker of version 1, which shows the host's path and mounts its own cgroup; over its limit for a moment
            "4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f\n2:cpuset:/docker/1f",
            {
                **{"memory/memory.limit_in_bytes": 64 * MIB, "memory/memory.usage_in_bytes": 65 * MIB},
                **{"cpu/cpu.cfs_quota_us": 50000, "cpu/cpu.cfs_period_us": 100000},
            },
            (0, 0.5),
        ),
        (
            "4:memory:/user\n3:cpu,cpuacct:/user",
            {
                **{f"memory/user/{name}": value for name, value in UNLIMITED.items()},
                **{"cpu/user/cpu.cfs_quota_us": -1, "cpu/user/cpu.cfs_period_us": 100000},
            },
            (None, None),
        ),
        ("0::/../other", {"memory.max": "max", "cpu.max": "max 100000"}, (None, None)),
        ("nonsense", {"memory.max": "lots", "cpu.max": "0 0"}, (None, None)),
    ],
    ids=["host", "container", "Slurm", "docker of version 1", "no limit of version 1", "outside", "nonsense"],
)
def test_limits_of_memory_and_time(
    membership: str, files: dict[str, object], wanted: tuple[int | None, float | None], tmp_path: Path
) -> None:
    assert left(tmp_path, membership, files) == wanted


def test_without_cgroups_nothing_is_limited(tmp_path: Path) -> None:
    assert cgroup.free_memory_bytes(tmp_path / "none", tmp_path / "none") is None
    assert cgroup.cpus(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("quota", "settings", "threads"),
    [
        (None, {"dgxngpu": 2}, 8),
        (64.0, {"dgxngpu": 2}, 8),
        (4.0, {"dgxngpu": 2}, 2),
        (3.5, {"dgxngpu": 1}, 3),
        (0.5, {"dgxngpu": 2}, 1),
        (0.5, {"dgxngpu": 2, "threads": 5}, 5),  # the user's
    ],
)
def test_a_ranks_threads_have_the_cpu_time_of_the_quota(
    quota: float | None, settings: dict[str, int], threads: int
) -> None:
    """As by docker --cpus. The ranks had a thread a core of the machine; on half a CPU 2 took twice the time of 1."""
    with (
        mock.patch.object(cgroup, "cpus", autospec=True, return_value=quota),
        mock.patch.object(os, "sched_getaffinity", autospec=True, return_value=set(range(16))),
    ):
        assert job.job_of(**settings).cluster.threads_per_rank == threads


@pytest.mark.parametrize(
    ("rank_numa", "cores", "quota", "threads"),
    [
        (
            "3,3,1,1,7,7,5,5",
            range(48, 64),
            None,
            8,
        ),  # two ranks on the 16 cores of each of a DGX A100's nodes; it was 2
        ("0,1,2,3,4,5,6,7", range(48, 64), None, 16),
        ("3,3,3,1,1,1,1,1,3", range(48, 64), None, 5),  # the last is of no rank
        ("3,3,1,1,7,7,5,5", range(48, 52), None, 2),  # a container has but these cores of the node
        ("3,3,1,1,7,7,5,5", range(48, 64), 32.0, 4),  # the quota is of all ranks
        ("3,3,1,1,7,7,5,5", range(128), None, 16),  # a process that is not bound
        ("", range(48, 64), None, 2),
        ("9,9,9,9,9,9,9,9", range(48, 64), None, 2),  # no node of this machine
    ],
)
def test_a_bound_rank_shares_its_cores_with_the_ranks_of_its_numa_node(
    rank_numa: str, cores: range, quota: float | None, threads: int, tmp_path: Path
) -> None:
    """launch/bind.sh has bound it to them, so the other nodes' ranks take none of them."""
    for core in range(128):
        (tmp_path / f"node{core // 16}" / f"cpu{core}").mkdir(parents=True)
    with (
        mock.patch.object(cgroup, "cpus", autospec=True, return_value=quota),
        mock.patch.object(os, "sched_getaffinity", autospec=True, return_value=set(cores)),
        mock.patch.object(job, "NUMA_NODES", tmp_path),
    ):
        assert job.job_of(dgxngpu=8, rank_numa=rank_numa).cluster.threads_per_rank == threads
