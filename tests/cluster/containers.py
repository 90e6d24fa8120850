"""Containers as nodes: jobs started on a private network as a user would, and what a test asks of them; and a user
without root's rights who runs containers by Podman.
"""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests import jobs

IMAGE = "paddle-reference:test"
STANDS_IN = f"{IMAGE}-stands-in"  # the same but for its ranks, which train nothing (tests/stand_in.py)
USER = 12345  # no user of the image: any --user must do
# Options of launch/build_image.sh that this site needs; by default the CA certificates that pip is told to trust.
BUILD_OPTIONS = os.environ.get(
    "IMAGE_BUILD_OPTIONS", f"--ca {ca}" if (ca := os.environ.get("PIP_CERT")) else ""
).split()
GOLDEN_JOB = {**jobs.TINY, "RECIPE": "recorded", "MEASURED_STEPS": "19", "THREADS": "1"}
ENDLESS_JOB = {**GOLDEN_JOB, "MEASURED_STEPS": "1000000"}


def devices_and_nodes(log: Path) -> tuple[int, int]:
    """Of the run of a log."""
    (summary,) = jobs.values(log, "run_summary")
    return summary["devices"], summary["nodes"]


def status_of(log: Path) -> str:
    """How the run of a log ended; it says so once."""
    (stop,) = (event for event in jobs.mllog(log) if event["key"] == "run_stop")
    return str(stop["metadata"]["status"])


def nothing_is_left() -> None:
    """No container of a launcher, nor a job's key, which other tests that run beside these may have for a while."""
    assert docker("ps", "--all", "--quiet", "--filter", "name=paddle-reference-") == ""
    jobs.until(lambda: not list(Path("/dev/shm").glob("job-key.*")))


def address(name: str) -> str:
    """A container's, on its private network."""
    return docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)


def need(found: bool, what: str) -> None:
    """As the tests' own, for Debian's packages."""
    jobs.need(found, f"{what}; tests/cluster/packages.txt lists Debian's packages for it")


def run(
    *command: str, timeout_s: float = jobs.LIMIT_S, check: bool = True, **environment: Any
) -> subprocess.CompletedProcess[str]:
    """A command's result; its whole output in the error where it fails."""
    done = jobs.run(command, timeout_s=timeout_s, **environment)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def docker(*arguments: str, **options: Any) -> str:
    """Output of a docker command that must succeed."""
    return run("docker", *arguments, **options).stdout.strip()


def facts(image: str) -> dict[str, Any]:
    """What docker knows of an image."""
    return json.loads(docker("image", "inspect", image))[0]


def build_image(tag: str, *, checkout: Path = jobs.REPOSITORY, **environment: Any) -> None:
    """Builds the run image of a checkout by the project's own script."""
    run(str(checkout / "launch/build_image.sh"), "--tag", tag, *BUILD_OPTIONS, timeout_s=3600, **environment)


def build_standing_in() -> None:
    """One layer on the run image."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(jobs.STAND_IN, folder)
        Path(folder, "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY {jobs.STAND_IN.name} harness/train.py\n")
        run("docker", "build", "--quiet", "--tag", STANDS_IN, folder, DOCKER_BUILDKIT="0")


def buildkit_client() -> str | None:
    """Folder of a docker client that can build with BuildKit; docker.io 20.10 has it inside, later ones need buildx."""
    with tempfile.TemporaryDirectory() as empty:
        Path(empty, "Dockerfile").write_text("FROM scratch\nLABEL tried=yes\n")
        for folder in os.get_exec_path():
            client = Path(folder, "docker")
            if os.access(client, os.X_OK):
                tried = run(str(client), "build", "--quiet", empty, check=False, DOCKER_BUILDKIT="1")
                if tried.returncode == 0:
                    run(str(client), "image", "rm", tried.stdout.strip())
                    return folder
    return None


class Nodes:
    """Containers on a private network of their own, each one node of a job."""

    def __init__(self, folder: Path, name: str) -> None:
        self.network = name
        self.names: list[str] = []
        self.logdir = folder / "results"
        self.logdir.mkdir()
        self.key = self.new_key(folder / "job_key")
        os.chown(self.logdir, USER, USER)
        docker("network", "create", self.network)

    @staticmethod
    def new_key(path: Path) -> Path:
        """A job's key, readable by the containers' user alone."""
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
        os.chown(path, USER, USER)
        return path

    def hosts(self, count: int) -> str:
        return ",".join(f"node{rank}" for rank in range(count))

    def start(
        self,
        rank: int,
        count: int,
        *,
        image: str = STANDS_IN,
        key: Path | None = None,
        options: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        **variables: str,
    ) -> str:
        """`docker run` as the README says it, on node `rank` of `count`; the container's name."""
        name = f"{self.network}-node{rank}"
        environment = {"DGXSYSTEM": f"{count}xCPU", "HOSTS": self.hosts(count), "NODE_RANK": str(rank)}
        environment |= {"JOB_KEY": "/run/job_key", "LOGDIR": str(self.logdir), "NODE_WAIT_S": "300"} | variables
        docker(
            *("run", "--detach", "--name", name, "--network", self.network, "--hostname", f"node{rank}"),
            *("--network-alias", f"node{rank}", "--user", f"{USER}:{USER}", "--read-only", "--tmpfs", "/tmp"),
            *("--volume", f"{key or self.key}:/run/job_key:ro", "--volume", f"{self.logdir}:{self.logdir}"),
            *options,
            *(word for variable, value in environment.items() for word in ("--env", f"{variable}={value}")),
            *(image, "./run_and_time.sh", *arguments),
        )
        self.names.append(name)
        return name

    def wait(self, name: str, *, timeout_s: float = jobs.LIMIT_S) -> int:
        """Exit status of a container, which must end in time."""
        ended = ("inspect", "--format", "{{.State.Running}}", name)
        jobs.until(
            lambda: docker(*ended) == "false", within_s=timeout_s, every_s=0.2, why=lambda: name + self.output(name)
        )
        return int(docker("inspect", "--format", "{{.State.ExitCode}}", name))

    def output(self, name: str) -> str:
        """Both streams of a container."""
        done = run("docker", "logs", name)
        return (done.stdout + done.stderr)[-4000:]

    def log(self, count: int, trial: int = 0) -> Path:
        return self.logdir / f"{count}xCPU" / "rn50" / f"result_{trial}.txt"

    def until_trains(self, count: int) -> None:
        """Waits for the first steps in the log."""
        why = lambda: "\n".join(map(self.output, self.names))  # noqa: E731
        jobs.until(lambda: jobs.trains(self.log(count)), every_s=0.2, why=why)

    def close(self) -> None:
        """Removes what was made."""
        of_this = ("--filter", f"network={self.network}", "--filter", f"name={self.network}")
        left = docker("ps", "--all", "--quiet", *of_this).split()
        for name in {*self.names, *left}:
            run("docker", "rm", "--force", name, check=False)
        docker("network", "rm", self.network)


