"""launch/slurm.sub by pyxis and enroot, by a stand-in for srun that is written from their documentation."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from tests import jobs
from tests.jobs import printed, refused, resolved

DOCKERFILE = (jobs.REPOSITORY / "Dockerfile").read_text()
OF_IMAGE = re.search(r"^ENV (?!PIP)(.*(?:\\\n.*)*)", DOCKERFILE, re.M)


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """A node of a SLURM that has pyxis, in a job, and an image's file."""
    (tmp_path / "srun").symlink_to(jobs.REPOSITORY / "tests/launch/pyxis_srun.py")
    jobs.script(tmp_path / "scontrol", f"#!/bin/sh\necho {socket.gethostname()}\n")
    (tmp_path / "img.sqsh").write_bytes(b"an image")
    assert OF_IMAGE
    inside = {"IMAGE_ENVIRONMENT": OF_IMAGE[1], "IN_IMAGE": str(tmp_path / "none"), "LOGDIR": str(tmp_path / "logs")}
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


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("paddle", "error: CONT=paddle: enroot would ask Docker Hub for it: give /path/to.sqsh, which 'enroot import "),
        ("org/paddle:1", "'enroot import dockerd://org/paddle:1' makes, or REGISTRY#IMAGE\n"),
        ("docker://paddle", "'enroot import dockerd://paddle' makes, or REGISTRY#IMAGE\n"),
        (
            "/no.sqsh",
            "error: CONT=/no.sqsh: no such file: make it by 'enroot import dockerd://paddle-reference:latest'",
        ),
    ],
)
def test_an_image_that_is_not_the_users_own_is_refused(cluster: dict[str, str], image: str, said: str) -> None:
    done = submitted(cluster, CONT=image)
    refused(done, said)
    assert not Path(cluster["LOGDIR"]).exists()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"CONT": "site.example#team/paddle:1"}, "importing docker image: site.example/team/paddle:1"),
        ({"DGXSYSTEM": "DGXA100"}, "Command not found: nvidia-container-cli"),  # a GPU's job asks for its GPUs
    ],
)
def test_what_the_cluster_refuses(cluster: dict[str, str], variables: dict[str, str], said: str) -> None:
    done = submitted(cluster, **variables)
    assert done.returncode == 1 and said in done.stderr


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
    assert "docker" not in line
    values = resolved(stdout)
    assert values["HOSTS"]["value"] == "a,b" and values["LOGDIR"]["value"] == "/logs"


def test_the_engine_is_the_users_choice(cluster: dict[str, str]) -> None:
    job = {"DGXSYSTEM": "2xCPU", "CONT": "img", "HOSTS": "a,b", "PATH": cluster["PATH"]}
    assert "docker run" in printed("launch/slurm.sub", "--dry-run", ENGINE="docker", **job)
    done = jobs.run(["launch/slurm.sub", "--dry-run"], ENGINE="pyxis", **job)
    refused(done, "error: ENGINE=pyxis: must be one of docker podman apptainer enroot\n")
