"""Which strategy is fastest on this machine, measured in turns by the command of a real run (docs/tuning.md).

    python -m tools.tune [--repeats N] [--only NAME,...] [--name SYSTEM] [--dry-run]
    python -m tools.tune --batches [32,64,...] [--dry-run]

The job is the environment's, as for ./run_and_time.sh; each measurement is one such run of MODE=throughput. The first
form writes `config_<SYSTEM>_tuned.sh`, the second shows the base at each batch size.
"""

import argparse
import math
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import env
from program import strategy
from runlog.errors import RunError, one_line
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict, as_text
from scoring.figure import spread
from scoring.importers import read_record
from scoring.record import Record

ROOT = Path(__file__).resolve().parents[1]
# A loss may differ from the base's by so many times what the control's does, and by a rounding of its own.
CONTROL_FACTOR, LOSS_ROUNDING = 10.0, 1e-6
SERIAL = "FLAGS_new_executor_serial_run"
BATCHES = "32,64,96,128,160,192,224,256"
LEAST_REPEATS = 3

# ---- what is tried


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change to the base: knobs of STRATEGY, and other variables of the job."""

    name: str
    knobs: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def touches(self) -> set[str]:
        """Knobs and variables that it sets."""
        return {knob.partition("=")[0] for knob in self.knobs} | {name for name, _ in self.variables}

    def exports(self, base_strategy: str) -> dict[str, str]:
        """What the environment of its run says beyond the base's."""
        found = dict(self.variables)
        if self.knobs == (strategy.AUTO,):
            found["STRATEGY"] = strategy.AUTO
        elif self.knobs:
            found["STRATEGY"] = strategy.in_words(strategy.parse(",".join((base_strategy, *self.knobs))))
        return found


BASE = Candidate(name="base")
CONTROL = Candidate(name="control", knobs=("perturb_input=1",))


def candidates(job: env.Job) -> list[Candidate]:
    """The strategies that make sense for the job beside its base. Raises ValueError where that is STRATEGY=auto."""
    base = job.model.knobs
    if base.auto:
        raise ValueError("STRATEGY=auto: it is measured as one of the strategies where it can run: unset STRATEGY")
    gpu, half = job.cluster.device == "gpu", job.model.precision in ("amp_o1", "amp_o2")
    nhwc = half and "NHWC" in job.model.traits.layouts and job.model.layout != "NCHW"
    lars, ranks = "lars" in job.model.recipe, job.cluster.dgxngpu
    makes_sense = {
        f"enable_inplace={0 if gpu else 1}": True,
        "merged_lars=1": lars,
        "merged_optimizer=0": not lars,
        **dict.fromkeys(("fuse_bn_act_ops=0", "fuse_bn_add_act_ops=0"), nhwc),
        "fuse_elewise_add_act_ops=0": not nhwc,
        **{f"fuse_grad_size_in_MB={size}": ranks > 1 for size in (1, 4, 64)},
        "resnet_unit=1": gpu and nhwc,
        "cuda_graph=1": gpu and job.model.traits.captures_steps and base.gradient_merge == 1,
        **dict.fromkeys(("enable_addto=0", "cudnn_exhaustive_search=0", "cudnn_batchnorm_spatial_persistent=0"), gpu),
        **{f"conv_workspace_size_limit={size}": gpu for size in (512, 8000)},
    }
    changes = (
        knob for knob, so in makes_sense.items() if so and strategy.parse(f"{job.model.strategy},{knob}") != base
    )
    found = [Candidate(name=knob, knobs=(knob,)) for knob in changes]
    serial = "1" if gpu else "0"  # the other way than harness/env.py has it
    found.append(Candidate(name=f"{SERIAL}={serial}", variables=((SERIAL, serial),)))
    if gpu and ranks == strategy.AUTO_RANKS:
        found.append(Candidate(name=strategy.AUTO, knobs=(strategy.AUTO,)))
    if gpu:
        return found
    # The same update by fewer processes with more threads each: batch norm sees the same images together.
    for fewer in (count for count in range(1, ranks) if ranks % count == 0):
        times = ranks // fewer
        variables = (("DGXNGPU", str(fewer)), ("BATCHSIZE", str(job.model.batchsize * times)))
        knobs = (f"gradient_merge={times * base.gradient_merge}",)
        found.append(Candidate(name=f"DGXNGPU={fewer}", knobs=knobs, variables=variables))
    return found


