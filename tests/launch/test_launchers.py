"""The launchers without a cluster: what --dry-run prints, wrong use, and the manifest against the operator's schema."""

import itertools
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import env
from tests import jobs
from tests.launch.test_nodes import NODES
from tests.needs import need

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(Path(__file__).with_name("mpijob_schema.json").read_text())
TYPES = {"string": str, "integer": int, "boolean": bool}


def launch(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    others = ("JOB_", "SLURM_", "DGX", "CONT", "ENGINE", "SPARES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return subprocess.run(
        command,
        env={**kept, **environment},
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=jobs.LIMIT_S,
        check=False,
    )


def printed(*command: str, **environment: str) -> str:
    """What a command that succeeds prints."""
    done = launch(*command, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def resolved(stdout: str) -> dict[str, Any]:
    """The configuration that a dry run prints."""
    start = stdout.index("\n{\n") + 1
    return json.JSONDecoder().raw_decode(stdout[start:])[0]


@pytest.mark.parametrize(
    ("command", "environment"),
    [(("launch/mpirun.sh", "--hosts", "a,b", "--dry-run"), {}), (("launch/slurm.sub", "--dry-run"), {"HOSTS": "a,b"})],
    ids=["mpirun", "slurm"],
)
def test_a_dry_run_prints_each_nodes_command_and_where_each_value_comes_from(
    command: tuple[str, ...], environment: dict[str, str]
) -> None:
    stdout = printed(*command, **environment, DGXSYSTEM="2xDGX1", BATCHSIZE="64", CONT="img", DATADIR="/data")
    runs = [line for line in stdout.splitlines() if "docker run" in line]
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
    values = resolved(stdout)
    assert values["BATCHSIZE"] == {"value": 64, "origin": "environment"}
    assert values["PRECISION"] == {"value": "amp_o2", "origin": "config_2xDGX1.sh"}
    assert values["DGXNNODES"]["value"] == 2


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, "--network none"),  # nobody reaches what listens in it
        ({"DGXSYSTEM": "2xDGX1"}, "--network host"),
        ({"CONT_NETWORK": "host"}, "--network host"),
        ({"CONT_NETWORK": "jobs", "CONT_HOST": "a"}, "--network jobs"),
    ],
    ids=["one-node", "two-nodes", "told", "own-network"],
)
def test_a_container_has_the_network_that_its_job_needs(variables: dict[str, str], options: str) -> None:
    done = launch("launch/container_node.sh", "--dry-run", CONT="img", **variables)
    assert done.returncode == 0 and options in done.stdout
    assert ("--network-alias a" in done.stdout) == (options == "--network jobs")


SSHDS = ["SETUID", "SETGID", "SYS_CHROOT"]


