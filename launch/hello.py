"""The facts by which the nodes of a job know each other: a node's hello to the first one, and where a machine stands.

Called by launch/nodes.py.
"""

import contextlib
import json
import re
import socket
import time
from collections.abc import Mapping

from harness import env
from harness.provenance import code_sha256
from runlog.text import printable

# Settings that are a node's own, or that only the first node reads.
OF_ONE_NODE = frozenset(
    (
        *("NODE_RANK", "HOSTS", "HOSTFILE", "JOB_KEY", "SSH_ADDRESS", "NODE_WAIT_S"),
        *("LOGDIR", "RESULT_FILE", "PROGRESS", "SWITCH_GROUPS", "FLEET_BASELINE"),
    )
)
SSHD_CANNOT_START = "this node of the job cannot start its sshd: "
ANSWER_S = 10.0  # how long a node without sshd waits for the first node's call
MAX_ANSWER_CHARS = 300  # characters
REFUSED_S = 8.0  # a first node with the right key calls again within this time after a call that ended too early
# sshd's line about a caller that hung up in the exchange of keys, as a caller does that expects another host key.
HUNG_UP = re.compile(r"Connection (?:closed|reset) by (?:authenticating user \S+ )?(\S+) port \d+ \[preauth\]")


def hello_line(job: env.Job) -> str:
    """Return a waiting node's message to the first node, which decides by it whether the node may join.

    Args:
        job: The settings of the job on this node.

    Returns:
        A line of JSON: "rank" is the node's number, "code" the SHA-256 of the files that it runs, and "given" has the
        settings that its user gave it.
    """
    _, origins = env.read()
    given = {name: str(entry["value"]) for name, entry in origins.items() if entry["origin"] == "environment"}
    return json.dumps({"rank": job.cluster.node_rank, "code": code_sha256(), "given": given}) + "\n"


def overruled_settings(given: Mapping[str, str], job: env.Job) -> str:
    """Name the settings of a waiting node that the first node's overrule, such as "SEED=2 (the first node: 1)".

    Args:
        given: The settings that a user gave the waiting node.
        job: The settings of the job on the first node.

    Returns:
        Their names and values, with commas between; empty if there are none.
    """
    differences = []
    for name, value in given.items():
        first_value = str(job.value(name))  # this one counts, as mpirun carries it to all ranks
        if name not in OF_ONE_NODE and value != first_value:
            differences.append(f"{name}={value} (the first node: {first_value or 'empty'})")
    return ", ".join(differences)


def answer_in_place_of_sshd(job: env.Job, why: str) -> None:
    """Listen where this node's sshd cannot, and tell the first node why when it calls, twice at most.

    This waits up to ANSWER_S for each call, and returns if none comes. It also returns, without an error, if it cannot
    listen there or a connection breaks.

    Args:
        job: The settings of the job, with sshd's address and port.
        why: Why sshd cannot start, in one line.
    """
    family = socket.AF_INET6 if ":" in job.cluster.ssh_address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((job.cluster.ssh_address, job.cluster.ssh_port))
        listener.listen()
        listener.settimeout(ANSWER_S)
        for _ in range(2):  # by ssh, which does not show the answer, then by `why_sshd_cannot_start`, which reads it
            caller, _ = listener.accept()
            with caller:
                caller.sendall(f"{SSHD_CANNOT_START}{why}\n".encode())
                caller.shutdown(socket.SHUT_WR)
                caller.settimeout(1)
                # Read what ssh sends first: unread bytes would make the end of the connection an error at the caller.
                caller.recv(1000)


def why_sshd_cannot_start(host: str, port: int) -> str:
    """Call a node, and return why its sshd cannot start, if the node tells that; else an empty text.

    `answer_in_place_of_sshd` on the node tells it.

    Args:
        host: Name or address of the node.
        port: TCP port of its sshd.
    """
    # Python raises UnicodeError, before it looks a name up, if a part of it between dots is empty or too long.
    refused = contextlib.suppress(OSError, UnicodeError)
    with refused, socket.create_connection((host, port), timeout=ANSWER_S) as connection:
        line = connection.makefile("rb").readline(MAX_ANSWER_CHARS).decode(errors="replace")
        if line.startswith(SSHD_CANNOT_START):
            return printable(line.removeprefix(SSHD_CANNOT_START).strip(), MAX_ANSWER_CHARS)
    return ""


def addresses_of(host: str) -> list[str]:
    """Return the numeric addresses of a host; empty if its name does not resolve.

    Args:
        host: Name or address of a host.
    """
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(address) for _, _, _, _, (address, *_) in entries]


def is_this_machine(host: str) -> bool:
    """Return whether a host's name has an address of this machine, which is one that a socket can be bound to.

    Args:
        host: Name or address of a host.
    """
    for address in addresses_of(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return True
    return False


def rank_by_hosts(hosts: list[str]) -> int:
    """Return the number of this machine among the job's nodes, from 0, by its place in their list.

    It is for a machine that was started as the first node, to see whether that was right.

    Args:
        hosts: Names of the job's nodes, the first one first.

    Returns:
        The number. It is 0, too, if the first host's name does not resolve, or no host is known to be this machine.
    """
    if not hosts or not addresses_of(hosts[0]):  # a first host whose name does not resolve may be this machine
        return 0
    for rank, host in enumerate(hosts):
        if is_this_machine(host):
            return rank
    return 0


class RefusedCalls:
    """Calls of this node's sshd by callers that hung up before they logged in, found in sshd's log."""

    def __init__(self, hosts: list[str]) -> None:
        """Prepare to look for calls; no log is read yet.

        Args:
            hosts: Names of the job's nodes, the first one first; may be empty.
        """
        self.hosts = hosts
        self.lines_read = 0
        self.last_of_first_node = float("inf")  # when it hung up last, by time.monotonic; infinite: never

    def read(self, log: list[str]) -> list[str]:
        """Return the addresses of the callers that hung up since the last call of this method.

        A caller hangs up in sshd's exchange of keys if it expects another host key. If the first node did so, the time
        is noted for `first_node_gave_up`.

        Args:
            log: All lines of sshd's log so far, also those of earlier calls.
        """
        new_lines = log[self.lines_read :]
        self.lines_read = len(log)
        callers = []
        for line in new_lines:
            hung_up = HUNG_UP.search(line)
            if hung_up:
                callers.append(hung_up[1])

        if callers and self.hosts:
            first_node = addresses_of(self.hosts[0])  # asked only now, as it may get its name late
            if not set(callers).isdisjoint(first_node):
                self.last_of_first_node = time.monotonic()
        return callers

    def first_node_gave_up(self) -> bool:
        """Return whether the first node hung up, and has not done so again for REFUSED_S."""
        return time.monotonic() > self.last_of_first_node + REFUSED_S
