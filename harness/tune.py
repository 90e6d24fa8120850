"""Which strategy is fastest on this machine, measured in turns by the command of a real run.

    python -m harness.tune [--repeats N] [--only NAME,...] [--name SYSTEM] [--dry-run]
    python -m harness.tune --batches [32,64,...] [--dry-run]

The job is the environment's, as for ./run_and_time.sh; each measurement is one such run of MODE=throughput. The first
form takes the strategies below one by one against the base, in turns. What is really faster (95 % interval of the
ratios, formed within each turn) is measured again with the combination of all that is, and only what wins there, on
runs that had no part in choosing it, becomes `config_<SYSTEM>_tuned.sh`; otherwise the base stays, and the file says
so. A strategy whose losses differ from the base's by more than a control's is never chosen: the control is the base
with each input value moved by one rounding. Paddle's automatic mode is one of the strategies where it can run.

The second form measures the base at each batch size; one that does not fit is shown with its reason.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import env, strategy
from harness.errors import RunError
from scoring import spread
from scoring.importers import read_record
from scoring.record import Record

ROOT = Path(__file__).resolve().parents[1]
BATCHES = "32,64,96,128,160,192,224,256"
BASE, CONTROL = "base", "control"
LEAST_REPEATS = 3
# A loss may differ from the base's by so many times what the control's does, and by a rounding of its own.
CONTROL_FACTOR, LOSS_ROUNDING = 10.0, 1e-6
SERIAL = "FLAGS_new_executor_serial_run"


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
            found["STRATEGY"] = strategy.describe(strategy.parse(",".join((base_strategy, *self.knobs))))
        return found


BASE_WAY = Candidate(name=BASE)
CONTROL_WAY = Candidate(name=CONTROL, knobs=("perturb_input=1",))


def candidates(job: dict[str, Any]) -> list[Candidate]:
    """The strategies that make sense for the job of these variables; the base is not among them.

    Raises:
        ValueError: the base is Paddle's automatic mode.
    """
    base = strategy.parse(job["STRATEGY"])
    if base.auto:
        raise ValueError("STRATEGY=auto: it is measured as one of the strategies where it can run: unset STRATEGY")
    gpu, half = job["DEVICE"] == "gpu", job["PRECISION"] in ("amp_o1", "amp_o2")
    ranks = job["DGXNGPU"]
    knobs = ["enable_inplace=1"]
    if job["PRECISION"] != "bf16":
        knobs.append("merged_optimizer=0")
    if half:
        knobs += ["fuse_bn_act_ops=0", "fuse_bn_add_act_ops=0"]
    elif job["PRECISION"] != "bf16":
        knobs.append("fuse_elewise_add_act_ops=0")
    if ranks > 1:
        knobs += ["fuse_grad_size_in_MB=1", "fuse_grad_size_in_MB=4", "fuse_grad_size_in_MB=64"]
    if gpu:
        knobs += ["enable_addto=0", "cudnn_exhaustive_search=0", "cudnn_batchnorm_spatial_persistent=0"]
        knobs += ["conv_workspace_size_limit=512", "conv_workspace_size_limit=8000"]
        if ranks > 1:
            knobs.append("nccl_comm_num=2")
            if not half:
                knobs.append("fp16_allreduce=1")
    changes = (knob for knob in knobs if strategy.parse(f"{job['STRATEGY']},{knob}") != base)
    found = [Candidate(name=knob, knobs=(knob,)) for knob in changes]
    serial = "1" if gpu else "0"  # the other way than harness/env.py has it
    found.append(Candidate(name=f"{SERIAL}={serial}", variables=((SERIAL, serial),)))
    if gpu and ranks == strategy.AUTO_RANKS:
        found.append(Candidate(name=strategy.AUTO, knobs=(strategy.AUTO,)))
    if not gpu:
        found += _fewer_ranks(job, base.gradient_merge)
    return found


def _fewer_ranks(job: dict[str, Any], parts: int) -> list[Candidate]:
    """The same update by fewer processes with more threads each: batch norm sees the same images together."""
    found = []
    for ranks in range(1, job["DGXNGPU"]):
        times, rest = divmod(job["DGXNGPU"], ranks)
        if rest == 0:
            variables = (("DGXNGPU", str(ranks)), ("BATCHSIZE", str(job["BATCHSIZE"] * times)))
            knobs = (f"gradient_merge={times * parts}",)
            found.append(Candidate(name=f"DGXNGPU={ranks}", knobs=knobs, variables=variables))
    return found


# ---- deciding --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run."""

    images_per_s: float  # over its measured windows
    losses: tuple[float, ...]  # of every window
    gpu_memory_mib: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A candidate beside the base."""

    images_per_s: tuple[float, ...]  # one a turn
    ratio: float  # geometric mean over the turns of its images/s over the base's
    interval_95: tuple[float, float]
    loss_excess: float  # largest difference of a loss over the allowed one; above 1, as inf of a nan, it trains wrongly

    @property
    def is_better(self) -> bool:
        """Whether it is faster beyond doubt and trains the same."""
        return self.interval_95[0] > 1.0 and self.loss_excess <= 1.0

    def __str__(self) -> str:
        low, high = self.interval_95
        said = "faster" if low > 1 else "slower" if high < 1 else "no difference shown"
        if self.loss_excess > 1:
            said = f"refused: its losses differ by {self.loss_excess:.3g} times what is allowed"
        return (
            f"{_shown(self.images_per_s)}; "
            f"{self.ratio:.4f} ({low:.4f} to {high:.4f}) of the base; loss {self.loss_excess:.2g}: {said}"
        )


def _shown(images_per_s: Sequence[float]) -> str:
    """Mean and range."""
    return f"{statistics.fmean(images_per_s):9.2f} ({min(images_per_s):.2f} to {max(images_per_s):.2f})"


def allowed_loss(runs: Sequence[Measured], controls: Sequence[Measured]) -> list[float]:
    """By how much a loss may differ from that of the first of the base's `runs`, window by window."""
    first, so_far, allowed = runs[0].losses, 0.0, []
    for window, loss in enumerate(first):
        moved = [abs(run.losses[window] - loss) for run in (*runs[1:], *controls)]
        so_far = max(so_far, *moved)
        allowed.append(CONTROL_FACTOR * so_far + LOSS_ROUNDING * abs(loss))
    return allowed


