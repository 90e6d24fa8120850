"""Whether the result of a scored log is an MLPerf result, by what its record holds."""

from collections.abc import Sequence

from compliance import mlperf
from compliance.mlperf import OWN_RULESET, ResultFacts, Standing
from compliance.passports import bytes_of_parts
from runlog.run import real
from scoring.record import Record, recipe_target, section


def standing_of(records: Sequence[Record]) -> Standing | None:
    """Return whether the figure of these runs is an MLPerf result; None if no log has the form of MLPerf logs."""
    standings = [mlperf.standing(_facts(record)) for record in records if record.format == "mllog"]
    return mlperf.standing_of_all(standings) if standings else None


def _facts(record: Record) -> ResultFacts:
    """Return the facts that decide whether a log's result is an MLPerf result. A fact that it does not say is None.

    Only this project's own logs have a header, which describes the data set. They follow OWN_RULESET, the rules of one
    MLPerf round. Any other log has no ruleset, because it does not say its round.

    The numbers of samples are those of the header, or else those of the log's MLPerf events.
    """
    dataset = section(record, "dataset")  # of the header; its numbers of samples go before those of MLPerf events
    is_project_log = bool(record.header)  # other logs have no header
    train_samples = real(dataset.get("train_samples"))
    eval_samples = real(dataset.get("eval_samples"))
    synthetic = dataset.get("synthetic")
    return ResultFacts(
        benchmark=record.benchmark,
        division=record.division,
        ruleset=OWN_RULESET if is_project_log else None,  # other logs do not say their round
        dataset=mlperf.dataset_name(dataset),
        train_samples=record.train_samples if train_samples is None else int(train_samples),
        eval_samples=record.eval_samples if eval_samples is None else int(eval_samples),
        bytes_of_parts=bytes_of_parts(dataset),  # of the data set's files
        has_exact_counts=is_project_log,  # numbers of samples; other logs may round them
        synthetic=synthetic if isinstance(synthetic, bool) else None,
        quality_target=recipe_target(record),
        throughput_only=record.mode == "throughput",
    )
