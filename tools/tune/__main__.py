"""Which strategy is fastest on this machine, measured in turns by the command of a real run (docs/tuning.md).

    python -m tools.tune [--repeats N] [--only NAME,...] [--name SYSTEM] [--dry-run]
    python -m tools.tune --batches [32,64,...] [--dry-run]

The job is the environment's, as for ./run_and_time.sh; each measurement is one such run of MODE=throughput. The first
form writes `config_<SYSTEM>_tuned.sh`, the second shows the base at each batch size.
"""

import argparse
import re
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from harness import env
from harness.job import prefix_of
from runlog import named_files
from runlog.completion import complete
from runlog.digits import counted
from runlog.errors import one_line, print_to_reader
from runlog.options import Parser
from runlog.verdict import FATAL, Verdict, as_text
from scoring.record import Record
from tools.tune.candidates import BASE, CONTROL, Candidate, candidates
from tools.tune.runs import Measured, Runner
from tools.tune.verdicts import Verdicts, allowed_loss, batch_verdict, better, finalists, judge_candidates

BATCHES = "32,64,96,128,160,192,224,256"
MIN_REPEATS = 3


def tune(args: argparse.Namespace, job: env.Job) -> int:
    """Measure the strategies that are worth trying, print a table, and write the config file of the fastest.

    A strategy changes options (knobs) of the setting STRATEGY, or other variables of the job. Two more jobs are run:
    the base, without changes, and the control, whose input is changed by rounding. The control shows how far losses may
    differ.

    Args:
        args: The parsed command line. With `dry_run` only the plan is printed.
        job: The user's own job, described by the environment. Every strategy is a change of it.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: An option or the job's STRATEGY cannot be used. This comes before anything runs.
        RunError: The base or the control fails.
        OSError: The config file cannot be written. The table has been printed then.
    """
    name = args.name or f"{job.cluster.dgxsystem}_tuned"
    path = _new_config_file(args.folder, name)
    chosen = _chosen(candidates(job), args.only)
    runner = Runner(job)
    if args.dry_run:
        _print_plan(runner, chosen, args.repeats, path)
        return 0

    verdicts, lines = _measure_and_judge(runner, chosen, args.repeats)
    faster = better(verdicts)  # the fastest first
    winner = faster[0] if faster else BASE
    lines.append(_choice_in_words(winner))
    print_to_reader("\n".join(lines))  # before the file is written, which may fail: these took hours

    mean = statistics.fmean(verdicts[winner].figures["images_per_s"])
    evidence = [
        f"Throughput to expect: {mean:.2f} images/s on the machine below, with its settings.",
        *provenance(job, args.repeats, runner.records[0]),
        *lines,
    ]
    path.write_text(config_text(name=name, job=job, winner=winner, evidence=evidence), encoding="utf-8")
    print_to_reader(f"config  {path}\nlogs    {runner.folder}")
    return 0


def _choice_in_words(winner: Candidate) -> str:
    """Return the line of a config file that names the candidate whose variables it sets."""
    if winner == BASE:
        return "chosen: the base; nothing was really better, so this file changes nothing"
    return f"chosen: {winner.name}"


def _print_plan(runner: Runner, chosen: list[Candidate], repeats: int, path: Path) -> None:
    """Print the plan of a search: the commands of the first turn, and a line on all runs and the config file.

    For 5 turns and 8 candidates the line is "5 turns of 9 runs and one control, then 5 turns of the base and what was
    faster (at most 3 runs); writes config_DGXA100_tuned.sh".

    Args:
        runner: Makes the commands of the runs.
        chosen: The candidates: changes to the user's job.
        repeats: The number of turns; in a turn each candidate runs once.
        path: The config file.
    """
    # BASE is the user's job without changes. CONTROL, with an input changed by rounding, runs in the first turn only.
    for candidate in (BASE, CONTROL, *chosen):
        print_to_reader(shlex.join(runner.command(candidate, "screen_1")))
    # The "at most 3 runs" are the base, the fastest candidate, and a new one that joins the fastest with others. If no
    # candidate was faster than the base, nothing runs again.
    print_to_reader(
        f"{repeats} turns of {1 + len(chosen)} runs and one control, then {repeats} turns of the base "
        f"and what was faster (at most 3 runs); writes {path}"
    )


