"""`config_<SYSTEM>_tuned.sh`: what a search for a strategy chose, with the evidence for it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from harness import env
from scoring.record import Record
from tools.tune_candidates import SERIAL, Candidate


def default_precision(system: str, workload: str) -> str:
    """PRECISION of a job on this system where the user sets none."""
    return env.of_system(DGXSYSTEM=system, WORKLOAD=workload).precision


def config_text(*, name: str, job: dict[str, Any], winner: Candidate | None, evidence: Iterable[str]) -> str:
    """`config_<name>.sh`: the winner's exports over those of the system's file, for what was measured alone."""
    system, workload, precision = job["DGXSYSTEM"], job["WORKLOAD"], job["PRECISION"]
    measured_here = (
        f"[[ ${{WORKLOAD:-{env.Job.workload}}} == {workload} "
        f"&& ${{PRECISION:-{default_precision(system, workload)}}} == {precision} ]]"
    )
    exports = []
    for variable, value in (winner.exports(job["STRATEGY"]) if winner else {}).items():
        # An empty variable has its default from the system's file or harness/env.py, an empty flag would be false.
        otherwise = f" || echo {1 - int(value)}" if variable == SERIAL else ""
        exports.append(f'export {variable}="${{{variable}:-$({measured_here} && echo {value}{otherwise})}}"')
    lines = [
        "# shellcheck shell=bash",
        f"# {system} as tuned on one machine:  DGXSYSTEM={name} ./run_and_time.sh",
        *(f"# {line}".rstrip() for line in evidence),
        *exports,
        "",
        f"# shellcheck source=config_{system}.sh",
        f'source "$(dirname "${{BASH_SOURCE[0]}}")/config_{system}.sh"',
    ]
    return "\n".join(lines) + "\n"


def machine(record: Record) -> str:
    """The devices of each node that a run was on."""
    nodes = record.header["hardware"]["nodes"]
    parts = []
    for node in nodes:
        gpus = node.get("gpus") or []
        first = gpus[0] if gpus else node.get("cpu")
        device = first.get("name") if isinstance(first, dict) else first
        parts.append(f"{len(gpus)} x {device}" if gpus else f"{device}, {node.get('cores')} cores")
    return "; ".join(parts)


def provenance(job: dict[str, Any], repeats: int, record: Record) -> list[str]:
    """Where the figures come from: day, code, machine, base and method; `record` is of any of the runs."""
    source = record.header["source"]
    steps = f"{job['WARMUP_STEPS']} + {job['MEASURED_STEPS']} steps"
    names = ("WORKLOAD", "RECIPE", "PRECISION", "BATCHSIZE", "DGXNNODES", "DGXNGPU", "DATA", "IMAGE_SIZE", "STRATEGY")
    return [
        f"by python -m tools.tune, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {source['commit']}"
        + (", with changes" if source["dirty"] else ""),
        f"machine {machine(record)}",
        f"base    {' '.join(f'{name}={job[name]}' for name in names if job[name] not in ('', 0))}",
        f"method  {repeats} turns of {steps} each, order turned round each time; 95 % t interval of the log ratios",
        "columns images/s (range); over the base's (95 % interval); loss difference over the allowed one",
    ]
