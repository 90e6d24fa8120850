"""The plot and the table of the quality that the evaluations of the runs measured."""

import functools
from collections.abc import Sequence

from runlog.digits import beside_limit, six_digits
from runlog.text import visible
from scoring.record import Quality
from scoring.report import blocks, plots
from scoring.report.blocks import Cell, Figure, Paragraph, link_to_line, run_link
from scoring.report.content import NOT_MEASURED, Report, ReportedRun, shared_target


def figure(report: Report) -> Figure | Paragraph:
    """Return the plot of the quality after each evaluation, such as the accuracy, with a table of all evaluations.

    The plot has a line for each run and each measure. If all runs train to the same target, it is a horizontal line.

    Args:
        report: The content of the report.

    Returns:
        The plot. If the logs have no evaluations, a sentence that says so.
    """
    runs = [run for run in report.runs if run.record.quality]
    if not runs:
        return Paragraph(text=f"Quality: {NOT_MEASURED}; the logs hold no evaluation.", absent=True)
    target = shared_target(runs)
    measures = _measures(runs)
    name_of_axis = _short_name(measures[0]) if len(measures) == 1 else "quality"
    series = _quality_series(runs, measures)
    rows = []
    for run in runs:
        rows += [_cells_of_quality(run, evaluation) for evaluation in run.record.quality]
    return Figure(
        name="quality",
        title="Quality after each evaluation",
        caption=_caption(measures, series, target),
        draw=functools.partial(plots.lines, series=series, x="epoch", y=name_of_axis, target=target),
        numbers=blocks.table("Every evaluation", rows),
    )


def _caption(measures: Sequence[str], series: Sequence[plots.NamedPoints], target: float | None) -> str:
    """Return the caption of the plot: "accuracy, first and last: run 1 0.01 to 0.76; target 0.759."

    Args:
        measures: Names of what the evaluations measured.
        series: Label and points of each line of the plot.
        target: Quality that all runs train to; None leaves the last part out.
    """
    first_and_last = "; ".join(f"{name} {_both_ends(points, target)}" for name, points in series)
    caption = f"{' and '.join(measures)}, first and last: {first_and_last}"
    if target is not None:
        caption += f"; target {six_digits(target)}"
    return f"{caption}."


def _measures(runs: Sequence[ReportedRun]) -> list[str]:
    """Return the names of what the evaluations measured, in alphabetical order."""
    names: set[str] = set()
    for run in runs:
        names.update(quality.name for quality in run.record.quality)
    return sorted(names)


def _short_name(measure: str) -> str:
    """Return the name of a measure for a plot: printable, and cut off if it is long."""
    return visible(measure, 40)


def _quality_series(runs: Sequence[ReportedRun], measures: Sequence[str]) -> list[plots.NamedPoints]:
    """Return the lines of the plot, each as its label and its points: one line for each run and each measure.

    Args:
        runs: The runs with evaluations.
        measures: Names of what the evaluations measured, such as "accuracy".

    Returns:
        The lines. The label is "run 1", or "run 1 accuracy" if there are several measures. A measure that a run does
        not have makes no line.
    """
    series: list[plots.NamedPoints] = []
    for run in runs:
        for measure in measures:
            label = f"run {run.number}"
            if len(measures) > 1:
                label += f" {_short_name(measure)}"
            points = _points_of_measure(run, measure)
            if points:
                series.append((label, points))
    return series


def _points_of_measure(run: ReportedRun, measure: str) -> list[tuple[float, float]]:
    """Return the epoch and the value of each evaluation of a run by one measure.

    If the log does not name the epoch, the number of the evaluation in the run is used, counted from 1.

    Args:
        run: A run of the report.
        measure: Name of what the evaluations measured, such as "accuracy".
    """
    points = []
    for evaluation_number, quality in enumerate(run.record.quality, 1):
        if quality.name == measure:
            epoch = evaluation_number if quality.epoch is None else quality.epoch
            points.append((float(epoch), quality.value))
    return points


def _both_ends(points: Sequence[tuple[float, float]], target: float | None) -> str:
    """Return the first and the last value in words, `0.01 to 0.76`; one value if both points are equal.

    Args:
        points: The epoch and the value of each evaluation, at least one.
        target: Quality that all runs train to; None if it is not known.
    """
    _, first_value = points[0]
    _, last_value = points[-1]
    first = beside_limit(first_value, target, kind="g")
    last = beside_limit(last_value, target, kind="g")
    if points[0] == points[-1]:
        return first
    return f"{first} to {last}"


def _cells_of_quality(run: ReportedRun, quality: Quality) -> list[Cell]:
    """Return the row of one evaluation in the table of all evaluations."""
    epoch = "not said" if quality.epoch is None else str(quality.epoch)
    return [
        Cell("run", run_link(run)),
        Cell("measure", quality.name),
        Cell("epoch", epoch, numeric=True),
        Cell("value", link_to_line(run, quality.line, six_digits(quality.value)), numeric=True),
    ]
