"""How the nodes of a job reach each other: this node's address among them, and the network interface that has it."""

import socket

import psutil

from harness.job import ClusterSettings
from runlog.errors import RunError

LOOPBACK = "127."
ANY_PORT = 9  # no packet is sent to it


def node_address(cluster: ClusterSettings, node: int) -> str:
    """Return the IPv4 address at which the other nodes reach this one, which is number `node` in HOSTS, from 0.

    That is the address of the node's name in HOSTS. A machine may take its own name for the loopback, 127.x.x.x: then
    it is the address from which the node would reach another node. A single node has 127.0.0.1. Raises RunError if a
    name that is needed is unknown, if there is no way to the other node, or if only the loopback is found.
    """
    if cluster.dgxnnodes == 1:
        return "127.0.0.1"

    here = socket.gethostname()
    hosts = cluster.hosts.split(",")
    own = hosts[node]
    other = hosts[1] if node == 0 else hosts[0]  # any other node serves to look for a way out
    try:
        address = socket.gethostbyname(own)
        if address.startswith(LOOPBACK):
            address = _address_towards(other)
    except OSError as error:
        raise RunError(f"HOSTS: {here} finds no way to {own} and {other} ({error.strerror})") from error
    if address.startswith(LOOPBACK):
        raise RunError(
            f"HOSTS: {here} takes {own} and {other} for itself, at {address}, where no other node reaches it: "
            "name the nodes as they know each other"
        )
    return address


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an address; None where none has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return None


def _address_towards(host: str) -> str:
    """Return the address of this node from which it would reach `host`. Raises OSError where it finds no way there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, ANY_PORT))  # sends nothing: the kernel chooses the way and so the address
        address, _ = probe.getsockname()
    return str(address)


def nccl_settings(cluster: ClusterSettings, node: int) -> dict[str, str]:
    """Return the variable that tells NCCL the network interface of this node, as {"NCCL_SOCKET_IFNAME": "=eth0"}.

    Without it NCCL may choose a bridge of containers. `node` is this node's number in HOSTS. Returns {} if no two nodes
    are connected by NCCL, as on CPUs, or if HOSTS does not lead to an interface of this node.
    """
    connects_nodes = cluster.on_gpu and cluster.dgxnnodes > 1
    are_all_named = len(cluster.hosts.split(",")) == cluster.dgxnnodes
    if not connects_nodes or not are_all_named:
        return {}
    try:
        interface = interface_of(node_address(cluster, node))
    except RunError:  # not lost: `ranks.connect` asks again, and raises it when there is a log to hold it
        return {}
    if interface is None:
        return {}
    # Without "=" NCCL would take every interface whose name begins so.
    return {"NCCL_SOCKET_IFNAME": f"={interface}"}
