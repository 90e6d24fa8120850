"""The cores that launch/bind.sh gives a rank."""

import os
from pathlib import Path

from harness import nvidia_smi
from tests import jobs
from tests.jobs import in_namespaces, need, refused

BIND = str(jobs.REPOSITORY / "launch/bind.sh")
BOUND = [BIND, "python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
NODE = Path("/sys/devices/system/node/node0/cpulist")


def test_a_rank_is_bound_to_its_numa_node() -> None:
    need(NODE.is_file(), "the kernel tells no NUMA nodes")
    usable = sorted(nvidia_smi.cpu_list(NODE.read_text()) & os.sched_getaffinity(0))
    done = jobs.run(BOUND, RANK_NUMA="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
    assert done.stdout.strip() == str(usable), done.stderr
    refused(jobs.run(BOUND, RANK_NUMA="0,99", OMPI_COMM_WORLD_LOCAL_RANK="1"), "has no NUMA node")
    given = ["taskset", "--cpu-list", str(usable[-1])]  # as a batch job that shares its node
    done = jobs.run([*given, *BOUND], RANK_NUMA="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
    assert done.stdout.strip() == str(usable[-1:]), "it leaves its share of the node"


def test_a_rank_that_may_use_no_core_of_its_numa_node_says_so() -> None:
    """Linux's answer was that taskset had an invalid argument."""
    elsewhere = f"""
        mount -t tmpfs none {NODE.parents[1]} && mkdir {NODE.parent} && echo 4096-4099 >{NODE}
        exec {BIND} true
    """
    command = [*in_namespaces("--mount"), "bash", "-euc", elsewhere]
    done = jobs.run(command, RANK_NUMA="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
    refused(done, "and none of them is of NUMA node 0 (4096-4099): ask for its cores too, or set RANK_NUMA to nothing")
