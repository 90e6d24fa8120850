"""How the nodes of a job reach each other: this node's address among them, and the network interface that has it."""

import socket

import psutil

from harness.job import ClusterSettings
from runlog.errors import RunError

LOOPBACK = "127."
ANY_PORT = 9  # no packet is sent to it


def node_address(cluster: ClusterSettings, node: int) -> str:
    """Return the IPv4 address at which the other nodes reach this one, which is number `node` of the cluster.

    It is that of the node's name in HOSTS or, if the name leads to the loopback, that from which it reaches another
    node. A single node has the loopback. Raises RunError if no address is found that others can reach.
    """
    if cluster.dgxnnodes == 1:
        return "127.0.0.1"

    here = socket.gethostname()
    hosts = cluster.hosts.split(",")
    own = hosts[node]
    other = hosts[1] if node == 0 else hosts[0]
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

    By itself NCCL may take a bridge of containers. `node` is this node's number. The result is empty if NCCL needs no
    interface or HOSTS leads to none.
    """
    are_all_named = len(cluster.hosts.split(",")) == cluster.dgxnnodes
    if not cluster.on_gpu or cluster.dgxnnodes == 1 or not are_all_named:
        return {}
    try:
        interface = interface_of(node_address(cluster, node))
    except RunError:  # `ranks.connect` raises it again, when there is a log to hold it
        return {}
    if interface is None:
        return {}
    # Without "=" NCCL would take every interface whose name begins so.
    return {"NCCL_SOCKET_IFNAME": f"={interface}"}
