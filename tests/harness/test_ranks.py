"""How ranks meet (in a network of its own where there is one), how a hang ends them, and what the first one shows."""

import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import network, ranks
from harness.hooks import watchdog
from harness.job import job_of
from program import in_temporary_folder
from runlog.errors import RunError
from tests import jobs
from tests.harness import small
from tests.jobs import in_namespaces, need

NETWORK = """
ip link set lo up
ip link add fabric type veth peer name other
ip address add 192.0.2.1/24 dev fabric
ip link set fabric up
ip link set other up
exec "$@"
"""
ALONE = """
import os
from pathlib import Path
from harness import ranks
print("sm_segment" in Path("/proc/self/maps").read_text(), os.environ.get("OMPI_MCA_btl"))
"""
ASK = """
import sys
from harness import network
from harness.job import job_of
job = job_of(dgxnnodes=2, dgxngpu=1, hosts=sys.argv[1])
print(network.node_address(job.cluster, 0))
"""


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("192.0.2.1,192.0.2.2", "192.0.2.1"),
        ("localhost,192.0.2.2", "192.0.2.1"),  # as a host that takes its own name for loopback
        ("localhost,localhost", "takes localhost and localhost for itself, at 127.0.0.1"),
        ("localhost,no-such-host.invalid", "finds no way to localhost and no-such-host.invalid"),
        ("no-such-host.invalid,192.0.2.2", "finds no way to no-such-host.invalid and 192.0.2.2"),
        ("node..1,192.0.2.2", "cannot look up node..1: each part of a name between dots must have 1 to 63 characters"),
        (f"{'n' * 64},192.0.2.2", f"cannot look up {'n' * 64}: each part of a name between dots must have 1 to 63"),
        ("localhost,node..1", "finds no way to localhost and node..1"),
    ],
)
def test_a_nodes_address_is_one_that_the_others_reach(hosts: str, said: str) -> None:
    need(shutil.which("ip") is not None, "iproute2, which makes a network")
    inside = [*in_namespaces("--net"), "bash", "-euc", NETWORK, "bash"]
    done = subprocess.run([*inside, sys.executable, "-c", ASK, hosts], capture_output=True, text=True, check=False)
    assert said in (done.stdout.strip() if done.returncode == 0 else done.stderr), done.stderr
    assert (done.returncode == 0) == said.startswith("192"), done.stderr


MEET = """
import os, sys
from harness import network
from harness.job import job_of
cluster = job_of(device="gpu", dgxnnodes=2, dgxngpu=4, hosts=sys.argv[1]).cluster
network.export_for_mpi(cluster)
of_mpi = {name: value for name, value in os.environ.items() if name.startswith("OMPI_MCA_")}
print(network.nccl_settings(cluster, int(os.environ["OMPI_COMM_WORLD_RANK"]) // 4), of_mpi)
"""
BRIDGES = NETWORK.replace("exec", "ip link add br-4f2a type bridge && ip address add 172.18.0.1/16 dev br-4f2a\nexec")
MPI_TAKES, MPI_LEAVES = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"


