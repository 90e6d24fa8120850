"""Whether the result of a scored log is an MLPerf result, by what its record holds."""

from collections.abc import Sequence

from compliance import mlperf
from compliance.mlperf import OWN_RULESET, ResultFacts, Standing
from compliance.passports import bytes_of_parts
from runlog.run import real
from scoring.record import Record, recipe_target, section


def standing_of(records: Sequence[Record]) -> Standing | None:
    """Return whether the figure of some runs is an MLPerf result.

    Args:
        records: The runs as read from their logs.

    Returns:
        The answer, with its reasons; None if no log has the form of MLPerf logs.
    """
    standings = [mlperf.standing(_facts(record)) for record in records if record.format == "mllog"]
    return mlperf.standing_of_all(standings) if standings else None


def _facts(record: Record) -> ResultFacts:
    """Return the facts that decide whether a log's result is an MLPerf result.

    Logs of this project give more of them than other logs do, because their header describes the data set.

    Args:
        record: The run as read from its log, which has the form of MLPerf logs.

    Returns:
        The facts. Those that are not known are None or empty.
    """
    is_project_log = bool(record.header)  # only logs of this project have a header
    dataset = section(record, "dataset")  # of the header; an empty table if there is no header
    synthetic = dataset.get("synthetic")
    return ResultFacts(
        benchmark=record.benchmark,
        division=record.division,
        ruleset=OWN_RULESET if is_project_log else None,  # other logs do not name their MLPerf round
        dataset=mlperf.dataset_name(dataset),
        train_samples=_samples(dataset.get("train_samples"), record.train_samples),
        eval_samples=_samples(dataset.get("eval_samples"), record.eval_samples),
        bytes_of_parts=bytes_of_parts(dataset),  # sizes of the data set's files
        has_exact_counts=is_project_log,  # other logs may have rounded the numbers of samples
        synthetic=synthetic if isinstance(synthetic, bool) else None,
        quality_target=recipe_target(record),
        throughput_only=record.mode == "throughput",
    )


def _samples(in_header: object, in_events: int | None) -> int | None:
    """Return how many samples a data set has, by the log's header, or by its events if the header does not say.

    Args:
        in_header: What the header has, which may be of any type. Only logs of this project have a header.
        in_events: What the MLPerf events state; None if they do not.
    """
    number = real(in_header)
    return in_events if number is None else int(number)