def _measure_and_judge(runner: Runner, chosen: list[Candidate], repeats: int) -> tuple[Verdicts, list[str]]:
    """Measure the candidates, then the best of them again; return the last verdicts and the lines of all tables.

    Candidates are compared with the base (BASE), the user's own job without changes. The control (CONTROL) is the base
    with an input changed by rounding, which shows how far a candidate's loss may be from the base's.

    Args:
        runner: Starts the runs of the job.
        chosen: The candidates: changes to the user's own job.
        repeats: How often each candidate runs, in each of the two measurements.

    Returns:
        The verdicts of the second measurement, or of the first if no candidate was faster than the base; and the lines
        of text of all measurements.

    Raises:
        RunError: The base or the control fails.
    """
    screened = runner.measure("screen", (BASE, CONTROL, *chosen), repeats)
    # Taken out of `screened`, so that only candidates are left to judge.
    base_runs = screened.runs.pop(BASE)
    control_runs = screened.runs.pop(CONTROL)
    allowed = allowed_loss([*base_runs, *control_runs])  # of each window of steps, for both measurements
    verdicts = judge_candidates(screened, base_runs, allowed)
    lines = as_text(verdicts.values()).splitlines()
    to_measure_again = finalists(verdicts)  # at most two: the fastest, and one that joins the fastest with others
    if not to_measure_again:  # no candidate was faster than the base
        return verdicts, lines

    # Among many candidates, the best may have been faster only by luck, so new runs decide.
    confirmed = runner.measure("confirm", (BASE, *to_measure_again), repeats)
    confirmed_base_runs = confirmed.runs.pop(BASE)
    new_verdicts = judge_candidates(confirmed, confirmed_base_runs, allowed)
    lines.append("measured again, on runs that had no part in the choice:")
    lines += as_text(new_verdicts.values()).splitlines()
    return new_verdicts, lines


def _new_config_file(folder: Path, name: str) -> Path:
    """Return the path of the config file to be written, after a check that it can be created; it is not created yet.

    This is for the start of a search, before hours of measuring.

    Args:
        folder: The folder of the file.
        name: The name of the new system: the file is config_<name>.sh.

    Raises:
        ValueError: The file exists, or the folder cannot be written to.
    """
    path = folder / f"config_{name}.sh"
    if path.exists():
        raise ValueError(f"{path}: exists, results are never overwritten: move it or give --name")
    refusal = named_files.refusal_of_new_file(folder)
    if refusal:
        raise ValueError(f"--folder {named_files.explain(refusal)}; it must be a folder that you may write")
    return path


def _chosen(all_candidates: list[Candidate], only: str) -> list[Candidate]:
    """Return the candidates that the option --only names.

    Args:
        all_candidates: All candidates of the search: changes to the job.
        only: Names with commas between, such as "cuda_graph=1,merged_optimizer=0". If it is empty, all are chosen.

    Returns:
        The chosen candidates, in the order of `all_candidates`.

    Raises:
        ValueError: No candidate has one of the names.
    """
    if not only:
        return all_candidates
    wanted_names = only.split(",")
    names = [candidate.name for candidate in all_candidates]
    unknown_names = [name for name in wanted_names if name not in names]
    if unknown_names:
        raise ValueError(f"--only {','.join(unknown_names)}: must be of {','.join(names)}")
    return [candidate for candidate in all_candidates if candidate.name in wanted_names]


def config_text(*, name: str, job: env.Job, winner: Candidate, evidence: Iterable[str]) -> str:
    """Return the text of `config_<name>.sh`, which sets the fastest candidate's variables for later jobs.

    A variable is set only for the workload and the precision that were measured, and a value that the user has set
    remains:

        export RN50_AMP_O2_STRATEGY="${RN50_AMP_O2_STRATEGY:-cuda_graph=1}"

    At its end the file sources the config file of the job's own system, for all other settings.

    Args:
        name: The name of the new system.
        job: The user's own job, which was measured.
        winner: The fastest candidate. The unchanged job (BASE) sets no variable.
        evidence: Lines about the measurements, which stand above as comments.
    """
    system = job.cluster.dgxsystem
    prefix = prefix_of(job.model.workload, job.model.precision)  # "RN50_AMP_O2_"
    lines = ["# shellcheck shell=bash", f"# {system} as tuned on one machine:  DGXSYSTEM={name} ./run_and_time.sh"]
    for line in evidence:
        lines.append(f"# {line}".rstrip())
    for variable, value in winner.exports(job.model.strategy).items():
        lines.append(_export_unless_set(f"{prefix}{variable}", value))
    lines += [
        "",
        f"# shellcheck source=config_{system}.sh",
        f'source "$(dirname "${{BASH_SOURCE[0]}}")/config_{system}.sh"',
    ]
    return "\n".join(lines) + "\n"


