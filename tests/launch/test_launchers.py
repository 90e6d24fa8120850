"""The launchers without a cluster: what --dry-run prints, wrong use, their times, and the manifest's schema."""

import hashlib
import itertools
import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.job import names
from launch.times import TIMES
from tests import jobs
from tests.jobs import printed, refused, resolved
from tests.json_schema import Draft202012Validator
from tests.launch.test_nodes import NODES

LAUNCH = jobs.REPOSITORY / "launch"
SCHEMA = json.loads(Path(__file__).with_name("mpijob_schema.json").read_text())
TYPES = ("string", "integer", "boolean")
MPIRUN = ("launch/mpirun.sh", "--hosts", "a,b")
CPUS = {"DGXSYSTEM": "2xCPU"}
LAUNCHERS = {
    "docker": (("launch/container_node.sh",), {"CONT": "img"}),
    "mpirun": (MPIRUN, {**CPUS, "CONT": "img"}),
    "bare": ((*MPIRUN, "--no-container"), CPUS),
    "slurm": (("launch/slurm.sub",), {**CPUS, "CONT": "img", "HOSTS": "a,b"}),
    "slurm-bare": (("launch/slurm.sub",), {**CPUS, "HOSTS": "a,b"}),
    "ranks": (("./run_and_time.sh",), {}),
}


@pytest.mark.parametrize(
    ("launcher", "engine", "gpus"),
    [
        ("mpirun", "docker", "--gpus all"),
        ("mpirun", "podman", "--device nvidia.com/gpu=all"),
        ("mpirun", "apptainer", "--nv"),
        ("slurm", "docker", "--gpus all"),
    ],
)
def test_each_engine_is_given_the_same_job_on_each_node(launcher: str, engine: str, gpus: str) -> None:
    """Of Apptainer, which the tests' package sources lack, and of GPUs the words alone are seen."""
    command, variables = LAUNCHERS[launcher]
    job = {**variables, "DGXSYSTEM": "2xDGX1", "ENGINE": engine, "LOGDIR": "/logs", "DATADIR": "/data"}
    stdout = printed(*command, "--dry-run", **job, BATCHSIZE="64")
    runs = re.findall(rf"\b{engine} (?:run|exec) .*", stdout)
    assert len(runs) == 2
    options = ["--shm-size 8g", "--ulimit memlock=-1", "--device /dev/infiniband", "--read-only"]
    for rank, run in enumerate(runs):
        words = shlex.split(run)
        line = " ".join(words)
        assert words[-1] == "./run_and_time.sh" and gpus in line
        assert [option for option in options if option in line] == (options if engine != "apptainer" else [])
        mounts = [word.removeprefix("--mount=type=bind,") for word in words if word.startswith("--mount=")]
        assert mounts[:2] == ["src=/logs,dst=/logs", "src=/data,dst=/data,ro"]
        assert re.fullmatch(r"src=(\{JOB_KEY\}|/logs/.job_key_0),dst=/run/job_key,ro", mounts[2])
        told = {word.removeprefix("--env=") for word in words}
        assert {"HOSTS=a,b", f"NODE_RANK={rank}", "BATCHSIZE=64", "DATADIR=/data", "JOB_KEY=/run/job_key"} <= told
    for on_host, container, logs in re.findall(r" on_host (\S+) (\S+) (\S+) ", stdout):
        assert (on_host, container == "''", logs) == (engine, engine == "apptainer", "/logs")
    values = resolved(stdout)
    assert values["BATCHSIZE"] == {"value": 64, "origin": "environment"}
    assert values["PRECISION"] == {"value": "amp_o2", "origin": "config_2xDGX1.sh"}
    assert values["DGXNNODES"]["value"] == 2


ROOTS, SSHDS = ["DAC_OVERRIDE"], ["SETUID", "SETGID", "SYS_CHROOT"]