def judge(runs: Sequence[Measured], base: Sequence[Measured], allowed: Sequence[float]) -> Verdict:
    """A candidate's runs beside the base's of the same turns."""
    logs = [math.log(run.images_per_s / of_base.images_per_s) for run, of_base in zip(runs, base, strict=True)]
    interval = spread.t_interval(logs)
    assert interval is not None, "two turns or more are taken"
    excesses = [
        abs(loss - expected) / limit
        for run in runs
        for loss, expected, limit in zip(run.losses, base[0].losses, allowed, strict=True)
    ]
    return Verdict(
        images_per_s=tuple(run.images_per_s for run in runs),
        ratio=math.exp(statistics.fmean(logs)),
        interval_95=(math.exp(interval[0]), math.exp(interval[1])),
        loss_excess=math.inf if any(map(math.isnan, excesses)) else max(excesses),  # max may pass over a nan
    )


def finalists(verdicts: dict[Candidate, Verdict]) -> list[Candidate]:
    """What is measured again: the best of those that are better, and all of them that go together as one."""
    better = sorted((c for c, v in verdicts.items() if v.is_better), key=lambda c: -verdicts[c].ratio)
    taken: list[Candidate] = []
    for candidate in better:
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


# ---- measuring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Starts runs of the job, each with a folder of its own."""

    folder: Path
    say: Callable[[str], None]

    def command(self, name: str, turn: str, exports: dict[str, str], base: dict[str, str]) -> list[str]:
        """`env NAME=VALUE... ./run_and_time.sh` of one measurement."""
        where = self.folder / turn / "".join(c if c.isalnum() or c in "_.=" else "-" for c in name)
        variables = base | {"LOGDIR": str(where)} | exports
        return ["env", *(f"{k}={v}" for k, v in variables.items()), str(ROOT / "run_and_time.sh")]

    def run(self, command: Sequence[str]) -> tuple[Record | None, str]:
        """The record of a run, or why there is none."""
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                _, stderr = process.communicate()
            finally:
                if process.poll() is None:  # this command was stopped: so is the run
                    process.terminate()
                    process.wait()
        if process.returncode:
            reasons = [line.removeprefix("error: ") for line in stderr.splitlines() if line.startswith("error: ")]
            return None, reasons[0] if reasons else f"exit status {process.returncode}"
        logdir = next(Path(word.removeprefix("LOGDIR=")) for word in command if word.startswith("LOGDIR="))
        (log,) = logdir.glob("**/result_0.txt")
        return read_record(log), ""


