"""`scoring export`: what other tools read back is what the log says."""

import contextlib
import datetime
import importlib.util
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from scoring.importers import read_record
from tests import make_log
from tests.jobs import need, refused
from tests.scoring.pages import write_log
from tests.scoring.samples import START, scoring, steady_log, write

pytestmark = pytest.mark.xdist_group("export")  # one worker alone loads MLflow, in 3 s


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the extra, which has no PyTorch: a tensorboardX that finds one loads it, in 3 s."""
    there = all(importlib.util.find_spec(name) for name in ("mlflow", "pyarrow", "tensorboardX"))
    need(there, "no packages of the extra [export]: launch/setup.sh export")
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    return [str(write_log(tmp_path / f"result_{n}.txt", devices=2, seed=n, step_s=0.5 + n / 100)) for n in (0, 1)]


def test_parquet_has_a_row_a_window(pair: list[str], tmp_path: Path) -> None:
    file = tmp_path / "windows.parquet"
    assert scoring("export", *pair, "--parquet", file).returncode == 0
    rows = _rows_of(file)
    records = [read_record(log) for log in pair]
    wanted = [(r.sha256, r.devices, w.step, w.seconds, w.images_per_s) for r in records for w in r.windows]
    assert [tuple(row[n] for n in ("sha256", "devices", "step", "seconds", "images_per_s")) for row in rows] == wanted
    refused(scoring("export", *pair, "--parquet", file), f"{file}: exists")
    nowhere = tmp_path / "nowhere" / "windows.parquet"
    refused(scoring("export", *pair, "--parquet", nowhere), f"{nowhere}: no folder {nowhere.parent} to write into")


def test_parquet_has_the_ranks_times_in_columns(pair: list[str], tmp_path: Path) -> None:
    """As one value they ended the export of a job's own log in a traceback; `pair` has none."""
    log, file = write(tmp_path, "run.txt", make_log.run(epochs=4)), tmp_path / "windows.parquet"
    assert scoring("export", *pair, log, "--parquet", file).returncode == 0
    rows = _rows_of(file)
    logged = [window.rank_times for window in read_record(log).windows if window.rank_times]
    assert [row["compute_host"] for row in rows if row["compute_host"]] == [times.compute_host for times in logged]
    assert [row["data_wait_most_s"] for row in rows[-len(logged) :]] == [times.data_wait_most_s for times in logged]
    assert logged and rows[0]["data_wait_most_s"] is None


def test_a_history_is_a_table(pair: list[str], tmp_path: Path) -> None:
    kept, file = tmp_path / "h.sqlite", tmp_path / "h.parquet"
    assert scoring("history", "add", "--file", kept, "--system", "box", *pair).returncode == 0
    assert scoring("history", "export", "--file", kept, file).returncode == 0
    rows = _rows_of(file)
    assert sorted(row["file"] for row in rows) == sorted(pair)
    assert all(row["images_per_s"] > 0 for row in rows)


def test_tensorboard_has_a_folder_a_run(pair: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "board"
    assert scoring("export", *pair, "--tensorboard", folder).returncode == 0
    for number, log in enumerate(pair):
        (file,) = (folder / f"{number}-result_{number}").glob("events.out.*")
        shown = [
            (value.tag, round(value.simple_value, 3), event.step)
            for event in _events(file.read_bytes())
            for value in event.summary.value
            if value.tag == "images_per_s"
        ]
        windows = read_record(log).windows
        assert shown == [("images_per_s", round(w.images_per_s or 0, 3), w.step) for w in windows]
    assert scoring("export", *pair, "--tensorboard", folder).returncode == 2


def test_an_evaluation_stands_at_its_epoch(tmp_path: Path) -> None:
    log = write(tmp_path, "run.txt", make_log.run(epochs=8, eval_every=4))
    assert scoring("export", log, "--tensorboard", tmp_path / "board").returncode == 0
    (file,) = (tmp_path / "board" / "0-run").glob("events.out.*")
    quality = read_record(log).quality
    shown = [
        event.step
        for event in _events(file.read_bytes())
        for value in event.summary.value
        if value.tag == quality[0].name
    ]
    assert shown == [one.epoch for one in quality] and shown != [0, 1]


@pytest.mark.parametrize("writer", ["nvidia_mxnet", "nvidia_pytorch", "paddleclas_dygraph"])
def test_a_printed_rate_is_exported_with_the_date_of_its_row(tmp_path: Path, writer: str) -> None:
    log = steady_log(tmp_path, "run.txt", writer=writer)  # 256 images in 0.5 s
    assert scoring("export", log, "--tensorboard", tmp_path / "board", "--parquet", tmp_path / "t").returncode == 0
    (file,) = (tmp_path / "board" / "0-run").glob("events.out.*")
    shown = {
        (
            event.step,
            round(value.simple_value),
            datetime.datetime.fromtimestamp(event.wall_time, datetime.timezone.utc).date(),
        )
        for event in _events(file.read_bytes())
        for value in event.summary.value
        if value.tag == "images_per_s"
    }
    rows = _rows_of(tmp_path / "t")
    assert shown == {(row["step"], round(row["images_per_s"]), START.date()) for row in rows}
    assert [row["images_per_s"] for row in rows[2:]] == pytest.approx([512] * len(rows[2:]), rel=0.05)


def _rows_of(file: Path) -> list[dict[str, Any]]:
    return importlib.import_module("pyarrow.parquet").read_table(file).to_pylist()


def _events(data: bytes) -> list[Any]:
    """TensorBoard's records: a length of 8 bytes, its CRC, the event, its CRC."""
    of_bytes, found, at = importlib.import_module("tensorboardX.proto.event_pb2").Event.FromString, [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        found.append(of_bytes(data[at + 12 : at + 12 + size]))
        at += 12 + size + 4
    return found


def test_mlflow_has_a_run_each_without_a_server(pair: list[str], tmp_path: Path, monkeypatch) -> None:
    mlflow = importlib.import_module("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = (tmp_path / "runs").as_uri()
    done = scoring("export", *pair, "--mlflow", uri)
    assert done.returncode == 2 and "MLFLOW_ALLOW_FILE_STORE" in done.stderr
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert scoring("export", *pair, "--mlflow", uri).returncode == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    (experiment,) = [one for one in client.search_experiments() if one.name != "Default"]
    runs = client.search_runs([experiment.experiment_id])
    assert {run.data.tags["log.sha256"] for run in runs} == {read_record(log).sha256 for log in pair}
    for run in runs:
        record = read_record(run.data.tags["log.file"])
        assert run.data.params["devices"] == str(record.devices)
        history = client.get_metric_history(run.info.run_id, "images_per_s")
        assert [(point.step, point.value) for point in history] == [(w.step, w.images_per_s) for w in record.windows]


def test_a_dead_mlflow_server_is_given_up_soon(pair: list[str], monkeypatch) -> None:
    """It was asked 8 times, over 4 minutes without a word."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    calls: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=_hang_up, args=(server, calls), daemon=True).start()
        done = scoring("export", pair[0], "--mlflow", uri)
    refused(done, uri)
    assert len(calls) == 3


def _hang_up(server: socket.socket, calls: list[object]) -> None:
    with contextlib.suppress(OSError):  # the server is closed
        while True:
            connection, caller = server.accept()
            calls.append(caller)  # before the close, which lets the caller end and the test count
            connection.close()


def test_a_missing_package_is_named(pair: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    done = scoring("export", pair[0], "--tensorboard", tmp_path / "b")
    refused(done, "export needs the package tensorboardX: pip install '.[export]' brings it")
    refused(scoring("export", pair[0]), "no form given")
