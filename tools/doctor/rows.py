"""The texts that the doctor's checks share: the table of checks, checks.yaml, a verdict by its row, a GPU's name."""

from pathlib import Path
from typing import Any

import yaml

from harness import env, nvidia
from runlog.json_types import JsonObject
from runlog.verdict import Verdict, judged

Facts = JsonObject  # what was seen of a node, as `node.probe` returns it
ROWS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"))
FAULTS = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text(encoding="utf-8"))

CAPABILITIES = "compute,utility,video"  # of the driver that a container needs: NVIDIA_DRIVER_CAPABILITIES of the image


def gpu_name(gpu: nvidia.Gpu) -> str:
    """Return the name of a GPU by its number in nvidia-smi, as "GPU0"."""
    return "GPU of unknown number" if gpu.index is None else f"GPU{gpu.index}"


def judge_check(
    job: env.Job, check: str, *, good: bool, found: str, bad_status: str = "", fix: str = "", **values: Any
) -> Verdict:
    """Return the verdict on a check, with the texts that checks.yaml has for its name or else for its group.

    The group of "disk.logs" is "disk". The verdict is ok if `good`. If not, it has the status and the fix of
    checks.yaml, or `bad_status` and `fix` where these are not empty. `found` says what was seen. The texts of
    checks.yaml, and `fix`, may hold fields of the job and `values`: "under {most} MiB in use" is filled by most=500.
    """
    group, _, _ = check.partition(".")
    texts = ROWS.get(check) or ROWS[group]
    wanted = texts["wanted"].format(job=job, **values)
    advice = (fix or texts["fix"]).format(job=job, **values)
    return judged(check, good, found, wanted, advice, bad=bad_status or texts["bad"])
