"""The image by itself: what is in it, what is not, the main job in one container, and one over several."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.hooks import checkpoint_file
from tests import jobs
from tests.cluster import containers
from tests.cluster.containers import GOLDEN_JOB, USER, build_image, buildkit_client, docker, facts, need, run
from tests.harness import small
from tools.acceptance import CHECKS
from tools.doctor.checks import CAPABILITIES

LIMIT_BYTES = 7.6e9
# A third epoch, so that the second one's checkpoint is whole: the end of a run below its target may cut one short.
SHORT_TRAINING = {**small.TRAINING, "MAX_EPOCHS": 3, "CHECKPOINT_EPOCHS": 2}


def in_image(image: str, script: str, *options: str) -> str:
    """Output of a shell script in the image, as root so that every file can be read."""
    return docker("run", "--rm", "--user", "0:0", *options, image, "bash", "-c", script)


def test_size_and_labels(image: str) -> None:
    found = facts(image)
    assert found["Size"] <= LIMIT_BYTES
    labels, commit = found["Config"]["Labels"], run("git", "rev-parse", "HEAD").stdout.strip()
    assert labels["org.opencontainers.image.revision"].startswith(commit)
    assert len(labels["locks.sha256"]) == 64
    assert found["Config"]["User"] not in ("", "root", "0")
    assert found["Config"]["Cmd"] == ["./run_and_time.sh"], "the default job needs no argument"
    environment = dict(pair.split("=", 1) for pair in found["Config"]["Env"])
    assert "NVIDIA_VISIBLE_DEVICES" not in environment, "who starts the container says which GPUs"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == CAPABILITIES


# Of every file its kind, mode, owner, size and path, but for those that Docker writes when a container starts.
LIST = (
    "find / -xdev ! -path /etc/resolv.conf ! -path /etc/hosts ! -path /etc/hostname "
    "\\( -type f -printf '%y %m %U:%G %s %p\\n' -o -printf '%y %m %U:%G %p %l\\n' \\)"
)


@pytest.mark.slow
def test_buildkit_builds_the_same_image(image: str) -> None:
    """The two builders copy files, set modes and write labels each by code of its own."""
    folder = buildkit_client()
    need(folder is not None, "no docker client here builds with BuildKit (buildx, or docker.io 20.10's own)")
    other = f"{image}-buildkit"
    try:
        build_image(other, DOCKER_BUILDKIT="1", PATH=f"{folder}:{os.environ['PATH']}")
        ours, theirs = facts(image), facts(other)
        for name in ("Labels", "Env", "User", "Cmd", "Entrypoint", "WorkingDir"):
            assert ours["Config"].get(name) == theirs["Config"].get(name), name
        assert theirs["Size"] <= LIMIT_BYTES
        classic, buildkit = (set(in_image(name, LIST).splitlines()) for name in (image, other))
        assert len(classic) > 10_000
        assert sorted(classic ^ buildkit)[:20] == []
    finally:
        run("docker", "image", "rm", "--force", other, check=False)


def test_a_change_of_the_code_makes_one_new_layer(image: str, tmp_path: Path) -> None:
    """So it is built in seconds: packages, 7.5 GB of the image, come from the builder's cache."""
    other, checkout = f"{image}-changed", tmp_path / "checkout"
    run("git", "clone", "--quiet", str(jobs.REPOSITORY), str(checkout))
    with (checkout / "harness/loop.py").open("a") as file:
        file.write("# changed\n")
    try:
        build_image(other, checkout=checkout, DOCKER_BUILDKIT="0")
        before, after = facts(image), facts(other)
        assert before["RootFS"]["Layers"][:-1] == after["RootFS"]["Layers"][:-1]
        assert before["RootFS"]["Layers"][-1] != after["RootFS"]["Layers"][-1]
        assert after["Config"]["Labels"]["org.opencontainers.image.revision"].endswith("-dirty")
    finally:
        run("docker", "image", "rm", "--force", other, check=False)


