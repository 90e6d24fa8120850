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
    """Return the verdict on a check of checks.yaml. `found` says what was seen.

    A check has a row in checks.yaml, under its name, such as "python.dali", or under its group, "python". The row has
    three texts: `wanted` says what is good, `bad` is the status if it is not, and `fix` says what to do then.

    - `good`: the verdict is ok, with the row's `wanted`.
    - Not `good`: the verdict has the row's `bad` as its status, and the row's `fix`. `bad_status` and `fix` replace
      them if they are not empty.

    `wanted` and `fix` may have placeholders for the job and for `values`: most=500 fills "under {most} MiB in use".
    """
    group, _, _ = check.partition(".")  # "python" of "python.dali", if the check has no row of its own
    row = ROWS.get(check) or ROWS[group]
    wanted = row["wanted"].format(job=job, **values)
    advice = (fix or row["fix"]).format(job=job, **values)
    return judged(check, good, found, wanted, advice, bad=bad_status or row["bad"])
