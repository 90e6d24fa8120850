"""Export: what other tools read back is what the log says."""

import struct
from pathlib import Path

import pytest

from scoring.__main__ import main
from scoring.importers import read_record
from tests.jobs import need
from tests.scoring.pages import write_log

try:
    import mlflow
    import pyarrow.parquet
    import tensorboardX
    from tensorboardX.proto.event_pb2 import Event
except ImportError:
    mlflow = None

FILES = 2


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    need(mlflow is not None, "no packages of the extra [export]: launch/setup.sh export")
    return [str(write_log(tmp_path / f"result_{n}.txt", devices=2, seed=n, step_s=0.5 + n / 100)) for n in range(FILES)]


def test_parquet_has_a_row_a_window(logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "windows.parquet"
    assert main(["export", *logs, "--parquet", str(file)]) == 0
    rows = pyarrow.parquet.read_table(file).to_pylist()
    records = [read_record(log) for log in logs]
    wanted = [(r.sha256, r.devices, w.step, w.seconds, w.images_per_s) for r in records for w in r.windows]
    assert [tuple(row[n] for n in ("sha256", "devices", "step", "seconds", "images_per_s")) for row in rows] == wanted
    assert main(["export", *logs, "--parquet", str(file)]) == 2  # never overwritten
    assert f"{file}: exists" in capsys.readouterr().err


def test_a_history_is_a_table(logs: list[str], tmp_path: Path) -> None:
    kept, file = str(tmp_path / "h.sqlite"), tmp_path / "h.parquet"
    assert main(["history", "add", "--file", kept, "--system", "box", *logs]) == 0
    assert main(["history", "export", "--file", kept, str(file)]) == 0
    rows = pyarrow.parquet.read_table(file).to_pylist()
    assert sorted(row["file"] for row in rows) == sorted(logs)
    assert all(row["images_per_s"] > 0 for row in rows)


def test_tensorboard_has_a_folder_a_run(logs: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "board"
    assert main(["export", *logs, "--tensorboard", str(folder)]) == 0
    for number, log in enumerate(logs):
        (file,) = (folder / f"{number}-result_{number}").glob("events.out.*")
        shown = [
            (value.tag, round(value.simple_value, 3), event.step)
            for event in _events(file.read_bytes())
            for value in event.summary.value
            if value.tag == "images_per_s"
        ]
        windows = read_record(log).windows
        assert shown == [("images_per_s", round(w.images_per_s or 0, 3), w.step) for w in windows]
    assert main(["export", *logs, "--tensorboard", str(folder)]) == 2


def _events(data: bytes) -> "list[Event]":  # a name only where the extra is installed
    """TensorBoard's records: a length of 8 bytes, its CRC, the event, its CRC."""
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        found.append(Event.FromString(data[at + 12 : at + 12 + size]))
        at += 12 + size + 4
    return found


def test_mlflow_has_a_run_each_without_a_server(logs: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = (tmp_path / "runs").as_uri()
    assert main(["export", *logs, "--mlflow", uri]) == 2
    assert "MLFLOW_ALLOW_FILE_STORE" in capsys.readouterr().err
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert main(["export", *logs, "--mlflow", uri]) == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    (experiment,) = [one for one in client.search_experiments() if one.name != "Default"]
    runs = client.search_runs([experiment.experiment_id])
    assert {run.data.tags["log.sha256"] for run in runs} == {read_record(log).sha256 for log in logs}
    for run in runs:
        record = read_record(run.data.tags["log.file"])
        assert run.data.params["devices"] == str(record.devices)
        history = client.get_metric_history(run.info.run_id, "images_per_s")
        assert [(point.step, point.value) for point in history] == [(w.step, w.images_per_s) for w in record.windows]


def test_a_missing_package_is_named(logs: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    assert tensorboardX is not None
    assert main(["export", logs[0], "--tensorboard", str(tmp_path / "b")]) == 2
    assert "export needs the package tensorboardX: pip install '.[export]' brings it" in capsys.readouterr().err
    assert main(["export", logs[0]]) == 2
    assert "no form given" in capsys.readouterr().err
