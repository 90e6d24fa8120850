"""`python -m scoring compare`: systems side by side, as lines or as JSON."""

import argparse
import json

from runlog.digits import percent
from runlog.text import safe_lines
from runlog.verdict import as_text
from scoring.figure.calibration import smallest_difference
from scoring.figure.compare import BetweenRuns, Comparison, Row, compare, excludes_1
from scoring.figure.levels import in_words
from scoring.figure.options import add_score_options, counts, protocol_of
from scoring.figure.score import score
from scoring.figure.systems import read_systems
from scoring.importers import count, jsonable
from scoring.record import TooFewRunsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "systems", nargs="+", metavar="SYSTEM", help="a log, or the folder of one system's logs; the first is the base"
    )
    add_score_options(parser, convert=counts)
    parser.add_argument(
        "--between-runs-sd",
        type=between_runs_sd,
        metavar="PERCENT/RUNS",
        help="standard deviation between runs, in percent of the figure, and over how many: judges single runs (0.8/5)",
    )
    parser.add_argument("--json", action="store_true", help="print the systems and their ratios as JSON")


def between_runs_sd(text: str) -> BetweenRuns:
    """Return the spread between single runs that the option --between-runs-sd gives: "0.8/5" is 0.8 % over 5 runs.

    Args:
        text: The option's value: the standard deviation in percent of the figure, and over how many runs it was found.

    Returns:
        The spread as a share (0.008), with its degrees of freedom (runs - 1) and its source in words.

    Raises:
        ArgumentTypeError: The text has another form, the percentage is not between 0 and 100, or there are fewer than
            two runs.
    """
    percentage, _, runs = text.partition("/")
    how_to_write_it = "must be PERCENT/RUNS, as 0.8/5: below 100 percent, over 2 runs or more"
    wrong_text = argparse.ArgumentTypeError(f"{text!r}: {how_to_write_it}")
    try:
        relative_sd = float(percentage) / 100
        number_of_runs = count(runs)  # refuses what is not a whole number above 0
    except (ValueError, argparse.ArgumentTypeError):
        raise wrong_text from None
    is_in_range = 0 < relative_sd < 1 and number_of_runs >= 2
    if not is_in_range:
        raise wrong_text
    return BetweenRuns(
        relative_sd=relative_sd,
        freedom=number_of_runs - 1,
        source=f"a given {percentage} % between {runs} runs",
    )


def main(args: argparse.Namespace) -> int:
    """Run the command `compare`: print the systems that the command line names side by side, as lines or as JSON.

    Args:
        args: The parsed options of `add_arguments`. `systems` are the paths, of which the first is the base.

    Returns:
        The exit status, which is 0.

    Raises:
        TooFewRunsError: A system has fewer runs than the protocol asks for, or too few of its runs converged. The
            message begins with the system's name.
        InputError: A system has no logs, or the logs do not fit the protocol or each other.
    """
    protocol = protocol_of(args)
    named_scores = []  # in the order of the command line: the first is the base
    for system in read_systems(args, args.systems):
        try:
            score_of_system = score(system.records, protocol, skip=args.skip)
        except TooFewRunsError as error:
            raise TooFewRunsError(f"{system.path}: {error}") from None
        named_scores.append((system.path, score_of_system))
    comparison = compare(named_scores, args.between_runs_sd)
    if args.json:
        print(json.dumps(jsonable(comparison.to_json()), indent=1))
    else:
        print(safe_lines(comparison_lines(comparison)))
    return 0


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the lines that `compare` prints: the protocol, the lines of each system, then warnings and footnotes.

    Args:
        comparison: The comparison. Its first row is the base, with which the others are compared.
    """
    runs_of_each_system = [len(row.score.runs) for row in comparison.rows]
    protocol = comparison.protocol
    lines = [f"protocol {protocol.name}: {protocol.describe(runs_of_each_system)}"]
    base = comparison.rows[0]
    for row in comparison.rows:
        lines += _lines_of_system(row, is_base=row is base)
    lines += as_text(comparison.warnings).splitlines()
    return lines + comparison.footnotes


def _lines_of_system(row: Row, *, is_base: bool) -> list[str]:
    """Return the printed lines of one system: its name, figure, number of repeats, ratio to the base, and warnings.

    Args:
        row: The system's score, and its comparison with the base.
        is_base: Whether the system is the base, which is not compared with itself.
    """
    score_of_system = row.score
    devices = row.devices or "not said"  # None: the logs do not say the number
    lines = [
        f"{row.name}  (devices: {devices}, runs: {len(score_of_system.runs)})",
        f"  figure      {score_of_system.value:.3f} {score_of_system.shown_unit}",
        f"  levels      {in_words(score_of_system.levels)}",  # how many windows, runs and hosts, and how they vary
    ]
    if score_of_system.standing is not None:  # the logs are MLPerf logs: how the result stands
        lines.append(f"  result      {score_of_system.standing.name}")
    if not is_base:
        lines += _ratio_lines(row)
    lines += [f"  {line}" for line in as_text(score_of_system.warnings).splitlines()]
    return lines


def _verdict_in_words(row: Row) -> str:
    """Return in words whether the system of a row differs from the base, by the ratio of the two figures.

    For example:

        ratio    95 % interval     words
        1.030    not known         "cannot be told apart or alike"
        1.030    0.990 to 1.070    "not shown to differ"
        1.030    1.010 to 1.050    "different"
        1.003    1.001 to 1.005    "not called different: like hosts differ by up to 0.4%"

    Args:
        row: The comparison of the system with the base.
    """
    if row.ratio_interval_95 is None:
        return "cannot be told apart or alike"
    if not excludes_1(row.ratio_interval_95):
        return "not shown to differ"
    if row.different:
        return "different"
    # The ratio is nearer to 1 than `smallest_difference()`, by which hosts of one kind (like hosts) may differ.
    return f"not called different: like hosts differ by up to {percent(smallest_difference())}"


def _ratio_lines(row: Row) -> list[str]:
    """Return the two lines that compare a system with the base. An unknown interval or efficiency is left out.

    For example:

        ratio       1.9800, 95 % 1.9500 to 2.0100   different (Welch's t over 3 and 3 runs)
        speedup     1.98   efficiency 99.0%

    Args:
        row: The comparison of the system with the base.
    """
    interval = ""
    if row.ratio_interval_95 is not None:
        low, high = row.ratio_interval_95
        interval = f", 95 % {low:.4f} to {high:.4f}"
    efficiency = ""
    if row.efficiency is not None:
        efficiency = f"   efficiency {percent(row.efficiency)}"
    return [
        f"  ratio       {row.ratio:.4f}{interval}   {_verdict_in_words(row)} ({row.basis})",
        f"  speedup     {row.speedup:.2f}{efficiency}",
    ]
