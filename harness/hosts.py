"""The names of a job's nodes, by HOSTS or by the file HOSTFILE."""

import re
from pathlib import Path

from harness.job import NODE_NAME, ClusterSettings
from runlog import named_files
from runlog.digits import counted


def hosts_of_file(path: Path) -> list[str]:
    """Return the names of the hosts that a user's file lists, in its order.

    A line names a host by its first word: `node1 slots=8 # rack 2` -> `node1`.

    Args:
        path: The file, which HOSTFILE names.

    Raises:
        ValueError: The file cannot be read, names no host, or several in its only line, or has a malformed name.
    """
    words_of_lines = []
    for line in _text_of_file(path).splitlines():
        without_comment, _, _ = line.partition("#")
        words = without_comment.split()
        if words:
            words_of_lines.append(words)
    if not words_of_lines:
        raise ValueError(f"HOSTFILE={path}: names no host: give a file with a host's name in each line")
    if len(words_of_lines) == 1 and _are_names(words_of_lines[0][1:]):
        raise ValueError(f"HOSTFILE={path}: names several hosts in one line: give each a line of its own")
    hosts = [words[0] for words in words_of_lines]
    for host in hosts:
        if not re.fullmatch(NODE_NAME, host):
            raise ValueError(
                f"HOSTFILE={path}: {host!r} is not a name or IPv4 address of a machine: write that alone; DGXNGPU is "
                "the number of a node's ranks, SSH_PORT its port"
            )
    return hosts


def _are_names(words: list[str]) -> bool:
    """Return whether words are names of hosts: not numbers, nor such as `slots=8`. Without words it is False."""
    return bool(words) and all(re.fullmatch(NODE_NAME, word) and not word.isdecimal() for word in words)


def _text_of_file(path: Path) -> str:
    """Return the text of a file that lists hosts.

    Args:
        path: The file, which HOSTFILE names.

    Raises:
        ValueError: The file cannot be read. The message names HOSTFILE.
    """
    try:
        named_files.require_file_if_present(path)
        return path.read_text(encoding="utf-8-sig")  # without the mark that Windows puts first
    except named_files.UnusableError as error:
        raise ValueError(f"HOSTFILE={error}") from error
    except OSError as error:
        raise ValueError(f"HOSTFILE={named_files.explain(error)}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"HOSTFILE={path}: is not text: give a file with a host's name in each line") from error


def named_twice(hosts: list[str]) -> str:
    """Return which hosts are named more than once, and what to do; an empty text if none is.

    Args:
        hosts: Names of hosts.
    """
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if not twice:
        return ""
    return f"names {', '.join(twice)} more than once: give each node once"


def hosts_of_cluster(cluster: ClusterSettings) -> list[str]:
    """Return the names of the job's nodes, the first node first: those in the file HOSTFILE, else those in HOSTS.

    Args:
        cluster: Settings of the nodes.

    Returns:
        The names. An empty list if neither HOSTFILE nor HOSTS is set.

    Raises:
        ValueError: HOSTFILE cannot be read, has a malformed name or a host twice, or names more or fewer hosts than
            DGXNNODES says.
    """
    if not cluster.hostfile:
        return [host for host in cluster.hosts.split(",") if host]

    hosts = hosts_of_file(Path(cluster.hostfile))
    problem = named_twice(hosts)
    if not problem and len(hosts) != cluster.dgxnnodes:
        fix = f"set DGXNNODES={len(hosts)}, or correct the file"
        problem = f"names {counted(len(hosts), 'node')}, but DGXNNODES is {cluster.dgxnnodes}: {fix}"
    if problem:
        raise ValueError(f"HOSTFILE={cluster.hostfile}: {problem}")
    return hosts
