"""Wrong use of the user's own command and of each launch script: one line and status 2; and dry runs."""

import os
from pathlib import Path
from typing import Any

import pytest

from harness import describe
from tests import jobs
from tests.jobs import printed, refused

# ---- wrong use by the user's own command: exit 2, one line on stderr, nothing written

NO_GPU = "has 0 GPUs (NVML Shared Library Not Found): set it to fewer, or DEVICE=cpu"
RANKS = pytest.mark.xdist_group("ranks")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DGXSYSTEM": "DGX9"}, "error: DGXSYSTEM=DGX9: there is no config_DGX9.sh; there are: "),
        ({"DGXSYSTEM": "x" * 300}, "xxx.sh; there are: 2xCPU"),  # no name of a file is so long
        ({"DGXSYSTEM": "../x"}, "error: DGXSYSTEM=../x: is a path, must be the SYSTEM of a config_SYSTEM.sh in /"),
        ({"RECIPE": "adam"}, "error: RECIPE='adam': must be one of digits_small"),
        ({"PRECISION": "amp_o2"}, "error: PRECISION=amp_o2: a CPU has no kernels for it"),
        ({"STRATEGY": "fuse_all=1"}, "error: STRATEGY='fuse_all=1': no knob 'fuse_all': use auto alone, or knob="),
        ({"WORKLOAD": "bert"}, "error: WORKLOAD='bert': must be one of rn50"),
        ({"BATCHSIZE": 0}, "error: BATCHSIZE=0: must be at least 1"),
        ({"RECIPE": "mlperf_lars"}, "no reference convergence point for global batch 32"),
        ({"OSTYPE": "darwin22"}, "error: a job needs Linux with /proc, this is darwin22: "),  # as macOS' bash says it
        # Found by the ranks:
        pytest.param({"DATADIR": "/none"}, "DATADIR=/none: no such folder: set DATADIR to the folder", marks=RANKS),
        pytest.param({"DEVICE": "gpu", "DGXNGPU": 1}, NO_GPU, marks=RANKS),
        pytest.param({"DGXSYSTEM": "DGXA100", "DGXNGPU": 1}, NO_GPU, marks=RANKS),
        pytest.param({"BATCHSIZE": 800}, "1600 is larger than the training set of 1437 images: lower", marks=RANKS),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_wrong_use_is_one_line_and_leaves_nothing(tmp_path: Path, variables: dict[str, Any], message: str) -> None:
    refused(jobs.run_and_time(LOGDIR=str(tmp_path / "new"), **{**jobs.TINY, **variables}), message)
    assert not list(tmp_path.iterdir())


@pytest.mark.xdist_group("ranks")
def test_a_refusal_removes_no_folder_with_something_in_it(tmp_path: Path) -> None:
    notes = tmp_path / "CPU" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    refused(jobs.run_and_time(LOGDIR=str(tmp_path), DATADIR="/none", **jobs.TINY), "DATADIR=/none: no such folder")
    assert [path for path in tmp_path.rglob("*") if path != notes] == [notes.parent]


def test_a_result_is_never_overwritten(tmp_path: Path) -> None:
    result = tmp_path / "CPU" / "rn50" / "result_1.txt"
    result.parent.mkdir(parents=True)
    result.write_text("mine")
    done = jobs.run_and_time(LOGDIR=str(tmp_path), **{**jobs.TINY, "NEXP": 2})
    refused(done, "result_1.txt exists, results are never overwritten")
    assert result.read_text() == "mine"
    assert not result.with_name("result_0.txt").exists()


def test_a_dry_run_writes_nothing_and_says_all(tmp_path: Path) -> None:
    stdout = printed("./run_and_time.sh", "--dry-run", LOGDIR=str(tmp_path), NEXP="2", BATCHSIZE="8")
    assert '"origin": "environment"' in stdout
    assert f"trial 1: RESULT_FILE={tmp_path}/CPU/rn50/result_1.txt" in stdout
    assert "mpirun" in stdout
    assert not list(tmp_path.iterdir())


def test_a_dry_run_needs_no_package(tmp_path: Path) -> None:
    """Nor does it install one: any Python from 3.10 says what would run."""
    checkout = jobs.checkout(tmp_path / "checkout")
    (checkout / ".venv").unlink()
    done = jobs.run_and_time("--dry-run", cwd=checkout, LOGDIR=str(tmp_path / "logs"))
    assert done.returncode == 0 and "trial 0: RESULT_FILE=" in done.stdout, done.stderr
    assert not (checkout / ".venv").exists() and not (tmp_path / "logs").exists()


