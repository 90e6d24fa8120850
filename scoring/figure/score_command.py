"""`python -m scoring score`: the figure of one system's runs under a protocol."""

import argparse
import json
import math
import sys

from runlog.digits import counted
from runlog.text import called, safe_lines
from runlog.verdict import as_text
from scoring.figure import protocols
from scoring.figure.levels import in_words
from scoring.figure.options import add_score_options, add_system_option, protocol_of
from scoring.figure.run import RunFigure
from scoring.figure.score import Score, score, score_without_figure
from scoring.importers import jsonable, read_records
from scoring.record import NothingMeasuredError, Record, TooFewRunsError

MAX_MORE_RUNS = 50  # that `score` asks a user for; beyond these it says that the goal seems out of reach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="+", metavar="LOG", help="logs of repeated runs of one system")
    add_score_options(parser)
    add_system_option(parser)
    parser.add_argument("--json", action="store_true", help="print the figure and all that it carries as JSON")
    described_protocols = [f"{name}: {protocol.describe()}" for name, protocol in protocols.load().items()]
    parser.epilog = f"Protocols: {'; '.join(described_protocols)}"


def main(args: argparse.Namespace) -> int:
    """Run the command `score`: print the score of the logs that the command line names, as lines or as JSON.

    Args:
        args: The parsed options of `add_arguments`.

    Returns:
        The exit status: 0, or 1 if there are too few runs for the protocol, or too few of them converged.

    Raises:
        InputError: The logs or the protocol cannot be used, or the logs do not fit each other or the protocol. Also if
            nothing of a run is left after the warm-up (NothingMeasuredError), except for runs that were resumed and
            finished, with the protocol's own warm-up: their score without a figure is printed.
        OSError: A log or the file of the protocol cannot be read.
    """
    protocol = protocol_of(args)
    records = read_records(args)
    try:
        result = score(records, protocol, skip=args.skip, system=args.system)
    except TooFewRunsError as error:
        partial = error.partial  # the score of the runs that there are; None if the protocol cannot score them
        if partial is None:
            partial = score_without_figure("too_few_runs", error, protocol, records)
        _print_too_few_runs(error, partial, as_json=args.json)  # prints `partial` as JSON only
        return 1
    except NothingMeasuredError as error:
        # A resumed run may need only a few steps to finish, so it is not a mistake if it is shorter than the warm-up.
        # It is one in any other run, and where the user chose the warm-up by --skip.
        user_chose_warm_up = args.skip is not None
        all_finished_after_resume = all(_was_resumed_and_finished(record) for record in records)
        if user_chose_warm_up or not all_finished_after_resume:
            raise
        result = score_without_figure("nothing_measured", error, protocol, records)
    _print_score(result, as_json=args.json)
    return 0


def _print_score(result: Score, *, as_json: bool) -> None:
    """Print a score, as lines or as JSON."""
    if as_json:
        _print_json(result)
    else:
        print(safe_lines(score_lines(result)))


def _print_too_few_runs(error: TooFewRunsError, partial: Score, *, as_json: bool) -> None:
    """Print the error that there are too few runs, and for JSON also the score of the runs that there are.

    Args:
        error: The error.
        partial: The score of the runs, which may have no figure (NaN).
        as_json: Whether the user asked for JSON. The score is then printed to stdout.
    """
    command = f"{called('scoring')} score"  # as the user called it
    print(safe_lines([f"{command}: {error}"]), file=sys.stderr)
    if as_json:
        _print_json(partial)


def _print_json(result: Score) -> None:
    """Print a score as JSON."""
    print(json.dumps(jsonable(result.to_json()), indent=1))


def _was_resumed_and_finished(record: Record) -> bool:
    """Return whether a log is of a run that was resumed from a checkpoint and then finished."""
    return record.status == "success" and record.is_resumed


def _interval_rows(result: Score) -> list[tuple[str, str]]:
    """Return the printed rows that show the 95 % intervals of a score, as (name, text).

    Args:
        result: The score. A single run may have two intervals: for its own mean, and for another run of the system.

    Returns:
        One or two rows. Without an interval, a row says why there is none.
    """
    if result.interval_95 is None:
        reason = result.interval_method  # such as "none: fewer than 10 windows of one run"
        return [("95 % interval", reason)]
    bounds = _bounds_in_words(result.interval_95)
    if result.repeat_interval_95 is None:
        return [("95 % interval", f"{bounds}   ({result.interval_method})")]
    bounds_of_repeat = _bounds_in_words(result.repeat_interval_95)
    return [
        ("this run", f"{bounds}   (95 % interval of its mean, {result.interval_method})"),
        ("another run", f"{bounds_of_repeat}   (95 % interval of another run of this system)"),
    ]