# ---- Podman

LOGIN = f"podman-{os.getpid()}"  # a run that was killed could not remove its own
NETWORK = "jobs"


class Rootless:
    """A user with a checkout and the images of the tests, and nobody else's rights."""

    def __init__(self) -> None:
        run("useradd", "--create-home", "--shell", "/bin/bash", LOGIN)
        entry = pwd.getpwnam(LOGIN)
        self.home, self.uid = Path(entry.pw_dir), entry.pw_uid
        self.checkout = self.home / "checkout"
        for name in run("git", "ls-files").stdout.splitlines():
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(jobs.REPOSITORY / name, self.checkout / name)
        self.ssh = jobs.local_ssh(self.home / "ssh")  # both hosts are this machine
        self._loading: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Gives the user its files, and begins to give it the images, which takes minutes and hardly a core."""
        run("chown", "--recursive", f"{LOGIN}:", str(self.home))
        # By vfs each layer would be a copy of the last one.
        self("mkdir", "-p", ".config/containers")
        self("bash", "-c", """printf '[storage]\\ndriver = "overlay"\\n' >.config/containers/storage.conf""")
        saved = subprocess.Popen(["docker", "save", IMAGE, STANDS_IN], stdout=subprocess.PIPE)
        load = self.command("podman", "load", "--quiet")
        self._loading = [saved, subprocess.Popen(load, stdin=saved.stdout, stdout=subprocess.DEVNULL)]

    def loaded(self) -> None:
        """Waits for the images, and makes a network by name."""
        assert [process.wait(timeout=3600) for process in self._loading] == [0, 0]
        self("podman", "network", "create", NETWORK)

    def command(self, *words: str, folder: Path | None = None, **variables: str) -> list[str]:
        """A command as this user, in its home; of root's environment it has nothing."""
        clean = {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", **variables}
        told = [f"{name}={value}" for name, value in clean.items()]
        return ["/usr/sbin/runuser", "-u", LOGIN, "--", "env", "-i", "-C", str(folder or self.home), *told, *words]

    def __call__(self, *words: str, timeout_s: float = 120, check: bool = True, **kw: Any) -> str:
        done = run(*self.command(*words, **kw), timeout_s=timeout_s, check=check)
        return (done.stdout + done.stderr).strip()

    def job(self, *words: str, name: str, **variables: str) -> tuple[list[str], Path]:
        """The command of a job by a launcher of the checkout, and the folder of its results."""
        logs = self.home / name
        settings = {"ENGINE": "podman", "CONT": IMAGE, "LOGDIR": str(logs), **variables}
        return self.command(*words, folder=self.checkout, **settings), logs

    def containers(self) -> list[str]:
        """Names of those that run or have ended."""
        return self("podman", "ps", "--all", "--format", "{{.Names}}").split()

    def close(self) -> None:
        """Removes all that was made."""
        for process in self._loading:
            process.kill()
            process.wait()
        self("podman", "system", "reset", "--force", check=False, timeout_s=300)
        run("pkill", "-KILL", "-U", str(self.uid), check=False)  # the user was made here, so what it runs was too
        run("userdel", "--force", "--remove", LOGIN, check=False, timeout_s=300)
        for name in ("podman-run", "containers-user"):
            shutil.rmtree(f"/tmp/{name}-{self.uid}", ignore_errors=True)