def test_paddle_is_told_of_no_gpu_but_each_ranks_own() -> None:
    """As a shell has it from Paddle's own launcher. The ranks but one ended with an error of Paddle's C++."""
    gpus: dict[str, Any] = {"DEVICE": "gpu", "FLAGS_selected_gpus": "0"}
    message = "FLAGS_selected_gpus=0: each rank computes on the GPU of its own number: unset it, and name the job's"
    refused(jobs.called(describe.main, "--shell", **gpus), message)
    refused(jobs.run_and_time("--dry-run", **gpus), message)
    other = gpus | {"DGXNGPU": 1, "FLAGS_selected_gpus": "3"}
    refused(jobs.called(describe.main, "--launch", **other), "FLAGS_selected_gpus=3: each rank")
    assert jobs.called(describe.main, "--shell", **gpus, DGXNGPU=1).returncode == 0
    assert jobs.called(describe.main, "--shell", **gpus | {"DEVICE": "cpu"}).returncode == 0


def test_paddles_onednn_is_refused_on_a_cpu() -> None:
    """It ended the run as oneDNN "could not create a primitive descriptor"; where it trains, it trains wrongly."""
    for value, is_refused in (("1", True), ("true", True), ("0", False), ("False", False), ("", False)):
        done = jobs.called(describe.main, "--launch", FLAGS_use_mkldnn=value)
        if is_refused:
            refused(done, f"FLAGS_use_mkldnn={value}: oneDNN, in this Paddle, trains wrongly on a CPU: unset it")
        else:
            assert done.returncode == 0, done.stderr


def test_a_dry_run_looks_at_the_paths_that_are_named(tmp_path: Path) -> None:
    """As a run does, and before it waits for one of them."""
    os.mkfifo(tmp_path / "pipe")
    hosts = jobs.script(tmp_path / "hosts", "a slots=8\nb\n")
    pipe = "pipe: is a pipe, a socket or a device: name a file"
    for variables, message in (
        ({"HOSTFILE": tmp_path / "pipe"}, pipe),
        ({"HOSTFILE": tmp_path}, f"HOSTFILE={tmp_path}: is a folder: name a file"),
        ({"HOSTFILE": tmp_path / "none"}, "none: no such file or folder: check the path"),
        ({"HOSTFILE": "/dev/null"}, "HOSTFILE=/dev/null: names no host"),
        ({"HOSTFILE": hosts}, "hosts: names 2 nodes, but DGXNNODES is 1: set DGXNNODES=2, or correct the file"),
        ({"HOSTFILE": hosts, "DGXNNODES": 3}, "names 2 nodes, but DGXNNODES is 3: set DGXNNODES=2, or correct the"),
        ({"HOSTFILE": hosts, "HOSTS": "a"}, "HOSTS=a names the nodes too: unset one of them"),
        ({"DATADIR": tmp_path / "pipe"}, "pipe: is not a folder: name a folder"),
        ({"LOGDIR": hosts}, f"LOGDIR={hosts}: is not a folder: name a folder"),
        ({"LOGDIR": "~/results"}, "LOGDIR=~/results: this ~ is not a home folder, as the shell replaces none in"),
        ({"DATADIR": "~"}, "DATADIR=~: this ~ is not a home folder"),
        ({"HOSTFILE": "~/hosts", "DGXNNODES": "2"}, "HOSTFILE=~/hosts: this ~ is not a home folder"),
        ({"LOGDIR": "-x"}, "LOGDIR=-x: a command takes what begins with - for an option: write LOGDIR=./-x"),
        ({"WORKLOAD": "hrnet", "PRETRAINED": tmp_path / "pipe"}, pipe),
    ):
        refused(jobs.called(describe.main, "--shell", **variables), message)
    refused(jobs.run_and_time("--dry-run", HOSTFILE=tmp_path / "pipe"), pipe)
    refused(
        jobs.run_and_time("--dry-run", "--check"), "--dry-run shows a training job: leave out --check, or --dry-run"
    )
    done = jobs.called(describe.main, "--shell", HOSTFILE=hosts, DGXNNODES=2, DATADIR=tmp_path, DATA="synthetic")
    warning = f"warning: DATA=synthetic: an epoch is as long as DATADIR={tmp_path} says, and no image of it is read\n"
    assert (done.returncode, done.stderr) == (0, warning)


