"""Which files and folders of a job's settings a container is given, and under which names, by --dry-run."""

import shlex
from pathlib import Path

import pytest

from harness import describe, env
from tests import jobs
from tests.jobs import printed
from tests.launch.test_launchers import LAUNCHERS


def mounted(stdout: str) -> list[str]:
    """The mounts of each container but those of a key and of Linux's page cache, as "/data:/data:ro"."""
    words = shlex.split(stdout.partition("\n{\n")[0], comments=True)
    found = []
    for word in words:
        if word.startswith("--mount=type=bind,"):
            parts = word.removeprefix("--mount=type=bind,").split(",")
            found.append(":".join(part.removeprefix("src=").removeprefix("dst=") for part in parts))
    if "--container-mounts" in words:
        found += words[words.index("--container-mounts") + 1].split(",")
    return [mount for mount in found if "job_key" not in mount and "drop_caches" not in mount]


NAMED = {
    "LOGDIR": "/logs",
    "CHECKPOINT_DIR": "/fast",
    "DATA_CACHE": "/fast",  # an engine refuses to mount one folder twice
    "TELEMETRY_PROMETHEUS": "/prom/job.prom",
    "HRNET_FP32_DATADIR": "/data",
    "PRETRAINED": "/w.pdparams",
}
MOUNTS = ["/logs:/logs", "/fast:/fast", "/prom:/prom", "/data:/data:ro", "/w.pdparams:/w.pdparams:ro"]


@pytest.mark.parametrize(("launcher", "containers"), [("docker", 1), ("mpirun", 2), ("slurm", 2), ("enroot", 1)])
def test_a_container_has_what_the_settings_name(launcher: str, containers: int) -> None:
    """Of all but LOGDIR and DATADIR it was told the name, and did not have the file."""
    command, variables = LAUNCHERS["slurm" if launcher == "enroot" else launcher]
    of_enroot = {"ENGINE": "enroot", "CONT": "/image.sqsh"} if launcher == "enroot" else {}
    stdout = printed(*command, "--dry-run", **{**variables, **of_enroot, **NAMED, "WORKLOAD": "hrnet"})
    assert mounted(stdout) == MOUNTS * containers
    for name, path in {**NAMED, "DATADIR": "/data"}.items():
        if launcher == "enroot" and name == "DATADIR":  # srun hands on the environment
            assert jobs.resolved(stdout)[name]["value"] == path
        elif launcher != "enroot":
            assert stdout.count(f"--env={name}={path} ") == containers


def test_a_launcher_mounts_what_a_config_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the folder of the results, and its mounts, from the user's environment alone."""
    (tmp_path / "config_OWN.sh").write_text("export LOGDIR=/of_file DATADIR=/data\n")
    monkeypatch.setattr(env, "ROOT", tmp_path)
    done = jobs.called(describe.main, "--launch", DGXSYSTEM="OWN")
    assert "\0JOB_PATHS=LOGDIR=/of_file\nDATADIR=/data\0" in done.stdout
