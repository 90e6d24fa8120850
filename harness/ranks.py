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
from program.arrays import Array
from runlog.digits import counted
from runlog.errors import RunError

if not env.is_rank():  # a tool: UCX, which Open MPI loads, would write into its JSON; MPI does not start without HOME
    env.export({"UCX_LOG_FILE": "stderr", "HOME": "/"})
with env.transports_of_tool():
    from mpi4py import MPI

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
        """Collect some numbers of every rank on rank 0; every rank must call this.

        Args:
            values: Numbers of this rank; every rank gives equally many.

        Returns:
            On rank 0 a float64 array, shape [values, ranks]. None on all other ranks.
        """
        gathered = np.empty((self.size, len(values))) if self.is_first else None
        self.comm.Gather(np.array(values, dtype=np.float64), gathered)
        return None if gathered is None else gathered.T


def wait(comm: MPI.Comm) -> None:
    """Wait until all ranks of a communicator call this, and leave the cores to those that compute meanwhile.

    MPI's own Barrier would spin on a core.

    Args:
        comm: MPI's communicator of the ranks.
    """
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


@contextlib.contextmanager
def lost_peer() -> Iterator[None]:
    """Raise RunError in place of the error that gloo raises in this context when another rank dies.

    gloo is the library that connects ranks on CPUs. When a rank dies, mpirun reports it and ends all others. So this
    rank waits PEERS_END_S to be ended before it raises, and the user reads only that one message.

    Raises:
        RunError: Another rank was lost. Any other error passes as it is.
    """
    try:
        yield
    except RuntimeError as error:
        is_from_gloo = str(error) == "std::exception"  # gloo's errors say no more than this
        if not is_from_gloo:
            raise
        time.sleep(PEERS_END_S)
        raise RunError(f"a rank was lost while {WATCHDOG.doing}") from error


def start(cluster: ClusterSettings) -> Ranks:
    """Join the other ranks of the job by MPI, and return this process's place among them.

    From now on the watchdog ends this process if it makes no progress for HANG_TIMEOUT_S seconds, unless that is 0.

    Args:
        cluster: Settings of the nodes and ranks.

    Raises:
        ValueError: mpirun started another number of ranks than the settings say.
    """
    if env.is_rank():
        # An mpirun that is killed cannot end its ranks, and launch/trial.py closes the log as soon as mpirun is gone.
        end_with_parent(signal.SIGKILL)
    # Before the first message between ranks, which hangs where the nodes do not reach each other.
    WATCHDOG.beat("meeting the other ranks by MPI")
    WATCHDOG.start(cluster.hang_timeout_s, rank=env.rank_by_mpirun(), node=socket.gethostname())
    ranks = _ranks_by_mpi()
    WATCHDOG.beat("starting")
    if ranks.size != cluster.world_size:
        raise ValueError(
            f"{counted(ranks.size, 'rank')} started, but DGXNNODES={cluster.dgxnnodes} x DGXNGPU={cluster.dgxngpu} "
            f"is {cluster.world_size}: start the job by ./run_and_time.sh"
        )
    # NCCL's network interface between nodes. Here already, and not in `connect`, because the log's header lists the
    # libraries' variables.
    env.export(network.nccl_settings(cluster, _number_of_node(cluster, ranks)))
    return ranks


def _ranks_by_mpi() -> Ranks:
    """Return this process's place among all processes that mpirun started; every rank must call this.

    Returns:
        Its number, the number of ranks, its number on this node, and the host names of all ranks. A process that was
        started alone is rank 0 of one.
    """
    comm = MPI.COMM_WORLD
    ranks_of_node = comm.Split_type(MPI.COMM_TYPE_SHARED)  # those that share memory with this rank
    local_rank = ranks_of_node.Get_rank()
    ranks_of_node.Free()  # the communicator is needed only for this
    node = socket.gethostname()
    return Ranks(
        comm=comm,
        rank=comm.Get_rank(),
        size=comm.Get_size(),
        local_rank=local_rank,
        node=node,
        nodes=tuple(comm.allgather(node)),
    )


def _number_of_node(cluster: ClusterSettings, ranks: Ranks) -> int:
    """Return the number of this rank's node in HOSTS, from 0.

    mpirun fills one node with ranks after the other.

    Args:
        cluster: Settings of the nodes and ranks.
        ranks: This process among the ranks of the job.
    """
    return ranks.rank // cluster.dgxngpu