# ---- its runs


def rate(run: Record) -> float:
    """Images/s over its measured windows."""
    windows = [w for w in run.windows if w.phase == "measured"]
    return sum(w.images or 0.0 for w in windows) / sum(w.seconds or 0.0 for w in windows)


def losses(runs: Sequence[Record]) -> np.ndarray:
    """[runs, windows]; NaN where a window has none."""
    return np.array([[w.loss for w in run.windows] for run in runs], dtype=float)


class Runner:
    """Starts runs of the job, each with a folder of its own: a trial of so many steps, on the same samples."""

    def __init__(self, job: env.Job) -> None:
        self.folder = Path(job.trials.logdir).resolve() / "tune" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        seed = str(job.course.seed if job.course.seed >= 0 else 1)
        self.variables = {"MODE": "throughput", "NEXP": "1", "SEED": seed, "PROGRESS": "plain", "CLEAR_CACHES": "0"}
        self.strategy = job.model.strategy  # of the base
        self.records: list[Record] = []  # of all runs so far

    def _logdir(self, way: Candidate, turn: str) -> Path:
        return self.folder / turn / "".join(c if c.isalnum() or c in "_.=" else "-" for c in way.name)

    def command(self, way: Candidate, turn: str) -> list[str]:
        """`env NAME=VALUE... ./run_and_time.sh` of one measurement."""
        variables = self.variables | {"LOGDIR": str(self._logdir(way, turn))} | way.exports(self.strategy)
        return ["env", *(f"{k}={v}" for k, v in variables.items()), str(ROOT / "run_and_time.sh")]

    def run(self, way: Candidate, turn: str) -> Record:
        """The record of a run. Raises RunError with the reason where there is none."""
        command, nothing, pipe = self.command(way, turn), subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=nothing, stdout=nothing, stderr=pipe, text=True) as process:
            try:
                _, stderr = process.communicate()
            finally:
                if process.poll() is None:  # this command was stopped: so is the run
                    process.terminate()
                    process.wait()
        if process.returncode:
            reasons = [line.removeprefix("error: ") for line in stderr.splitlines() if line.startswith("error: ")]
            raise RunError(reasons[0] if reasons else f"exit status {process.returncode}")
        (log,) = self._logdir(way, turn).glob("**/result_0.txt")
        return read_record(log)

    def take(
        self, title: str, ways: Sequence[Candidate], repeats: int
    ) -> tuple[dict[Candidate, list[Record]], dict[Candidate, str]]:
        """Each way's runs of all turns, and why the others failed. Raises RunError where that is BASE or CONTROL."""
        found: dict[Candidate, list[Record]] = {way: [] for way in ways}
        failed: dict[Candidate, str] = {}
        for turn in range(1, repeats + 1):
            for way in ways if turn % 2 else reversed(ways):
                if way in failed or (way == CONTROL and turn > 1):
                    continue
                label = f"{title}_{turn}"
                try:
                    record = self.run(way, label)
                    self.records.append(record)
                    found[way].append(record)
                    outcome = f"{rate(record):.2f} images/s"
                except RunError as reason:
                    if way in (BASE, CONTROL):
                        raise RunError(f"the {way.name} does not run: {reason}") from reason
                    failed[way] = outcome = str(reason)
                    del found[way]
                print(f"{label} {way.name}: {outcome}", file=sys.stderr, flush=True)
        return found, failed


# ---- what is taken for better


def shown(images_per_s: Sequence[float]) -> str:
    """Mean and range."""
    return f"{statistics.fmean(images_per_s):.2f} ({min(images_per_s):.2f} to {max(images_per_s):.2f})"


def allowed_loss(runs: Sequence[Record]) -> np.ndarray:
    """By how much a loss may differ from that of the first of the base's and the control's `runs`, by window."""
    first, *others = losses(runs)
    so_far = np.maximum.accumulate(np.abs(others - first).max(axis=0))
    return np.array(CONTROL_FACTOR * so_far + LOSS_ROUNDING * np.abs(first))


