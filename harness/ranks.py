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
from program import in_temporary_folder
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

    def gather_on_first(self, *values: float) -> Array | None:
        """Return the `values` of every rank, shape [values, ranks], on rank 0; elsewhere None."""
        gathered = np.empty((self.size, len(values))) if self.is_first else None
        self.comm.Gather(np.array(values, dtype=np.float64), gathered)
        return None if gathered is None else gathered.T


def wait(comm: MPI.Comm) -> None:
    """Wait until all ranks of a communicator call this, and leave the cores to those that compute meanwhile.

    MPI's own Barrier would spin on a core.
    """
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


@contextlib.contextmanager
def lost_peer() -> Iterator[None]:
    """Raise RunError in place of the error that gloo raises in this context when another rank dies.

    Gloo is what joins the ranks on CPUs. mpirun notices the death, too: it prints which rank died and how, and ends all
    others. This rank waits PEERS_END_S for that, so that the user reads mpirun's message alone: the RunError is raised
    only where mpirun has not ended this rank by then. Any other error passes at once.
    """
    try:
        yield
    except RuntimeError as error:
        is_from_gloo = str(error) == "std::exception"  # all that gloo says
        if not is_from_gloo:
            raise
        time.sleep(PEERS_END_S)
        raise RunError(f"a rank was lost while {WATCHDOG.doing}") from error


def start(cluster: ClusterSettings) -> Ranks:
    """Join the other ranks of the job by MPI; return which rank this is, and of how many.

    From now on the watchdog watches this process. If mpirun has started the process, it also ends when mpirun does. A
    variable of the environment tells NCCL which network interface leads to the other nodes.

    Raises ValueError if mpirun started another number of ranks than the cluster's settings say.
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
        # An mpirun that is killed cannot end its ranks, and launch/trial.py closes the log as soon as mpirun is gone.
        end_with_parent(signal.SIGKILL)
    WATCHDOG.start(cluster.hang_timeout_s, rank=ranks.rank, node=ranks.node)
    if ranks.size != cluster.world_size:
        raise ValueError(
            f"{ranks.size} ranks were started, but DGXNNODES={cluster.dgxnnodes} x DGXNGPU={cluster.dgxngpu} "
            f"is {cluster.world_size}: start the job by ./run_and_time.sh"
        )
    # Before the log's header is written, because that lists the libraries' variables.
    env.export(network.nccl_settings(cluster, ranks.rank // cluster.dgxngpu))
    return ranks


def _hold_port() -> int:
    """Return a free TCP port, and keep it for Paddle to the end of this process: no other process is given it.

    A socket keeps it: it is bound to the port and never listens. Linux lets a second socket of the same user bind the
    port, if both sockets set SO_REUSEPORT, or both set SO_REUSEADDR. This one sets both, because Paddle sets only the
    first where ranks exchange NCCL's id, and only the second in its stores.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Paddle's stores do
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as Paddle does to exchange NCCL's id
    holder.bind(("", 0))
    _HELD.append(holder)
    _, port = holder.getsockname()
    return int(port)


def _check_free(port: int) -> None:
    """Raise RunError if this process cannot bind `port`: Paddle's rendezvous would wait for it without an end."""
    try:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("", port))
    except OSError as error:
        raise RunError(f"GLOO_PORT={port} on {socket.gethostname()}: {error.strerror}: set another, or 0") from error


def _have_gloo_listen_on(own_address: str, *, server_address: str) -> None:
    """Replace two parts of Paddle, so that gloo and its rendezvous listen at the addresses given here.

    - Gloo listens at this node's `own_address`. By itself it takes the address of the host's name, which may have none,
      or that of the loopback.
    - The server by which the ranks find each other, on rank 0, listens at `server_address`. By itself it listens on
      every interface.

    Paddle offers no setting for either. Raises RunError if no network interface has the own address.
    """
    from paddle.base import core
    from paddle.distributed.fleet.utils import http_server

    interface = network.interface_of(own_address)
    if interface is None:
        raise RunError(
            f"no network interface of {socket.gethostname()} has the address {own_address}, where other ranks would "
            "reach it: name the nodes in HOSTS as they know each other (one node: ip link set lo up)"
        )
    original_strategy = core.GlooParallelStrategy

    def strategy_on_interface() -> core.GlooParallelStrategy:
        strategy = original_strategy()
        strategy.iface = interface
        return strategy

    core.GlooParallelStrategy = strategy_on_interface

    def bind_to_address(server: HTTPServer) -> None:
        port = server.server_address[1]
        server.server_address = (server_address, port)  # in place of every interface
        HTTPServer.server_bind(server)

    http_server.KVHTTPServer.server_bind = bind_to_address


def connect(cluster: ClusterSettings, ranks: Ranks) -> None:
    """Tell Paddle's fleet who the ranks are and, on CPUs, connect them by gloo; every rank must call this.

    Each rank reserves a port at its node's address. All ranks exchange their "address:port" by MPI and put them into
    the PADDLE_TRAINER variables. Fleet, Paddle's layer for several ranks, reads them there. On GPUs nothing else is
    done here, because NCCL connects them later, by these addresses.

    On several CPUs rank 0 also starts a server, through which the ranks find each other. Gloo then joins them. The
    server's port is GLOO_PORT, or any free port if that is 0.

    Raises RunError if this node has no address that the others can reach, or GLOO_PORT is taken.
    """
    address = network.node_address(cluster, ranks.rank // cluster.dgxngpu)
    endpoints = ranks.comm.allgather(f"{address}:{_hold_port()}")
    env.export_trainer(ranks.rank, endpoints)
    if cluster.on_gpu or ranks.size == 1:
        return
    import paddle

    if ranks.is_first and cluster.gloo_port:
        _check_free(cluster.gloo_port)
    # Every rank has a port here, but `bcast` gives all of them that of rank 0.
    port = ranks.comm.bcast(cluster.gloo_port or _hold_port())
    first_host = endpoints[0].rpartition(":")[0]
    # Paddle forks helpers for the rendezvous. They inherit this rank's stdout, and mpirun waits until it is closed, so
    # they must end when the rank does.
    os.register_at_fork(after_in_child=_end_with_its_parent)
    with in_temporary_folder():  # Paddle leaves files in the working directory
        _have_gloo_listen_on(address, server_address=first_host)
        paddle.distributed.gloo_init_parallel_env(ranks.rank, ranks.size, f"{first_host}:{port}")


def _end_with_its_parent() -> None:
    """Have a forked helper end with the process that forked it."""
    end_with_parent(signal.SIGKILL)
