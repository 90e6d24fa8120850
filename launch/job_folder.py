"""What a job of several nodes keeps on each: its key, the configuration of ssh and sshd, the lifeline's pipe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from harness.env import Job
from launch.times import TIMES

EXTRA_USERS = Path("/var/lib/extrausers")  # where libnss-extrausers looks; in the image a link into /tmp


def say(text: str) -> None:
    """One line on stderr."""
    print(f"nodes.py: {text}", file=sys.stderr, flush=True)


def refuse(text: str) -> NoReturn:
    """Ends for wrong use."""
    say(text)
    raise SystemExit(2)


def fail(text: str) -> NoReturn:
    """Ends because the job cannot go on."""
    say(text)
    raise SystemExit(1)


def user_name() -> str:
    """Login name of this process's user; one that has none gets one, as ssh and sshd refuse a user without."""
    uid, gid = os.getuid(), os.getgid()
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    if not EXTRA_USERS.is_symlink():
        refuse(f"user id {uid} has no name on this machine: run as a user of /etc/passwd, or in the image")
    folder = EXTRA_USERS.resolve()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "passwd").write_text(f"job:x:{uid}:{gid}::/tmp:/bin/bash\n")
    (folder / "group").write_text(f"job:x:{gid}:\n")
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    refuse(f"user id {uid} has no name and is below 500, so the image cannot give it one: use another --user")


class Folder:
    """The job's files on this node: the key, the configuration of ssh and sshd, the lifeline.

    Its path is the same on every node, because mpirun's daemons start each other with the first node's ssh command.
    """

    def __init__(self, job: Job) -> None:
        user, port = user_name(), job.ssh_port
        self.path = Path(f"/tmp/nodes-{os.getuid()}-{port}")
        self.path.mkdir(mode=0o700, exist_ok=True)
        if self.path.stat().st_uid != os.getuid() or self.path.is_symlink():
            fail(f"{self.path} belongs to somebody else: remove it, or choose another SSH_PORT")
        self.lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another job on this node uses port {port}: choose another SSH_PORT")
        for left in self.path.iterdir():  # of a job that was killed
            if left.name != "lock":
                left.unlink()
        for_others = os.umask(0o077)
        kind, text = self.take_key(Path(job.job_key), user)
        values = {
            "port": port,
            "user": user,
            "folder": self.path,
            "alive_s": TIMES["ALIVE_S"],
            "alive_count": TIMES["ALIVE_COUNT"],
            "listen": f"ListenAddress {job.ssh_address}" if job.ssh_address else "",
        }
        (self.path / "authorized_keys").write_text(f"restrict {kind} {text}\n")
        (self.path / "known_hosts").write_text(f"job {kind} {text}\n")
        for name in ("ssh_config", "sshd_config"):
            (self.path / name).write_text(Path(__file__).with_name(name).read_text().format(**values))
        os.mkfifo(self.path / "lifeline")
        os.umask(for_others)  # the results' own

    def take_key(self, key: Path, user: str) -> tuple[str, str]:
        """Copies the job's private key here; kind and text of its public half."""
        try:
            (self.path / "key").write_bytes(key.read_bytes())
        except OSError as error:
            refuse(f"JOB_KEY={key}: {error.strerror}; mount the job's private ssh key there, readable by {user}")
        command = ["ssh-keygen", "-y", "-P", "", "-f", str(self.path / "key")]
        public = subprocess.run(command, capture_output=True, text=True, check=False)
        if public.returncode != 0:
            refuse(f"JOB_KEY={key}: no private ssh key without passphrase; make one with ssh-keygen -t ed25519 -N ''")
        kind, text = public.stdout.split()[:2]
        return kind, text

    def remove(self) -> None:
        """Leaves nothing of the job on this node."""
        shutil.rmtree(self.path)
        if (EXTRA_USERS / "passwd").is_file() and EXTRA_USERS.is_symlink():
            shutil.rmtree(EXTRA_USERS.resolve())