@pytest.mark.parametrize(("answers", "launched"), [(True, False), (True, True), (False, False)])
def test_a_dry_run_says_that_the_image_is_not_here(tmp_path: Path, answers: bool, launched: bool) -> None:
    """Unless its engine does not answer, or a launcher shows what would run on another machine."""
    jobs.script(tmp_path / "docker", f"#!/usr/bin/env bash\n[[ $1 == version ]] && {str(answers).lower()}\n")
    variables: dict[str, Any] = {"CONT": "none", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    variables |= {"CONT_HOST": "b"} if launched else {}
    done = jobs.run(["launch/container_node.sh", "--dry-run"], **variables)
    warning = "warning: image none is not on this node: build it with launch/build_image.sh, or pull it\n"
    assert (done.returncode, done.stderr) == (0, warning if answers and not launched else "")


# Those that a user calls; others are sourced, or called by these.
SCRIPTS = ("setup", "lock", "sbom", "base_image", "build_image", "campaign", "container_node", "mpirun")


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_takes_its_options_in_the_same_way(script: str) -> None:
    path = f"launch/{script}.sh"
    helped = jobs.run([path, "--help"])
    assert (helped.returncode, helped.stderr) == (0, "") and path in helped.stdout
    refused(jobs.run([path, "--banana"]), "error: unknown argument --banana; see --help")
    refused(jobs.run([path, "--ba\x1b[31m\nna"]), "error: unknown argument --ba?[31m?na; see --help")
    if script != "sbom":  # whose word is the name of a new file
        refused(jobs.run([path, "banana"]), "banana")


def test_what_a_script_cannot_take_is_refused_in_our_words(tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for command, message in (
        (["mpirun.sh", "--hosts", str(noise)], f"--hosts {noise}: is not a text file of hosts, one a line"),
        (["mpirun.sh", "--hosts", str(pipe)], f"--hosts {pipe}: is a folder, a pipe or a device: name a file of hosts"),
        (["mpirun.sh", "--hosts", "/dev/null"], "--hosts /dev/null: is a folder, a pipe or a device"),
        (["mpirun.sh", "--hosts", "a", "--no-container", "--ssh", "banana"], "--ssh banana: no such command here"),
        (["base_image.sh", "--mirror", "banana"], "--mirror banana: must be a URL"),
        (["base_image.sh", "--root", str(pipe)], f"--root {pipe}: is not a folder: name a new one"),
        (["sbom.sh", str(pipe), "--dry-run"], f"{pipe}: cannot be written: name a file"),
        (["build_image.sh", "--ca", str(pipe)], f"--ca {pipe}: not a PEM file of certificates"),
        (["trials.sh", "banana"], "error: unknown argument banana; see --help"),
        (["trials.sh"], "trials of a job that is resolved: start ./run_and_time.sh"),
        (["bind.sh", "banana"], "launch/bind.sh is for mpirun, which starts each rank by it: set RANK_NUMA and start"),
        (["bind.sh", "--banana"], "error: unknown argument --banana; see --help"),
        (["build_image.sh", "--tag", "Not A Tag"], "image 'Not A Tag': must be NAME or NAME:TAG"),
        (["base_image.sh", "--suite", "12/.."], "--suite 12/..: must be a name of Debian's"),
        (["sbom.sh"], "which file? Name one file to write"),
        (["sbom.sh", "/none/file"], "/none/file: cannot be written"),
        (["lock.sh", "cuda12"], "cuda12 needs --index URL"),
    ):
        refused(jobs.run([f"launch/{command[0]}", *command[1:]]), message)
    for variables, message in (
        ({"HOSTFILE": pipe}, f"HOSTFILE={pipe}: name a file with a host's name in each line"),
        ({"HOSTS": "a,,b"}, "HOSTS=a,,b: must be names or IPv4 addresses, comma-separated"),
        ({"LOGDIR": noise}, f"{noise}/campaigns cannot be written: set LOGDIR to a writable folder"),
    ):
        refused(jobs.run(["launch/campaign.sh", "dlperf"], **variables), message)
    for script, message in (("on_host", "launch/mpirun.sh runs on each host: start that"), ("common", "is sourced by")):
        refused(jobs.run(["bash", f"launch/{script}.sh", "banana"]), message)


def test_files_are_where_the_head_node_is_called_from(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("a\n")
    shell = jobs.local_ssh(tmp_path / "shell")
    jobs.script(tmp_path / "run_and_time.sh", "#!/usr/bin/env bash\necho good a\n")
    command = [
        str(jobs.REPOSITORY / "launch/mpirun.sh"),
        "--hosts",
        "ours",
        "--no-container",
        "--workdir",
        str(tmp_path),
    ]
    command += ["--ssh", str(shell), "--fleet", "--write-hosts", "good", "--topology", "ours"]
    done = jobs.run(command, cwd=tmp_path, DGXSYSTEM="2xCPU", LOGDIR=str(tmp_path / "logs"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "good").read_text() == "a\n"


@pytest.mark.xdist_group("ranks")
def test_a_check_that_fails_says_no_more_than_the_doctor(tmp_path: Path) -> None:
    """What mpirun says of the exit status of a rank is left out."""
    done = jobs.run_and_time("--check", LOGDIR=tmp_path, DATADIR="/none", DGXNGPU=1, CLEAR_CACHES=0)
    assert (done.returncode, done.stderr) == (1, "") and "DATADIR=/none: no such folder" in done.stdout