@pytest.mark.parametrize(
    ("uid", "variables", "network", "kept"),
    [
        (0, {}, "none", ROOTS),  # nobody reaches what listens in it
        (0, {"DGXSYSTEM": "2xDGX1"}, "host", ROOTS + SSHDS),
        (1000, {"DGXSYSTEM": "2xCPU"}, "host", []),
        (1000, {"CONT_NETWORK": "host"}, "host", []),
        (1000, {"CONT_NETWORK": "jobs", "CONT_HOST": "a"}, "jobs", []),
    ],
)
def test_a_container_has_the_network_and_roots_capabilities_that_its_job_needs(
    tmp_path: Path, uid: int, variables: dict[str, str], network: str, kept: list[str]
) -> None:
    """That a job of several nodes runs with these, tests/cluster/test_mpirun.py shows."""
    jobs.script(tmp_path / "id", f"#!/bin/sh\necho {uid}\n")
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = printed("launch/container_node.sh", "--dry-run", CONT="img", PATH=path, **variables).split()
    options = [pair for pair in itertools.pairwise(words) if pair[0].startswith(("--network", "--cap-"))]
    alias = [("--network-alias", "a")] if network == "jobs" else []
    dropped = [("--cap-drop", "ALL")] if uid == 0 else []
    assert options == [("--network", network), *dropped, *(("--cap-add", name) for name in kept), *alias]


INSTEAD = (" --check", " --fleet", " --acceptance --short")


@pytest.mark.parametrize(
    ("launcher", "lines", "asked"),
    [
        ("docker", 1, ("", *INSTEAD)),
        ("mpirun", 2, ("", *INSTEAD)),
        ("bare", 2, INSTEAD[2:]),
        ("slurm", 2, ("", *INSTEAD)),
        ("slurm-bare", 1, INSTEAD[2:]),
    ],
)
def test_every_launcher_starts_the_doctor_and_the_acceptance_too(
    launcher: str, lines: int, asked: tuple[str, ...]
) -> None:
    command, variables = LAUNCHERS[launcher]
    for instead in asked:
        stdout = printed(*command, *reversed(instead.split()), "--dry-run", **variables)  # in any order
        ends = [line.rstrip() for line in stdout.splitlines() if "run_and_time.sh" in line]
        for words in INSTEAD:
            assert sum(end.endswith(words) for end in ends) == (lines if words == instead else 0), stdout


