"""The report on a fleet, its page, its files and its exit status; and a real one on the ranks of this machine."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import nvidia
from harness.job import job_of
from tests import jobs
from tests.browser import TOO_SMALL, UNFOLD, Opened, opened  # noqa: F401
from tests.harness import small
from tests.scoring.pages import HOSTILE
from tests.tools.test_doctor import machine
from tests.tools.test_fleet_verdicts import record as record_of
from tools.fleet import __main__ as fleet
from tools.fleet import alone as fleet_alone
from tools.fleet import facts as fleet_facts


def slow_link(nodes: int, spared: int) -> tuple[int, int]:
    """A pair that is measured, without the node `spared`."""
    pairs = ((link["a"], link["b"]) for link in record_of(nodes)["links"])
    return next(pair for pair in pairs if spared not in pair)


def report(folder: Path, record: dict[str, Any], *arguments: object) -> jobs.Done:
    """What the command says and leaves of a record."""
    path = folder / "fleet.json"
    path.write_text(json.dumps(record))
    return jobs.called(fleet.main, path, *arguments)


def test_a_slow_node_is_named_left_out_and_kept_from_the_hosts(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    record = record_of(step={2: 0.2})
    record["nodes"][6]["failed"] = ["gpu.ecc: 3 uncorrected errors"]
    done = report(tmp_path, record, "--write-hosts", hosts, "--nodes", 4)
    assert done.returncode == 1, done.stderr
    assert re.search(r"^warning +step +node2 +[\d.]+% \(.*\) slower than the fleet's median$", done.stdout, re.M)
    assert re.search(r"^fatal +doctor +node6 +gpu.ecc: 3 uncorrected errors$", done.stdout, re.M)
    assert done.stdout.endswith("left out  node2, node6\ngood      node0,node1,node3,node4,node5,node7\n")
    assert hosts.read_text() == "node0\nnode1\nnode3\nnode4\n# node2: warning\n# node6: fatal\n"
    assert hosts.with_name("hosts.spares").read_text() == "node5\nnode7\n"


def test_each_reason_why_a_metric_is_unknown_has_a_line(tmp_path: Path) -> None:
    """Only what the machine lacks is impossible; the rest was not measured, or by too few."""
    record = record_of(8)
    record["links"] = []
    disk = record["metrics"]["disk_s_per_gib"]
    disk["series"][1] = disk["series"][4] = disk["series"][6] = None
    disk["reasons"] = {"1": "not possible here: no DATADIR", "6": "not possible here: no DATADIR"}
    lines = report(tmp_path, record).stdout.splitlines()
    assert [line.partition("unknown for ")[2] for line in lines if line.startswith("disk ")] == [
        *("", "2: no DATADIR", "1: not measured")
    ]
    assert "network latency   unknown for 8: not measured" in lines
    few = report(tmp_path, record_of(3)).stdout
    assert "\nstep              unknown for 3: 3 measured: at least 4 are needed to tell which is slow\n" in few
    assert "not possible here" not in few


def test_a_slow_link_leaves_no_node_out(tmp_path: Path) -> None:
    a, b = slow_link(8, spared=2)
    record = record_of(link={(a, b): 3.0})
    done = report(tmp_path, record, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["good"]) == (1, record["hosts"])
    assert {v["where"] for v in document["links"] if v["status"] == "warning"} == {f"node{a} - node{b}"}


def _step(record: dict[str, Any], values: Any) -> None:
    record["metrics"]["step_s"]["series"][3] = values


def _without_turns(record: dict[str, Any]) -> None:
    record["metrics"]["step_s"]["series"] = [[] for _ in record["hosts"]]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda r: _step(r, [float("nan")] * 16), "step_s of node3 is nan: a time is above 0"),
        (lambda r: _step(r, [float("inf")] * 16), "step_s of node3 is inf: a time is above 0"),
        (lambda r: _step(r, [0.0] * 16), "step_s of node3 is 0.0: a time is above 0"),
        (lambda r: _step(r, [1.0] * 10), "step_s of node3 has 10 turns, another 16"),
        (lambda r: _step(r, []), "step_s of node3 has no turns: at least one is needed"),
        (_without_turns, "step_s of node0 has no turns: at least one is needed"),
        (lambda r: _step(r, ["fast"] * 16), "damaged (TypeError"),
        (lambda r: r["hosts"].__setitem__(5, "node2"), "its hosts have node2 more than once"),
        (lambda r: r["hosts"].__setitem__(5, 5), "damaged (TypeError"),
        (lambda r: r.pop("time"), "damaged (KeyError: 'time')"),
        (lambda r: r.update(job=True), "damaged (TypeError"),
        (lambda r: r["hosts"].pop(), "it has 7 hosts and facts of 8"),
        (lambda r: r["links"][0].update(b=77), " and 77 is none of 8 hosts"),
        (lambda r: r["links"][3].update(latency_s=[1e-5] * 3), "has 3 turns, another 5"),
        (lambda r: r["links"][3].update(latency_s=None), "is null: a link has a time of each turn"),
        (lambda r: r.pop("links"), "damaged (KeyError: 'links')"),
        (lambda r: r["nodes"][0].update(facts=["a driver"]), "damaged ("),
        (lambda r: r.update(whole_s=[-1.0]), "whole_s of all is -1.0"),
        (lambda r: r["nodes"][0]["facts"].update(driver=525), "damaged (TypeError"),
        (lambda r: r["nodes"][0].update(failed=[None]), "damaged (TypeError"),
        (lambda r: r["nodes"][0].update(clock_offset_s=float("nan")), "clock_offset_s of node0 is nan"),
        (lambda r: r.update(job=[]), "damaged (TypeError: [] is not an object)"),
        (lambda r: _step(r, [10**400] * 16), "a time is above 0 and finite"),
        (lambda r: _step(r, ["\x1b[31m\n"] * 16), "damaged (TypeError"),
        (lambda r: r.update(version=2), "no record of a --fleet"),
    ],
)
def test_what_no_fleet_measures_is_refused(damage: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    record = record_of()
    damage(record)
    done = report(tmp_path, record, "--html", tmp_path / "page.html")
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_a_fleet_of_two_speeds_is_doubted(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = report(tmp_path, record_of(step=dict.fromkeys(range(4), 0.3)), "--html", page)
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("doubt ")]
    assert "takes 30." in said or "takes 31." in said
    assert " and no node is called slow: too few are alike, or too many are slow; look at" in said
    assert "Doubt: a step of node" in page.read_text() and 'class="banner unknown"' in page.read_text()
    for healthy in (record_of(), record_of(step={2: 0.5})):
        assert "doubt " not in report(tmp_path, healthy).stdout


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ("--html fleet.json", 2, "fleet.json: is a fleet's record"),
        ("--write-hosts fleet.json", 2, "fleet.json: is a fleet's record"),
        ("--write-hosts hosts --nodes -1", 2, "--nodes"),
        ("--nodes 3", 2, "--nodes goes with --write-hosts"),
        ("--html no/page.html", 2, "error: [Errno 2] "),  # told after the verdicts
        ("--write-hosts hosts --nodes 9", 1, "error: --nodes 9: of good ones there are 8: add nodes\n"),
    ],
)
def test_what_cannot_be_had_is_no_success(
    options: str, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = record_of()
    done = report(tmp_path, record, *options.split())
    assert done.returncode == status and said in done.stderr
    assert ("good      node0," in done.stdout) == said.startswith("error: ")
    assert (tmp_path / "hosts").exists() == (status == 1)
    assert json.loads((tmp_path / "fleet.json").read_text()) == record


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--write-hosts out --html out", "out: would be written by --html and by --write-hosts: give each a file"),
        ("--write-hosts out --html ./out", "out: would be written by --html and by --write-hosts:"),
        ("--write-hosts link --html out", "out: would be written by --html and by --write-hosts:"),
        ("--write-hosts hard --html out", "out: would be written by --html and by --write-hosts:"),
        ("--write-hosts below/../new --html new", "new: would be written by --html and by --write-hosts:"),
        ("--write-hosts out --html out.spares", "by --html and by --write-hosts (its FILE.spares):"),
        ("--write-hosts twin --nodes 2", "twin: would be written by --write-hosts and by --write-hosts (its FILE."),
        ("--html same.json", "same.json: is a fleet's record, which would be written over: give another file"),
        ("--html then.spares --baseline then.spares", "then.spares: is a fleet's record"),
        ("--write-hosts then --baseline then.spares --nodes 2", "then.spares: is a fleet's record"),
        ("--write-hosts record", "record.spares: is a fleet's record"),
        ("--write-hosts pipe", "pipe.spares: is a pipe, a socket or a device"),
    ],
)
def test_no_file_is_written_twice_or_over_a_record(
    options: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("below").mkdir()
    Path("out").write_text("kept")
    Path("link").symlink_to("out")
    Path("hard").hardlink_to("out")
    Path("twin.spares").symlink_to("twin")
    Path("record.spares").symlink_to("fleet.json")
    Path("fleet.json").touch()
    Path("same.json").hardlink_to("fleet.json")
    Path("then.spares").write_text(json.dumps(record_of(seed=2)))
    os.mkfifo("pipe.spares")
    files = sorted(Path().iterdir())
    record = record_of()
    done = report(tmp_path, record, *options.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert sorted(Path().iterdir()) == files and Path("out").read_text() == "kept"
    assert json.loads(Path("fleet.json").read_text()) == record
    assert json.loads(Path("then.spares").read_text()) == record_of(seed=2)


@pytest.mark.parametrize(
    ("change", "said", "status"),
    [
        ({}, "since     node1: step: 1", 1),
        ({"hosts": [f"other{i}" for i in range(8)]}, "has none of these hosts", 2),
        ({"job": {"batchsize": 32, "precision": "fp32"}}, "another job (batchsize 32 then, 64 now)", 2),
    ],
)
def test_a_baseline_is_compared_or_refused_beside_the_verdicts(
    change: Any, said: str, status: int, tmp_path: Path
) -> None:
    then, job = tmp_path / "then.json", {"job": {"batchsize": 64, "precision": "fp32"}}
    then.write_text(json.dumps(record_of(seed=2) | job | change))
    done = report(tmp_path, record_of(seed=2, step={1: 0.1}) | job, "--baseline", then)
    assert done.returncode == status and said in done.stdout + done.stderr
    assert ("\nsince     disk: " in done.stdout) == (status == 1) and "\ngood      node0," in done.stdout


def test_what_differs_is_listed_by_what_matters_first(tmp_path: Path) -> None:
    drivers = {0: "470", 3: "470", 2: "418"}
    record = record_of(4, facts={"kernel": {1: "5.10"}, "driver": drivers, "NCCL_ALGO": {2: "Ring"}})
    record["nodes"][1]["clock_offset_s"] = record["nodes"][2]["clock_offset_s"] = -1.5
    found = json.loads(report(tmp_path, record, "--json").stdout)["differences"]
    assert [difference["fact"] for difference in found] == ["driver", "NCCL_ALGO", "kernel", "clock"]
    assert found[0] == {"fact": "driver", "usual": "470", "others": {"535": ["node1"], "418": ["node2"]}}
    assert found[1]["usual"] == "not set" and found[3]["others"] == {"-1.500 s": ["node1", "node2"]}
    assert json.loads(report(tmp_path, record_of(4), "--json").stdout)["differences"] == []


@pytest.mark.parametrize(("cpus", "said"), [(None, "none"), (1.5, "1.5 CPUs"), (64.0, "64 CPUs")])
def test_the_quota_of_cpu_time_is_the_one_that_the_doctor_found(cpus: float | None, said: str) -> None:
    assert fleet_facts.facts_of_node(job_of(), machine(cgroup_cpus=cpus))["CPU quota"] == said


def test_a_fact_that_is_not_known_is_said_to_be_unknown() -> None:
    probed = machine() | {"gpus": [nvidia.Gpu(), nvidia.Gpu(name="A100", memory_gib=40.0, power_limit_w=400.0)]}
    probed["source"]["image_digest"] = None  # outside an image
    facts = fleet_facts.facts_of_node(job_of(), probed)
    assert facts["GPUs"] == "1 x unknown GPU of unknown memory, 1 x A100 40.0 GiB"
    assert (facts["driver"], facts["power limits"], facts["persistence"]) == ("unknown", "400.0 W, unknown", "unknown")
    assert facts["image"] == "none" and not any("None" in value for value in facts.values())


@pytest.mark.parametrize(
    ("interfaces", "said"),
    [
        ({"eth0": "10.0.0.1", "eth1": "10.0.0.2"}, "none"),
        (
            {"eth0": "10.0.0.1 25000 Mbit/s", "eth1": "10.0.0.2 10000 Mbit/s", "ib0": "10.0.0.3"},
            "10000 Mbit/s, 25000 Mbit/s",
        ),
    ],
)
def test_an_interface_without_a_speed_is_no_speed(interfaces: dict[str, str], said: str) -> None:
    assert fleet_facts.facts_of_node(job_of(), machine(interfaces=interfaces))["NIC speeds"] == said


def test_a_node_is_as_slow_as_the_slowest_of_its_ranks_and_fails_with_one() -> None:
    found = [
        fleet_alone.RankTimes(0, {"step_s": [1.0, 5.0], "disk_s_per_gib": [3.0]}, {}, []),
        fleet_alone.RankTimes(0, {"step_s": [2.0, 4.0]}, {}, []),
        fleet_alone.RankTimes(1, {"step_s": [1.0, 1.0]}, {"disk_s_per_gib": "No space left"}, []),
        fleet_alone.RankTimes(1, {}, {"step_s": "killed"}, []),
    ]
    metrics = fleet_alone.merge_by_host(["a", "b"], found)
    assert metrics["step_s"] == {"series": [[2.0, 5.0], None], "reasons": {"1": "killed"}}
    assert metrics["disk_s_per_gib"] == {"series": [[3.0], None], "reasons": {"1": "No space left"}}


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_the_ranks_of_this_machine_are_measured(tmp_path: Path) -> None:
    data = small.data_set(tmp_path / "data")
    job: dict[str, Any] = {
        "DGXNGPU": 4,
        "THREADS": 1,
        "BATCHSIZE": 2,
        "IMAGE_SIZE": 32,
        "LOGDIR": str(tmp_path),
        "DATADIR": str(data),
    }
    done = jobs.run_and_time("--fleet", timeout_s=900, **job)
    assert done.returncode in (0, 1), done.stderr  # other work on this machine may slow a rank for good
    (path,) = tmp_path.glob("fleet/*/fleet.json")
    record = json.loads(path.read_text())
    assert len(record["hosts"]) == 4 and len(record["links"]) == 6
    for metric in ("step_s", "step_mean_s", "memory_s_per_gib", "disk_s_per_gib", "input_s"):
        assert record["metrics"][metric]["reasons"] == {}, metric
        assert all(len(turns) >= 6 and min(turns) > 0 for turns in record["metrics"][metric]["series"]), metric
    assert record["metrics"]["clock_ns"]["reasons"]["0"] == "not possible here: no GPU: DEVICE=cpu"
    assert all(len(link["latency_s"]) == len(link["transfer_s"]) == 5 for link in record["links"])
    assert min(record["whole_s"]) > 0
    assert len(record["digests"]["tables"]) == 1 and len(record["digests"]["tensors"]) == 428
    assert "arithmetic        4 ranks of 1 class, at least 3 repetitions of 2 steps each, 428 digests" in done.stdout
    assert record["job"]["batchsize"] == 2 and record["job"]["precision"] == "fp32"
    assert f"record    {path}" in done.stdout and "GPU clock         unknown for 4: no GPU: DEVICE=cpu\n" in done.stdout
    assert not path.with_name("hosts").exists()  # ranks are not hosts
    assert "Node by node" in path.with_name("fleet.html").read_text()
    again = jobs.run_and_time("--fleet", timeout_s=900, FLEET_BASELINE=str(path), **job)
    assert again.returncode in (0, 1), again.stderr
    assert "\nsince     step: " in again.stdout and "\nsince     memory: " in again.stdout


def test_a_baseline_that_is_none_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    missing = tmp_path / "then.json"
    done = jobs.run_and_time("--fleet", FLEET_BASELINE=str(missing), LOGDIR=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{missing}: " in done.stderr and not list(tmp_path.glob("fleet/*/fleet.json"))


@pytest.mark.xdist_group("ranks")
def test_a_job_of_hrnet_is_refused(tmp_path: Path) -> None:
    done = jobs.run_and_time("--fleet", WORKLOAD="hrnet", DGXNGPU=1, LOGDIR=str(tmp_path))
    assert done.returncode == 2 and "WORKLOAD=hrnet: a fleet's steps are ResNet-50's" in done.stderr
    assert not list(tmp_path.glob("fleet/*/fleet.json"))


# ---- the page: its names, its map, and what hostile names do to it

SMALL = TOO_SMALL.replace("svg text", "body *").replace(" * t.getScreenCTM().a", "")


def page(folder: Path, record: dict[str, Any], status: int = 1) -> str:
    path = folder / "page.html"
    done = report(folder, record, "--html", path)
    assert done.returncode == status, done.stderr
    return path.read_text()


def rows_of(map_html: str) -> list[list[str]]:
    """The text of each place of a map's rows; None stands for no cell: those not measured are empty."""
    rows = []
    for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", map_html, flags=re.DOTALL):
        cells = re.findall(r"<td class=\"([^\"]*)\"(?: colspan=\"(\d+)\")?[^>]*>([^<]*)</td>", row)
        rows.append([text for _, span, text in cells for _ in range(int(span or 1))])
    return rows


