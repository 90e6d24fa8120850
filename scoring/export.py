"""`python -m scoring export`: runs in the forms of other tools, whose packages `pip install '.[export]'` brings."""

import argparse
import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runlog.json_types import JsonObject
from runlog.schema import RankTimes
from scoring.figure.rates import are_rates_of_one_device, rate_of
from scoring.figure.run_start import date_of_stamp
from scoring.importers import add_log_options, read_records
from scoring.output import refuse_missing_folder
from scoring.record import FACTS, InputError, Quality, Record, Window

# Fields of a window, by the names that TensorBoard and MLflow show beside the throughput.
SCALARS = ("loss", "data_wait_s", "gpu_memory_mib", "power_w")
RUN_FACTS = (*FACTS, "platform", "mode")
MAX_METRICS_OF_A_CALL = 1000  # MLflow takes no more
# MLflow asks a server that does not answer 8 times, of which each may take 2 minutes: it said nothing for 4 minutes.
PATIENCE_WITH_MLFLOW = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


class Scalar(NamedTuple):
    """One value of a run at one of its steps. `time_s` is the Unix time at which it was logged, None if unknown."""

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
    """Export the runs of the given logs to Parquet, TensorBoard or MLflow, or to several of these.

    All logs are read before anything is written. Parquet gets one file for all runs, TensorBoard a folder for each run,
    and MLflow a new run for each run. If an output fails, those written before it stay.

    Args:
        args: Options of the command: the `logs` and how to read them, and where to write: `parquet` (a file),
            `tensorboard` (a folder) and `mlflow` (the URI of a tracking server). Each of these three may be None.

    Returns:
        The exit status, always 0.

    Raises:
        InputError: No output is named; a log cannot be scored; the Parquet file, or the TensorBoard folder of a run,
            exists already; the folder for the Parquet file does not exist; a Python package that an output needs is
            not installed; or MLflow refuses a run or cannot be reached.
        OSError: A log cannot be opened, or an output cannot be written.
    """
    if not (args.parquet or args.tensorboard or args.mlflow):
        raise InputError("export: no form given; name --parquet FILE, --tensorboard FOLDER or --mlflow URI")
    records = read_records(args)
    if args.parquet:
        rows = []
        for record in records:
            rows += [window_with_run_facts(record, window) for window in record.windows]
        to_parquet(rows, args.parquet)
    for index, record in enumerate(records):
        # The index makes the name unique, because logs in different folders may have the same file name.
        run_name = f"{index}-{Path(record.file).stem}"
        if args.tensorboard:
            to_tensorboard(record, args.tensorboard / run_name)
        if args.mlflow:
            _to_mlflow_or_refuse(record, args.mlflow, run_name)
    return 0


def _to_mlflow_or_refuse(record: Record, uri: str, name: str) -> None:
    """Write a run to an MLflow tracking server, as `to_mlflow` does, but raise InputError for an error of MLflow.

    Args:
        record: What the log of the run says.
        uri: Address of the server, or `file:FOLDER`.
        name: Name of the new run in MLflow.

    Raises:
        InputError: MLflow is not installed, refuses the run or cannot be reached.
    """
    mlflow = _optional_package("mlflow")
    try:
        to_mlflow(record, uri, name)
    except mlflow.MlflowException as error:
        raise InputError(f"{uri}: {error}") from error


def window_with_run_facts(record: Record, window: Window) -> JsonObject:
    """Return one row of the exported table: facts of a run, such as its file and model, then figures of some steps.

    The ranks' times have a column each, which is None where the log has none.

    Args:
        record: What the log of the run says.
        window: The steps between two printed rows, or an epoch.
    """
    facts = {name: getattr(record, name) for name in ("file", "sha256", *RUN_FACTS)}
    figures = dataclasses.asdict(window)
    del figures["rank_times"]  # times, numbers and names of hosts, which no one column can hold
    rank_times = {name: getattr(window.rank_times, name, None) for name in RankTimes._fields}
    return facts | figures | rank_times | {"images_per_s": _images_per_s(record, window)}


def _images_per_s(record: Record, window: Window) -> float | None:
    """Return the throughput of all devices in a window, as measured or else as printed.

    Args:
        record: What the log of the run says.
        window: The steps between two printed rows, or an epoch.

    Returns:
        The images/s; None if the row says too little, or if the number of devices is needed and not known.
    """
    if are_rates_of_one_device(record):
        return None
    return rate_of(record, window)