def _export_unless_set(variable: str, value: str) -> str:
    """Return a line of shell that exports a variable: what the user has set, else `value`."""
    what_is_set_or_value = "${" + f"{variable}:-{value}" + "}"
    return f'export {variable}="{what_is_set_or_value}"'


def provenance(job: env.Job, repeats: int, record: Record) -> list[str]:
    """Return five lines of text for the config file: where a search's figures come from, and how to read the figures.

    The last line explains the columns of the table that follows in the file, with rows such as

        ok  <candidate>  403.20 (401.10 to 405.90); 1.0312 (1.0290 to 1.0335) of the base; loss 0.12: faster

    Args:
        job: The user's own job (the base), which the candidates change.
        repeats: The number of turns; in a turn each candidate runs once.
        record: What the log of any run says. All runs have the same machine and code.
    """
    source = record.header["source"]
    made_by = f"by python -m tools.tune, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {source['commit']}"
    if source["dirty"]:
        made_by += ", with changes"
    steps = f"{job.course.warmup_steps} + {job.course.measured_steps} steps"  # warm-up + measured
    return [
        made_by,
        f"machine {record.machine}",
        f"base    {_base_settings(job)}",
        f"method  {repeats} turns of {steps} each, even ones in reverse order; 95 % t interval of the log ratios",
        "columns ok: better; images/s (range); over the base's (95 % interval); loss difference over the allowed one",
    ]


def _base_settings(job: env.Job) -> str:
    """Return the settings of the job, "WORKLOAD=rn50 PRECISION=fp32", without those that are not set."""
    names = ("WORKLOAD", "RECIPE", "PRECISION", "BATCHSIZE", "DGXNNODES", "DGXNGPU", "DATA", "IMAGE_SIZE", "STRATEGY")
    settings = []
    for name in names:
        value = job.value(name)
        is_set = value not in ("", 0)  # IMAGE_SIZE=0 means the recipe's size
        if is_set:
            settings.append(f"{name}={value}")
    return " ".join(settings)


def _verdict_on_batch(candidate: Candidate, measured: Measured) -> Verdict:
    """Return the verdict on a batch size: its speed and memory, or why it was not measured.

    Args:
        candidate: The change of the job to that batch size.
        measured: The runs of each candidate, or why it failed.
    """
    if candidate in measured.failures:
        reason = f"not measured: {measured.failures[candidate]}"
        return Verdict(check=candidate.name, status=FATAL, found=reason)
    return batch_verdict(candidate.name, measured.runs[candidate])


def sweep(args: argparse.Namespace, job: env.Job) -> int:
    """Measure the job's own strategy at each batch size of --batches, and print a table of images/s and memory.

    Args:
        args: The parsed command line. With `dry_run` only the commands are printed.
        job: The user's own job, described by the environment.

    Returns:
        The exit status: 1 if every size failed, else 0.

    Raises:
        ValueError: --batches is not a list of different sizes.
    """
    batches = _batches(args.batches)  # the candidates: the job with each of the batch sizes
    runner = Runner(job)
    if args.dry_run:
        # In a turn each size runs once. The name that `measure` below gives a turn is in the path of a run's folder.
        first_turn = "batch_1"
        for candidate in batches:
            print_to_reader(shlex.join(runner.command(candidate, first_turn)))
        print_to_reader(
            f"{counted(args.repeats, 'turn')} of {counted(len(batches), 'run')}; one that fails is not run again"
        )
        return 0

    measured = runner.measure("batch", batches, args.repeats)
    if runner.records:  # of all runs that have not failed, all on the same machine
        print_to_reader(f"machine {runner.records[0].machine}")
    verdicts = [_verdict_on_batch(candidate, measured) for candidate in batches]
    print_to_reader(f"{as_text(verdicts)}logs    {runner.folder}")
    return 0 if measured.runs else 1  # `runs` has only the batch sizes that have not failed


