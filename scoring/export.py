"""`python -m scoring export`: runs in the forms of other tools, whose packages `pip install '.[export]'` brings."""

import argparse
import dataclasses
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scoring.importers import add_log_options, read_records
from scoring.record import FACTS, InputError, Record, Window

# Of a window, by the names that TensorBoard and MLflow show.
SCALARS = ("images_per_s", "loss", "data_wait_s", "gpu_memory_mib", "power_w")
OF_RUN = (*FACTS, "platform", "mode")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    """Write the forms that were asked for. Returns 0."""
    if not (args.parquet or args.tensorboard or args.mlflow):
        raise InputError("export: no form given; name --parquet FILE, --tensorboard FOLDER or --mlflow URI")
    records = read_records(args)
    if args.parquet:
        to_parquet([row(record, window) for record in records for window in record.windows], args.parquet)
    for number, record in enumerate(records):
        name = f"{number}-{Path(record.file).stem}"
        if args.tensorboard:
            to_tensorboard(record, args.tensorboard / name)
        if args.mlflow:
            try:
                to_mlflow(record, args.mlflow, name)
            except _package("mlflow").MlflowException as error:
                raise InputError(f"{args.mlflow}: {error}") from error
    return 0


def row(record: Record, window: Window) -> dict[str, Any]:
    """A window with the facts of its run."""
    facts = {name: getattr(record, name) for name in ("file", "sha256", *OF_RUN)}
    return facts | dataclasses.asdict(window) | {"images_per_s": window.images_per_s}


def to_parquet(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """One table of `rows`, which have the same names; pyarrow takes each column's type from its values."""
    if file.exists():
        raise InputError(f"{file}: exists; name another file")
    _package("pyarrow.parquet").write_table(_package("pyarrow").Table.from_pylist(list(rows)), file)


def to_tensorboard(record: Record, folder: Path) -> None:
    """The scalars of its windows and its evaluations, at their steps."""
    if folder.exists():
        raise InputError(f"{folder}: exists; TensorBoard would show both as one run: name another folder")
    with _package("tensorboardX").SummaryWriter(str(folder)) as writer:
        for name, value, step, time_s in _points(record):
            writer.add_scalar(name, value, step, walltime=time_s)


def to_mlflow(record: Record, uri: str, name: str) -> None:
    """A run of the experiment of the record's model: facts as parameters, points as metrics."""
    mlflow = _package("mlflow")
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = record.model or "unnamed model"
    found = client.get_experiment_by_name(experiment)
    run = client.create_run(
        found.experiment_id if found else client.create_experiment(experiment),
        run_name=name,
        start_time=None if record.run_start_s is None else int(record.run_start_s * 1000),
        tags={"log.file": record.file, "log.sha256": record.sha256},
    )
    for fact in OF_RUN:
        if (value := getattr(record, fact)) is not None:
            client.log_param(run.info.run_id, fact, value)
    metrics = [
        mlflow.entities.Metric(name, value, int((time_s or 0) * 1000), step)
        for name, value, step, time_s in _points(record)
    ]
    for first in range(0, len(metrics), 1000):  # the most that one call takes
        client.log_batch(run.info.run_id, metrics=metrics[first : first + 1000])
    client.set_terminated(run.info.run_id, "FAILED" if record.status == "aborted" else "FINISHED")


def _points(record: Record) -> Iterator[tuple[str, float, int, float | None]]:
    """(name, value, step, time stamp in s) of what its windows measured and its evaluations found."""
    for number, window in enumerate(record.windows):
        step = number if window.step is None else window.step
        for name in SCALARS:
            if (value := getattr(window, name)) is not None:
                yield name, float(value), step, window.end_s
    for number, quality in enumerate(record.quality):
        at = next((value for value in (quality.step, quality.epoch) if value is not None), number)
        yield quality.name, quality.value, at, None


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"export needs the package {error.name}: pip install '.[export]' brings it") from None
