"""Whether the result of a scored log is an MLPerf result, by what its record holds."""

from collections.abc import Sequence

from compliance import mlperf
from compliance.mlperf import OWN_RULESET, ResultFacts, Standing
from compliance.passports import bytes_of_parts
from runlog.run import real
from scoring.record import Record, config_of, section


def standing_of(records: Sequence[Record]) -> Standing | None:
    """The standing of a figure made of these runs; None where no log has the form of MLPerf logs."""
    standings = [mlperf.standing(_facts(record)) for record in records if record.format == "mllog"]
    return mlperf.standing_of_all(standings) if standings else None


def _facts(record: Record) -> ResultFacts:
    """The facts of one log. Those of others do not say of which round they are."""
    dataset = section(record, "dataset")
    own = bool(record.header)
    train = real(dataset.get("train_samples"))
    evaluation = real(dataset.get("eval_samples"))
    synthetic = dataset.get("synthetic")
    return ResultFacts(
        benchmark=record.benchmark,
        division=record.division,
        ruleset=OWN_RULESET if own else None,
        dataset=mlperf.dataset_name(dataset),
        train_samples=record.train_samples if train is None else int(train),
        eval_samples=record.eval_samples if evaluation is None else int(evaluation),
        bytes_of_parts=bytes_of_parts(dataset),
        counts_samples=own,
        synthetic=synthetic if isinstance(synthetic, bool) else None,
        quality_target=_recipe_target(record),
        throughput_only=record.mode == "throughput",
    )


def _recipe_target(record: Record) -> float | None:
    for name, entry in config_of(record).items():
        if name.startswith("RECIPE.target_"):
            return real(entry.get("value"))
    return None
