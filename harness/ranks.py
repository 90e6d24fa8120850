"""The ranks of a job: who we are by MPI, and the transport that Paddle's collectives use.

MPI starts the ranks and carries small host-side values. Gradients go by NCCL on GPUs and by gloo on CPUs.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import HTTPServer

import numpy as np

from harness import env, network
from harness.hooks.watchdog import WATCHDOG
from harness.job import ClusterSettings
from harness.processes import end_with_parent
from program import elsewhere
from runlog.errors import RunError

if not env.is_rank():  # a tool: UCX, which Open MPI loads, would write into its JSON; MPI does not start without HOME
    env.export({"UCX_LOG_FILE": "stderr", "HOME": "/"})
from mpi4py import MPI

from program.arrays import Array

_HELD: list[socket.socket] = []  # bound and never listening, to the end of the process
PEERS_END_S = 10.0  # after which a rank whose peer died ends by itself


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the processes of the job."""

    comm: MPI.Comm
    rank: int
    size: int
    local_rank: int  # among the ranks of this node
    node: str  # host name
    nodes: tuple[str, ...] = ()  # of every rank

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the log."""
        return self.rank == 0

    def table(self, *values: float) -> Array | None:
        """Return the `values` of every rank, shape [values, ranks], on rank 0; elsewhere None."""
        gathered = np.empty((self.size, len(values))) if self.is_first else None
        self.comm.Gather(np.array(values, dtype=np.float64), gathered)
        return None if gathered is None else gathered.T


@contextlib.contextmanager
def lost_peer() -> Iterator[None]:
    """Leave the word to the launcher where another rank died: mpirun, which ends this one too, says which and how.

    Raises RunError where mpirun did not.
    """
    try:
        yield
    except RuntimeError as error:
        if str(error) != "std::exception":  # all that gloo says of it
            raise
        time.sleep(PEERS_END_S)
        raise RunError(f"a rank was lost while {WATCHDOG.doing}") from error


def start(cluster: ClusterSettings) -> Ranks:
    """Join the job, and watch this process from now on.

    Raises ValueError where mpirun started another number of ranks than the cluster's settings say.
    """
    comm = MPI.COMM_WORLD
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = Ranks(
        comm=comm,
        rank=comm.Get_rank(),
        size=comm.Get_size(),
        local_rank=local.Get_rank(),
        node=socket.gethostname(),
        nodes=tuple(comm.allgather(socket.gethostname())),
    )
    local.Free()
    if env.is_rank():
        # mpirun: a killed one cannot end its ranks, and the log is closed when it is gone
        end_with_parent(signal.SIGKILL)
    WATCHDOG.start(cluster.hang_timeout_s, rank=ranks.rank, node=ranks.node)
    if ranks.size != cluster.world_size:
        raise ValueError(
            f"{ranks.size} ranks were started, but DGXNNODES={cluster.dgxnnodes} x DGXNGPU={cluster.dgxngpu} "
            f"is {cluster.world_size}: start the job by ./run_and_time.sh"
        )
    # Before the log tells the libraries' variables.
    env.export(network.nccl_settings(cluster, ranks.rank // cluster.dgxngpu))
    return ranks


def _hold_port() -> int:
    """Return a free TCP port that no other process is given, while Paddle may listen on it.

    Linux lets a second socket of one user bind a port where both set the same option and the first does not listen.
    Paddle sets SO_REUSEPORT alone where ranks exchange NCCL's id, and SO_REUSEADDR alone in its stores.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("", 0))
    _HELD.append(held)
    return int(held.getsockname()[1])


def _check_free(port: int) -> None:
    """Raise RunError if this process cannot bind `port`: Paddle's rendezvous would wait for it without an end."""
    try:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("", port))
    except OSError as error:
        raise RunError(f"GLOO_PORT={port} on {socket.gethostname()}: {error.strerror}: set another, or 0") from error


def _listen_on(own: str, meeting: str) -> None:
    """Have gloo listen on the interface of the address `own`, and Paddle's rendezvous server on `meeting` alone.

    By itself gloo takes the address of the host's own name, which may have none or the loopback's, and the server every
    interface.

    Raises RunError where no interface has the address.
    """
    from paddle.base import core
    from paddle.distributed.fleet.utils import http_server

    interface = network.interface_of(own)
    if interface is None:
        raise RunError(
            f"no network interface of {socket.gethostname()} has the address {own}, where other ranks would reach it: "
            "name the nodes in HOSTS as they know each other (one node: ip link set lo up)"
        )
    make = core.GlooParallelStrategy

    def strategy() -> core.GlooParallelStrategy:
        made = make()
        made.iface = interface
        return made

    core.GlooParallelStrategy = strategy

    def bind(server: HTTPServer) -> None:
        server.server_address = (meeting, server.server_address[1])
        HTTPServer.server_bind(server)

    http_server.KVHTTPServer.server_bind = bind


def connect(cluster: ClusterSettings, ranks: Ranks) -> None:
    """Tell Paddle's fleet about the ranks and, on a CPU, open gloo between them.

    Raises RunError where the other ranks cannot reach this one.
    """
    address = network.node_address(cluster, ranks.rank // cluster.dgxngpu)
    endpoints = ranks.comm.allgather(f"{address}:{_hold_port()}")
    env.export_trainer(ranks.rank, endpoints)
    if cluster.on_gpu or ranks.size == 1:
        return
    import paddle

    if ranks.is_first and cluster.gloo_port:
        _check_free(cluster.gloo_port)
    port = ranks.comm.bcast(cluster.gloo_port or _hold_port())
    first_host = endpoints[0].rpartition(":")[0]
    # Paddle forks helpers for the rendezvous; mpirun would wait for whoever holds a dead rank's pipes.
    os.register_at_fork(after_in_child=_end_with_its_parent)
    with elsewhere():
        _listen_on(address, first_host)
        paddle.distributed.gloo_init_parallel_env(ranks.rank, ranks.size, f"{first_host}:{port}")


def _end_with_its_parent() -> None:
    """Have a forked helper end with the process that forked it."""
    end_with_parent(signal.SIGKILL)
