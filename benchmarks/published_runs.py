"""The runs of logs that others published: the times of their windows, their figures, and of which system they are.

The archives lie in one folder (`--corpus`, or the environment's PUBLISHED_CORPUS) and are read in place.
"""

import hashlib
import os
import re
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from program.arrays import Array  # noqa: E402
from scoring.figure import protocols  # noqa: E402
from scoring.figure.calibration import kind_of  # noqa: E402
from scoring.figure.rates import work_over_time  # noqa: E402
from scoring.figure.run import RunFigure, run_figure  # noqa: E402
from scoring.importers import read_record  # noqa: E402
from scoring.record import InputError, Record  # noqa: E402

CORPUS = Path(os.environ.get("PUBLISHED_CORPUS", ROOT / "../shared/corpus"))
MLPERF = ("mlperf_v0.7_v1.0", "mlperf_v1.1_baidu", "mlperf_resnet")
LAMBDA = "lambda_pytorch"
# SYSTEM of an MLPerf submission's path ROUND/SUBMITTER/results/SYSTEM/BENCHMARK/result_N.txt
OF_A_ROUND = re.compile(r"(?P<round>v\d+\.\d+)/(?P<system>.+)/resnet/result_[^/]+\.txt")
OF_BAIDU = re.compile(r"(?P<system>Baidu/.+)/resnet/result_[^/]+\.txt")
OF_LAMBDA = re.compile(r"pytorch/results(?:_v2)?/(?P<system>[^/]+)/(?P<benchmark>[^/]+)/[^/]+\.txt")
HOST_OF_LAMBDA = re.compile(r"(?P<machine>\d+x[A-Z0-9]+_.*?)_(?P<host>\d+-\d+-\d+-\d+)_v2")


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One published run under the protocol window."""

    source: str  # of which the log is, such as MLPerf v2.1
    machine: str  # or the log, where nothing names one
    system: str  # the machine and what ran on it
    repeats_of: str | None  # what repeats have in common: system, benchmark and batch; None: nothing says
    like_hosts: str | None = None  # the machine model and the benchmark, where the system is a named host
    kind: str  # of its windows: epochs or rows
    images: Array  # of each window
    seconds: Array  # of each window
    record: Record | None = None  # by which two logs of one run are known; None for a run that was made up

    @property
    def figure(self) -> float:
        """images/s over all windows."""
        return float(self.images.sum() / self.seconds.sum())

    def times(self, first: int, count: int) -> Array:
        """Seconds an image of `count` windows."""
        return self.seconds[first : first + count] / self.images[first : first + count]

    def part_figure(self, first: int, count: int) -> float:
        """images/s over `count` windows."""
        part = slice(first, first + count)
        return float(self.images[part].sum() / self.seconds[part].sum())


@dataclass(frozen=True)
class _Place:
    """The facts that the path of a log says."""

    source: str
    machine: str
    benchmark: str = ""
    repeats: bool = False  # whether logs of the same place are repeats
    like_hosts: str | None = None

    @property
    def system(self) -> str:
        """The machine and what ran on it."""
        return f"{self.machine}/{self.benchmark}" if self.benchmark else self.machine


def published_runs(corpus: Path, most_logs: int | None = None) -> list[PublishedRun]:
    """All runs of the corpus, and of the folder of logs beside it, that have a figure; equal logs and runs once.

    `most_logs` is the number of logs that are read of each archive; None: all.
    """
    found = []
    texts: set[str] = set()
    runs_of_system: dict[str, list[Record]] = defaultdict(list)
    for name, path in _logs_of(corpus, most_logs):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in texts:
            continue
        texts.add(digest)
        run = published_run(name, path)
        if run is None or run.record is None:
            continue
        earlier = runs_of_system[run.system]
        if any(run.record.is_of_same_run(record) for record in earlier):  # one round has a run twice
            continue
        earlier.append(run.record)
        found.append(run)
    return found


def published_run(name: str, log: Path) -> PublishedRun | None:
    """The run of a log; None where it has no figure. `name` is its path in the corpus, the archive's name in front."""
    read = _read(log)
    if read is None:
        return None
    record, figure = read
    place = _place_of(name)
    work = work_over_time(record, figure.chosen)
    return PublishedRun(
        source=place.source,
        machine=place.machine,
        system=place.system,
        repeats_of=f"{place.system}, batch {record.global_batch}" if place.repeats else None,
        like_hosts=place.like_hosts,
        kind=kind_of(record),
        images=np.array(work.images, dtype=float),
        seconds=np.array(work.seconds, dtype=float),
        record=record,
    )


def _logs_of(corpus: Path, most_logs: int | None) -> Iterator[tuple[str, Path]]:
    """(name, file) of each log, the name with its archive's in front; a file is there until the next one is asked."""
    for archive in (*MLPERF, LAMBDA, "gluoncv", "wild"):
        file = corpus / f"{archive}.tar.xz"
        if not file.is_file():
            continue
        read = 0
        with tarfile.open(file) as packed, tempfile.TemporaryDirectory() as folder:
            for member in packed:
                if not member.isfile() or read == most_logs:
                    continue
                read += 1
                packed.extract(member, folder, filter="data")
                path = Path(folder) / member.name
                yield f"{archive}/{member.name}", path
                path.unlink()
    for path in sorted((corpus.parent / "logs").glob("*.log"))[:most_logs]:
        yield f"logs/{path.name}", path


def _place_of(name: str) -> _Place:
    """The source and the system of a log by its path in the corpus; an older version of a log (~) is of its system."""
    archive, _, path = name.partition("/")
    if archive in MLPERF:
        match = OF_A_ROUND.fullmatch(path)
        if match:
            return _Place(f"MLPerf {match['round']}", f"{match['round']}/{match['system']}", repeats=True)
        match = OF_BAIDU.fullmatch(path)
        return _Place("MLPerf v1.1", match["system"] if match else path, repeats=match is not None)
    match = OF_LAMBDA.fullmatch(path) if archive == LAMBDA else None
    if match is None:
        source = "GluonCV" if archive == "gluoncv" else "public repositories"
        return _Place(source, f"{archive}/{path.partition('~')[0]}")
    host = HOST_OF_LAMBDA.search(match["system"])
    like_hosts = f"{host['machine']}, {match['benchmark']}" if host else None
    return _Place("Lambda", match["system"], match["benchmark"], repeats=True, like_hosts=like_hosts)


def _read(log: Path) -> tuple[Record, RunFigure] | None:
    """The record and the figure of a log; None where it has none.

    How many devices and images ran does not matter to how windows scatter, so what a log does not say is taken as 1.
    """
    options: dict[str, Any] = {}
    for assumed in ({}, {"devices": 1}, {"batch_per_device": 1}):  # one after the other, until the log can be read
        options |= assumed
        try:
            record = read_record(log, **options)
            figure = run_figure(record, protocols.find("window"))
        except InputError:
            continue
        return record, figure
    return None