@pytest.mark.parametrize(
    ("uid", "system", "kept"),
    [(0, "CPU", ["DAC_OVERRIDE"]), (0, "2xCPU", ["DAC_OVERRIDE", *SSHDS]), (1000, "2xCPU", [])],
)
def test_root_keeps_the_capabilities_that_its_job_needs(tmp_path: Path, uid: int, system: str, kept: list[str]) -> None:
    """That a job of several nodes runs with these, tests/cluster/test_mpirun.py shows."""
    jobs.script(tmp_path / "id", f"#!/bin/sh\necho {uid}\n")
    job = {"CONT": "img", "DGXSYSTEM": system, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = printed("launch/container_node.sh", "--dry-run", **job).split()
    assert ("--cap-drop ALL" in " ".join(words)) == (uid == 0)
    assert [after for word, after in itertools.pairwise(words) if word == "--cap-add"] == kept


@pytest.mark.parametrize(
    ("engine", "gpus"), [("docker", "--gpus all"), ("podman", "--device nvidia.com/gpu=all"), ("apptainer", "--nv")]
)
def test_each_engine_is_given_the_same_job(engine: str, gpus: str) -> None:
    """Of Apptainer, which the tests' package sources lack, and of GPUs the words alone are seen."""
    job = {"DGXSYSTEM": "2xDGXA100", "ENGINE": engine, "CONT": "img", "LOGDIR": "/logs", "DATADIR": "/data"}
    done = launch("launch/mpirun.sh", "--hosts", "a,b", "--dry-run", **job)
    assert done.returncode == 0, done.stderr
    runs = [shlex.split(line.split(" on_host ")[1]) for line in done.stdout.splitlines() if line.startswith("node ")]
    assert [words[0] for words in runs] == [engine] * 2
    for rank, (_, container, logs, program, *words) in enumerate(runs):
        assert (bool(container), logs, program) == (engine != "apptainer", "/logs", engine)
        assert gpus in " ".join(words) and words[-1] == "./run_and_time.sh"
        mounts = [word.removeprefix("--mount=type=bind,") for word in words if word.startswith("--mount=")]
        key = "src={JOB_KEY},dst=/run/job_key,ro"
        assert mounts == ["src=/logs,dst=/logs", "src=/data,dst=/data,ro", key]
        told = {word.removeprefix("--env=") for word in words}
        assert {"HOSTS=a,b", f"NODE_RANK={rank}", "DATADIR=/data", "JOB_KEY=/run/job_key"} <= told


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", "enroot"])
def test_a_path_that_no_mount_can_name_is_refused(engine: str) -> None:
    command = "launch/slurm.sub" if engine == "enroot" else "launch/container_node.sh"
    job = {"DGXSYSTEM": "CPU", "HOSTS": "a", "ENGINE": engine, "CONT": "/img", "LOGDIR": "/logs"}
    for name in ("DATADIR", "LOGDIR"):
        done = launch(command, "--dry-run", **{**job, name: "/data,2012"})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: /data,2012: a path with a comma or a ")


INSTEAD = (" --check", " --fleet", " --acceptance --short")


@pytest.mark.parametrize(
    ("command", "variables", "lines", "asked"),
    [
        (("launch/container_node.sh",), {"CONT": "img"}, 1, ("", *INSTEAD)),
        (("launch/mpirun.sh", "--hosts", "a,b"), {"CONT": "img", "DGXSYSTEM": "2xCPU"}, 2, ("", *INSTEAD)),
        (("launch/mpirun.sh", "--hosts", "a,b", "--no-container"), {"DGXSYSTEM": "2xCPU"}, 2, INSTEAD[2:]),
        (("launch/slurm.sub",), {"CONT": "img", "DGXSYSTEM": "2xCPU", "HOSTS": "a,b"}, 2, ("", *INSTEAD)),
        (("launch/slurm.sub",), {"DGXSYSTEM": "2xCPU", "HOSTS": "a,b"}, 1, INSTEAD[2:]),
    ],
    ids=["docker", "mpirun", "bare", "slurm", "slurm-bare"],
)
def test_every_launcher_starts_the_doctor_and_the_acceptance_too(
    command: tuple[str, ...], variables: dict[str, str], lines: int, asked: tuple[str, ...]
) -> None:
    for instead in asked:
        done = launch(*command, *instead.split(), "--dry-run", **variables)
        assert done.returncode == 0, done.stderr
        ends = [line.rstrip() for line in done.stdout.splitlines() if "run_and_time.sh" in line]
        for words in INSTEAD:
            assert sum(end.endswith(words) for end in ends) == (lines if words == instead else 0), done.stdout


@pytest.mark.parametrize(
    ("command", "variables", "form"),
    [
        (("launch/container_node.sh",), {"CONT": "img"}, "--env={}={}"),
        (("launch/mpirun.sh", "--hosts", "a,b"), {"CONT": "img", "DGXSYSTEM": "2xCPU"}, "--env={}={}"),
        (("launch/mpirun.sh", "--hosts", "a,b", "--no-container"), {"DGXSYSTEM": "2xCPU"}, "{}={}"),
        (("./run_and_time.sh",), {}, "-x {}"),
    ],
    ids=["docker", "mpirun", "bare", "ranks"],
)
def test_settings_of_libraries_go_with_the_job_and_those_of_a_nodes_gpus_do_not(
    command: tuple[str, ...], variables: dict[str, str], form: str
) -> None:
    libraries = {
        "NCCL_DEBUG": "INFO",
        "UCX_TLS": "rc",
        "FLAGS_check_nan_inf": "1",
        "OMP_NUM_THREADS": "3",
        "MKL_DEBUG_CPU_TYPE": "5",
        "NVIDIA_TF32_OVERRIDE": "0",
    }
    of_the_node = {"NVIDIA_VISIBLE_DEVICES": "3", "NVIDIA_DRIVER_CAPABILITIES": "all", "NVIDIA_REQUIRE_CUDA": "cuda>=8"}
    secrets = {"NCCL_NET_SECRET": "s3cr3t", "OMPI_MCA_x_password": "s3cr3t", "HF_TOKEN": "s3cr3t"}
    stdout = printed(*command, "--dry-run", **variables, **libraries, **of_the_node, **secrets)
    for name, value in libraries.items():
        assert f" {form.format(name, value)} " in stdout, name
    assert not [word for word in (*of_the_node, *secrets, "s3cr3t") if word in stdout]


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (("--check",), {}, os.access("/proc/sys/vm/drop_caches", os.W_OK)),  # the doctor judges what could be done
        (("--check",), {"CLEAR_CACHES": "0"}, False),
        (("--acceptance",), {}, False),
        (("--acceptance", "--short"), {}, False),
        ((), {"CLEAR_CACHES": "0"}, False),
    ],
    ids=["check", "check-unasked", "acceptance", "short", "unasked"],
)
def test_a_container_is_told_of_a_flush_only_where_there_is_one(
    tmp_path: Path, arguments: tuple[str, ...], variables: dict[str, str], said: bool
) -> None:
    """A docker that prints its words stands in."""
    jobs.script(tmp_path / "docker", '#!/bin/sh\necho "$@"\n')
    path = f"{tmp_path}:{os.environ['PATH']}"
    stdout = printed("launch/container_node.sh", *arguments, CONT="img", LOGDIR=str(tmp_path), PATH=path, **variables)
    (line,) = (line for line in stdout.splitlines() if line.startswith("run "))
    assert ("CACHE_CLEARED=launch/container_node.sh" in line) == said


