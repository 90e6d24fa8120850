"""A user without root's rights who runs containers by Podman."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from tests import jobs
from tests.cluster.containers import IMAGE, STANDS_IN, run

USER = f"podman-{os.getpid()}"  # a run that was killed could not remove its own
NETWORK = "jobs"


class Rootless:
    """A user with a checkout and the images of the tests, and nobody else's rights."""

    def __init__(self) -> None:
        run("useradd", "--create-home", "--shell", "/bin/bash", USER)
        entry = pwd.getpwnam(USER)
        self.home, self.uid = Path(entry.pw_dir), entry.pw_uid
        self.checkout = self.home / "checkout"
        for name in run("git", "ls-files").stdout.splitlines():
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(jobs.REPOSITORY / name, self.checkout / name)
        self.ssh = jobs.local_ssh(self.home / "ssh")  # both hosts are this machine
        self._loading: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Gives the user its files, and begins to give it the images, which takes minutes and hardly a core."""
        run("chown", "--recursive", f"{USER}:", str(self.home))
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
        return ["/usr/sbin/runuser", "-u", USER, "--", "env", "-i", "-C", str(folder or self.home), *told, *words]

    def __call__(self, *words: str, timeout_s: float = 120, check: bool = True, **kw: str) -> str:
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
        run("userdel", "--force", "--remove", USER, check=False, timeout_s=300)
        for name in ("podman-run", "containers-user"):
            shutil.rmtree(f"/tmp/{name}-{self.uid}", ignore_errors=True)
