"""launch/slurm.sub on a real SLURM of two nodes on one machine, bare and in containers: slurmctld, munge and two
slurmd, each in its own network namespace.

Two trials train; elsewhere ranks stand in for such that do (tests/stand_in.py), bare by the checkout `standing_in`.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import jobs
from tests.cluster import containers
from tests.cluster.containers import ENDLESS_JOB, GOLDEN_JOB, IMAGE, STANDS_IN, Nodes, need, run
from tests.harness import small

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
SelectType=select/cons_tres
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
KillWait=30
NodeName=slurm1 NodeAddr=10.231.7.1 CPUs=2 Gres=gpu:2 State=UNKNOWN
NodeName=slurm2 NodeAddr=10.231.7.2 CPUs=2 Gres=gpu:2 State=UNKNOWN
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

    def command(self, *command: str, check: bool = True, **environment: Any) -> str:
        inside = ("nsenter", self.network("slurm1"), *command)
        return run(*inside, check=check, SLURM_CONF=str(self.config), **environment).stdout.strip()

    def network(self, node: str) -> str:
        """The option by which nsenter enters a node's network."""
        return f"--net=/run/netns/{self.namespaces[node]}"

    def submit(self, *options: str, **environment: Any) -> str:
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
        under_way = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SIGNALING")  # the last while --signal is sent
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
    for gpu in ("gpu0", "gpu1"):
        (folder / gpu).touch()  # the device file of a GPU that no node has
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
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


# ---- jobs

SYSTEM = "2xCPU"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    need(not missing, f"SLURM's {', '.join(missing)} absent")
    need(os.geteuid() == 0, "root makes network namespaces")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # not /tmp: each node has its own
    folder.chmod(0o755)
    with start(folder) as started:
        yield started
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def standing_in(slurm: Slurm) -> Path:
    """Where every node sees it."""
    return jobs.standing_in(slurm.folder / "checkout")


@pytest.fixture
def results(slurm: Slurm, request: pytest.FixtureRequest) -> Path:
    return slurm.folder / "results" / request.node.name


def key_and_ranks_left(results: Path) -> list[str]:
    """What the job keeps in its folder only while it runs, and this job's processes and containers."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone, or not ours
            if str(results) in str(process.environ()) and process.pid != os.getpid():
                processes.append(" ".join(process.cmdline()))
    return [*map(str, results.rglob(".job_*")), *processes]


CONTAINED = pytest.mark.parametrize(
    "contained", [pytest.param(False, id="bare", marks=pytest.mark.slow), pytest.param(True, id="containers")]
)


@CONTAINED
def test_two_trials_on_two_nodes(slurm: Slurm, nodes: Nodes, results: Path, contained: bool) -> None:
    job = {**GOLDEN_JOB, "BATCHSIZE": "16", "NEXP": "2", "DGXSYSTEM": SYSTEM, "LOGDIR": str(results)}
    job["CLEAR_CACHES"] = "1"
    if contained:
        job |= {"CONT": IMAGE, "CONT_NETWORK": nodes.network}
    number = slurm.submit(**job)
    assert slurm.wait(number) == "COMPLETED 0:0", slurm.output(number)
    logs = sorted(results.rglob("result_*.txt"))
    assert [log.name for log in logs] == ["result_0.txt", "result_1.txt"]
    assert [containers.devices_and_nodes(log) for log in logs] == [(2, 2)] * 2
    assert jobs.values(logs[0], "seed") != jobs.values(logs[1], "seed")
    may_flush = os.access("/proc/sys/vm/drop_caches", os.W_OK)
    assert [jobs.values(log, "cache_clear") for log in logs] == [[may_flush] * 2] * 2  # each trial, on each node
    assert key_and_ranks_left(results) == []
    containers.nothing_is_left()


def test_the_nodes_gpus_are_asked_for(slurm: Slurm, results: Path) -> None:
    """SLURM gives an exclusive job the GPUs of its nodes, and a step of it only those that it asks for."""
    output = slurm.folder / "dry_run.txt"
    options = ("--wait", "--nodes", "2", "--output", str(output))
    slurm.command("sbatch", *options, "launch/slurm.sub", "--dry-run", DGXSYSTEM=SYSTEM, LOGDIR=str(results))
    assert " --gres gpu:2 " in output.read_text()


def test_a_node_has_one_task_whatever_the_batch_job_asked_for(slurm: Slurm, standing_in: Path, results: Path) -> None:
    """A habit of jobs on GPUs. All tasks of a node started the job: those that came second ended it as failed."""
    job = {**GOLDEN_JOB, "DGXSYSTEM": SYSTEM, "LOGDIR": str(results)}
    number = slurm.submit("--ntasks-per-node", "2", "--chdir", str(standing_in), **job)
    assert slurm.wait(number) == "COMPLETED 0:0", slurm.output(number)
    (log,) = results.rglob("result_*.txt")
    assert containers.devices_and_nodes(log) == (2, 2)


def until_trains(slurm: Slurm, number: str, log: Path) -> None:
    """Waits for the first steps in a job's log."""
    jobs.until(lambda: jobs.trains(log), why=lambda: slurm.output(number))