def test_a_slow_node_and_a_slow_link_are_named_with_their_figures(tmp_path: Path) -> None:
    a, b = slow_link(8, spared=2)
    text = page(tmp_path, record_of(step={2: 0.5}, link={(a, b): 3.0}, facts={"driver": {1: "470"}}))
    for said in (
        rf"Nodes left out: node2\. Links named: node{a} - node{b}\.",
        r"<td>node2</td><td>step</td><td class=\"n\">\+50\.\d%</td><td class=\"n\">\+49\.\d% to ",
        rf"<td>node{a} - node{b}</td><td>transfer</td><td class=\"n\">\+\d+\.\d%</td>",
        "<td>driver</td><td>535</td><td>470: node1</td>",
    ):
        assert re.search(said, text), said


@pytest.mark.parametrize("nodes", [5, 8])
def test_the_map_has_each_measured_pair_twice_and_leaves_the_others_blank(nodes: int, tmp_path: Path) -> None:
    pair = slow_link(nodes, spared=2)
    record = record_of(nodes, link={pair: 3.0})
    record["links"][-1]["latency_s"] = [2e-5] * 5
    record["links"][-1]["transfer_s"] = [8e-5] * 5  # of 4 MiB
    maps = re.findall(r"<table class=\"map\">.*?</table>", page(tmp_path, record), flags=re.DOTALL)
    assert len(maps) == 2
    measured = {(link["a"], link["b"]) for link in record["links"]}
    for rows in map(rows_of, maps):
        assert [len(row) for row in rows] == [nodes] * nodes
        for i, row in enumerate(rows):
            for j, text in enumerate(row):
                assert bool(text) == ((i, j) in measured or (j, i) in measured), (i, j)
                assert text == rows[j][i]
                assert text.startswith("S ") == ((min(i, j), max(i, j)) == pair and nodes == 8)
    last = record["links"][-1]
    assert rows_of(maps[1])[last["a"]][last["b"]].endswith("20")
    assert rows_of(maps[0])[last["a"]][last["b"]].endswith("50,000")


