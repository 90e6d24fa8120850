"""The measuring of a search for a strategy: real runs of the base and of candidates, in turns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import env
from runlog.errors import RunError
from scoring.importers import read_record
from scoring.record import Record
from tools.tune.candidates import BASE, CONTROL, Candidate

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run."""

    images_per_s: float  # over its measured windows
    losses: tuple[float, ...]  # of every window
    gpu_memory_mib: float | None = None


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


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Starts runs of the job, each with a folder of its own."""

    folder: Path
    variables: dict[str, str]  # of every run
    strategy: str  # of the base
    records: list[Record] = field(default_factory=list)  # of all runs so far

    def command(self, way: Candidate, turn: str) -> list[str]:
        """`env NAME=VALUE... ./run_and_time.sh` of one measurement."""
        where = self.folder / turn / "".join(c if c.isalnum() or c in "_.=" else "-" for c in way.name)
        variables = self.variables | {"LOGDIR": str(where)} | way.exports(self.strategy)
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

    def take(
        self, title: str, ways: Sequence[Candidate], repeats: int
    ) -> tuple[dict[Candidate, list[Measured]], dict[str, str]]:
        """Runs of each way that went through all turns, which go by the `title`, and the reasons of the others.

        Raises RunError where the base itself does not run.
        """
        found: dict[Candidate, list[Measured]] = {way: [] for way in ways}
        failed: dict[str, str] = {}
        for turn in range(1, repeats + 1):
            for way in list(ways) if turn % 2 else list(reversed(ways)):
                if way.name in failed or (way.name == CONTROL and turn > 1):
                    continue
                label = f"{title}_{turn}"
                record, outcome = self.run(self.command(way, label))
                if record is None:
                    if way.name == BASE:
                        raise RunError(f"the base does not run: {outcome}")
                    failed[way.name] = outcome
                else:
                    self.records.append(record)
                    found[way].append(measured(record))
                    outcome = f"{found[way][-1].images_per_s:.2f} images/s"
                print(f"{label} {way.name}: {outcome}", file=sys.stderr, flush=True)
        return {way: runs for way, runs in found.items() if way.name not in failed}, failed


def runner_of(job: env.Job) -> Runner:
    """Of a job; each run is one trial of a fixed number of steps, on the same samples."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    seed = job.seed if job.seed >= 0 else 1
    return Runner(
        folder=Path(job.logdir).resolve() / "tune" / stamp,
        variables={"MODE": "throughput", "NEXP": "1", "SEED": str(seed), "PROGRESS": "plain", "CLEAR_CACHES": "0"},
        strategy=job.strategy,
    )
