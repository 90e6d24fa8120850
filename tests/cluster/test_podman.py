"""Podman without root: the default job, two nodes from one head, and a node that is killed, as a user made for it."""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import jobs
from tests.cluster.containers import ENDLESS_JOB, GOLDEN_JOB, docker, need, run
from tests.cluster.test_faults import ENDS_WITHIN_S, STARTS_WITHIN_S

USER = f"podman-{os.getpid()}"  # a run that was killed could not remove its own
NETWORK = "jobs"


class Rootless:
    """A user with a checkout and the image of this test, and nobody else's rights."""

    def __init__(self, image: str) -> None:
        run("useradd", "--create-home", "--shell", "/bin/bash", USER)
        entry = pwd.getpwnam(USER)
        self.home, self.uid, self.image = Path(entry.pw_dir), entry.pw_uid, image
        self.checkout = self.home / "checkout"
        for name in run("git", "ls-files").stdout.splitlines():
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(jobs.REPOSITORY / name, self.checkout / name)
        self.ssh = self.home / "ssh"  # both hosts are this machine, reached by its shell
        self.ssh.write_text('#!/usr/bin/env bash\nexec bash -c "${@: -1}"\n')
        self.ssh.chmod(0o755)

    def load(self) -> None:
        """Gives the user its files and the image, and a network by name."""
        run("chown", "--recursive", f"{USER}:", str(self.home))
        # By vfs each layer would be a copy of the last one.
        self("mkdir", "-p", ".config/containers")
        self("bash", "-c", """printf '[storage]\\ndriver = "overlay"\\n' >.config/containers/storage.conf""")
        saved = subprocess.Popen(["docker", "save", self.image], stdout=subprocess.PIPE)
        subprocess.run(self.command("podman", "load", "--quiet"), stdin=saved.stdout, check=True, timeout=1500)
        assert saved.wait() == 0
        self("podman", "network", "create", NETWORK)

    def command(self, *words: str, folder: Path | None = None, **variables: str) -> list[str]:
        """A command as this user, in its home; of root's environment it has nothing."""
        clean = {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", **variables}
        told = [f"{name}={value}" for name, value in clean.items()]
        return ["/usr/sbin/runuser", "-u", USER, "--", "env", "-i", "-C", str(folder or self.home), *told, *words]

    def __call__(self, *words: str, timeout_s: float = 120, check: bool = True, **kw: str) -> str:
        done = run(*self.command(*words, **kw), timeout_s=timeout_s, check=check)
        return (done.stdout + done.stderr).strip()

    def job(self, *words: str, name: str, check: bool = True, **variables: str) -> Path:
        """A job by a launcher of the checkout to its end; its log folder."""
        logs = self.home / name
        settings = {"ENGINE": "podman", "CONT": self.image, "LOGDIR": str(logs), **variables}
        command = self.command(*words, folder=self.checkout, **settings)
        done = run(*command, timeout_s=900, check=check)
        assert (done.returncode == 0) == check, done.stdout + done.stderr
        return logs

    def containers(self) -> list[str]:
        """Names of those that run or have ended."""
        return self("podman", "ps", "--all", "--format", "{{.Names}}").split()

    def close(self) -> None:
        """Removes all that was made."""
        self("podman", "system", "reset", "--force", check=False, timeout_s=300)
        run("pkill", "-KILL", "-U", str(self.uid), check=False)  # the user was made here, so what it runs was too
        run("userdel", "--force", "--remove", USER, check=False, timeout_s=300)
        for name in ("podman-run", "containers-user"):
            shutil.rmtree(f"/tmp/{name}-{self.uid}", ignore_errors=True)


@pytest.fixture(scope="module")
def rootless(image: str) -> Iterator[Rootless]:
    tools = ("podman", "slirp4netns", "newuidmap", "catatonit")
    found = all(shutil.which(name) for name in tools) and os.geteuid() == 0
    need(found, f"{', '.join(tools)} run containers without root, and root makes the user who does")
    tun = Path("/dev/net/tun")
    mode = tun.stat().st_mode
    tun.chmod(0o666)  # as elsewhere: slirp4netns, the network of containers without root, opens it
    made = Rootless(image)
    try:
        made.load()
        yield made
    finally:
        made.close()
        tun.chmod(mode)


def two_nodes(rootless: Rootless) -> tuple[str, ...]:
    return ("launch/mpirun.sh", "--hosts", "node0,node1", "--ssh", str(rootless.ssh))


def test_the_default_job_runs_without_root(rootless: Rootless) -> None:
    logs = rootless.job("launch/container_node.sh", name="default")
    log = logs / "CPU" / "rn50" / "result_0.txt"
    assert log.stat().st_uid == rootless.uid, "it is the caller's"
    (evaluation,) = jobs.values(log, "eval_accuracy")[-1:]
    assert evaluation >= 0.9
    assert docker("image", "inspect", "--format", "{{.Id}}", rootless.image) in log.read_text()
    assert not rootless.containers()


def test_two_nodes_without_root_train_as_one_host_does(rootless: Rootless, tmp_path: Path) -> None:
    on_host = tmp_path / "host.txt"
    job = {**GOLDEN_JOB, "BATCHSIZE": "16"}
    done = jobs.on_ranks(2, "-m", "harness", **job, RESULT_FILE=str(on_host))
    assert done.returncode == 0, done.stderr[-2000:]
    logs = rootless.job(*two_nodes(rootless), name="two", DGXSYSTEM="2xCPU", CONT_NETWORK=NETWORK, **job)
    log = logs / "2xCPU" / "rn50" / "result_0.txt"
    (summary,) = jobs.values(log, "run_summary")
    assert (summary["devices"], summary["nodes"]) == (2, 2)
    assert jobs.losses(log) == pytest.approx(jobs.losses(on_host), rel=1e-6)
    assert not rootless.containers() and not list(Path("/dev/shm").glob("job-key.*"))


def test_a_node_killed_without_root_ends_the_job(rootless: Rootless) -> None:
    logs = rootless.home / "killed"
    job = {**ENDLESS_JOB, "BATCHSIZE": "2", "DGXSYSTEM": "2xCPU", "CONT_NETWORK": NETWORK}
    settings = {"ENGINE": "podman", "CONT": rootless.image, "LOGDIR": str(logs), **job}
    head = subprocess.Popen(
        rootless.command(*two_nodes(rootless), folder=rootless.checkout, **settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = logs / "2xCPU" / "rn50" / "result_0.txt"
    deadline = time.monotonic() + STARTS_WITHIN_S
    while not (log.is_file() and "step_window" in log.read_text(errors="replace")):
        assert time.monotonic() < deadline and head.poll() is None
        time.sleep(0.2)
    (second,) = (name for name in rootless.containers() if name.endswith("-1"))
    rootless("podman", "kill", second)
    said, _ = head.communicate(timeout=ENDS_WITHIN_S)
    assert head.returncode != 0
    (stop,) = (event for event in jobs.mllog(log) if event["key"] == "run_stop")
    assert stop["metadata"]["status"] == "aborted", said
    assert "node 1 (node1) was lost" in jobs.values(log, "abort_reason")[-1]
    assert not rootless.containers()
