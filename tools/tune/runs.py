"""The runs of a search: each candidate in turns, by the user's own command."""

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


@dataclass(kw_only=True)
class Measured:
    """The runs of a measurement. A turn is one run of each candidate; a candidate is in only one of the two tables."""

    runs: dict[Candidate, list[Record]]  # of the candidates that have not failed, in the order of the turns
    failures: dict[Candidate, str] = field(default_factory=dict)  # why a candidate failed


class Runner:
    """Starts runs of the job by ./run_and_time.sh. Each has its own folder; all have one seed, so the same samples."""

    def __init__(self, job: env.Job) -> None:
        """Prepare the runs of a search: their folder, and the variables that all of them set. Nothing is started yet.

        Args:
            job: The user's own job. Each run is this job with the changes of one candidate. If it has no fixed seed
                (SEED below 0), the seed of all runs is 1, because their losses are compared.
        """
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.folder = Path(job.trials.logdir).resolve() / "tune" / now
        # A seed below 0 means a new one for each run.
        seed = job.course.seed if job.course.seed >= 0 else 1
        self.variables = {
            "MODE": "throughput",  # a fixed number of steps, not a whole training
            "NEXP": "1",  # one trial, so one log
            "SEED": str(seed),
            "PROGRESS": "plain",
            "CLEAR_CACHES": "0",  # the page cache is not flushed
        }
        self.strategy = job.model.strategy  # the base's STRATEGY, to which a candidate adds its knobs
        self.records: list[Record] = []  # of all runs so far

    def command(self, candidate: Candidate, turn: str) -> list[str]:
        """Return the command of one run, `env NAME=VALUE... ./run_and_time.sh`, as a list of words.

        Args:
            candidate: The changes to the user's job, which become variables of the command.
            turn: The name of the repetition, such as "screen_1", which is a part of the path of the run's folder.
        """
        variables = self.variables | {"LOGDIR": str(self._logdir(candidate, turn))}
        variables |= candidate.exports(self.strategy)
        assignments = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *assignments, str(env.ROOT / "run_and_time.sh")]

    def run(self, candidate: Candidate, turn: str) -> Record:
        """Run the job once with the changes of a candidate, by ./run_and_time.sh; return what its log says.

        Args:
            candidate: The changes to the job. BASE has none.
            turn: The name of the repetition, such as "screen_1", which is a part of the path of the run's folder.

        Raises:
            RunError: The run fails. The message is the first error that it printed, else its exit status.
        """
        process = subprocess.Popen(
            self.command(candidate, turn),
            cwd=env.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            stderr = _wait_for(process)
        if process.returncode:
            raise RunError(_reason_of_failure(stderr, process.returncode))
        (only_log,) = self._logdir(candidate, turn).glob("**/result_0.txt")  # NEXP=1 makes one log
        return read_record(only_log)

    def measure(self, title: str, candidates: Sequence[Candidate], turns: int) -> Measured:
        """Run candidates in turns; return the runs of each candidate, or why the candidate failed.

        In a turn each candidate runs once, but CONTROL in the first turn only. A candidate that has failed is left out
        of the later turns, and its earlier runs are removed from the result. For example, if "cuda_graph=1" fails in
        the second of three turns, the result has three runs of "base" in `runs`, and of "cuda_graph=1" only the reason
        in `failures`.

        Args:
            title: The first part of the names of the turns' folders: "screen" gives "screen_1", "screen_2" and so on.
            candidates: The changes to the user's own job, which may include BASE (no change) and CONTROL. CONTROL
                changes the input by rounding errors, to show how much these change a loss.
            turns: The number of turns.

        Returns:
            `runs`: for each candidate that has not failed a list of its runs, in the order of the turns. `failures`:
            the reason for each candidate that has failed.

        Raises:
            RunError: BASE or CONTROL fails.
        """
        measured = Measured(runs={candidate: [] for candidate in candidates})  # no run yet; `failures` is empty
        try:
            # Turn by turn, not candidate by candidate, so that a slow change of the machine affects all candidates.
            for turn in range(1, turns + 1):
                # This changes `measured`: it adds a run of each candidate to `runs`, and moves a candidate that fails
                # from `runs` to `failures`.
                self._measure_turn(measured, candidates, title, turn)
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or another signal that ends this process
            print(f"nothing is judged or written; the logs of the runs so far are in {self.folder}", file=sys.stderr)
            raise
        return measured

    def _measure_turn(self, measured: Measured, candidates: Sequence[Candidate], title: str, turn: int) -> None:
        """Run once each candidate that has not failed, and the control in the first turn only.

        Args:
            measured: The measurement so far, to which the runs are added.
            candidates: The changes to the user's job.
            title: The first part of the turn's name: "screen" gives "screen_1".
            turn: The number of the turn; counts from 1.

        Raises:
            RunError: The run of BASE (the job without changes) or of CONTROL fails.
        """
        for candidate in _order_of_turn(candidates, turn):
            if candidate in measured.failures:  # it failed in an earlier turn
                continue
            if candidate == CONTROL and turn > 1:  # one run of it is enough to compare losses
                continue
            self._measure_once(measured, candidate, f"{title}_{turn}")

    def _measure_once(self, measured: Measured, candidate: Candidate, turn: str) -> None:
        """Run a candidate once, add its run to the measurement, and print its images/s on stderr.

        If the run fails, the reason is noted and printed instead, and the candidate's earlier runs are removed.

        Args:
            measured: The measurement so far: the runs of each candidate, and why others failed. It is changed.
            candidate: The changes to the job.
            turn: The name of the repetition, such as "screen_1".

        Raises:
            RunError: The run of BASE (the job without changes) or of CONTROL fails.
        """
        try:
            record = self.run(candidate, turn)
        except RunError as reason:
            if candidate in (BASE, CONTROL):
                raise RunError(f"the {candidate.name} does not run: {reason}") from reason
            measured.failures[candidate] = str(reason)
            del measured.runs[candidate]  # runs are compared turn by turn with the base's, and a turn is missing now
            print(f"{turn} {candidate.name}: {reason}", file=sys.stderr, flush=True)
            return
        self.records.append(record)
        measured.runs[candidate].append(record)
        print(f"{turn} {candidate.name}: {rate(record):.2f} images/s", file=sys.stderr, flush=True)

    def _logdir(self, candidate: Candidate, turn: str) -> Path:
        """Return the folder of a run, `<folder of the search>/<turn>/<name of the candidate>`."""
        name = "".join(_in_file_name(character) for character in candidate.name)
        return self.folder / turn / name


def _order_of_turn(candidates: Sequence[Candidate], turn: int) -> list[Candidate]:
    """Return the candidates in order in odd turns and reversed in even ones.

    So a slow change, such as that of the machine's heat, affects all equally.

    Args:
        candidates: The changes to the user's job that are measured.
        turn: The number of the turn; counts from 1.
    """
    if turn % 2 == 0:
        return list(reversed(candidates))
    return list(candidates)


def _wait_for(process: subprocess.Popen[str]) -> str:
    """Wait until a run ends, and return what it printed on stderr.

    Args:
        process: The run, whose stderr is a pipe. If an exception ends the wait, such as that of Ctrl-C, the run is
            terminated; it would go on without this process.
    """
    try:
        _, stderr = process.communicate()
    finally:
        is_still_running = process.poll() is None
        if is_still_running:
            process.terminate()
            process.wait()
    return stderr


def _reason_of_failure(stderr: str, exit_status: int) -> str:
    """Return the first error that a run printed, else its exit status."""
    for line in stderr.splitlines():
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return f"exit status {exit_status}"


def _in_file_name(character: str) -> str:
    """Return a character of a candidate's name for a file name: a letter, a digit, `_`, `.` or `=`; otherwise `-`."""
    if character.isalnum() or character in "_.=":
        return character
    return "-"


def rate(run: Record) -> float:
    """Return the images/s of a run over all windows of its measured phase; the warm-up does not count."""
    images = 0.0
    seconds = 0.0
    for window in run.windows:
        if window.phase == "measured":
            images += window.images or 0.0
            seconds += window.seconds or 0.0
    return images / seconds
