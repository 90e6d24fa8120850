"""A real SLURM of two nodes on one machine: slurmctld, munge and two slurmd, each in its own network namespace."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests import jobs
from tests.cluster.containers import run

NODES = {"slurm1": "10.231.7.1", "slurm2": "10.231.7.2"}
TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare")
CONFIG = """ClusterName=test
SlurmctldHost=slurm1(10.231.7.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
NodeName=slurm1 NodeAddr=10.231.7.1 CPUs=2 State=UNKNOWN
NodeName=slurm2 NodeAddr=10.231.7.2 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=slurm[1-2] Default=YES MaxTime=INFINITE State=UP
"""
# A node has its own host name and its own /tmp, as nodes do; the checkout and what its .venv points to stay in sight.
ENTER = """hostname {node}
mount --bind {folder}/hosts /etc/hosts
venv=$(realpath {repository}/.venv)
for kept in {repository} "$venv"; do
  mkdir -p {folder}/kept.{node}$kept
  mount --bind $kept {folder}/kept.{node}$kept
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
for kept in {repository} "$venv"; do
  [ -d $kept ] || {{ mkdir -p $kept && mount --bind {folder}/kept.{node}$kept $kept; }}
done
"""


class Slurm:
    """The running cluster; commands are given on its first node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        # A run that was killed could not remove its namespaces: this one's have names of its own.
        self.namespaces = {node: f"{node}-{os.getpid()}-{folder.name}" for node in NODES}

    def command(self, *command: str, check: bool = True, **environment: str) -> str:
        inside = ("nsenter", self.network("slurm1"), *command)
        return run(*inside, check=check, SLURM_CONF=str(self.config), **environment).stdout.strip()

    def network(self, node: str) -> str:
        """The option by which nsenter enters a node's network."""
        return f"--net=/run/netns/{self.namespaces[node]}"

    def submit(self, *options: str, **environment: str) -> str:
        """Number of the job that launch/slurm.sub became."""
        output = self.folder / "job_%j.txt"
        arguments = ("--parsable", "--nodes", "2", "--time", "20", "--output", str(output), *options)
        return self.command("sbatch", *arguments, "launch/slurm.sub", **environment)

    def output(self, job: str) -> str:
        path = self.folder / f"job_{job}.txt"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def log(self) -> str:
        """The end of what slurmd of the first node, where the batch script runs, has logged."""
        return (self.folder / "slurmd.slurm1.log").read_text(errors="replace")[-4000:]

    def facts(self, job: str) -> dict[str, str]:
        """What SLURM says of a job."""
        words = self.command("scontrol", "show", "job", "--oneliner", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str) -> str:
        """Final state of a job, as "COMPLETED 0:0"."""
        under_way = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING")
        ended = lambda: self.facts(job)["JobState"] not in under_way  # noqa: E731
        jobs.until(ended, every_s=0.5, why=lambda: self.output(job))
        facts = self.facts(job)
        return f"{facts['JobState']} {facts['ExitCode']}"


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    process.kill()
    process.wait()


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Slurm]:
    """Starts the cluster in `folder`, which every node sees, and removes it."""
    slurm = Slurm(folder)
    for name in ("state", "spool.slurm1", "spool.slurm2"):
        (folder / name).mkdir(parents=True)
    slurm.config.write_text(CONFIG.format(folder=folder))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    for path in (folder, folder / "munge.key"):
        shutil.chown(path, "root", "root")
    with contextlib.ExitStack() as stack:

        def background(*command: str) -> None:
            log = stack.enter_context((folder / "daemons.log").open("ab"))
            environment = {**os.environ, "SLURM_CONF": str(slurm.config)}
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(stop, process)

        files = ("--key-file", "munge.key"), ("--socket", "munge.socket"), ("--pid-file", "munge.pid")
        options = [word for option, name in files for word in (option, str(folder / name))]
        seed = ("--seed-file", str(folder / "munge.seed"), "--log-file", str(folder / "munge.log"))
        background("munged", "--foreground", "--force", *options, *seed)

        addresses = "".join(f"{address} {node}\n" for node, address in NODES.items())
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + addresses)
        for name in slurm.namespaces.values():
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)
        one, other = slurm.namespaces.values()
        run("ip", "link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", other)
        for node, name in slurm.namespaces.items():
            run("ip", "-n", name, "address", "add", f"{NODES[node]}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")

        def on_node(node: str, command: str) -> None:
            enter = ENTER.format(node=node, folder=folder, repository=jobs.REPOSITORY)
            inside = ("unshare", "--mount", "--uts", "bash", "-euc", f"{enter}\nexec {command}")
            background("nsenter", slurm.network(node), *inside)

        on_node("slurm1", "slurmctld -D")
        for node in NODES:
            on_node(node, f"slurmd -D -N {node}")
        idle = lambda: slurm.command("sinfo", "--noheader", "--format=%t %D", check=False) == "idle 2"  # noqa: E731
        jobs.until(idle, every_s=0.5, why=lambda: (folder / "daemons.log").read_text()[-3000:])
        yield slurm