@pytest.mark.parametrize(
    ("launcher", "form"), [("docker", "--env={}={}"), ("mpirun", "--env={}={}"), ("bare", "{}={}"), ("ranks", "-x {}")]
)
def test_settings_of_libraries_go_with_the_job_and_those_of_a_nodes_gpus_do_not(launcher: str, form: str) -> None:
    command, variables = LAUNCHERS[launcher]
    libraries = {"NCCL_DEBUG": "INFO", "UCX_TLS": "rc", "FLAGS_check_nan_inf": "1"}
    libraries |= {"OMP_NUM_THREADS": "3", "MKL_DEBUG_CPU_TYPE": "5", "NVIDIA_TF32_OVERRIDE": "0"}
    of_the_node = {"NVIDIA_VISIBLE_DEVICES": "3", "NVIDIA_DRIVER_CAPABILITIES": "all", "NVIDIA_REQUIRE_CUDA": "cuda>=8"}
    secrets = {"NCCL_NET_SECRET": "s3cr3t", "OMPI_MCA_x_password": "s3cr3t", "HF_TOKEN": "s3cr3t"}
    stdout = printed(*command, "--dry-run", **variables, **libraries, **of_the_node, **secrets)
    for name, value in libraries.items():
        assert f" {form.format(name, value)} " in stdout, name
    assert not [word for word in (*of_the_node, *secrets, "s3cr3t") if word in stdout]


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_roots_container_can_flush_the_hosts_page_cache(tmp_path: Path, engine: str) -> None:
    """An Apptainer container has its host's /proc."""
    jobs.script(tmp_path / engine, "#!/bin/sh\n")
    job = {"CONT": "img", "ENGINE": engine, "LOGDIR": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    stdout = printed("launch/container_node.sh", "--dry-run", **job)
    may_flush = os.access("/proc/sys/vm/drop_caches", os.W_OK)
    assert ("dst=/run/drop_caches" in stdout) == (may_flush and engine != "apptainer")


def on_hosts(folder: Path, script: str, hosts: str = "a,b", *, unless: str = "false") -> Callable[..., Any]:
    """launch/mpirun.sh on hosts that are this machine's shell, without its options; `script` stands in for each job."""
    shell = jobs.local_ssh(folder / "shell", unless=unless)
    jobs.script(folder / "run_and_time.sh", f"#!/usr/bin/env bash\n{script}")
    bare = ("--no-container", "--workdir", str(folder), "--ssh", str(shell))
    job: dict[str, Any] = {**CPUS, "LOGDIR": str(folder / "logs")}
    return lambda *options, **more: jobs.run(["launch/mpirun.sh", "--hosts", hosts, *bare, *options], **job, **more)


def test_each_host_runs_its_part_with_the_key_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    """The script ends with its rank."""
    start = on_hosts(
        tmp_path,
        'ssh-keygen -y -f "${JOB_KEY}" >/dev/null || exit 1\n'
        'echo "rank ${NODE_RANK} of ${DGXNNODES}: ${JOB_KEY} ${BATCHSIZE} $(umask)"\n'
        "((NODE_RANK > 0)) || { touch first; exit 0; }\n"
        "until [[ -e first ]]; do sleep 0.1; done; exit 3\n",  # a node that fails ends the others
    )
    done = start(BATCHSIZE="8")
    mask = jobs.run(["bash", "-c", "umask"]).stdout.strip()
    found = re.findall(rf"^(?:\[b\] )?rank (\d) of 2: (\S+) 8 {mask}$", done.stdout, re.M)
    assert sorted(rank for rank, _ in found) == ["0", "1"], done.stdout + done.stderr
    assert not [key for _, key in found if Path(key).exists() or Path(key).parent.exists()]
    assert done.returncode == 3
    assert "mpirun.sh: node 1 (b) ended with status 3" in done.stderr


@pytest.mark.slow
@pytest.mark.ci
def test_a_spare_takes_the_place_of_a_host_that_is_lost(tmp_path: Path) -> None:
    """Host b dies, spare c cannot be reached, d comes; then a is lost."""
    start = on_hosts(
        tmp_path,
        "[[ ${HOSTS} != a,c ]] || exec sleep 60\n"
        'echo "attempt ${HOSTS} rank ${NODE_RANK} keep ${KEEP_TRIALS:-0}"\n'
        'case "${HOSTS}:${NODE_RANK}" in\n'
        "  a,b:1) exit 137 ;;\n"
        "  a,b:0) sleep 1; echo 'nodes: node 1 (b) was lost; the job ends' >&2; exit 1 ;;\n"
        "  a,d:0) exit 255 ;;\n"
        "  a,d:1) exec sleep 60 ;;\n"
        "esac\n",
        unless='[[ "$*" == *" c bash"* ]]',
    )
    done = start(ON_FAILURE="go_on", SPARES="c,d,e")
    assert done.returncode == 0, done.stdout + done.stderr
    attempts = dict(re.findall(r"attempt (\S+) rank 0 keep (\d)", done.stdout))
    assert attempts == {"a,b": "0", "a,d": "1", "e,d": "1"}
    places = re.findall(r"node (\d): (\w) takes the place of (\w)", done.stderr)
    assert places == [("1", "c", "b"), ("1", "d", "c"), ("0", "e", "a")]
    assert start(ON_FAILURE="go_on", SPARES="c").returncode == 255, "none is left"
    refused(start(ON_FAILURE="stop", SPARES="c"), "error: SPARES=c needs ON_FAILURE=go_on\n")


ENROOT = {"HOSTS": "a", "CONT": "/no.sqsh", "ENGINE": "enroot"}
JOB_OF_TWO = {"DGXNNODES": "2", "DGXNGPU": "1", "HOSTS": "a,b"}


@pytest.mark.parametrize(
    ("command", "variables", "said"),
    [
        ("mpirun.sh", {}, "which hosts?"),
        ("mpirun.sh --hosts a,b,a", {"CONT": "img"}, "named more than once: a"),
        ("mpirun.sh --hosts a,b", {}, "set CONT"),
        ("mpirun.sh --hosts", {}, "--hosts needs a value"),
        ("mpirun.sh --hosts a,b --work", {}, "unknown argument --work"),
        ("mpirun.sh --hosts /no/such/file", {}, "host /no/such/file: must be a name"),
        ("mpirun.sh --hosts -oProxyCommand=x,b", {}, "host -oProxyCommand=x: must be a name"),
        ("mpirun.sh --hosts a,,b", {}, "host '': must be a name"),
        ("mpirun.sh --hosts a:22,fe80::1", {}, "a port or a user belongs into ~/.ssh/config"),
        ("mpirun.sh --hosts a", {"SPARES": "-x", "ON_FAILURE": "go_on"}, "host -x: must be a name"),
        ("mpirun.sh --hosts a --fleet --check", {"CONT": "img"}, "give --check, or --fleet"),
        ("mpirun.sh --hosts a --check --write-hosts x", {"CONT": "img"}, "--topology and --baseline go with --fleet"),
        ("mpirun.sh --hosts a --fleet --nodes 0", {"CONT": "img"}, "--nodes 0: must be a whole number from 1"),
        ("mpirun.sh --hosts a --fleet --nodes 2", {"CONT": "img"}, "--nodes goes with --write-hosts"),
        ("mpirun.sh --hosts a --fleet --write-hosts x --nodes 6", {"CONT": "img"}, "--nodes 6: there are 1 hosts"),
        ("mpirun.sh --hosts a --fleet --topology /x", {"CONT": "img"}, "--topology /x: not a readable file"),
        ("mpirun.sh --hosts a --fleet --write-hosts /x/y", {"CONT": "img"}, "--write-hosts /x/y: cannot be written"),
        ("mpirun.sh --hosts a --fleet --write-hosts x --baseline x", {"CONT": "img"}, "would write over --baseline "),
        ("mpirun.sh --hosts a --fleet --write-hosts x --baseline x.spares", {"CONT": "img"}, "over --baseline "),
        ("container_node.sh", {}, "set CONT"),
        ("container_node.sh", {"CONT": "img", "DGXSYSTEM": "Nope"}, "no config_Nope.sh"),
        ("container_node.sh", {"CONT": "img", "ENGINE": "enroot"}, "one of docker podman apptainer"),
        ("container_node.sh", {"CONT": "/no.sif", "ENGINE": "apptainer"}, "apptainer is missing"),
        ("container_node.sh --dry-run", {"CONT": "img", "DATADIR": "/a,b"}, "/a,b: a path with a comma or a quote"),
        ("container_node.sh --dry-run", {"CONT": "img", "LOGDIR": '/a"b'}, '/a"b: a path with a comma or a quote'),
        ("build_image.sh", {"ENGINE": "apptainer"}, "ENGINE=apptainer: must be one of docker podman"),
        ("build_image.sh", {"CUDA": "13"}, "CUDA=13: must be 11 or 12, or unset"),
        ("build_image.sh", {"CUDA": "12"}, "CUDA=12: locks/run12.lock is not here: make it by launch/lock.sh"),
        ("build_image.sh --ca /dev/null", {}, "not a PEM file"),
        ("lock.sh cuda12", {}, "cuda12 needs --index URL, Paddle's own index for CUDA 12"),
        ("slurm.sub", {}, "this is for sbatch"),
        ("slurm.sub --dry-run", {**CPUS, "HOSTS": "a", "SLURM_HET_SIZE": "2"}, "the first of the job's 2 components"),
        ("slurm.sub --dry-run", {**ENROOT, "ENGINE": "pyxis"}, "must be one of docker podman apptainer enroot"),
        ("slurm.sub --dry-run", {**ENROOT, "DATADIR": "/a,b"}, "/a,b: a path with a comma or a colon"),
        ("slurm.sub --dry-run", {**ENROOT, "LOGDIR": "/a:b"}, "/a:b: a path with a comma or a colon"),
        ("slurm.sub --dry-run", {**ENROOT, "CONT": "paddle"}, "CONT=paddle: enroot would ask Docker Hub for it"),
        ("slurm.sub --dry-run", {**ENROOT, "CONT": "org/a:1"}, "'enroot import dockerd://org/a:1' makes, or REG"),
        ("slurm.sub --dry-run", {**ENROOT, "CONT": "docker://a"}, "'enroot import dockerd://a' makes, or REGISTRY"),
        ("slurm.sub", {**ENROOT, "SLURM_JOB_ID": "7"}, "CONT=/no.sqsh: no such file: make it by 'enroot import"),
        ("base_image.sh --nope", {}, "unknown argument"),
        ("nodes lead", {**JOB_OF_TWO, "HOSTS": ""}, "needs HOSTS"),
        ("nodes lead", {**JOB_OF_TWO, "HOSTS": "a,b,a"}, "HOSTS names a more than once"),
        ("nodes lead", {**JOB_OF_TWO, "DGXNNODES": "3"}, "HOSTS names 2 nodes, but DGXNNODES is 3"),
        ("nodes serve", {**JOB_OF_TWO, "NODE_RANK": "2"}, "NODE_RANK=2: must be below DGXNNODES=2"),
        ("nodes serve", JOB_OF_TWO, "needs JOB_KEY"),
    ],
)
def test_wrong_use_is_one_line_and_2(command: str, variables: dict[str, Any], said: str) -> None:
    script, *arguments = command.split()
    program = NODES if script == "nodes" else (f"launch/{script}",)
    refused(jobs.run([*program, *arguments], **variables), said)


def json_schema(known: Any) -> dict[str, Any]:
    """JSON Schema of what mpijob_schema.json says in fewer words."""
    if isinstance(known, str):
        return {"type": known} if known in TYPES else json_schema(SCHEMA[known])
    if isinstance(known, list):
        of_items = known[0] in TYPES or isinstance(known[0], dict)
        return {"type": "array", "items": json_schema(known[0])} if of_items else {"enum": known}
    fields = {name: json_schema(field) for name, field in known.items()}
    return {"type": "object", "additionalProperties": fields.pop("*", False), "properties": fields}


def wrong_fields(manifest: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(json_schema("schema")).iter_errors(manifest)]


def manifest() -> dict[str, Any]:
    return yaml.safe_load((LAUNCH / "mpijob.yaml").read_text())


def test_the_manifest_has_only_fields_of_the_operator() -> None:
    assert wrong_fields(manifest()) == []
    broken = manifest()
    broken["spec"]["slotPerWorker"] = 8
    broken["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = "1"
    assert len(wrong_fields(broken)) == 2


def test_the_manifests_parts_agree() -> None:
    spec = manifest()["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    pods = [replica["template"]["spec"] for replica in (launcher, worker)]
    first, other = ({e["name"]: e.get("value") for e in pod["containers"][0]["env"]} for pod in pods)
    nodes = int(first["DGXNNODES"])
    assert nodes == int(other["DGXNNODES"] or 0) == 1 + worker["replicas"]
    assert {*first, *other} <= set(names())
    assert first["DGXSYSTEM"].startswith(f"{nodes}x")
    assert first["NODE_RANK"] == "0" and other["NODE_RANK"] is None
    for pod in pods:
        mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        devices = pod["containers"][0]["resources"]["limits"]
        assert any(name.startswith("rdma/") for name in devices), "NCCL goes by InfiniBand"
        assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert first["JOB_KEY"].startswith(spec["sshAuthMountPath"])


def test_each_waits_longer_than_what_it_ends() -> None:
    (slurm,) = re.findall(r"^#SBATCH --signal=B:TERM@(\d+)$", (LAUNCH / "slurm.sub").read_text(), re.M)
    pods = [role["template"]["spec"] for role in manifest()["spec"]["mpiReplicaSpecs"].values()]
    (grace_s,) = {pod["terminationGracePeriodSeconds"] for pod in pods}
    by_name = [TIMES[f"{name}_END_S"] for name in ("JOB", "CONTAINER", "HOST")]
    outwards = [TIMES["LAST_WINDOW_S"] + TIMES["MPIRUN_END_S"], *by_name, int(grace_s), int(slurm)]
    assert outwards == sorted(set(outwards))
    assert TIMES["ACCEPTANCE_LAST_START_S"] < TIMES["ACCEPTANCE_END_S"] == 15 * 60


def test_no_script_but_common_sh_has_a_time_of_its_own() -> None:
    """Fixed pauses of a poll aside; the manifest and the SLURM directive are told in the table."""
    scripts = [path for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sub") and path.name != "common.sh"]
    for path in [*scripts, jobs.REPOSITORY / "run_and_time.sh"]:
        code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        own = re.findall(r'\b\w+_S=\d+|--time \d+|\bsleep "?(?:[2-9]|\d{2,})|Alive\w+=\d+', code)
        assert own == [], f"{path.name}: {own}"


@pytest.fixture
def fleet(tmp_path: Path) -> Callable[..., Any]:
    """launch/mpirun.sh on a hostfile of five hosts, as an editor of Windows writes it; `lost` is not reached."""
    (tmp_path / "fleet").write_bytes(b"\xef\xbb\xbfa slots=8 # first\r\nlost\r\nb # one\r\nc\r\nd\r\n")
    script = (
        f"export -p >{tmp_path}/job$NODE_RANK\n(( NODE_RANK == 0 )) || exit 0\n"
        'echo "left out  b"\necho "good      a,c,d"\nexit 1\n'
    )
    return on_hosts(tmp_path, script, str(tmp_path / "fleet"), unless='[[ "$*" == *" lost "* ]]')


def test_a_fleet_ends_in_a_hostfile_and_its_spares(fleet: Callable[..., Any], tmp_path: Path) -> None:
    written, topology = tmp_path / "hosts", tmp_path / "topology"
    topology.write_bytes(b"\xef\xbb\xbfa s1\r\nb s1\r\nc s2\r\nd s2\r\nlost s1\r\n")
    writing = ("--fleet", "--write-hosts", str(written))
    done = fleet(*writing, "--nodes", "2", "--topology", str(topology), "--baseline", str(tmp_path / "then.json"))
    assert "failed    lost: not reached by ssh" in done.stdout
    assert done.returncode == 1, done.stderr
    assert written.read_text() == "a\nc\n"
    assert written.with_name("hosts.spares").read_text() == "d\n"
    job = (tmp_path / "job0").read_text()
    told = {"HOSTS": "a,b,c,d", "SWITCH_GROUPS": "s1,s1,s2,s2", "DGXNNODES": "4"}
    for name, value in {**told, "FLEET_BASELINE": f"{tmp_path}/then.json"}.items():
        assert f'{name}="{value}"' in job
    fleet(*writing)
    assert (written.read_text(), written.with_name("hosts.spares").read_text()) == ("a\nc\nd\n", "")
    done = fleet(*writing, "--nodes", "4")
    assert done.returncode == 1 and "4 nodes are wanted, 3 are good" in done.stderr


# ---- launch/slurm.sub by pyxis and enroot, which the tests' package sources lack: a stand-in for srun has their ways
#
# By their documentation an image is a path where its name begins with a dot or a slash, else one of Docker Hub's unless
# its registry is named; a mount's source must exist; all of the job's environment is in the container; and the hook of
# enroot wants NVIDIA's tool unless NVIDIA_VISIBLE_DEVICES is void.

# Leaves its words and what the hook reads in TOLD; the command runs in IN_IMAGE, which stands for the image's folder.
SRUN = """#!/usr/bin/env bash
[[ $1 != --help ]] || exec echo "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH"
printf '%s\n' "NVIDIA_VISIBLE_DEVICES=${NVIDIA_VISIBLE_DEVICES}" "$@" >"${TOLD}"
until [[ $1 == bash ]]; do
  [[ $1 != --container-mounts ]] || for mount in ${2//,/ }; do [[ -e ${mount%%:*} ]] || exit 9; done
  shift
done
cd "${IN_IMAGE}" && exec env -u TOLD -u IN_IMAGE HOME=/proc/nowhere SLURM_NODEID=0 SLURM_PROCID=0 "$@"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """A node of a SLURM that has pyxis, in a job, and an image's file."""
    jobs.script(tmp_path / "srun", SRUN)
    jobs.script(tmp_path / "scontrol", f"#!/bin/sh\necho {socket.gethostname()}\n")
    (tmp_path / "img.sqsh").write_bytes(b"an image")
    inside = {"TOLD": str(tmp_path / "told"), "IN_IMAGE": str(tmp_path), "LOGDIR": str(tmp_path / "logs")}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_NODELIST": "n1"}
    slurm |= {"SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1"}  # by which mpirun would start its daemons
    return slurm | inside | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CONT": str(tmp_path / "img.sqsh")}


def submitted(cluster: dict[str, str], **variables: str | int) -> subprocess.CompletedProcess[str]:
    """The batch script, as SLURM runs it on the first node."""
    return jobs.run(["launch/slurm.sub"], **{**cluster, **jobs.TINY, **variables})


def test_a_job_of_one_node_runs_and_names_its_image(cluster: dict[str, str], standing_in: Path) -> None:
    logdir = Path(cluster["LOGDIR"])
    done = submitted(cluster, IN_IMAGE=str(standing_in))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    log = logdir / "CPU/rn50/result_0.txt"
    digest = f"sha256:{hashlib.sha256(b'an image').hexdigest()}"
    assert f'"IMAGE_DIGEST": {{"value": "{digest}"' in log.read_text()
    assert [path.name for path in logdir.iterdir()] == ["CPU"]
    assert Path(cluster["TOLD"]).read_text().startswith("NVIDIA_VISIBLE_DEVICES=void\n")


def test_a_registrys_image_is_asked_for_by_its_name_and_a_gpus_job_for_its_gpus(cluster: dict[str, str]) -> None:
    assert submitted(cluster, CONT="site.example#team/paddle:1", DGXSYSTEM="DGXA100").returncode != 0  # no job here
    devices, *words = Path(cluster["TOLD"]).read_text().splitlines()
    assert devices == "NVIDIA_VISIBLE_DEVICES=all"
    assert words[words.index("--container-image") + 1] == "site.example#team/paddle:1"


def test_a_dry_run_mounts_the_results_and_the_data(cluster: dict[str, str]) -> None:
    job = {"DGXSYSTEM": "2xCPU", "CONT": "/img.sqsh", "LOGDIR": "/logs", "DATADIR": "/data", "PATH": cluster["PATH"]}
    stdout = printed("launch/slurm.sub", "--dry-run", HOSTS="a,b", **job)
    (line,) = (line for line in stdout.splitlines() if line.startswith("srun "))
    words = shlex.split(line)
    assert words[words.index("--nodes") + 1] == "2"
    options = {word: words[words.index(word) + 1] for word in words if word.startswith("--container-")}
    assert options == {
        "--container-image": "/img.sqsh",
        "--container-mounts": "/logs:/logs,/data:/data:ro",
        "--container-workdir": "/workspace",
    }
    assert "--no-container-mount-home" in words and "docker" not in line
    values = resolved(stdout)
    assert values["HOSTS"]["value"] == "a,b" and values["LOGDIR"]["value"] == "/logs"
    by_docker = printed("launch/slurm.sub", "--dry-run", HOSTS="a,b", ENGINE="docker", **job)
    assert "docker run" in by_docker, "the engine is the user's choice"
