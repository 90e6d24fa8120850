"""Repeats of systems that others published, and how often `scoring` calls two of them different, or one an outlier."""

import dataclasses
import itertools
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.cells import Cell
from scoring.figure import compare, protocols, warnings
from scoring.figure.score import Score, score
from scoring.importers import read_record
from scoring.record import InputError

ARCHIVES = ("mlperf_v0.7_v1.0", "mlperf_resnet")  # of the corpus, with ROUND/SUBMITTER/results/SYSTEM/resnet/ in them
ALL_ROUNDS = "all rounds"


class System(NamedTuple):
    """A published system, whose logs of one batch are repeats."""

    place: str  # the folder of its logs, in the archive
    batch: int | None  # of all devices

    @property
    def round_name(self) -> str:
        """The round of MLPerf, such as v2.1."""
        return self.place.partition("/")[0]


class Column(NamedTuple):
    """A column of the table: what is counted by the round of MLPerf, and at most how often it should be."""

    name: str
    found: Mapping[str, Sequence[bool]]
    most: float


def repeats_of_one_system(corpus: Path, most_systems: int | None) -> Iterator[Cell]:
    """Count how often two repeats are called different by the others of their system, and a set is said to hold an
    outlier. `most_systems` is the number of systems that are read of each archive; None: all."""
    different: dict[str, list[bool]] = {}
    outlying: dict[str, list[bool]] = {}
    for archive in ARCHIVES:
        file = corpus / f"{archive}.tar.xz"
        if not file.is_file():
            continue
        for system, repeats in _published_systems(file, most_systems).items():
            different.setdefault(system.round_name, []).extend(_pairs_called_different(repeats))
            outlying.setdefault(system.round_name, []).append(_has_outlier(repeats))

    for column in (Column("pairs", different, 0.07), Column("outlying_run, sets", outlying, 0.05)):
        together = list(itertools.chain.from_iterable(column.found.values()))
        for name, found in {**column.found, ALL_ROUNDS: together}.items():
            row = f"MLPerf repeats, {name}"
            yield Cell(row=row, column=column.name, share=float(np.mean(found)), most=column.most, of=len(found))


def _pairs_called_different(repeats: Sequence[Score]) -> Iterator[bool]:
    """Yield for each two repeats whether `compare` calls them different, judged by two or more others."""
    for one, other in itertools.combinations(repeats, 2):
        others = [repeat for repeat in repeats if repeat is not one and repeat is not other]
        if len(others) < 2:
            continue
        known = dataclasses.replace(
            others[0],
            runs=tuple(repeat.runs[0] for repeat in others),
            records=tuple(repeat.records[0] for repeat in others),
        )
        compared = compare.compare([("one", one), ("other", other), ("known", known)])
        yield compared.rows[1].different is True


def _has_outlier(repeats: Sequence[Score]) -> bool:
    """Return whether the scorer warns of an outlying run in a set."""
    records = [repeat.records[0] for repeat in repeats]
    values = [repeat.value for repeat in repeats]
    return any(warnings.warn_of_outlying_run(records, values, repeats[0].unit))


def _published_systems(archive: Path, most_systems: int | None) -> dict[System, list[Score]]:
    """Return the repeats of each published system, each scored alone under the protocol window; a run counts once."""
    by_system: dict[System, list[Score]] = {}
    for place, result in _scores(archive):
        [record] = result.records
        system = System(place, record.global_batch)
        if system not in by_system and len(by_system) == most_systems:
            break
        repeats = by_system.setdefault(system, [])
        if not any(record.is_of_same_run(repeat.records[0]) for repeat in repeats):  # v1.0 has one run twice
            repeats.append(result)
    return by_system


def _scores(archive: Path) -> Iterator[tuple[str, Score]]:
    """Yield the folder and the score of each log of an archive; runs that came to nothing are left out.

    How many devices a system has does not matter to repeats of it, and these logs do not say: they are taken as 1.
    """
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as packed:
        for member in packed:
            if not member.isfile():
                continue
            packed.extract(member, folder, filter="data")
            log = Path(folder) / member.name
            try:
                result = score([read_record(log, devices=1)], protocols.find("window"))
            except InputError:
                continue
            finally:
                log.unlink()
            yield member.name.rpartition("/")[0], result
