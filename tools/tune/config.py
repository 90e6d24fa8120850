"""`config_<SYSTEM>_tuned.sh`: what a search for a strategy chose, with the evidence for it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from harness import env
from scoring.record import Record
from tools.tune.candidates import Candidate


def config_text(*, name: str, job: env.Job, winner: Candidate | None, evidence: Iterable[str]) -> str:
    """`config_<name>.sh`: the winner's exports over those of the system's file, for what was measured alone."""
    system, measured = job.dgxsystem, f"{job.workload}_{job.precision}".upper()
    chosen = {f"{measured}_{n}": value for n, value in (winner.exports(job.strategy) if winner else {}).items()}
    lines = [
        "# shellcheck shell=bash",
        f"# {system} as tuned on one machine:  DGXSYSTEM={name} ./run_and_time.sh",
        *(f"# {line}".rstrip() for line in evidence),
        *(f'export {variable}="${{{variable}:-{value}}}"' for variable, value in chosen.items()),
        "",
        f"# shellcheck source=config_{system}.sh",
        f'source "$(dirname "${{BASH_SOURCE[0]}}")/config_{system}.sh"',
    ]
    return "\n".join(lines) + "\n"


def provenance(job: env.Job, repeats: int, record: Record) -> list[str]:
    """Where the figures come from: day, code, machine, base and method; `record` is of any of the runs."""
    source = record.header["source"]
    steps = f"{job.warmup_steps} + {job.measured_steps} steps"
    names = ("workload", "recipe", "precision", "batchsize", "dgxnnodes", "dgxngpu", "data", "image_size", "strategy")
    base = {name.upper(): value for name in names if (value := getattr(job, name)) not in ("", 0)}
    return [
        f"by python -m tools.tune, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {source['commit']}"
        + (", with changes" if source["dirty"] else ""),
        f"machine {record.machine}",
        f"base    {' '.join(f'{name}={value}' for name, value in base.items())}",
        f"method  {repeats} turns of {steps} each, order turned round each time; 95 % t interval of the log ratios",
        "columns ok: better; images/s (range); over the base's (95 % interval); loss difference over the allowed one",
    ]