@pytest.mark.slow
def test_packages_come_from_the_index_that_was_given(image: str) -> None:
    """Nothing listens at this one, which pip's own message then says."""
    other, index = f"{image}-index", "http://127.0.0.1:9/simple"
    done = run("launch/build_image.sh", "--tag", other, "--index", index, check=False, DOCKER_BUILDKIT="0")
    assert done.returncode != 0
    assert "127.0.0.1" in done.stdout + done.stderr and "/simple/nvidia-" in done.stdout + done.stderr
    assert run("docker", "image", "inspect", other, check=False).returncode != 0


def test_nothing_is_left_open(image: str) -> None:
    writable = "find / -xdev \\( -type f -o -type d \\) -perm -o+w ! -path /tmp"
    assert in_image(image, f"{writable}; find / -xdev -type f -perm /6000") == ""
    passwords = in_image(image, "cut -d: -f2 /etc/shadow | sort -u").split()
    assert all(field[0] in "*!" for field in passwords), passwords
    keys = in_image(image, "ls /etc/ssh/ssh_host_* /root/.ssh/* /home/*/.ssh/* 2>/dev/null; true")
    assert keys == ""


def test_no_index_and_no_certificate_of_the_build_machine_is_left(image: str) -> None:
    places = "/build /workspace/.build /workspace/.venv/*.log /etc/pip.conf /root/.config/pip /etc/apt/sources.list*"
    assert in_image(image, f"ls -d {places} /usr/local/share/ca-certificates/* 2>/dev/null; true") == ""
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    assert "BEGIN CERTIFICATE" not in history
    assert "index-url" not in history
    assert in_image(image, "find /workspace -name pip.conf -o -name '*.crt' | grep -v site-packages; true") == ""


def test_nccl_starts_where_a_container_has_loopback_alone(image: str) -> None:
    """As the ranks of one node do, whatever the site's profile says of the network."""
    doctor = "cd /workspace && NCCL_SOCKET_IFNAME=^lo,docker DEVICE=gpu .venv/bin/python -m tools.doctor; true"
    said = in_image(image, doctor, "--network", "none")
    assert re.search(r"^ok +nccl\.start +meets on lo 127\.0\.0\.1; settings: none is set$", said, re.M), said


# Opens each by Paddle's own loader (phi/backends/dynload), and the runtime, which Paddle has built in, by its name.
CUDA_LIBRARIES = """
import ctypes, paddle, pathlib
phi = ctypes.CDLL(str(pathlib.Path(paddle.__file__).parent / "libs" / "libphi.so"))
for name in ("17GetCUDNN", "18GetCublas", "20GetCublasLt", "16GetNCCL", "17GetCUFFT", "18GetCurand", "20GetCusolver",
             "20GetCusparse", "17GetNVRTC", "17GetCUPTI", "16GetNvtx"):
    opener = getattr(phi, f"_ZN3phi7dynload{name}DsoHandleEv")
    opener.restype = ctypes.c_void_p
    assert opener(), name
ctypes.CDLL("libcudart.so.11.0")
print(pathlib.Path("/proc/self/maps").read_text())
"""


def test_paddle_opens_every_cuda_library(image: str) -> None:
    """Those of /opt/cuda, whose versions locks/cuda.lock has; needs no GPU."""
    maps = docker("run", "--rm", image, "/workspace/.venv/bin/python", "-W", "ignore", "-c", CUDA_LIBRARIES)
    files = {Path(word).name for word in maps.split() if word.startswith("/opt/cuda/")}
    wanted = {"libcudnn.so.8", "libcublas.so.11", "libnccl.so.2", "libcudart.so.11.0", "libcufft.so.10"}
    assert files >= wanted | {"libcurand.so.10", "libcusolver.so.11", "libcusparse.so.11"}
    assert "LD_LIBRARY_PATH" not in docker("image", "inspect", image)


