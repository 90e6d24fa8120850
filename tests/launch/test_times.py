"""The one table of times: each that ends another waits longer than that one takes."""

from __future__ import annotations

import re

import yaml

from launch.times import TIMES
from tests import jobs

LAUNCH = jobs.REPOSITORY / "launch"


def test_each_waits_longer_than_what_it_ends() -> None:
    (slurm,) = re.findall(r"^#SBATCH --signal=B:TERM@(\d+)$", (LAUNCH / "slurm.sub").read_text(), re.M)
    pods = yaml.safe_load((LAUNCH / "mpijob.yaml").read_text())["spec"]["mpiReplicaSpecs"].values()
    (grace_s,) = {pod["template"]["spec"]["terminationGracePeriodSeconds"] for pod in pods}
    outwards = [
        TIMES["LAST_WINDOW_S"] + TIMES["MPIRUN_END_S"],
        TIMES["JOB_END_S"],
        TIMES["CONTAINER_END_S"],
        TIMES["HOST_END_S"],
        int(grace_s),
        int(slurm),
    ]
    assert outwards == sorted(set(outwards))
    assert TIMES["ACCEPTANCE_LAST_START_S"] < TIMES["ACCEPTANCE_END_S"] == 15 * 60


def test_no_other_file_of_the_launchers_has_a_time_of_its_own() -> None:
    """Fixed pauses of a poll aside; the manifest and the SLURM directive are told in the table."""
    scripts = [path for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sub") and path.name != "common.sh"]
    for path in [*scripts, jobs.REPOSITORY / "run_and_time.sh"]:
        code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        own = re.findall(r"\b\w+_S=\d+|--time \d+|\bsleep (?:[2-9]|\d{2,})|Alive\w+=\d+", code)
        assert own == [], f"{path.name}: {own}"