@pytest.mark.parametrize(
    ("hosts", "rank", "of_user", "of_nccl", "of_mpi"),
    [
        ("192.0.2.1,192.0.2.2", 3, {}, {"NCCL_SOCKET_IFNAME": "=fabric"}, {MPI_TAKES: "fabric"}),
        ("192.0.2.2,localhost", 4, {}, {"NCCL_SOCKET_IFNAME": "=fabric"}, {MPI_TAKES: "fabric"}),
        ("192.0.2.1,192.0.2.2", 0, {MPI_TAKES: "lo"}, {"NCCL_SOCKET_IFNAME": "=fabric"}, {MPI_TAKES: "lo"}),
        ("192.0.2.1,192.0.2.2", 0, {MPI_LEAVES: "lo"}, {"NCCL_SOCKET_IFNAME": "=fabric"}, {MPI_LEAVES: "lo"}),
        ("172.18.0.9,192.0.2.2", 0, {}, {}, {}),  # an address that is another machine's
        ("no-such-host.invalid,192.0.2.2", 0, {}, {}, {}),
        ("node..1,192.0.2.2", 0, {}, {}, {}),  # no name that can be looked up
    ],
)
def test_nccl_and_mpi_meet_on_the_interface_at_which_the_other_nodes_reach_this_one(
    hosts: str, rank: int, of_user: dict[str, str], of_nccl: dict[str, str], of_mpi: dict[str, str]
) -> None:
    """With all interfaces, two namespaces whose bridges had one address hung in MPI's first message."""
    need(shutil.which("ip") is not None, "iproute2, which makes a network")
    inside = [*in_namespaces("--net"), "bash", "-euc", BRIDGES, "bash"]
    environ = jobs.environment(**of_user) | {"OMPI_COMM_WORLD_RANK": str(rank)}
    done = subprocess.run(
        [*inside, sys.executable, "-c", MEET, hosts], env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == f"{of_nccl} {of_mpi}", done.stderr


@pytest.mark.parametrize(
    "job", [{"device": "cpu", "dgxnnodes": 2, "hosts": "a,b"}, {"device": "gpu"}, {"dgxnnodes": 2}]
)
def test_nccl_is_told_no_interface_where_there_is_none_to_choose(job: dict[str, Any]) -> None:
    assert network.nccl_settings(job_of(**job).cluster, 0) == {}


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_ranks_meet_on_a_host_whose_own_name_does_not_resolve(tmp_path: Path) -> None:
    naming = 'import os, socket, sys; socket.sethostname("no-such-host.invalid"); os.execvp(sys.argv[1], sys.argv[1:])'
    job = [*in_namespaces("--uts"), sys.executable, "-c", naming, *jobs.mpirun(2, "-m", "harness")]
    done = jobs.run(job, cwd=small.checkout(), DGXNGPU=2, RESULT_FILE=tmp_path / "log.txt", **jobs.TINY)
    assert done.returncode == 0, done.stderr
    assert jobs.values(tmp_path / "log.txt", "run_summary")[0]["devices"] == 2


def test_an_address_that_no_interface_has_is_refused() -> None:
    with in_temporary_folder(), pytest.raises(RunError, match=r"no network interface .* 192\.0\.2\.77"):
        ranks._have_gloo_listen_at("192.0.2.77")


@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT], ids=["stores", "NCCL's id"])
def test_a_port_is_held_until_paddle_listens_on_it(option: int) -> None:
    port = ranks._hold_port()
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(("", port))
    for _ in range(2):  # the start-up program runs twice
        with socket.socket() as paddles:
            paddles.setsockopt(socket.SOL_SOCKET, option, 1)
            paddles.bind(("", port))
            paddles.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5), paddles.accept()[0]:
                pass


