"""The fleet's acceptance on four containers: one with fewer cores, and one link that is slow and loses packets."""

import json
from typing import Any

import pytest

from tests.cluster.containers import IMAGE, Nodes, address, docker, need, run
from tests.harness import small

COUNT = 4
SLOW = 3
USUAL_CPUS, FEW_CPUS = "0.4", "0.08"  # four containers share two cores
JOB = {"THREADS": "1", "BATCHSIZE": "2", "IMAGE_SIZE": "32", "CLEAR_CACHES": "0", "NODE_WAIT_S": "240"}


def measured(nodes: Nodes, *, cpus: dict[int, str], links: tuple[int, ...] = ()) -> dict[str, Any]:
    """The verdicts on four nodes with these cores; the ways from node 1 to the nodes `links` are slow and lossy."""
    data = small.data_set(nodes.logdir / "data")
    names = {}
    for rank in reversed(range(COUNT)):
        options = ("--cpus", cpus.get(rank, USUAL_CPUS))
        job = {**JOB, "DATADIR": str(data)}
        names[rank] = nodes.start(rank, COUNT, image=IMAGE, options=options, arguments=("--fleet",), **job)
    for other in links:
        for here, there in ((1, other), (other, 1)):
            slow_down(names[here], address(names[there]))
    nodes.wait(names[0], timeout_s=1200)
    paths = list((nodes.logdir / "fleet").glob("*/fleet.json"))
    assert paths, nodes.output(names[0])
    done = run(".venv/bin/python", "-m", "tools.fleet", str(paths[0]), "--json", check=False)
    return {"record": json.loads(paths[0].read_text()), **json.loads(done.stdout)}


def slow_down(name: str, towards: str) -> None:
    """At most 200 Mbit/s, and 0.3 % of the packets lost, on the way from a container to an address.

    By HTB and netfilter, which more kernels have than netem.
    """
    inside = ("nsenter", "-t", docker("inspect", "--format", "{{.State.Pid}}", name), "-n")
    usual = (*inside, "tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10")
    need(run(*usual, check=False).returncode == 0, "nsenter and tc slow a link down")
    for number, rate in (("10", "10gbit"), ("20", "200mbit")):
        run(*inside, "tc", "class", "add", "dev", "eth0", "parent", "1:", "classid", f"1:{number}", "htb", "rate", rate)
    chosen = ("u32", "match", "ip", "dst", towards, "flowid", "1:20")
    run(*inside, "tc", "filter", "add", "dev", "eth0", "protocol", "ip", "parent", "1:", "prio", "1", *chosen)
    lost = ("-m", "statistic", "--mode", "random", "--probability", "0.003", "-j", "DROP")
    run(*inside, "iptables", "-A", "OUTPUT", "-d", towards, *lost)


@pytest.mark.slow
def test_a_node_with_fewer_cores_is_named_and_left_out(nodes: Nodes) -> None:
    found = measured(nodes, cpus={SLOW: FEW_CPUS})
    assert found["record"]["hosts"] == nodes.hosts(COUNT).split(",")
    assert found["nodes"][f"node{SLOW}"] == "warning", found["verdicts"]
    assert found["good"] == [f"node{rank}" for rank in range(COUNT) if rank != SLOW]
    assert "CPU quota" in {difference["fact"] for difference in found["differences"]}
    written = next((nodes.logdir / "fleet").glob("*/hosts")).read_text().splitlines()
    assert written[:3] == found["good"]


@pytest.mark.slow
def test_a_slow_lossy_link_is_named_and_no_node_with_it(nodes: Nodes) -> None:
    found = measured(nodes, cpus={}, links=(2,))
    assert {link["where"] for link in found["links"] if link["status"] == "warning"} == {"node1 - node2"}
    assert found["good"] == nodes.hosts(COUNT).split(",")
