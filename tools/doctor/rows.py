"""The doctor's table of checks, checks.yaml, and a verdict by its row."""

from pathlib import Path
from typing import Any

import yaml

from harness import env
from runlog.verdict import Verdict, judged

Facts = dict[str, Any]  # of a node, by node.probe
ROWS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"))
FAULTS = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text(encoding="utf-8"))


def row(job: env.Job, check: str, good: bool, found: str, *, bad: str = "", fix: str = "", **given: Any) -> Verdict:
    """A check's verdict by its row of checks.yaml, or by that of its group.

    `bad` and `fix` replace the row's where this fault has others; `given` fills the row's texts.
    """
    group, _, _ = check.partition(".")
    texts = ROWS.get(check) or ROWS[group]
    wanted = texts["wanted"].format(job=job, **given)
    advice = (fix or texts["fix"]).format(job=job, **given)
    return judged(check, good, found, wanted, advice, bad=bad or texts["bad"])