def test_a_healthy_fleet_and_one_that_is_too_small_say_so(tmp_path: Path) -> None:
    assert "No node and no link is named." in page(tmp_path, record_of(), status=0)
    for nodes in (1, 3):
        text = page(tmp_path, record_of(nodes), status=0)
        assert "Whether a node is slow could not be told." in text
        assert ('class="map"' in text) == (nodes > 1)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    record = record_of(step={2: 0.5}, network={5: 2.0}, facts={"driver": {1: HOSTILE}})
    plain = record_of(step={2: 0.5}, network={5: 2.0}, facts={"driver": {1: "525.0"}})
    plain["nodes"][3]["failed"] = ["gpu.ecc: 1 uncorrected"]
    record["hosts"] = [f"{HOSTILE}{i}" for i in range(8)]
    record |= {"system": HOSTILE, "time": HOSTILE}
    record["nodes"][3]["failed"] = [HOSTILE]
    text = page(tmp_path, record)
    assert "<script" not in text and "<img" not in text and "\u202e" not in text and "\x1b" not in text
    assert text.count("</style>") == 1
    assert "&lt;script&gt;window.pwned=1&lt;/script&gt;" in text
    shown = report(tmp_path, record).stdout
    assert HOSTILE.partition("\n")[0] in shown and "\x1b" not in shown and "\u202e" not in shown
    assert len(shown.splitlines()) == len(report(tmp_path, plain).stdout.splitlines())
    other_job = tmp_path / "other.json"
    other_job.write_text(json.dumps(record | {"job": {"recipe": HOSTILE}}))
    jobs.refused(report(tmp_path, record, "--baseline", other_job), "is of another job (recipe <script>")


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [4, 64])
def test_it_is_readable_in_chromium(nodes: int, opened: Opened, tmp_path: Path) -> None:  # noqa: F811
    record = record_of(nodes, step={2: 2.0}, link={slow_link(nodes, spared=2): 3.0})
    record["hosts"][1] = HOSTILE
    page(tmp_path, record)
    for width, phone in ((1280, False), (390, True)):
        shown = opened(tmp_path / "page.html", width=width, phone=phone)
        shown.evaluate(UNFOLD)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert shown.evaluate(SMALL) == []
        assert shown.evaluate("window.pwned") is None
        widths = "[...document.querySelectorAll('.map')].map(m => m.scrollWidth - m.parentElement.clientWidth)"
        assert phone or max(shown.evaluate(widths)) <= 0