def test_each_host_runs_its_part_with_the_key_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    """A shell on this machine stands in for ssh, and a script that ends with its rank for a host's run_and_time.sh."""
    shell = jobs.local_ssh(tmp_path / "shell")
    jobs.script(
        tmp_path / "run_and_time.sh",
        "#!/usr/bin/env bash\n"
        'ssh-keygen -y -f "${JOB_KEY}" >/dev/null || exit 1\n'
        'echo "rank ${NODE_RANK} of ${DGXNNODES}: ${JOB_KEY} ${BATCHSIZE} $(umask)"\n'
        "((NODE_RANK > 0)) || { touch first; exit 0; }\n"
        "until [[ -e first ]]; do sleep 0.1; done; exit 3\n",  # a node that fails ends the others
    )
    command = ("launch/mpirun.sh", "--hosts", "a,b", "--no-container", "--workdir", str(tmp_path), "--ssh", str(shell))
    done = launch(*command, BATCHSIZE="8", DGXSYSTEM="2xCPU", LOGDIR=str(tmp_path / "logs"))
    mask = jobs.run(["bash", "-c", "umask"]).stdout.strip()
    found = re.findall(rf"^(?:\[b\] )?rank (\d) of 2: (\S+) 8 {mask}$", done.stdout, re.M)
    assert sorted(rank for rank, _ in found) == ["0", "1"], done.stdout + done.stderr
    assert not [key for _, key in found if Path(key).exists() or Path(key).parent.exists()]
    assert done.returncode == 3
    assert "mpirun.sh: node 1 (b) ended with status 3" in done.stderr


def test_a_spare_takes_the_place_of_a_host_that_is_lost(tmp_path: Path) -> None:
    """A shell stands in for ssh. Host b dies, spare c cannot be reached, d comes; then a is lost."""
    shell = jobs.local_ssh(tmp_path / "shell", unless='[[ "$*" == *" c bash"* ]]')
    jobs.script(
        tmp_path / "run_and_time.sh",
        "#!/usr/bin/env bash\n"
        "[[ ${HOSTS} != a,c ]] || exec sleep 60\n"
        'echo "attempt ${HOSTS} rank ${NODE_RANK} keep ${KEEP_TRIALS:-0}"\n'
        'case "${HOSTS}:${NODE_RANK}" in\n'
        "  a,b:1) exit 137 ;;\n"
        "  a,b:0) sleep 1; echo 'nodes: node 1 (b) was lost; the job ends' >&2; exit 1 ;;\n"
        "  a,d:0) exit 255 ;;\n"
        "  a,d:1) exec sleep 60 ;;\n"
        "esac\n",
    )
    command = ("launch/mpirun.sh", "--hosts", "a,b", "--no-container", "--workdir", str(tmp_path), "--ssh", str(shell))
    job = {"DGXSYSTEM": "2xCPU", "LOGDIR": str(tmp_path / "logs"), "ON_FAILURE": "go_on"}
    done = launch(*command, **job, SPARES="c,d,e")
    assert done.returncode == 0, done.stdout + done.stderr
    attempts = dict(re.findall(r"attempt (\S+) rank 0 keep (\d)", done.stdout))
    assert attempts == {"a,b": "0", "a,d": "1", "e,d": "1"}
    places = re.findall(r"node (\d): (\w) takes the place of (\w)", done.stderr)
    assert places == [("1", "c", "b"), ("1", "d", "c"), ("0", "e", "a")]
    assert launch(*command, **job, SPARES="c").returncode == 255, "none is left"
    refused = launch(*command, **{**job, "ON_FAILURE": "stop"}, SPARES="c")
    assert (refused.returncode, refused.stderr) == (2, "error: SPARES=c needs ON_FAILURE=go_on\n")