def measured(record: Record) -> Measured:
    """A run's figures."""
    windows = [w for w in record.windows if w.phase == "measured"]
    seconds = sum(w.seconds or 0.0 for w in windows)
    memory = [w.gpu_memory_mib for w in windows if w.gpu_memory_mib is not None]
    losses = tuple(w.loss for w in record.windows if w.loss is not None)
    assert len(losses) == len(record.windows), "a run whose loss is not finite ends with an error"
    return Measured(
        images_per_s=sum(w.images or 0.0 for w in windows) / seconds,
        losses=losses,
        gpu_memory_mib=max(memory, default=None),
    )


@dataclass(kw_only=True)
class Round:
    """Runs of the base and of candidates in turns."""

    runner: Runner
    base: dict[str, str]  # variables of every run
    strategy: str  # of the base
    title: str
    records: list[Record]

    def take(self, ways: Sequence[Candidate], repeats: int) -> tuple[dict[Candidate, list[Measured]], dict[str, str]]:
        """Runs of each way that went through all turns, and the reasons of the others.

        Raises:
            RunError: the base itself does not run.
        """
        found: dict[Candidate, list[Measured]] = {way: [] for way in ways}
        failed: dict[str, str] = {}
        for turn in range(1, repeats + 1):
            for way in list(ways) if turn % 2 else list(reversed(ways)):
                if way.name in failed or (way.name == CONTROL and turn > 1):
                    continue
                label = f"{self.title}_{turn}"
                command = self.runner.command(way.name, label, way.exports(self.strategy), self.base)
                record, reason = self.runner.run(command)
                if record is None:
                    if way.name == BASE:
                        raise RunError(f"the base does not run: {reason}")
                    failed[way.name] = reason
                    self.runner.say(f"{label} {way.name}: {reason}")
                    continue
                self.records.append(record)
                found[way].append(measured(record))
                self.runner.say(f"{label} {way.name}: {found[way][-1].images_per_s:.2f} images/s")
        return {way: runs for way, runs in found.items() if way.name not in failed}, failed


