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
    """Return the name of a GPU by its number in nvidia-smi: "GPU0"; "GPU of unknown number" if it has none."""
    return "GPU of unknown number" if gpu.index is None else f"GPU{gpu.index}"


def judge_check(
    job: env.Job, check: str, *, good: bool, found: str, bad_status: str = "", fix: str = "", **values: Any
) -> Verdict:
    """Return the verdict on a check. `found` says what was seen.

    checks.yaml has a row of texts for the check, such as "python.dali", or for its group, "python".

    - `good`: the status is ok.
    - Not `good`: the status is `bad_status`, and what to do is `fix`. If one of these is empty, the row's own is taken.

    The row's texts and `fix` may have placeholders for fields of the job and for `values`: most=500 fills
    "under {most} MiB in use".
    """
    group, _, _ = check.partition(".")
    texts = ROWS.get(check) or ROWS[group]
    wanted = texts["wanted"].format(job=job, **values)
    advice = (fix or texts["fix"]).format(job=job, **values)
    return judged(check, good, found, wanted, advice, bad=bad_status or texts["bad"])