def until_nothing_is_left(slurm: Slurm, number: str, results: Path) -> None:
    def why() -> str:
        return f"{key_and_ranks_left(results)}\n{slurm.output(number)}\n{slurm.log()}"

    jobs.until(lambda: key_and_ranks_left(results) == [], every_s=0.5, why=why)


def start_again(slurm: Slurm, number: str) -> None:
    """After a requeue, at once: SLURM itself would wait two minutes."""
    jobs.until(lambda: slurm.facts(number)["JobState"] == "PENDING", every_s=0.2, why=lambda: slurm.output(number))
    slurm.command("scontrol", "update", f"JobId={number}", "StartTime=now")


@CONTAINED
def test_scancel_ends_the_log_as_aborted(slurm: Slurm, nodes: Nodes, results: Path, contained: bool) -> None:
    job = {**ENDLESS_JOB, "BATCHSIZE": "2", "DGXSYSTEM": SYSTEM, "LOGDIR": str(results)}
    if contained:
        job |= {"CONT": STANDS_IN, "CONT_NETWORK": nodes.network}
    number = slurm.submit(**job)
    log = results / SYSTEM / "rn50" / "result_0.txt"
    until_trains(slurm, number, log)
    assert next(results.glob(".job_key*")).stat().st_mode & 0o777 == 0o600
    slurm.command("scancel", number)
    assert slurm.wait(number).startswith("CANCELLED")
    until_nothing_is_left(slurm, number, results)
    assert "stopped by" in jobs.abort_reason(log)
    containers.nothing_is_left()


def test_a_requeued_job_keeps_the_trials_that_ended(slurm: Slurm, standing_in: Path, results: Path) -> None:
    job = {**GOLDEN_JOB, "BATCHSIZE": "4", "MEASURED_STEPS": "60", "NEXP": "3", "ON_FAILURE": "go_on"}
    number = slurm.submit("--chdir", str(standing_in), **job, DGXSYSTEM=SYSTEM, LOGDIR=str(results))
    logs = [results / SYSTEM / "rn50" / f"result_{trial}.txt" for trial in range(3)]
    until_trains(slurm, number, logs[1])
    finished = logs[0].read_bytes()
    slurm.command("scontrol", "requeue", number)
    until_nothing_is_left(slurm, number, results)
    start_again(slurm, number)
    assert slurm.wait(number) == "FAILED 1:0", slurm.output(number)  # not all trials ended well
    assert [log.name for log in sorted(results.rglob("result_*.txt"))] == [log.name for log in logs]
    assert logs[0].read_bytes() == finished
    assert [containers.status_of(log) for log in logs] == ["success", "aborted", "success"], slurm.output(number)
    assert f"trial 1 aborted: {jobs.abort_reason(logs[1])}" in slurm.output(number)
    assert key_and_ranks_left(results) == []


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_requeue_and_the_time_limit_end_their_logs_as_aborted(
    slurm: Slurm, standing_in: Path, results: Path, trains: bool
) -> None:
    """One job: put back into the queue in mid-run, started again, and ended in order when its time is nearly over."""
    data = small.data_set(results / "data")
    training = {name: str(value) for name, value in small.TRAINING.items()} | {"MAX_EPOCHS": "100000"}
    job = {**training, "DGXSYSTEM": SYSTEM, "LOGDIR": str(results), "DATADIR": str(data)}
    checkout = jobs.REPOSITORY if trains else standing_in
    number = slurm.submit("--time", "3", "--chdir", str(checkout), **job)
    first, second = (folder / SYSTEM / "rn50" / "result_0.txt" for folder in (results, results / "restart_1"))
    until_trains(slurm, number, first)
    slurm.command("scontrol", "requeue", number)
    until_nothing_is_left(slurm, number, results)
    assert jobs.abort_reason(first)
    of_first = first.read_bytes()
    killed = results / f".job_key_{number}"  # as a start leaves it that is killed
    killed.touch(mode=0o600)

    start_again(slurm, number)
    until_trains(slurm, number, second)
    assert not killed.exists()
    # slurm.sub asks for SIGTERM 90 s before the end, and SLURM looks each half minute.
    assert slurm.wait(number) == "FAILED 143:0", slurm.output(number)
    until_nothing_is_left(slurm, number, results)
    step = len(jobs.losses(second))
    reason = f"stopped by signal TERM after step {step}"
    if trains:
        (saved,) = second.parent.glob("result_0.checkpoints/*")  # the ranks of both nodes had their time
        assert saved.name == f"step_{step:09d}.safetensors"
        reason += "; the last good checkpoint is"
    assert jobs.abort_reason(second).startswith(reason)
    assert first.read_bytes() == of_first