def described() -> dict[str, Any]:
    """The job's variables as ./run_and_time.sh resolves them.

    Raises:
        ValueError: the environment describes no job.
    """
    done = subprocess.run(
        [str(ROOT / "run_and_time.sh"), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.strip().removeprefix("error: ").splitlines()[0] if done.stderr else "no job")
    start = done.stdout.index("{")
    variables, _ = json.JSONDecoder().raw_decode(done.stdout[start:])
    return {name: entry["value"] for name, entry in variables.items()}


# ---- the file --------------------------------------------------------------------------------------------------------


def default_precision(system: str, workload: str) -> str:
    """PRECISION of a job on this system where the user sets none."""
    script = f'source "config_$1.sh"; echo "${{PRECISION:-{env.Job.precision}}}"'
    command = ["env", "--unset=PRECISION", f"WORKLOAD={workload}", "bash", "-c", script, "_", system]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


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


def _machine(record: Record) -> str:
    nodes = record.header["hardware"]["nodes"]
    parts = []
    for node in nodes:
        gpus = node.get("gpus") or []
        first = gpus[0] if gpus else node.get("cpu")
        device = first.get("name") if isinstance(first, dict) else first
        parts.append(f"{len(gpus)} x {device}" if gpus else f"{device}, {node.get('cores')} cores")
    return "; ".join(parts)


def _evidence(job: dict[str, Any], repeats: int, record: Record) -> list[str]:
    source = record.header["source"]
    steps = f"{job['WARMUP_STEPS']} + {job['MEASURED_STEPS']} steps"
    names = ("WORKLOAD", "RECIPE", "PRECISION", "BATCHSIZE", "DGXNNODES", "DGXNGPU", "DATA", "IMAGE_SIZE", "STRATEGY")
    return [
        f"by python -m harness.tune, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {source['commit']}"
        + (", with changes" if source["dirty"] else ""),
        f"machine {_machine(record)}",
        f"base    {' '.join(f'{name}={job[name]}' for name in names if job[name] not in ('', 0))}",
        f"method  {repeats} turns of {steps} each, order turned round each time; 95 % t interval of the log ratios",
        "columns images/s (range); over the base's (95 % interval); loss difference over the allowed one",
    ]


# ---- the commands ----------------------------------------------------------------------------------------------------


def tune(args: argparse.Namespace, job: dict[str, Any]) -> int:
    """Measures the strategies and writes the config file."""
    name = args.name or f"{job['DGXSYSTEM']}_tuned"
    path = args.folder / f"config_{name}.sh"
    _check_writable(args.folder, path)
    ways = _asked(args.only, candidates(job))
    runner, variables = _runner(job), _run_variables(job)
    if args.dry_run:
        for way in (BASE_WAY, CONTROL_WAY, *ways):
            print(shlex.join(runner.command(way.name, "screen_1", way.exports(job["STRATEGY"]), variables)))
        print(
            f"{args.repeats} turns of {1 + len(ways)} runs and one control, then {args.repeats} turns of the base and "
            f"what was faster (at most 3 runs); writes {path}"
        )
        return 0
    records: list[Record] = []
    screen, confirm = (
        Round(runner=runner, base=variables, strategy=job["STRATEGY"], title=title, records=records)
        for title in ("screen", "confirm")
    )
    verdicts, of_base, allowed, lines = _screen(screen, ways, args.repeats)
    again = finalists(verdicts)
    confirmed: dict[Candidate, Verdict] = {}
    if again:
        confirmed, of_base, more = _confirm(confirm, again, allowed, args.repeats)
        lines += more
    better = [way for way, verdict in confirmed.items() if verdict.is_better]
    winner = max(better, key=lambda way: confirmed[way].ratio, default=None)
    if winner:
        images_per_s = confirmed[winner].images_per_s
        lines.append(f"chosen: {winner.name}")
    else:
        images_per_s = tuple(run.images_per_s for run in of_base)
        lines.append("chosen: the base; nothing was really better, so this file changes nothing")
    print("\n".join(lines), flush=True)  # before the file, which may fail: hours went into them
    mean = statistics.fmean(images_per_s)
    expect = f"Throughput to expect: {mean:.2f} images/s on the machine below, with its settings."
    evidence = [expect, *_evidence(job, args.repeats, records[0]), *lines]
    path.write_text(config_text(name=name, job=job, winner=winner, evidence=evidence), encoding="utf-8")
    print(f"config  {path}\nlogs    {runner.folder}")
    return 0


def _check_writable(folder: Path, path: Path) -> None:
    """Says before hours of measuring that the config file could not be written after them.

    Raises:
        ValueError: it is there already, or the folder takes no file.
    """
    if path.exists():
        raise ValueError(f"{path}: exists, results are never overwritten: move it or give --name")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--folder {folder}: {error.strerror}: give a folder that this user may write") from None


def _asked(only: str, ways: list[Candidate]) -> list[Candidate]:
    """Those of the strategies that --only names; all where it names none.

    Raises:
        ValueError: it names another.
    """
    if not only:
        return ways
    wanted = only.split(",")
    unknown = set(wanted) - {way.name for way in ways}
    if unknown:
        raise ValueError(f"--only {','.join(sorted(unknown))}: must be of {','.join(way.name for way in ways)}")
    return [way for way in ways if way.name in wanted]


def _screen(
    screen: Round, ways: Sequence[Candidate], repeats: int
) -> tuple[dict[Candidate, Verdict], list[Measured], list[float], list[str]]:
    """Each strategy beside the base: verdicts, the base's runs, the allowed differences of losses, lines of evidence.

    Raises:
        RunError: the base or the control does not run.
    """
    runs, failed = screen.take([BASE_WAY, CONTROL_WAY, *ways], repeats)
    if CONTROL in failed:
        raise RunError(f"the control does not run: {failed[CONTROL]}")
    controls, of_base = runs.pop(CONTROL_WAY), runs.pop(BASE_WAY)
    allowed = allowed_loss(of_base, controls)
    verdicts = {way: judge(found, of_base, allowed) for way, found in runs.items()}
    lines = [f"{BASE:34} {_shown([run.images_per_s for run in of_base])}", *_lines(verdicts, failed)]
    return verdicts, of_base, allowed, lines


def _confirm(
    confirm: Round, again: Sequence[Candidate], allowed: Sequence[float], repeats: int
) -> tuple[dict[Candidate, Verdict], list[Measured], list[str]]:
    """What was better, beside the base anew: verdicts, the base's runs, lines of evidence.

    Raises:
        RunError: the base does not run.
    """
    runs, failed = confirm.take([BASE_WAY, *again], repeats)
    of_base = runs.pop(BASE_WAY)
    verdicts = {way: judge(found, of_base, allowed) for way, found in runs.items()}
    return verdicts, of_base, ["measured again, on runs that had no part in the choice:", *_lines(verdicts, failed)]


def _lines(verdicts: dict[Candidate, Verdict], failed: dict[str, str]) -> list[str]:
    return [f"{way.name:34} {verdict}" for way, verdict in verdicts.items()] + [
        f"{way:34} refused: {reason}" for way, reason in failed.items()
    ]


def sweep(args: argparse.Namespace, job: dict[str, Any]) -> int:
    """Measures the base at each batch size and prints the table."""
    texts = args.batches.split(",")
    if not all(text.isdecimal() and int(text) > 0 for text in texts):
        raise ValueError(f"--batches {args.batches}: must be whole numbers with commas between")
    ways = [Candidate(name=f"BATCHSIZE={text}", variables=(("BATCHSIZE", text),)) for text in texts]
    runner, variables = _runner(job), _run_variables(job)
    if args.dry_run:
        for way in ways:
            print(shlex.join(runner.command(way.name, "batch_1", way.exports(job["STRATEGY"]), variables)))
        print(f"{args.repeats} turns of {len(ways)} runs; one that fails is not run again")
        return 0
    batches = Round(runner=runner, base=variables, strategy=job["STRATEGY"], title="batch", records=[])
    runs, failed = batches.take(ways, args.repeats)
    if batches.records:
        print(f"machine {_machine(batches.records[0])}")
    print("images a device  images/s      95 % interval over the turns   GPU memory, MiB")
    for way in ways:
        text = way.name.partition("=")[2]
        if way.name in failed:
            print(f"{text:>15}  not measured: {failed[way.name]}")
            continue
        images_per_s = [run.images_per_s for run in runs[way]]
        interval = spread.t_interval(images_per_s)
        shown = f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "none: one turn"
        memory = max((run.gpu_memory_mib for run in runs[way] if run.gpu_memory_mib is not None), default=None)
        held = "not measured" if memory is None else f"{memory:.0f}"
        print(f"{text:>15}  {statistics.fmean(images_per_s):12.2f}  {shown:29}  {held}")
    print(f"logs    {runner.folder}")
    return 0 if runs else 1


def _runner(job: dict[str, Any]) -> Runner:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Runner(
        folder=Path(job["LOGDIR"]).resolve() / "tune" / stamp,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _run_variables(job: dict[str, Any]) -> dict[str, str]:
    """What every run has: one trial of a fixed number of steps, the same samples each time."""
    seed = job["SEED"] if job["SEED"] >= 0 else 1
    return {"MODE": "throughput", "NEXP": "1", "SEED": str(seed), "PROGRESS": "plain", "CLEAR_CACHES": "0"}


def _stop(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """`python -m harness.tune`."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help=f"turns, at least {LEAST_REPEATS} for strategies")
    parser.add_argument("--only", default="", help="names of strategies, as --dry-run and a wrong name show them")
    parser.add_argument("--name", default="", help="SYSTEM of the config file; <SYSTEM>_tuned if not given")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where to write it; the repository if not given")
    parser.add_argument("--batches", nargs="?", const=BATCHES, help=f"sweep these batch sizes instead ({BATCHES})")
    parser.add_argument("--dry-run", action="store_true", help="print each run's command, run nothing")
    args = parser.parse_args()
    try:
        least = 1 if args.batches else LEAST_REPEATS
        if args.repeats < least:
            raise ValueError(f"--repeats {args.repeats}: must be at least {least}")
        job = described()
        if job["DGXNNODES"] > 1:
            raise ValueError(f"DGXNNODES={job['DGXNNODES']}: runs are started on this node alone: set DGXNNODES=1")
        return (sweep if args.batches else tune)(args, job)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # not in main: a test calls it in a process of its own signals
    sys.exit(main())
