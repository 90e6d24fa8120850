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
        *("NODE_RANK", "HOSTS", "HOSTFILE", "JOB_KEY", "SSH_ADDRESS", "NODE_WAIT_S", "CACHE_CLEARED"),
        *("LOGDIR", "RESULT_FILE", "PROGRESS", "SWITCH_GROUPS", "FLEET_BASELINE"),
    )
)
UNABLE = "this node of the job cannot start its sshd: "
ANSWER_S = 10.0  # that a node without sshd waits for the first one's call
MOST_OF_AN_ANSWER = 300  # characters
REFUSED_S = 8.0  # from a first node's call that ended too early, in which it calls again where the key is right
# An sshd's line about a caller that ended in the exchange of keys, as one does that expects another host key.
REFUSED = re.compile(r"Connection (?:closed|reset) by (?:authenticating user \S+ )?(\S+) port \d+ \[preauth\]")


def hello(job: env.Job) -> str:
    """Return what a waiting node tells the first one, in a line: its rank, its code, the settings its user gave it."""
    _, origins = env.read()
    given = {name: str(entry["value"]) for name, entry in origins.items() if entry["origin"] == "environment"}
    return json.dumps({"rank": job.cluster.node_rank, "code": code_sha256(), "given": given}) + "\n"


def overruled(given: Mapping[str, str], job: env.Job) -> str:
    """Name the settings that a user gave a waiting node and the first node has otherwise; empty where there is none.

    `given` is the node's {VARIABLE: value}, `job` the first node's. mpirun carries the first node's to all ranks.
    """
    differences = []
    for name, value in given.items():
        first_value = str(job.value(name))
        if name not in OF_ONE_NODE and value != first_value:
            differences.append(f"{name}={value} (the first node: {first_value or 'empty'})")
    return ", ".join(differences)


def answer_that_unable(job: env.Job, why: str) -> None:
    """Listen in the place of this node's sshd, which cannot start, and say why to a first node that calls now.

    A first node calls twice: by ssh, which does not show what it is told, and then to hear it. One that begins later
    hears nothing, as this node has ended then.
    """
    family = socket.AF_INET6 if ":" in job.cluster.ssh_address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((job.cluster.ssh_address, job.cluster.ssh_port))
        listener.listen()
        listener.settimeout(ANSWER_S)
        for _ in range(2):
            caller, _ = listener.accept()
            with caller:
                caller.sendall(f"{UNABLE}{why}\n".encode())
                caller.shutdown(socket.SHUT_WR)
                caller.settimeout(1)
                caller.recv(1000)  # what ssh begins with: unread it would make the end of the connection an error


def why_unable(host: str, port: int) -> str:
    """Return why the sshd of a node cannot start, by what `answer_that_unable` says there; empty: nobody says it."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=ANSWER_S) as connection:
        line = connection.makefile("rb").readline(MOST_OF_AN_ANSWER).decode(errors="replace")
        if line.startswith(UNABLE):
            return printable(line.removeprefix(UNABLE).strip(), MOST_OF_AN_ANSWER)
    return ""


def addresses_of(host: str) -> list[str]:
    """Return the numeric addresses of a host; none where its name does not resolve."""
    try:
        ways = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(way[4][0]) for way in ways]


def is_this_machine(host: str) -> bool:
    """Return whether a host's name has an address of this machine: one that a socket can be bound to."""
    for address in addresses_of(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return True
    return False


def rank_by_hosts(hosts: list[str]) -> int:
    """Return the rank of this machine, started as the first node, by its place in HOSTS.

    It is 0 unless the first host's name is another machine's, and a later one is this machine's.
    """
    if not hosts or not addresses_of(hosts[0]):
        return 0
    for rank, host in enumerate(hosts):
        if is_this_machine(host):
            return rank
    return 0


class RefusedCalls:
    """Calls of an sshd that ended before the caller had proved itself, by sshd's own log."""

    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self.seen = 0
        self.last_of_first_node = float("inf")  # by time.monotonic

    def read(self, log: list[str]) -> list[str]:
        """Return the addresses of the callers that ended so in the lines of the log that are new."""
        callers = []
        for line in log[self.seen :]:
            if match := REFUSED.search(line):
                callers.append(match[1])
        self.seen = len(log)

        # Asked only now: the first node may get its name after this one has started.
        if callers and self.hosts and not set(callers).isdisjoint(addresses_of(self.hosts[0])):
            self.last_of_first_node = time.monotonic()
        return callers

    def first_node_gave_up(self) -> bool:
        """Return whether the first node's call ended so, and it has not called again for REFUSED_S."""
        return time.monotonic() > self.last_of_first_node + REFUSED_S