@pytest.fixture(scope="module")
def trained_on_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Log of a short training of two ranks on this host; its data set lies beside it."""
    folder = tmp_path_factory.mktemp("host")
    data = small.data_set(folder / "data")
    done = small.train(folder / "result_0.txt", data, cwd=jobs.REPOSITORY, **SHORT_TRAINING)
    assert "below the target" in done.stderr, done.stderr[-2000:]  # it learns noise
    return folder / "result_0.txt"


def weights(log: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All that a checkpoint has: weights, momenta, each rank's BN statistics; position and configuration of the run."""
    return checkpoint_file.read(
        log.with_name("result_0.checkpoints") / f"step_{2 * small.STEPS_PER_EPOCH:09d}.safetensors"
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="plain", marks=pytest.mark.slow),
        pytest.param(("--read-only", "--tmpfs", "/tmp"), id="read-only"),
    ],
)
def test_losses_and_weights_are_the_hosts_under_any_user(
    image: str, trained_on_host: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Bit for bit, as it is one machine with one set of libraries and one thread a rank: no sum changes its order."""
    results = tmp_path / "results"
    results.mkdir()
    os.chown(results, USER, USER)
    environment = {**SHORT_TRAINING, "LOGDIR": "/results", "DATADIR": "/data"}
    done = run(
        *("docker", "run", "--rm", "--user", f"{USER}:{USER}", "--volume", f"{results}:/results", *options),
        *("--volume", f"{trained_on_host.parent / 'data'}:/data:ro"),
        *(word for name, value in environment.items() for word in ("--env", f"{name}={value}")),
        *(image, "./run_and_time.sh"),
        check=False,
    )
    assert (done.returncode, "below the target" in done.stderr) == (1, True), done.stderr[-2000:]
    log = results / "CPU" / "rn50" / "result_0.txt"
    assert log.stat().st_uid == USER
    assert len(jobs.losses(log)) == 3 * small.STEPS_PER_EPOCH
    assert jobs.losses(log) == jobs.losses(trained_on_host)
    (arrays, metadata), (expected, of_host) = weights(log), weights(trained_on_host)
    assert metadata == of_host
    assert arrays.keys() == expected.keys()
    assert [name for name in expected if not np.array_equal(arrays[name], expected[name])] == []


@pytest.mark.slow
def test_the_acceptance_runs_in_the_image(image: str, tmp_path: Path) -> None:
    """Losses and evaluation are the recorded ones (paddle_rn50/golden.json) in the container too."""
    done = run("launch/container_node.sh", "--acceptance", "--short", CONT=image, LOGDIR=str(tmp_path))
    unknown = sum(map(len, CHECKS.values())) - 6  # of FP32: losses, layout, pooling, evaluation, all-reduce, lars
    assert f"verdict   6 ok, 0 fatal, {unknown} unknown, in the short form" in done.stdout, done.stdout


def test_a_job_of_one_node_needs_no_network(image: str, tmp_path: Path) -> None:
    """Started by the launcher, the container has loopback alone, so that nobody reaches what listens in it."""
    run("launch/container_node.sh", CONT=image, LOGDIR=str(tmp_path), **GOLDEN_JOB)
    log = tmp_path / "CPU" / "rn50" / "result_0.txt"
    assert jobs.values(log, "run_summary")[0]["devices"] == 2
    (path,) = tmp_path.rglob("*.telemetry.jsonl")
    first, *_, last = (json.loads(line) for line in path.read_text().splitlines())
    sent, received = (last[name] - first[name] for name in ("network_sent_bytes", "network_received_bytes"))
    assert sent == received, "all that is sent comes back"


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_nodes_train_as_ranks_of_one_host_do(nodes: containers.Nodes, tmp_path: Path, count: int) -> None:
    """By `docker run` on each node, by hand."""
    job = {**GOLDEN_JOB, "BATCHSIZE": str(32 // count)}
    on_host = tmp_path / "host.txt"
    done = jobs.on_ranks(count, "-m", "harness", **job, RESULT_FILE=str(on_host))
    assert done.returncode == 0, done.stderr[-2000:]
    names = [nodes.start(rank, count, image=containers.IMAGE, **job) for rank in reversed(range(count))]
    assert [nodes.wait(name) for name in names] == [0] * count, nodes.output(names[-1])
    logs = list(nodes.logdir.rglob("result_*.txt"))
    assert logs == [nodes.log(count)]  # one log, by rank 0
    assert containers.devices_and_nodes(logs[0]) == (count, count)
    assert jobs.losses(logs[0]) == pytest.approx(jobs.losses(on_host), rel=1e-6)