def _bounds_in_words(interval: tuple[float, float]) -> str:
    """Return the bounds of an interval as `97.500 to 102.500`."""
    low, high = interval
    return f"{low:.3f} to {high:.3f}"


def _more_runs_in_words(result: Score) -> str:
    """Return in words how many runs the user must add to get a 95 % interval of +-1 %; empty if there is none to add.

    For example, "7 more runs, all of them counted, by the spread of these". The user is to add 7 runs and to leave none
    of them out of the figure. "These" are the runs scored so far, by whose spread the 7 is estimated.

    Args:
        result: The score of these runs.

    Returns:
        The text. For more than 50 runs (MAX_MORE_RUNS) it is "too noisy for a goal of 1 %, as far as 2 runs show":
        two or three runs show little of how far runs lie apart. Empty if the interval is narrow enough already, or if
        the number is not known.
    """
    more_runs = result.more_runs_for_1_percent
    if not more_runs:
        return ""
    if more_runs > MAX_MORE_RUNS:
        return f"too noisy for a goal of 1 %, as far as {len(result.runs)} runs show"
    more_runs_counted = counted(more_runs, "more run")  # "7 more runs", or "1 more run"
    # The user must not stop at the first interval that looks narrow, because intervals that are chosen in this way miss
    # the true figure too often.
    which_count = "counted in any case" if more_runs == 1 else "all of them counted"
    how = ""
    if result.is_over_hosts:  # further runs of the same hosts do not show better how far hosts lie apart
        how = " on further hosts"
    elif result.protocol.scores_one_set:  # without the option, as many runs as now are scored of all of them
        how = f" with --runs {len(result.runs) + more_runs}"
    return f"{more_runs_counted}{how}, {which_count}, by the spread of these"


def _row_of_run(run: RunFigure) -> tuple[str, str]:
    """Return the printed row of one run, as (name, text).

    Args:
        run: The figure of the run. The text also shows the lines of the log that it comes from.
    """
    converged = not math.isinf(run.value)  # the time to the target is infinite for a run that did not reach it
    value = f"{run.value:.3f}" if converged else "did not converge"
    lines_of_log = f"{run.file}:{run.first_line}-{run.last_line}"
    windows = f", {run.windows} windows" if run.windows > 1 else ""
    return "run", f"{value}   {lines_of_log}{windows}"


def score_lines(result: Score) -> list[str]:
    """Return the lines that `score` prints: the figure, a row for each known fact, the warnings and the footnotes.

    A row has a name and a text: "  spread         1.234 (standard deviation over runs)".

    Args:
        result: The score. Its value is NaN if there is no figure.
    """
    figure = "no figure" if math.isnan(result.value) else f"{result.value:.3f} {result.shown_unit}"
    lines = [f"{figure}   protocol {result.protocol.name}: {result.rule}"]
    lines += [f"  {name:15}{text}" for name, text in _fact_rows(result)]
    lines += [f"  {line}" for line in as_text(result.warnings).splitlines()]
    return lines + result.footnotes


def _fact_rows(result: Score) -> list[tuple[str, str]]:
    """Return the rows that are printed below the figure of a score: one or more for each fact that is known.

    A row is (name, text), such as ("spread", "1.234 (standard deviation over runs)"). If there is no 95 % interval, its
    row says why.

    Args:
        result: The score.
    """
    rows = _interval_rows(result)
    more_runs = _more_runs_in_words(result)  # to be added for an interval of +-1 %
    if more_runs:
        rows.append(("for +-1 %", more_runs))
    if result.median_window_rate is not None:
        rows.append(("median", f"{result.median_window_rate:.3f} (of the window rates)"))

    # How near the figure is to the limits of the machine, such as the share of its peak FLOP/s
    rows += [("limit", text) for text in result.efficiency_in_words]
    if result.spread is not None:
        rows.append(("spread", f"{result.spread:.3f} (standard deviation over {result.spread_over})"))
    rows.append(("levels", in_words(result.levels)))  # how many windows, runs and hosts, and how far these vary
    rows += [_row_of_run(run) for run in result.runs]

    unconfirmed_logs = result.one_clock  # logs without a second clock that confirms the times
    if unconfirmed_logs and result.protocol.figure == "throughput":
        rows.append(("one clock", f"nothing else in {', '.join(unconfirmed_logs)} confirms the times"))

    standing = result.standing  # whether the figure is an MLPerf result; None if no log has the form of MLPerf logs
    if standing is not None:
        rows.append(("result", standing.name))
        rows.append(("data set", f"{standing.dataset_in_words}; target {standing.target_in_words}"))
    return rows
