"""The launchers without a cluster: what --dry-run prints, wrong use, and the manifest against the operator's schema."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(Path(__file__).with_name("mpijob_schema.json").read_text())
TYPES = {"string": str, "integer": int, "boolean": bool}


def launch(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOB_", "SLURM_", "DGX", "CONT"))}
    return subprocess.run(
        command,
        env={**kept, **environment},
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def resolved(stdout: str) -> dict[str, Any]:
    """The configuration that a dry run prints."""
    start = stdout.index("\n{\n") + 1
    return json.JSONDecoder().raw_decode(stdout[start:])[0]


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (("launch/mpirun.sh", "--hosts", "a,b", "--dry-run"), {}),
        (("launch/slurm.sub", "--dry-run"), {"HOSTS": "a,b"}),
    ],
    ids=["mpirun", "slurm"],
)
def test_a_dry_run_prints_each_nodes_command_and_where_each_value_comes_from(
    command: tuple[str, ...], environment: dict[str, str]
) -> None:
    done = launch(*command, **environment, DGXSYSTEM="2xDGX1", BATCHSIZE="64", CONT="img", DATADIR="/data")
    assert done.returncode == 0, done.stderr
    runs = [line for line in done.stdout.splitlines() if "docker run" in line]
    assert len(runs) == 2
    for rank, line in enumerate(runs):
        for word in (
            f"NODE_RANK={rank}",
            "HOSTS=a",
            "--gpus all",
            "--shm-size 8g",
            "--ulimit memlock=-1",
            "BATCHSIZE=64",
        ):
            assert word in line.replace("\\", ""), (word, line)
        assert "--device /dev/infiniband" in line
        assert "--read-only" in line
    values = resolved(done.stdout)
    assert values["BATCHSIZE"] == {"value": 64, "origin": "environment"}
    assert values["PRECISION"] == {"value": "amp_o2", "origin": "config_2xDGX1.sh"}
    assert values["DGXNNODES"]["value"] == 2


def test_a_bare_dry_run_names_the_hosts_commands() -> None:
    done = launch("launch/mpirun.sh", "--hosts", "a,b", "--no-container", "--dry-run", DGXSYSTEM="2xCPU")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^node 1: ssh .* b .*NODE_RANK=1 .*run_and_time.sh", done.stdout, re.M)


@pytest.mark.parametrize(
    ("command", "environment", "message"),
    [
        (("launch/mpirun.sh",), {}, "which hosts?"),
        (("launch/mpirun.sh", "--hosts", "a,b,a"), {"CONT": "img"}, "named more than once: a"),
        (("launch/mpirun.sh", "--hosts", "a,b"), {}, "set CONT"),
        (("launch/mpirun.sh", "--hostfile", "/none"), {}, "not a readable file"),
        (("launch/docker_node.sh",), {}, "set CONT"),
        (("launch/docker_node.sh",), {"CONT": "img", "DGXSYSTEM": "Nope"}, "no config_Nope.sh"),
        (("launch/slurm.sub",), {}, "this is for sbatch"),
        (("launch/build_image.sh", "--ca", "/dev/null"), {}, "not a PEM file"),
        (("launch/base_image.sh", "--nope"), {}, "unknown argument"),
        (("launch/nodes.sh", "lead", "true"), {"DGXNNODES": "2", "DGXNGPU": "1"}, "needs HOSTS"),
        (("launch/nodes.sh", "lead", "true"), {"DGXNNODES": "3", "DGXNGPU": "1", "HOSTS": "a,b"}, "HOSTS names 2"),
        (
            ("launch/nodes.sh", "serve"),
            {"DGXNNODES": "2", "DGXNGPU": "1", "HOSTS": "a,b", "NODE_RANK": "2"},
            "must be a number from 0 to 1",
        ),
        (("launch/nodes.sh", "serve"), {"DGXNNODES": "2", "DGXNGPU": "1", "HOSTS": "a,b"}, "needs JOB_KEY"),
    ],
)
def test_wrong_use_is_one_line_and_2(command: tuple[str, ...], environment: dict[str, str], message: str) -> None:
    done = launch(*command, **environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_rank_is_bound_to_its_numa_node() -> None:
    program = ("python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))")
    done = launch("launch/bind.sh", *program, RANK_NUMA="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
    cores = Path("/sys/devices/system/node/node0/cpulist").read_text().strip()
    expected = [
        core
        for part in cores.split(",")
        for core in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
        if core in os.sched_getaffinity(0)
    ]
    assert done.stdout.strip() == str(expected), done.stderr
    refused = launch("launch/bind.sh", *program, RANK_NUMA="0,99", OMPI_COMM_WORLD_LOCAL_RANK="1")
    assert (refused.returncode, "has no NUMA node" in refused.stderr) == (2, True)


def check(value: Any, schema: Any, path: str) -> list[str]:
    """Where a value departs from the schema."""
    if isinstance(schema, str) and schema.startswith("@") and schema != "@string":
        return check(value, SCHEMA[schema[1:]], path)
    if isinstance(schema, str):
        kind = TYPES[schema.removeprefix("@")]
        return [] if type(value) is kind else [f"{path}: {value!r} is no {schema}"]
    if isinstance(schema, list) and isinstance(schema[0], str) and not schema[0].startswith("@"):
        return [] if value in schema else [f"{path}: {value!r} is none of {schema}"]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{path}: must be a list"]
        return [wrong for i, item in enumerate(value) for wrong in check(item, schema[0], f"{path}[{i}]")]
    if not isinstance(value, dict):
        return [f"{path}: must be an object"]
    wrong = []
    for field, item in value.items():
        if field not in schema and "*" not in schema:
            wrong.append(f"{path}.{field}: unknown field")
        else:
            wrong += check(item, schema.get(field, schema.get("*")), f"{path}.{field}")
    return wrong


def manifest() -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / "launch" / "mpijob.yaml").read_text())


def test_the_manifest_has_only_fields_of_the_operator() -> None:
    assert check(manifest(), SCHEMA["schema"], "") == []
    broken = manifest()
    broken["spec"]["slotPerWorker"] = 8
    broken["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = "1"
    assert len(check(broken, SCHEMA["schema"], "")) == 2


def test_the_manifests_parts_agree() -> None:
    spec = manifest()["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    pods = [replica["template"]["spec"] for replica in (launcher, worker)]
    first, other = ({e["name"]: e.get("value") for e in pod["containers"][0]["env"]} for pod in pods)
    nodes = int(first["DGXNNODES"])
    assert nodes == int(other["DGXNNODES"] or 0) == 1 + worker["replicas"]
    fields = set(re.findall(r"^    (\w+): (?:str|int) = _var", (REPOSITORY / "harness/env.py").read_text(), re.M))
    assert {name.lower() for name in {*first, *other}} <= fields
    assert first["DGXSYSTEM"].startswith(f"{nodes}x")
    assert first["NODE_RANK"] == "0" and other["NODE_RANK"] is None
    for pod in pods:
        mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert first["JOB_KEY"].startswith(spec["sshAuthMountPath"])
