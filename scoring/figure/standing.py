"""Whether the result of a scored log is an MLPerf result, by what its record holds."""

from collections.abc import Sequence

from compliance import mlperf
from compliance.mlperf import OWN_RULESET, ResultFacts, Standing
from compliance.passports import bytes_of_parts
from runlog.run import real
from scoring.record import Record, config_of, section


def standing_of(records: Sequence[Record]) -> Standing | None:
    """Return the standing of a figure made of these runs; None where no log has the form of MLPerf logs."""
    standings = [mlperf.standing(_facts(record)) for record in records if record.format == "mllog"]
    return mlperf.standing_of_all(standings) if standings else None


def _facts(record: Record) -> ResultFacts:
    """Return what decides whether a log's result is an MLPerf result: its benchmark, division, data set and target.

    Our own logs follow OWN_RULESET, the rules of one round of MLPerf such as 4.0.0, and have a header that describes
    the data set. Logs of others have no header. They do not say their round, so that their ruleset is None, and tell
    the number of samples by MLPerf events alone. The header's number comes first where a log has both.
    """
    dataset = section(record, "dataset")
    is_ours = bool(record.header)  # other projects write none
    train_samples = real(dataset.get("train_samples"))
    eval_samples = real(dataset.get("eval_samples"))
    synthetic = dataset.get("synthetic")
    return ResultFacts(
        benchmark=record.benchmark,
        division=record.division,
        ruleset=OWN_RULESET if is_ours else None,
        dataset=mlperf.dataset_name(dataset),
        train_samples=record.train_samples if train_samples is None else int(train_samples),
        eval_samples=record.eval_samples if eval_samples is None else int(eval_samples),
        bytes_of_parts=bytes_of_parts(dataset),
        has_exact_counts=is_ours,
        synthetic=synthetic if isinstance(synthetic, bool) else None,
        quality_target=_recipe_target(record),
        throughput_only=record.mode == "throughput",
    )


def _recipe_target(record: Record) -> float | None:
    """Return the quality that a run of ours trained to, as its recipe says; None where no recipe does."""
    for name, entry in config_of(record).items():
        if name.startswith("RECIPE.target_"):
            return real(entry.get("value"))
    return None