def judge_candidate(name: str, runs: Sequence[Record], base: Sequence[Record], allowed: np.ndarray) -> Verdict:
    """A candidate's runs beside the base's of the same turns: ok if it is faster beyond doubt and trains the same.

    Its figures: `ratio`, the geometric mean over the turns of its images/s over the base's, with its `interval_95`;
    `loss_excess`, the largest difference of a loss over the allowed one: above 1, inf of a NaN, it trains wrongly.
    """
    rates = [rate(run) for run in runs]
    logs = [math.log(own / rate(beside)) for own, beside in zip(rates, base, strict=True)]
    interval = spread.t_interval(logs)
    assert interval is not None, "two turns or more are taken"
    ratio, low, high = (math.exp(log) for log in (statistics.fmean(logs), *interval))
    off = np.abs(losses(runs) - losses(base[:1])) / allowed
    excess = math.inf if np.isnan(off).any() else float(off.max())
    if excess > 1:
        status, verdict = FATAL, f"refused: its losses differ by {excess:.3g} times what is allowed"
    elif low > 1:
        status, verdict = OK, "faster"
    else:
        status, verdict = (WARNING, "slower") if high < 1 else (UNKNOWN, "no difference shown")
    found = f"{shown(rates)}; {ratio:.4f} ({low:.4f} to {high:.4f}) of the base; loss {excess:.2g}: {verdict}"
    figures = {"images_per_s": rates, "ratio": ratio, "interval_95": (low, high), "loss_excess": excess}
    return Verdict(check=name, status=status, found=found, figures=figures)


def better(verdicts: dict[Candidate, Verdict]) -> list[Candidate]:
    """Those that are faster than the base, the best first."""
    found = (way for way, verdict in verdicts.items() if verdict.status == OK and way != BASE)
    return sorted(found, key=lambda way: -verdicts[way].figures["ratio"])


def finalists(verdicts: dict[Candidate, Verdict]) -> list[Candidate]:
    """What is measured again: the best of those that are better, and all of them that go together as one."""
    taken: list[Candidate] = []
    for candidate in better(verdicts):
        if not any(candidate.touches & other.touches or strategy.AUTO in candidate.knobs for other in taken):
            taken.append(candidate)
    if len(taken) < 2 or strategy.AUTO in taken[0].knobs:
        return taken[:1]
    together = Candidate(
        name=" + ".join(c.name for c in taken),
        knobs=tuple(knob for c in taken for knob in c.knobs),
        variables=tuple(pair for c in taken for pair in c.variables),
    )
    return [taken[0], together]


# ---- the command


def tune(args: argparse.Namespace, job: env.Job) -> int:
    """Measures the strategies and writes the config file."""
    name = args.name or f"{job.cluster.dgxsystem}_tuned"
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
        print("\n".join(shlex.join(runner.command(way, "screen_1")) for way in (BASE, CONTROL, *ways)))
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
    """Verdicts on the base and each way beside it, and the allowed differences of losses: of the control, or given."""
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
    system, measured = job.cluster.dgxsystem, f"{job.model.workload}_{job.model.precision}".upper()
    chosen = {f"{measured}_{n}": value for n, value in winner.exports(job.model.strategy).items()}
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
    steps = f"{job.course.warmup_steps} + {job.course.measured_steps} steps"
    names = ("workload", "recipe", "precision", "batchsize", "dgxnnodes", "dgxngpu", "data", "image_size", "strategy")
    base = {}
    for name in names:
        value = job.value(name.upper())
        if value not in ("", 0):
            base[name.upper()] = value
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
        print("\n".join(shlex.join(runner.command(way, "batch_1")) for way in ways))
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
    _ = job.model.knobs, job.hyperparameters  # what is wrong in them is said now
    if job.cluster.dgxnnodes > 1:
        raise ValueError(f"DGXNNODES={job.cluster.dgxnnodes}: runs are started on this node alone: set DGXNNODES=1")
    return (sweep if args.batches else tune)(args, job)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # not in main: a test calls it in a process of its own signals
    sys.exit(main())
