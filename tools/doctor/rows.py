"""The texts that the doctor's checks share: the table of checks, checks.yaml, a verdict by its row, a GPU's name."""

from pathlib import Path
from typing import Any

import yaml

from harness import env, nvidia
from runlog.json_types import JsonObject
from runlog.verdict import OK, Verdict

Facts = JsonObject  # what was seen of a node, as `node.probe` returns it
ROWS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"))
FAULTS = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text(encoding="utf-8"))

NOT_SAID = "NVML does not say it: look at nvidia-smi -q on the host"
CAPABILITIES = "compute,utility,video"  # of the driver that a container needs: NVIDIA_DRIVER_CAPABILITIES of the image


def gpu_name(gpu: nvidia.Gpu) -> str:
    """Return the name of a GPU by its number in nvidia-smi: "GPU0"; "GPU of unknown number" if it has none.

    Args:
        gpu: Properties of the GPU by NVML.
    """
    return "GPU of unknown number" if gpu.index is None else f"GPU{gpu.index}"


def ok_if(good: bool, *, otherwise: str) -> str:
    """Return the status "ok" if a condition holds, else another status.

    Args:
        good: Whether the condition holds.
        otherwise: The other status, "warning" or "fatal".
    """
    return OK if good else otherwise


def judge_check(job: env.Job, check: str, status: str, *, found: str, fix: str = "", **values: Any) -> Verdict:
    """Return the verdict on a check, with the texts that the table checks.yaml has for it.

    Args:
        job: Settings of the training job. The texts may hold placeholders for them, such as {job.cluster.dgxngpu}.
        check: Name of the check, such as "gpu.count". Without a row of its own it has that of its group, the name up to
            the dot.
        status: "ok", "warning" or "fatal".
        found: What was seen, as text.
        fix: What to do; empty: the fix of the table's row. A verdict that is ok has no fix.
        **values: More values for the placeholders: most=500 fills "under {most} MiB".
    """
    group, _, _ = check.partition(".")  # "python" for "python.dali"
    row = ROWS.get(check) or ROWS[group]  # a check without a row of its own has that of its group
    wanted = row["wanted"].format(job=job, **values)
    if status == OK:
        return Verdict(check=check, status=OK, found=found, wanted=wanted)
    fix = fix or row["fix"].format(job=job, **values)
    return Verdict(check=check, status=status, found=found, wanted=wanted, fix=fix)
