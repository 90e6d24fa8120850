"""How ranks meet: how many, at which address (in a network of its own where there is one), on which port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness import ranks
from program import elsewhere
from runlog.errors import RunError
from tests import jobs
from tests.harness import small
from tests.needs import in_namespaces, need

NETWORK = """
ip link set lo up
ip link add fabric type veth peer name other
ip address add 192.0.2.1/24 dev fabric
ip link set fabric up
ip link set other up
exec "$@"
"""
ASK = """
import sys
from harness import env, ranks
job = env.Job(dgxnnodes=2, dgxngpu=1, hosts=sys.argv[1])
me = ranks.Ranks(comm=None, rank=0, size=2, local_rank=0, node="this-node")
print(ranks._address(job, me))
"""


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("192.0.2.1,192.0.2.2", "192.0.2.1"),
        ("localhost,192.0.2.2", "192.0.2.1"),  # as a host that takes its own name for loopback
        ("localhost,localhost", "takes localhost and localhost for itself, at 127.0.0.1"),
        ("localhost,no-such-host.invalid", "finds no way to localhost and no-such-host.invalid"),
        ("no-such-host.invalid,192.0.2.2", "finds no way to no-such-host.invalid and 192.0.2.2"),
    ],
)
def test_a_nodes_address_is_one_that_the_others_reach(hosts: str, said: str) -> None:
    need(shutil.which("ip") is not None, "iproute2, which makes a network")
    inside = [*in_namespaces("--net"), "bash", "-euc", NETWORK, "bash"]
    done = subprocess.run([*inside, sys.executable, "-c", ASK, hosts], capture_output=True, text=True, check=False)
    assert said in (done.stdout.strip() if done.returncode == 0 else done.stderr), done.stderr
    assert (done.returncode == 0) == said.startswith("192"), done.stderr


@pytest.mark.xdist_group("ranks")
def test_ranks_meet_on_a_host_whose_own_name_does_not_resolve(tmp_path: Path) -> None:
    naming = 'import os, socket, sys; socket.sethostname("no-such-host.invalid"); os.execvp(sys.argv[1], sys.argv[1:])'
    job = [*in_namespaces("--uts"), sys.executable, "-c", naming, *jobs.mpirun(2, "-m", "harness")]
    done = jobs.run(job, cwd=small.checkout(), DGXNGPU=2, RESULT_FILE=tmp_path / "log.txt", **jobs.TINY)
    assert done.returncode == 0, done.stderr
    assert jobs.values(tmp_path / "log.txt", "run_summary")[0]["devices"] == 2


def test_an_address_that_no_interface_has_is_refused() -> None:
    with elsewhere(), pytest.raises(RunError, match=r"no network interface .* 192\.0\.2\.77"):
        ranks._listen_on("192.0.2.77", "127.0.0.1")


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


@pytest.mark.xdist_group("ranks")
def test_another_number_of_ranks_than_the_environment_says_is_refused(standing_in: Path) -> None:
    done = jobs.on_ranks(2, "-m", "harness", cwd=standing_in, DGXNNODES=2, HOSTS="a,b")
    assert done.returncode == 2
    assert "2 ranks were started, but DGXNNODES=2 x DGXNGPU=2 is 4" in done.stderr
