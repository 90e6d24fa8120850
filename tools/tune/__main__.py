"""Which strategy is fastest on this machine, measured in turns by the command of a real run (docs/tuning.md).

    python -m tools.tune [--repeats N] [--only NAME,...] [--name SYSTEM] [--dry-run]
    python -m tools.tune --batches [32,64,...] [--dry-run]

The job is the environment's, as for ./run_and_time.sh; each measurement is one such run of MODE=throughput. The first
form writes `config_<SYSTEM>_tuned.sh`, the second shows the base at each batch size.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import env
from runlog.errors import one_line
from runlog.verdict import FATAL, OK, Verdict, as_text
from scoring.figure import spread
from scoring.record import Record
from tools.tune.candidates import BASE, CONTROL, Candidate, candidates
from tools.tune.runs import ROOT, Runner, allowed_loss, better, finalists, judge_candidate, rate, shown

BATCHES = "32,64,96,128,160,192,224,256"
LEAST_REPEATS = 3


def tune(args: argparse.Namespace, job: env.Job) -> int:
    """Measures the strategies and writes the config file."""
    name = args.name or f"{job.dgxsystem}_tuned"
    path = args.folder / f"config_{name}.sh"
    if path.exists():
        raise ValueError(f"{path}: exists, results are never overwritten: move it or give --name")
    try:  # now, not after hours of measuring
        tempfile.TemporaryFile(dir=args.folder).close()
    except OSError as error:
        raise ValueError(f"--folder {args.folder}: {error.strerror}: give a folder that this user may write") from None
    every = {way.name: way for way in candidates(job)}
    wanted = args.only.split(",") if args.only else every
    if unknown := [name for name in wanted if name not in every]:
        raise ValueError(f"--only {','.join(unknown)}: must be of {','.join(every)}")
    ways = [way for name, way in every.items() if name in wanted]
    runner = Runner(job)
    if args.dry_run:
        runner.show("screen_1", (BASE, CONTROL, *ways))
        print(
            f"{args.repeats} turns of {1 + len(ways)} runs and one control, then {args.repeats} turns of the base and "
            f"what was faster (at most 3 runs); writes {path}"
        )
        return 0
    final, allowed = judged(runner, "screen", (BASE, CONTROL, *ways), args.repeats)
    lines = as_text(final.values()).splitlines()
    if again := finalists(final):
        final, _ = judged(runner, "confirm", (BASE, *again), args.repeats, allowed)
        lines += ["measured again, on runs that had no part in the choice:", *as_text(final.values()).splitlines()]
    winner, *_ = (*better(final), BASE)
    nothing = "the base; nothing was really better, so this file changes nothing"
    lines.append(f"chosen: {nothing if winner == BASE else winner.name}")
    print("\n".join(lines), flush=True)  # before the file, which may fail: hours went into them
    mean = statistics.fmean(final[winner].figures["images_per_s"])
    source = provenance(job, args.repeats, runner.records[0])
    evidence = [f"Throughput to expect: {mean:.2f} images/s on the machine below, with its settings.", *source, *lines]
    path.write_text(config_text(name=name, job=job, winner=winner, evidence=evidence), encoding="utf-8")
    print(f"config  {path}\nlogs    {runner.folder}")
    return 0


def judged(
    runner: Runner, title: str, ways: Sequence[Candidate], repeats: int, allowed: np.ndarray | None = None
) -> tuple[dict[Candidate, Verdict], np.ndarray]:
    """Verdicts on the base and each way beside it, and the allowed differences of losses: of the control, or as given.

    Raises RunError where the base or the control does not run.
    """
    runs, failed = runner.take(title, ways, repeats)
    of_base = runs.pop(BASE)
    if allowed is None:
        allowed = allowed_loss([*of_base, *runs.pop(CONTROL)])
    rates = [rate(run) for run in of_base]
    verdicts = {BASE: Verdict(check=BASE.name, status=OK, found=shown(rates), figures={"images_per_s": rates})}
    verdicts |= {way: judge_candidate(way.name, found, of_base, allowed) for way, found in runs.items()}
    for way, reason in failed.items():
        verdicts[way] = Verdict(check=way.name, status=FATAL, found=f"refused: {reason}")
    return verdicts, allowed


def config_text(*, name: str, job: env.Job, winner: Candidate, evidence: Iterable[str]) -> str:
    """`config_<name>.sh`: the winner's exports over those of the system's file, for what was measured alone."""
    system, measured = job.dgxsystem, f"{job.workload}_{job.precision}".upper()
    chosen = {f"{measured}_{n}": value for n, value in winner.exports(job.strategy).items()}
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


def batch_verdict(name: str, runs: Sequence[Record]) -> Verdict:
    """The rate and the memory of a batch size over its turns."""
    rates = [rate(run) for run in runs]
    interval = spread.t_interval(rates)
    within = "95 % interval over the turns {:.2f} to {:.2f}".format(*interval) if interval else "no interval: one turn"
    held_mib = (w.gpu_memory_mib for run in runs for w in run.windows if w.phase == "measured")
    memory = max((mib for mib in held_mib if mib is not None), default=None)
    held = "GPU memory not measured" if memory is None else f"{memory:.0f} MiB of GPU memory"
    return Verdict(check=name, status=OK, found=f"{statistics.fmean(rates):.2f} images/s, {within}, {held}")


def sweep(args: argparse.Namespace, job: env.Job) -> int:
    """Measures the base at each batch size and prints the table."""
    texts = args.batches.split(",")
    if not all(text.isdecimal() and int(text) > 0 for text in texts):
        raise ValueError(f"--batches {args.batches}: must be whole numbers with commas between")
    ways = [Candidate(name=f"BATCHSIZE={text}", variables=(("BATCHSIZE", text),)) for text in texts]
    runner = Runner(job)
    if args.dry_run:
        runner.show("batch_1", ways)
        print(f"{args.repeats} turns of {len(ways)} runs; one that fails is not run again")
        return 0
    runs, failed = runner.take("batch", ways, args.repeats)
    if runner.records:
        print(f"machine {runner.records[0].machine}")
    verdicts = [
        Verdict(check=way.name, status=FATAL, found=f"not measured: {failed[way]}")
        if way in failed
        else batch_verdict(way.name, runs[way])
        for way in ways
    ]
    print(f"{as_text(verdicts)}logs    {runner.folder}")
    return 0 if runs else 1


def _stop(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


@one_line
def main() -> int:
    """`python -m tools.tune`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help=f"turns, at least {LEAST_REPEATS} for strategies")
    parser.add_argument("--only", default="", help="names of strategies, as --dry-run and a wrong name show them")
    parser.add_argument("--name", default="", help="SYSTEM of the config file; <SYSTEM>_tuned if not given")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where to write it; the repository if not given")
    parser.add_argument("--batches", nargs="?", const=BATCHES, help=f"sweep these batch sizes instead ({BATCHES})")
    parser.add_argument("--dry-run", action="store_true", help="print each run's command, run nothing")
    args = parser.parse_args()
    least = 1 if args.batches else LEAST_REPEATS
    if args.repeats < least:
        raise ValueError(f"--repeats {args.repeats}: must be at least {least}")
    job, _ = env.read(env.resolve())
    _ = job.knobs, job.hyperparameters  # what is wrong in them is said now
    if job.dgxnnodes > 1:
        raise ValueError(f"DGXNNODES={job.dgxnnodes}: runs are started on this node alone: set DGXNNODES=1")
    return (sweep if args.batches else tune)(args, job)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # not in main: a test calls it in a process of its own signals
    sys.exit(main())