def to_parquet(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write rows as one Parquet table.

    Args:
        rows: Values of each row by column. All rows have the same columns. The type of a column comes from its values.
        file: The file to write.

    Raises:
        InputError: The file exists already, its folder does not exist, or pyarrow is not installed.
    """
    if file.exists():
        raise InputError(f"{file}: exists; name another file")
    refuse_missing_folder(file)
    table = _optional_package("pyarrow").Table.from_pylist(list(rows))
    _optional_package("pyarrow.parquet").write_table(table, file)


def to_tensorboard(record: Record, folder: Path) -> None:
    """Write what was measured over the steps of a run, and the results of its evaluations, for TensorBoard.

    Args:
        record: What the log of the run says.
        folder: New folder for the run.

    Raises:
        InputError: The folder exists already, or tensorboardX is not installed.
    """
    if folder.exists():
        raise InputError(f"{folder}: exists; TensorBoard would show both as one run: name another folder")
    with _optional_package("tensorboardX").SummaryWriter(str(folder)) as writer:
        for scalar in _scalars(record):
            writer.add_scalar(scalar.name, scalar.value, scalar.step, walltime=scalar.time_s)  # None: the time is now


def to_mlflow(record: Record, uri: str, name: str) -> None:
    """Write a run to an MLflow tracking server, as a new run.

    Its facts, such as the number of devices, become parameters. Its figures over the steps and the results of its
    evaluations become metrics. Runs of one model share an experiment. A server that does not answer is given up after
    some seconds, or as the environment's variables of MLflow say.

    Args:
        record: What the log of the run says.
        uri: Address of the server, or `file:FOLDER`.
        name: Name of the new run.

    Raises:
        InputError: mlflow is not installed.
        MlflowException: MLflow refuses the run or cannot be reached.
    """
    for variable, value in PATIENCE_WITH_MLFLOW.items():
        os.environ.setdefault(variable, value)
    mlflow = _optional_package("mlflow")
    client = mlflow.MlflowClient(tracking_uri=uri)
    start_ms = None if record.run_start_s is None else int(record.run_start_s * 1000)
    run = client.create_run(
        _experiment_id(client, record.model or "unnamed model"),  # runs of one model share an experiment
        run_name=name,
        start_time=start_ms,
        tags={"log.file": record.file, "log.sha256": record.sha256},
    )
    run_id = run.info.run_id
    for fact in RUN_FACTS:
        value = getattr(record, fact)
        if value is not None:
            client.log_param(run_id, fact, value)
    metrics = [_metric_of(scalar, mlflow) for scalar in _scalars(record)]
    for first in range(0, len(metrics), MAX_METRICS_OF_A_CALL):
        client.log_batch(run_id, metrics=metrics[first : first + MAX_METRICS_OF_A_CALL])
    client.set_terminated(run_id, "FAILED" if record.status == "aborted" else "FINISHED")


def _metric_of(scalar: Scalar, mlflow: Any) -> Any:
    """Return a value of a run in the form that MLflow takes.

    Args:
        scalar: The value, with its step and time. If the time is not known, it becomes 0.
        mlflow: The imported package.
    """
    time_ms = int((scalar.time_s or 0) * 1000)
    return mlflow.entities.Metric(scalar.name, scalar.value, time_ms, scalar.step)


def _experiment_id(client: Any, name: str) -> str:
    """Return the id of an experiment of MLflow. It is created if it does not exist.

    Args:
        client: The client of the tracking server.
        name: Name of the experiment.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment:
        return str(experiment.experiment_id)
    return str(client.create_experiment(name))


def _scalars(record: Record) -> Iterator[Scalar]:
    """Yield each value that was measured over the steps of a run, then the result of each evaluation.

    Args:
        record: What the log of the run says.

    Yields:
        A value with its name, step and time. A window without a step gets its index among the windows, from 0. The time
        of an evaluation is None.
    """
    for number, window in enumerate(record.windows):
        step = window.step if window.step is not None else number
        values = {"images_per_s": _images_per_s(record, window)}
        values |= {name: getattr(window, name) for name in SCALARS}
        for name, value in values.items():
            if value is not None:
                yield Scalar(name, float(value), step, date_of_stamp(window.end_s))
    for number, quality in enumerate(record.quality):
        yield Scalar(quality.name, quality.value, _step_of_evaluation(quality, number), None)


def _step_of_evaluation(quality: Quality, number: int) -> int:
    """Return the step at which an evaluation is shown.

    Args:
        quality: Result of the evaluation.
        number: Index of the evaluation in the run, from 0.

    Returns:
        The step of the evaluation; without one its epoch; without both `number`.
    """
    if quality.step is not None:
        return quality.step
    if quality.epoch is not None:
        return quality.epoch
    return number


def _optional_package(name: str) -> Any:
    """Import an optional package and return it.

    Args:
        name: Name of the package or module, such as "pyarrow.parquet".

    Raises:
        InputError: The package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"export needs the package {error.name}: pip install '.[export]' brings it") from None
