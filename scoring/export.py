"""`python -m scoring export`: runs in the forms of other tools, whose packages `pip install '.[export]'` brings."""

import argparse
import dataclasses
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runlog.json_types import JsonObject
from scoring.importers import add_log_options, read_records
from scoring.record import FACTS, InputError, Quality, Record, Window

# Fields of a window, by the names that TensorBoard and MLflow show.
SCALARS = ("images_per_s", "loss", "data_wait_s", "gpu_memory_mib", "power_w")
RUN_FACTS = (*FACTS, "platform", "mode")
METRICS_OF_A_CALL = 1000  # the most that MLflow takes


class Scalar(NamedTuple):
    """One value of a run over its steps; `time_s` is when it was logged, in seconds since 1970, where that is known."""

    name: str
    value: float
    step: int
    time_s: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m scoring export`."""
    parser.add_argument("logs", nargs="+", metavar="LOG")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="a row a window, with the facts of its run")
    parser.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="scalars, a folder a run")
    parser.add_argument(
        "--mlflow",
        metavar="URI",
        help="a run each on a tracking server, or without one in file:FOLDER (MLFLOW_ALLOW_FILE_STORE=true)",
    )
    add_log_options(parser)


def main(args: argparse.Namespace) -> int:
    """Write the runs of the logs in each form that was asked for: Parquet, TensorBoard, MLflow. Returns 0.

    Parquet is one table of all runs, with a row for each window. The other two have an entry for each run, named by the
    run's number and its log. Raises InputError where no form was asked for, or where MLflow refuses the runs.
    """
    if not (args.parquet or args.tensorboard or args.mlflow):
        raise InputError("export: no form given; name --parquet FILE, --tensorboard FOLDER or --mlflow URI")
    records = read_records(args)
    if args.parquet:
        rows = []
        for record in records:
            rows += [row(record, window) for window in record.windows]
        to_parquet(rows, args.parquet)
    for number, record in enumerate(records):
        name = f"{number}-{Path(record.file).stem}"
        if args.tensorboard:
            to_tensorboard(record, args.tensorboard / name)
        if args.mlflow:
            _to_mlflow_or_refuse(record, args.mlflow, name)
    return 0


def _to_mlflow_or_refuse(record: Record, uri: str, name: str) -> None:
    """Write a run to a tracking server. Raises InputError where MLflow refuses it."""
    mlflow = _package("mlflow")
    try:
        to_mlflow(record, uri, name)
    except mlflow.MlflowException as error:
        raise InputError(f"{uri}: {error}") from error


def row(record: Record, window: Window) -> JsonObject:
    """Return a window with the facts of its run."""
    facts = {name: getattr(record, name) for name in ("file", "sha256", *RUN_FACTS)}
    return facts | dataclasses.asdict(window) | {"images_per_s": window.images_per_s}


def to_parquet(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write one table of `rows`, which have the same names; pyarrow takes each column's type from its values."""
    if file.exists():
        raise InputError(f"{file}: exists; name another file")
    if not file.parent.is_dir():
        raise InputError(f"{file.parent}: no such folder; make it, or name a file elsewhere")
    _package("pyarrow.parquet").write_table(_package("pyarrow").Table.from_pylist(list(rows)), file)


def to_tensorboard(record: Record, folder: Path) -> None:
    """Write the scalars of a run's windows and evaluations, at their steps."""
    if folder.exists():
        raise InputError(f"{folder}: exists; TensorBoard would show both as one run: name another folder")
    with _package("tensorboardX").SummaryWriter(str(folder)) as writer:
        for scalar in _scalars(record):
            writer.add_scalar(scalar.name, scalar.value, scalar.step, walltime=scalar.time_s)


def to_mlflow(record: Record, uri: str, name: str) -> None:
    """Write a run to a tracking server, into the experiment named by the record's model, which is made if need be.

    The run's facts become parameters, and what it logs over its steps becomes metrics.
    """
    mlflow = _package("mlflow")
    client = mlflow.MlflowClient(tracking_uri=uri)
    start_ms = None if record.run_start_s is None else int(record.run_start_s * 1000)
    run = client.create_run(
        _experiment_id(client, record.model or "unnamed model"),
        run_name=name,
        start_time=start_ms,
        tags={"log.file": record.file, "log.sha256": record.sha256},
    )
    for fact in RUN_FACTS:
        value = getattr(record, fact)
        if value is not None:
            client.log_param(run.info.run_id, fact, value)
    metrics = []
    for scalar in _scalars(record):
        time_ms = int((scalar.time_s or 0) * 1000)
        metrics.append(mlflow.entities.Metric(scalar.name, scalar.value, time_ms, scalar.step))
    for first in range(0, len(metrics), METRICS_OF_A_CALL):
        client.log_batch(run.info.run_id, metrics=metrics[first : first + METRICS_OF_A_CALL])
    client.set_terminated(run.info.run_id, "FAILED" if record.status == "aborted" else "FINISHED")


def _experiment_id(client: Any, name: str) -> str:
    """Return the id of the experiment of that name, which is created where there is none."""
    experiment = client.get_experiment_by_name(name)
    if experiment:
        return str(experiment.experiment_id)
    return str(client.create_experiment(name))


def _scalars(record: Record) -> Iterator[Scalar]:
    """Yield what a run's windows measured, and what its evaluations gave."""
    for number, window in enumerate(record.windows):
        step = number if window.step is None else window.step
        for name in SCALARS:
            value = getattr(window, name)
            if value is not None:
                yield Scalar(name, float(value), step, window.end_s)
    for number, quality in enumerate(record.quality):
        yield Scalar(quality.name, quality.value, _place_of(quality, number), None)


def _place_of(quality: Quality, number: int) -> int:
    """Return the step of an evaluation, else its epoch, else its number in the log."""
    if quality.step is not None:
        return quality.step
    if quality.epoch is not None:
        return quality.epoch
    return number


def _package(name: str) -> Any:
    """Import an optional package. Raises InputError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"export needs the package {error.name}: pip install '.[export]' brings it") from None