CONNECT = """
import os, sys
from harness import env, ranks
os.chdir(sys.argv[1])
job, _ = env.read()
ranks.connect(job.cluster, ranks.start(job.cluster))
"""


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_ranks_that_meet_leave_nothing_in_the_working_directory(tmp_path: Path) -> None:
    """Paddle's server writes http.log there where its module is imported."""
    done = jobs.on_ranks(2, "-c", CONNECT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.xdist_group("ranks")
def test_another_number_of_ranks_than_the_environment_says_is_refused(standing_in: Path) -> None:
    done = jobs.on_ranks(2, "-m", "harness", cwd=standing_in, DGXNNODES=2, HOSTS="a,b")
    assert done.returncode == 2
    assert "2 ranks started, but DGXNNODES=2 x DGXNGPU=2 is 4" in done.stderr


# ---- the watchdog, in processes that hang in every way, and the clock


START = """
import sys, threading, time, ctypes
from harness.hooks.watchdog import WATCHDOG
from harness.hooks import watchdog
watchdog.GRACE_S, watchdog.TICK_S = 2, 0.1
WATCHDOG.start({limit}, rank=5, node="node7")
"""


def run(body: str, *, limit: int = 1) -> subprocess.CompletedProcess[str]:
    return jobs.run([sys.executable, "-c", START.format(limit=limit) + body])


def test_a_hang_ends_with_the_stacks_of_all_threads():
    """What may take longer before is given longer once."""
    body = """
def reader_that_hangs(): threading.Event().wait()
threading.Thread(target=reader_that_hangs, daemon=True).start()
WATCHDOG.beat("warming up", extra_s=60)
time.sleep(1.5)
WATCHDOG.beat("computing step 3")
def wait_for_the_reader(): threading.Event().wait()
wait_for_the_reader()
"""
    done = run(body)
    assert done.returncode == 1
    first, *rest = done.stderr.splitlines()
    assert first == "error: rank 5 on node7 hangs: no progress for 1 s while computing step 3"
    assert all(line.startswith("[rank 5] ") for line in rest)
    assert "in reader_that_hangs" in done.stderr and "in wait_for_the_reader" in done.stderr


def test_a_hang_that_keeps_the_interpreter_ends_too():
    """PyDLL calls keep the GIL: no Python thread runs any more."""
    done = run("def stuck(): ctypes.PyDLL(None).sleep(600)\nstuck()")
    assert done.returncode == 1 and "Timeout (" in done.stderr and "in stuck" in done.stderr


@pytest.mark.parametrize(
    ("limit", "body"),
    [
        (1, "for i in range(20):\n    time.sleep(0.1)\n    WATCHDOG.beat(f'computing step {i}')"),
        (0, "assert threading.active_count() == 1"),
    ],
    ids=["progress", "no limit"],
)
def test_what_keeps_it_quiet(limit, body):
    done = run(body, limit=limit)
    assert (done.returncode, done.stderr) == (0, "")


def moved(clock_steps):
    """What a clock says after each (seconds by the system's clock, seconds by the steady one)."""
    wall, steady = [1000.0], [50.0]
    clock = watchdog.Clock(lambda: wall[0], lambda: steady[0])
    for wall_s, steady_s in clock_steps:
        wall[0] += wall_s
        steady[0] += steady_s
        yield clock.set_by_s()


@pytest.mark.parametrize(
    ("jump_s", "seen_s"),
    [(-3600.0, -3600.0), (-1.5, -1.5), (7200.0, 7200.0), (0.6, 0.6), (0.05, 0.0), (-0.6, 0.0)],
)
def test_a_clock_that_is_set_is_told_once(jump_s, seen_s):
    assert list(moved([(10, 10), (10 + jump_s, 10), (10, 10)])) == [0, pytest.approx(seen_s), 0]


def test_a_slewed_clock_was_not_set():
    assert not any(moved([(1.0005, 1)] * 10_000))
    assert not any(moved([(3601.8, 3600)] * 10)), "windows or evaluations of an hour"


@pytest.mark.parametrize("pause_s", [3.0, 30.0])
def test_a_process_that_is_held_between_two_readings_does_not_see_a_clock_that_was_set(pause_s: float) -> None:
    """As on a machine with many more processes than cores."""
    time_s = 0.0
    held_s = iter([0.0, pause_s])

    def wall() -> float:
        nonlocal time_s
        time_s += next(held_s, 0.0)
        return time_s

    clock = watchdog.Clock(wall, lambda: time_s)
    assert clock.set_by_s() == 0
    assert time_s == pause_s, "it was held"


# ---- the bar


RANK = """
import sys, time
from pathlib import Path
from typing import Any
from harness.progress import Progress, Timing, usual_kind
with Progress(usual_kind(), 100) as progress:
    progress.window(step=40, epoch=1, window=Timing(steps=5, images=80, time_s=2.0), loss=1.5)
    print("a library's chatter", file=sys.stderr)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""


def test_the_bar_is_on_the_terminal_while_the_run_goes_on(tmp_path: Path) -> None:
    """mpirun holds back a line that has no end, so that a bar of one such line would never show."""
    seen_it = tmp_path / "seen"
    terminal, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("mpirun")), "-n", "1", sys.executable, "-u", "-c", RANK, str(seen_it)]
    with (tmp_path / "stderr").open("wb") as stderr:
        ranks = subprocess.Popen(
            command,
            stdout=theirs,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            env=jobs.environment(TERMINAL_COLUMNS=77),
            cwd=jobs.REPOSITORY,
        )
    os.close(theirs)
    try:
        shown, deadline = b"", time.monotonic() + jobs.LIMIT_S
        while b"40.0 images/s" not in shown and time.monotonic() < deadline:
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 65536)
        assert ranks.poll() is None, "the run must not end before the bar is looked for"
        text = shown.decode()
        assert "epoch 1 loss 1.5000" in text and "40/100" in text and "40.0 images/s" in text
        assert "chatter" not in text
    finally:
        seen_it.touch()
        os.close(terminal)
        ranks.terminate()
        ranks.wait(jobs.LIMIT_S)


@pytest.mark.parametrize("transports", [None, "tcp,self"])
def test_a_tool_leaves_no_shared_memory_behind(transports: str | None) -> None:
    """Each call of tools.inspect left 16 MiB in /dev/shm; jobs that a tool starts have the user's environment."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_")}
    if transports is not None:
        variables["OMPI_MCA_btl"] = transports
    done = subprocess.run([sys.executable, "-c", ALONE], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"False {transports}\n"