@pytest.mark.parametrize(
    ("command", "environment", "message"),
    [
        (("launch/mpirun.sh",), {}, "which hosts?"),
        (("launch/mpirun.sh", "--hosts", "a,b,a"), {"CONT": "img"}, "named more than once: a"),
        (("launch/mpirun.sh", "--hosts", "a,b"), {}, "set CONT"),
        (("launch/mpirun.sh", "--hosts"), {}, "--hosts needs a value"),
        (("launch/mpirun.sh", "--hosts", "a,b", "--workdir"), {}, "--workdir needs a value"),
        (("launch/mpirun.sh", "--hosts", "/no/such/file"), {}, "host '/no/such/file': must be a name"),
        (("launch/mpirun.sh", "--hosts", "-oProxyCommand=x,b"), {}, "host '-oProxyCommand=x': must be a name"),
        (("launch/mpirun.sh", "--hosts", "a,,b"), {}, "host '': must be a name"),
        (("launch/mpirun.sh", "--hosts", "a:22,fe80::1"), {}, "a port or a user belongs into ~/.ssh/config"),
        (("launch/mpirun.sh", "--hosts", "a"), {"SPARES": "-x", "ON_FAILURE": "go_on"}, "host '-x': must be a name"),
        (("launch/mpirun.sh", "--hosts", "a", "--fleet", "--check"), {"CONT": "img"}, "give --check, or --fleet"),
        (("launch/container_node.sh",), {}, "set CONT"),
        (("launch/container_node.sh",), {"CONT": "img", "DGXSYSTEM": "Nope"}, "no config_Nope.sh"),
        (("launch/container_node.sh",), {"CONT": "img", "ENGINE": "enroot"}, "one of docker podman apptainer"),
        (("launch/container_node.sh",), {"CONT": "/no.sif", "ENGINE": "apptainer"}, "apptainer is missing"),
        (("launch/build_image.sh",), {"ENGINE": "apptainer"}, "ENGINE=apptainer: must be one of docker podman"),
        (
            ("launch/build_image.sh",),
            {"CUDA": "12"},
            "CUDA=12: locks/run12.lock is not here: make it by launch/lock.sh",
        ),
        (("launch/lock.sh", "cuda12"), {}, "cuda12 needs --index URL, Paddle's own index for CUDA 12"),
        (("launch/slurm.sub",), {}, "this is for sbatch"),
        (("launch/build_image.sh", "--ca", "/dev/null"), {}, "not a PEM file"),
        (("launch/base_image.sh", "--nope"), {}, "unknown argument"),
        ((*NODES, "lead", "true"), {"DGXNNODES": "2", "DGXNGPU": "1"}, "needs HOSTS"),
        ((*NODES, "lead", "true"), {"DGXNNODES": "2", "HOSTS": "a,b,a"}, "HOSTS names a more than once"),
        ((*NODES, "lead", "true"), {"DGXNNODES": "3", "DGXNGPU": "1", "HOSTS": "a,b"}, "HOSTS names 2"),
        (
            (*NODES, "serve"),
            {"DGXNNODES": "2", "HOSTS": "a,b", "NODE_RANK": "2"},
            "NODE_RANK=2: must be below DGXNNODES=2",
        ),
        ((*NODES, "serve"), {"DGXNNODES": "2", "DGXNGPU": "1", "HOSTS": "a,b"}, "needs JOB_KEY"),
    ],
)
def test_wrong_use_is_one_line_and_2(command: tuple[str, ...], environment: dict[str, str], message: str) -> None:
    done = launch(*command, **environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_hostfile_may_have_comments_and_the_line_ends_of_windows(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_bytes(b"# ours\r\n\r\nnode1 slots=8 # first\r\nnode2\r\n")
    done = launch("launch/mpirun.sh", "--hosts", str(hosts), "--no-container", "--dry-run", DGXSYSTEM="2xCPU")
    assert done.returncode == 0, done.stderr
    assert resolved(done.stdout)["HOSTS"]["value"] == "node1,node2"


def test_a_rank_is_bound_to_its_numa_node() -> None:
    program = ("python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))")
    done = launch("launch/bind.sh", *program, RANK_NUMA="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
    node = Path("/sys/devices/system/node/node0/cpulist")
    need(node.is_file(), "the kernel tells no NUMA nodes")
    cores = node.read_text().strip()
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
    assert {*first, *other} <= set(env.names())
    assert first["DGXSYSTEM"].startswith(f"{nodes}x")
    assert first["NODE_RANK"] == "0" and other["NODE_RANK"] is None
    for pod in pods:
        mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        devices = pod["containers"][0]["resources"]["limits"]
        assert any(name.startswith("rdma/") for name in devices), "NCCL goes by InfiniBand"
        assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert first["JOB_KEY"].startswith(spec["sshAuthMountPath"])


def fleet_on_hosts(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """launch/mpirun.sh --fleet on hosts that are this machine's shell; `lost` is not reached. Each runs a stand-in."""
    shell = jobs.local_ssh(folder / "ssh", unless='[[ "$*" == *" lost "* ]]')
    jobs.script(
        folder / "run_and_time.sh",
        f"#!/bin/sh\nexport -p >{folder}/job$NODE_RANK\n[ $NODE_RANK = 0 ] || exit 0\n"
        'echo "left out  b"\necho "good      a,c,d"\nexit 1\n',
    )
    hosts = folder / "fleet"
    hosts.write_text("a slots=8\nlost\nb # one\nc\nd\n")
    bare = ("--no-container", "--workdir", str(folder), "--ssh", str(shell))
    return launch("launch/mpirun.sh", "--hosts", str(hosts), *bare, *arguments, LOGDIR=str(folder), DGXSYSTEM="2xCPU")


def test_a_fleet_ends_in_a_hostfile_and_its_spares(tmp_path: Path) -> None:
    written, topology = tmp_path / "hosts", tmp_path / "topology"
    topology.write_text("lost s1\na s1\nb s1\nc s2\nd s2\n")
    done = fleet_on_hosts(
        tmp_path,
        *("--fleet", "--write-hosts", str(written), "--nodes", "2"),
        *("--topology", str(topology), "--baseline", str(tmp_path / "then.json")),
    )
    assert "failed    lost: not reached by ssh" in done.stdout
    assert done.returncode == 1, done.stderr
    assert written.read_text() == "a\nc\n"
    assert written.with_name("hosts.spares").read_text() == "d\n"
    job = (tmp_path / "job0").read_text()
    assert "HOSTS='a,b,c,d'" in job and "SWITCH_GROUPS='s1,s1,s2,s2'" in job and "DGXNNODES='4'" in job
    assert f"FLEET_BASELINE='{tmp_path}/then.json'" in job
    fleet_on_hosts(tmp_path, "--fleet", "--write-hosts", str(written))
    assert written.read_text() == "a\nc\nd\n"
    assert written.with_name("hosts.spares").read_text() == ""


def test_what_a_fleet_alone_has_is_refused_elsewhere(tmp_path: Path) -> None:
    done = fleet_on_hosts(tmp_path, "--check", "--write-hosts", str(tmp_path / "hosts"))
    said = "error: --write-hosts, --nodes, --topology and --baseline go with --fleet\n"
    assert (done.returncode, done.stderr) == (2, said)
    done = fleet_on_hosts(tmp_path, "--fleet", "--nodes", "0")
    assert (done.returncode, done.stderr) == (2, "error: --nodes 0: must be a whole number from 1\n")
    written = ("--write-hosts", str(tmp_path / "hosts"))
    for arguments, said in (
        (("--nodes", "2"), "--nodes goes with --write-hosts"),
        ((*written, "--nodes", "6"), "--nodes 6: there are 5 hosts"),
        (("--topology", "/none"), "--topology /none: not a readable file"),
        (("--write-hosts", "/none/hosts"), "--write-hosts /none/hosts: cannot be written"),
    ):
        done = fleet_on_hosts(tmp_path, "--fleet", *arguments)
        assert (done.returncode, done.stderr) == (2, f"error: {said}\n")
    done = fleet_on_hosts(tmp_path, "--fleet", *written, "--nodes", "4")
    assert done.returncode == 1 and "4 nodes are wanted, 3 are good" in done.stderr
