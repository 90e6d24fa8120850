"""The image by itself: what is in it, what is not, and the main job in one container."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import jobs
from tests.cluster.containers import GOLDEN_JOB, USER, docker, run

LIMIT_BYTES = 7.6e9


def in_image(image: str, script: str, *options: str) -> str:
    """Output of a shell script in the image, as root so that every file can be read."""
    return docker("run", "--rm", "--user", "0:0", *options, image, "bash", "-c", script, timeout_s=300)


def test_size_and_labels(image: str) -> None:
    facts = json.loads(docker("image", "inspect", image))[0]
    assert facts["Size"] <= LIMIT_BYTES
    assert facts["Config"]["Labels"]["org.opencontainers.image.revision"].startswith(
        run("git", "rev-parse", "HEAD").stdout.strip()
    )
    assert len(facts["Config"]["Labels"]["locks.sha256"]) == 64
    assert facts["Config"]["User"] not in ("", "root", "0")
    environment = dict(pair.split("=", 1) for pair in facts["Config"]["Env"])
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert "compute" in environment["NVIDIA_DRIVER_CAPABILITIES"]


def test_nothing_is_left_open(image: str) -> None:
    found = in_image(
        image, "find / -xdev \\( -type f -o -type d \\) -perm -o+w ! -path /tmp; find / -xdev -type f -perm /6000"
    )
    assert found == ""
    passwords = in_image(image, "cut -d: -f2 /etc/shadow | sort -u").split()
    assert all(field[0] in "*!" for field in passwords), passwords
    keys = in_image(image, "ls /etc/ssh/ssh_host_* /root/.ssh/* /home/*/.ssh/* 2>/dev/null; true")
    assert keys == ""


def test_no_index_and_no_certificate_of_the_build_machine_is_left(image: str) -> None:
    places = "/build /workspace/.build /etc/pip.conf /root/.config/pip /etc/apt/sources.list /etc/apt/sources.list.d"
    assert in_image(image, f"ls -d {places} /usr/local/share/ca-certificates/* 2>/dev/null; true") == ""
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    assert "BEGIN CERTIFICATE" not in history
    assert "index-url" not in history
    assert in_image(image, "find /workspace -name pip.conf -o -name '*.crt' | grep -v site-packages; true") == ""


def test_paddle_opens_every_cuda_library(image: str) -> None:
    script = Path(__file__).with_name("cuda_libraries.py")
    command = ("/workspace/.venv/bin/python", "-W", "ignore", "/cuda_libraries.py")
    found = json.loads(docker("run", "--rm", "--volume", f"{script}:/cuda_libraries.py:ro", image, *command))
    print(found["versions"])
    assert (
        found["versions"].items()
        >= {
            "cudnn": "8600",
            "cublas": "11.11.3",
            "nccl": "22105",
            "cudart": "11.8.89",
            "cufft": "10900",
            "curand": "10300",
            "cusolver": "11401",
            "cusparse": "11.7.5",
        }.items()
    )
    assert "LD_LIBRARY_PATH" not in docker("image", "inspect", image)


def test_the_default_job_needs_no_argument_and_passes_the_official_checker(image: str, tmp_path: Path) -> None:
    name = f"default{os.getpid()}"
    try:
        docker("run", "--name", name, image, "./run_and_time.sh", timeout_s=900)
        docker("cp", f"{name}:/workspace/results/CPU/rn50/result_0.txt", str(tmp_path))
    finally:
        run("docker", "rm", "--force", name, check=False)
    log = tmp_path / "result_0.txt"
    checker = ("-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0")
    done = subprocess.run(
        [sys.executable, *checker, "--log_output", str(tmp_path / "checker.txt"), str(log)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(jobs.values(log, "eval_accuracy")) >= 0.9
    source = next(json.loads(line[2:]) for line in log.read_text().splitlines() if '"source"' in line)["source"]
    assert (
        source["commit"]
        == docker("inspect", "--format", '{{index .Config.Labels "org.opencontainers.image.revision"}}', image)[:40]
    )


@pytest.mark.parametrize("options", [(), ("--read-only", "--tmpfs", "/tmp")])
def test_losses_are_the_hosts_under_any_user(image: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    on_host = tmp_path / "host.txt"
    job = {**GOLDEN_JOB, "BATCHSIZE": "16"}
    done = jobs.on_ranks(2, "-m", "harness", **job, RESULT_FILE=str(on_host))
    assert done.returncode == 0, done.stderr[-2000:]
    results = tmp_path / "results"
    results.mkdir()
    tmp_path.chmod(0o755)
    os.chown(results, USER, USER)
    environment = {**job, "LOGDIR": "/results"}
    docker(
        *("run", "--rm", "--user", f"{USER}:{USER}", "--volume", f"{results}:/results", *options),
        *(word for name, value in environment.items() for word in ("--env", f"{name}={value}")),
        *(image, "./run_and_time.sh"),
        timeout_s=300,
    )
    log = results / "CPU" / "rn50" / "result_0.txt"
    assert log.stat().st_uid == USER
    assert jobs.losses(log) == jobs.losses(on_host)  # to the last digit: one machine, one set of libraries


def test_a_host_without_a_name_is_refused_and_ends(image: str) -> None:
    name = f"nameless{os.getpid()}"
    try:
        done = run("docker", "run", "--name", name, "--network", "none", image, "./run_and_time.sh", check=False)
    finally:
        run("docker", "rm", "--force", name, check=False)
    assert done.returncode == 1
    assert "own name" in done.stderr and "does not resolve" in done.stderr