def _batches(listed: str) -> list[Candidate]:
    """Return a candidate (a change to the job) for each batch size in a list.

    Args:
        listed: Sizes with commas between, such as "32,64".

    Raises:
        ValueError: One of them is not a whole number above 0, or is there twice.
    """
    sizes = listed.split(",")
    if not all(re.fullmatch("[1-9][0-9]*", size) for size in sizes):
        raise ValueError(f"--batches {listed}: must be whole numbers above 0 with commas between")
    for size in sizes:
        if sizes.count(size) > 1:
            raise ValueError(f"--batches {listed}: {size} is there twice: name each size once")
    return [Candidate(name=f"BATCHSIZE={size}", variables=(("BATCHSIZE", size),)) for size in sizes]


def _stop(number: int, _frame: FrameType | None) -> None:
    """Handle a signal by raising SystemExit, so that `_wait_for` terminates the run that is going on."""
    raise SystemExit(128 + number)


def _parse() -> argparse.Namespace:
    """Return the options of the command line; end the process if one is wrong or a shell asks for completions."""
    parser = Parser(
        prog="python -m tools.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help=f"turns, at least {MIN_REPEATS} for strategies")
    parser.add_argument("--only", default="", help="names of strategies, as --dry-run and a wrong name show them")
    parser.add_argument("--name", default="", help="SYSTEM of the config file; <SYSTEM>_tuned if not given")
    parser.add_argument("--folder", type=Path, default=env.ROOT, help="where to write it; the repository if not given")
    parser.add_argument("--batches", nargs="?", const=BATCHES, help=f"sweep these batch sizes instead ({BATCHES})")
    parser.add_argument("--dry-run", action="store_true", help="print each run's command, run nothing")
    complete(parser)
    return parser.parse_args()


def _refuse_options_of_a_search(args: argparse.Namespace) -> None:
    """Check that --batches comes without the options of a search of strategies: --only, --name and --folder.

    Args:
        args: The parsed command line.

    Raises:
        ValueError: It comes with one of these options.
    """
    given = []
    if args.only:
        given.append(f"--only {args.only}")
    if args.name:
        given.append(f"--name {args.name}")
    if args.folder != env.ROOT:
        given.append(f"--folder {args.folder}")
    if args.batches is not None and given:
        says = "--batches tries no strategies and writes no config file: leave it out, or these"
        raise ValueError(f"{' '.join(given)}: {says}")


def _refuse_wrong_system(name: str) -> None:
    """Raise ValueError if --name is given, and cannot name a system: there could be no config_<name>.sh."""
    if name and not re.fullmatch("[A-Za-z0-9._-]+", name):
        raise ValueError(f"--name {name!r}: must be of letters, digits, '.', '_' and '-': it names config_<name>.sh")


def _refuse_wrong_names(job: env.Job) -> None:
    """Raise ValueError if STRATEGY has an unknown knob or RECIPE an unknown name."""
    # Reading these properties parses the names.
    _ = job.model.knobs
    _ = job.hyperparameters


@one_line
def main() -> int:
    """Find the fastest strategy for the job that the environment describes, or with --batches measure batch sizes.

    Returns:
        The exit status.

    Raises:
        ValueError: An option or the job cannot be used, for example because it has several nodes. Nothing has run then.
        RunError: The job without changes (the base), or the control run, fails.
        OSError: The config file cannot be written.
    """
    args = _parse()
    named_files.check_options(args)
    _refuse_options_of_a_search(args)
    _refuse_wrong_system(args.name)
    is_sweep = args.batches is not None
    least_repeats = 1 if is_sweep else MIN_REPEATS
    if args.repeats < least_repeats:
        raise ValueError(f"--repeats {args.repeats}: must be at least {least_repeats}")

    job, _ = env.read(env.resolve())
    _refuse_wrong_names(job)
    if job.cluster.dgxnnodes > 1:
        raise ValueError(f"DGXNNODES={job.cluster.dgxnnodes}: runs are started on this node alone: set DGXNNODES=1")
    return sweep(args, job) if is_sweep else tune(args, job)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # not in main: a test calls it in a process of its own signals
    sys.exit(main())
