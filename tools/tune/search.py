"""A search for a strategy: what it tries, the real runs that measure it in turns, and what is taken for better."""

import math
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import env
from program import strategy
from runlog.errors import RunError
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure import spread
from scoring.importers import read_record
from scoring.record import Record

ROOT = Path(__file__).resolve().parents[2]
# A loss may differ from the base's by so many times what the control's does, and by a rounding of its own.
CONTROL_FACTOR, LOSS_ROUNDING = 10.0, 1e-6
SERIAL = "FLAGS_new_executor_serial_run"

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
    """The strategies that make sense for the job; the base is not among them.

    Raises ValueError where the base is Paddle's automatic mode.
    """
    base = job.knobs
    if base.auto:
        raise ValueError("STRATEGY=auto: it is measured as one of the strategies where it can run: unset STRATEGY")
    gpu, half = job.device == "gpu", job.precision in ("amp_o1", "amp_o2")
    nhwc = half and job.workload == "rn50" and job.layout != "NCHW"
    lars, ranks = "lars" in job.recipe, job.dgxngpu
    makes_sense = {
        f"enable_inplace={0 if gpu else 1}": True,
        "merged_lars=1": lars,
        "merged_optimizer=0": not lars,
        **dict.fromkeys(("fuse_bn_act_ops=0", "fuse_bn_add_act_ops=0"), nhwc),
        "fuse_elewise_add_act_ops=0": not nhwc,
        **{f"fuse_grad_size_in_MB={size}": ranks > 1 for size in (1, 4, 64)},
        "resnet_unit=1": gpu and nhwc,
        "cuda_graph=1": gpu and job.workload == "rn50" and base.gradient_merge == 1,
        **dict.fromkeys(("enable_addto=0", "cudnn_exhaustive_search=0", "cudnn_batchnorm_spatial_persistent=0"), gpu),
        **{f"conv_workspace_size_limit={size}": gpu for size in (512, 8000)},
    }
    changes = (knob for knob, so in makes_sense.items() if so and strategy.parse(f"{job.strategy},{knob}") != base)
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
        variables = (("DGXNGPU", str(fewer)), ("BATCHSIZE", str(job.batchsize * times)))
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
        self.folder = Path(job.logdir).resolve() / "tune" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        seed = str(job.seed if job.seed >= 0 else 1)
        self.variables = {"MODE": "throughput", "NEXP": "1", "SEED": seed, "PROGRESS": "plain", "CLEAR_CACHES": "0"}
        self.strategy = job.strategy  # of the base
        self.records: list[Record] = []  # of all runs so far

    def _logdir(self, way: Candidate, turn: str) -> Path:
        return self.folder / turn / "".join(c if c.isalnum() or c in "_.=" else "-" for c in way.name)

    def command(self, way: Candidate, turn: str) -> list[str]:
        """`env NAME=VALUE... ./run_and_time.sh` of one measurement."""
        variables = self.variables | {"LOGDIR": str(self._logdir(way, turn))} | way.exports(self.strategy)
        return ["env", *(f"{k}={v}" for k, v in variables.items()), str(ROOT / "run_and_time.sh")]

    def show(self, turn: str, ways: Iterable[Candidate]) -> None:
        """Prints the command of each."""
        for way in ways:
            print(shlex.join(self.command(way, turn)))

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
        """Runs of each way that went through all turns, which go by the `title`, and the reasons of the others.

        Raises RunError where the base or the control does not run.
        """
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
