"""launch/slurm.sub by pyxis and enroot, which the tests' package sources lack: a stand-in for srun has their ways.

By their documentation an image is a path where its name begins with a dot or a slash, else one of Docker Hub's unless
its registry is named; a mount's source must exist; all of the job's environment is in the container; and enroot's hook
wants NVIDIA's tool unless NVIDIA_VISIBLE_DEVICES is void.
"""

import hashlib
import os
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from tests import jobs
from tests.jobs import printed, resolved

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


def test_the_engine_is_the_users_choice(cluster: dict[str, str]) -> None:
    job = {"DGXSYSTEM": "2xCPU", "CONT": "img", "HOSTS": "a,b", "PATH": cluster["PATH"]}
    assert "docker run" in printed("launch/slurm.sub", "--dry-run", ENGINE="docker", **job)
