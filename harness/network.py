"""How the nodes of a job reach each other: this node's address among them, and the network interface that has it."""

import socket

import psutil

from harness import env
from harness.job import ClusterSettings
from runlog.errors import RunError

LOOPBACK = "127."
ANY_PORT = 9  # no packet is sent to it


def node_address(cluster: ClusterSettings, node: int) -> str:
    """Return the IPv4 address at which the other nodes of the job reach this node, such as 10.0.0.5.

    In a job of one node it is 127.0.0.1. Else this node's name in HOSTS is looked up. On many machines this gives a
    loopback address, 127.x.x.x. Then the result is the address from which this node would connect to another node.

    Args:
        cluster: Settings of the nodes. In a job of several nodes HOSTS must name all of them.
        node: Number of this node in HOSTS, from 0.

    Raises:
        RunError: A name of HOSTS cannot be looked up, no way leads to the other node, or that address is loopback, too.
    """
    if cluster.dgxnnodes == 1:
        return "127.0.0.1"

    machine = socket.gethostname()  # as it calls itself, which need not be its name in HOSTS
    hosts = cluster.hosts.split(",")
    own_name = hosts[node]
    name_of_other_node = hosts[1] if node == 0 else hosts[0]
    both_names = f"{own_name} and {name_of_other_node}"
    try:
        address = socket.gethostbyname(own_name)
        if _is_loopback(address):  # 127.x.x.x, at which no other node reaches this node
            address = _address_towards(name_of_other_node)  # from which this node would connect to the other
    except OSError as error:  # either name is unknown, or there is no way to the other node
        raise RunError(f"HOSTS: {machine} finds no way to {both_names} ({error.strerror})") from error
    except UnicodeError as error:  # Python refuses the form of `own_name` before it asks for the address
        fix = "each part of a name between dots must have 1 to 63 characters"
        raise RunError(f"HOSTS: {machine} cannot look up {own_name}: {fix}") from error
    if _is_loopback(address):  # still, because the other node's name has such an address, too
        raise RunError(
            f"HOSTS: {machine} takes {both_names} for itself, at {address}, where no other node reaches it: "
            "name the nodes as they know each other"
        )
    return address


def _is_loopback(address: str) -> bool:
    return address.startswith(LOOPBACK)


def interface_of(address: str) -> str | None:
    """Return the name of this machine's network interface that has an address, such as "eth0"; None if none has it.

    Args:
        address: An IP address, such as "10.0.0.5".
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return None


def _address_towards(host: str) -> str:
    """Return the IPv4 address of this node from which it would reach another machine; nothing is sent.

    Args:
        host: Name or address of the other machine.

    Raises:
        OSError: There is no way to it, or its name is unknown.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, ANY_PORT))  # sends nothing: the kernel chooses the way and so the address
        address, _ = probe.getsockname()
    return str(address)


def _interface_to_other_nodes(cluster: ClusterSettings, node: int) -> str | None:
    """Return the name of the network interface that has this node's address for the other nodes of the job.

    Args:
        cluster: Settings of the nodes.
        node: Number of this node in HOSTS, from 0.

    Returns:
        The name, such as "eth0". None if the job has one node, or if HOSTS does not name all nodes or does not lead to
        an interface of this node.
    """
    # `node_address` takes for granted that HOSTS has a name for each node.
    are_all_nodes_named = len(cluster.hosts.split(",")) == cluster.dgxnnodes
    if cluster.dgxnnodes == 1 or not are_all_nodes_named:
        return None
    try:
        return interface_of(node_address(cluster, node))  # as "eth0" of 10.0.0.5; None if no interface has the address
    except RunError:  # no address was found
        # Not an error yet: later `ranks.connect` asks for the address again, and its error goes into the run's log.
        return None


def nccl_settings(cluster: ClusterSettings, node: int) -> dict[str, str]:
    """Return the variable that tells NCCL the network interface of this node, as {"NCCL_SOCKET_IFNAME": "=eth0"}.

    Without it NCCL may choose a bridge of containers.

    Args:
        cluster: Settings of the nodes and their device.
        node: Number of this node in HOSTS, from 0.

    Returns:
        The variable. {} if no two nodes are connected by NCCL, as on CPUs, or if HOSTS does not lead to an interface of
        this node.
    """
    interface = _interface_to_other_nodes(cluster, node)
    if interface is None or not cluster.on_gpu:
        return {}
    # Without "=" NCCL would take every interface whose name begins so.
    return {"NCCL_SOCKET_IFNAME": f"={interface}"}


def export_for_mpi(cluster: ClusterSettings) -> None:
    """Have Open MPI connect this rank to other nodes by the interface at which they reach this one.

    Left alone, Open MPI takes every interface but the loopback. Among them may be a bridge of containers, which has the
    same address on all nodes: a rank then reaches its own node there, and MPI's first message between nodes hangs.

    This sets OMPI_MCA_btl_tcp_if_include, and must be called before MPI starts. It does nothing if the job has one
    node, if HOSTS does not lead to an interface of this node, or if the user names interfaces to use or to leave out:
    Open MPI refuses both lists at once.

    Args:
        cluster: Settings of the nodes.
    """
    node = env.rank_by_mpirun() // cluster.dgxngpu  # mpirun fills one node with ranks after the other
    interface = _interface_to_other_nodes(cluster, node)  # as "eth0"; None for one node, or if HOSTS leads to none
    # The user names them by OMPI_MCA_btl_tcp_if_include or OMPI_MCA_btl_tcp_if_exclude.
    if interface is not None and not env.user_names_mpi_interfaces():
        env.export({"OMPI_MCA_btl_tcp_if_include": interface})