def _hold_port() -> int:
    """Reserve a free TCP port on which Paddle can listen later, and return its number.

    The port is held until this process ends by a socket that is bound to it but never listens. Linux lets Paddle's
    socket bind to the same port if both sockets have set SO_REUSEADDR, or both SO_REUSEPORT. Paddle sets one or the
    other, depending on the use, so this socket sets both.

    Returns:
        The port number, chosen by the operating system.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Paddle's stores set it
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as Paddle sets it where ranks exchange NCCL's id
    any_free_port = 0
    holder.bind(("", any_free_port))
    _HELD.append(holder)  # without this Python would close the socket at the end of this function
    _, port = holder.getsockname()
    return int(port)


def _check_free(port: int) -> None:
    """Make sure that this process can bind a port: Paddle's rendezvous would wait for a taken one without an end.

    Args:
        port: A TCP port, which GLOO_PORT names.

    Raises:
        RunError: The port cannot be bound.
    """
    try:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("", port))
    except OSError as error:
        raise RunError(f"GLOO_PORT={port} on {socket.gethostname()}: {error.strerror}: set another, or 0") from error


def _have_gloo_listen_at(own_address: str) -> None:
    """Have gloo on this rank listen at an address of its own, at which the other ranks look for it.

    gloo is the library that connects ranks on CPUs. Left alone, it listens at the address of the host's name, which may
    be the loopback. Paddle takes gloo's settings from a new object of its class GlooParallelStrategy. So in this
    process the class is replaced by a function, which makes the same object and sets the network interface in it.

    Args:
        own_address: IP address of this node, such as "10.0.0.5".

    Raises:
        RunError: No network interface has the address.
    """
    from paddle.base import core

    interface = network.interface_of(own_address)
    if interface is None:
        raise RunError(
            f"no network interface of {socket.gethostname()} has the address {own_address}, where other ranks would "
            "reach it: name the nodes in HOSTS as they know each other (one node: ip link set lo up)"
        )
    make_strategy = core.GlooParallelStrategy  # Paddle's own class

    def make_strategy_with_interface() -> core.GlooParallelStrategy:
        strategy = make_strategy()
        strategy.iface = interface
        return strategy

    core.GlooParallelStrategy = make_strategy_with_interface


def _have_server_of_gloo_listen_at(address: str) -> None:
    """Have the server through which gloo's ranks find each other listen at one address alone.

    Paddle starts the server on rank 0. Left alone, it listens on every network interface, and Paddle has no setting for
    that. So the method that binds the server's socket is replaced in this process.

    Args:
        address: IP address of rank 0's node.
    """
    from paddle.distributed.fleet.utils import http_server

    def bind_to_address(server: HTTPServer) -> None:
        port = server.server_address[1]
        server.server_address = (address, port)
        HTTPServer.server_bind(server)

    http_server.KVHTTPServer.server_bind = bind_to_address


def connect(cluster: ClusterSettings, ranks: Ranks) -> None:
    """Tell Paddle the addresses of all ranks and, if they are several on CPUs, connect them by gloo.

    Ranks on GPUs are connected later, by NCCL. Every rank must call this.

    Args:
        cluster: Settings of the nodes and ranks.
        ranks: This process among the ranks of the job.

    Raises:
        RunError: This node has no address that the others can reach, or GLOO_PORT is taken.
    """
    own_address = network.node_address(cluster, _number_of_node(cluster, ranks))
    endpoints = ranks.comm.allgather(f"{own_address}:{_hold_port()}")  # of every rank, in their order
    env.export_trainer(ranks.rank, endpoints)
    if cluster.on_gpu or ranks.size == 1:
        return
    first_address, _, _ = endpoints[0].rpartition(":")
    _connect_by_gloo(cluster.gloo_port, ranks, own_address, first_address)


def _connect_by_gloo(gloo_port: int, ranks: Ranks, own_address: str, first_address: str) -> None:
    """Connect the ranks of a job on CPUs by gloo; every rank must call this.

    gloo is the library by which Paddle's ranks on CPUs exchange data. The ranks find each other through a server that
    Paddle starts on rank 0.

    Args:
        gloo_port: TCP port of the server on rank 0; 0: any free port.
        ranks: This process among the ranks of the job.
        own_address: IP address of this node, at which this rank listens.
        first_address: IP address of rank 0's node, at which the server listens.

    Raises:
        RunError: This node does not have `own_address`, or the port is taken.
    """
    import paddle

    port_on_first = _port_for_server(gloo_port) if ranks.is_first else None
    server_port = ranks.comm.bcast(port_on_first)  # the port of rank 0, on all ranks
    with in_temporary_folder():  # into which Paddle then writes files, as http.log
        _set_up_gloo_of_paddle(own_address, first_address, is_first=ranks.is_first)
        paddle.distributed.gloo_init_parallel_env(ranks.rank, ranks.size, f"{first_address}:{server_port}")


def _set_up_gloo_of_paddle(own_address: str, first_address: str, *, is_first: bool) -> None:
    """Change how this process starts gloo, in three points that Paddle lets no caller set.

    It must be called before Paddle connects the ranks. The changes stay until the process ends.

    Args:
        own_address: IP address of this node, at which gloo is to listen.
        first_address: IP address of rank 0's node, at which the server is to listen.
        is_first: Whether this is rank 0, on which Paddle starts the server.

    Raises:
        RunError: This node does not have `own_address`.
    """
    os.register_at_fork(after_in_child=_end_with_parent_of_fork)  # a process of Paddle would outlive this rank
    _have_gloo_listen_at(own_address)  # replaces a class of Paddle
    if is_first:
        _have_server_of_gloo_listen_at(first_address)  # replaces a method of Paddle


def _port_for_server(gloo_port: int) -> int:
    """Return the TCP port for the server through which gloo's ranks find each other.

    Args:
        gloo_port: The port that the user chose (GLOO_PORT); 0: any free one.

    Raises:
        RunError: The chosen port is taken.
    """
    if gloo_port == 0:
        return _hold_port()
    _check_free(gloo_port)
    return gloo_port


def _end_with_parent_of_fork() -> None:
    """Have a forked process end with the rank that forked it.

    A forked process inherits the rank's stdout, and mpirun waits until all processes with that stdout have ended.
    """
    end_with_parent(signal.SIGKILL)
