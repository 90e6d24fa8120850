"""What is found of a job's data set before a log is begun."""

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from mpi4py import MPI

from harness.job import job_of
from harness.ranks import Ranks
from harness.task import task_of
from paddle_rn50 import data, folder
from tests.harness import small
from tools.doctor import checks as doctor_checks
from tools.doctor import node as doctor_node


def lose_a_class(root: Path) -> None:
    for part in ("train", "val"):
        shutil.rmtree(root / part / "n03")


def list_in_another_order(root: Path) -> None:
    """A list of one part alone goes before the class folders; the files, their sizes and labels are the same."""
    lines = folder.list_text(folder.by_class_folders(root, "train", 10)).splitlines(keepends=True)
    (root / "train_list.txt").write_bytes(b"".join(reversed(lines)))


@pytest.mark.parametrize(("datadir", "working_directory"), [(".", "."), ("..", "train"), ("train/..", ".")])
def test_a_data_set_has_its_folders_name_where_datadir_does_not_say_it(
    datadir: str, working_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of DATADIR=. had an empty name, that of DATADIR=.. two dots."""
    monkeypatch.chdir(small.data_set(tmp_path / "digits") / working_directory)
    me = Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="n0")
    task = task_of(job_of(datadir=datadir, recipe="digits_small", batchsize=2, dgxngpu=1), me)
    assert task.dataset.name == "digits"


@pytest.mark.parametrize(("nodes", "named"), [(("n0", "n1"), "n1: "), (("n1", "n1"), "")])
def test_the_node_that_has_no_data_set_is_named(nodes: tuple[str, str], named: str, tmp_path: Path) -> None:
    """Its message did not tell which of the nodes is to be mended."""
    me = Ranks(comm=mock.create_autospec(MPI.Comm, instance=True), rank=1, size=2, local_rank=0, node="n1", nodes=nodes)
    job = job_of(datadir=str(tmp_path / "none"), recipe="digits_small", batchsize=2, dgxngpu=1)
    with pytest.raises(ValueError, match=rf"^{named}DATADIR=.*none: no such folder"):
        task_of(job, me)
    root = small.data_set(tmp_path / "set")
    (root / "train" / "03.jpeg").unlink()
    with pytest.raises(ValueError, match=rf"^{named}.*train_list.txt:4: .*03.jpeg is absent"):
        task_of(job_of(datadir=str(root), recipe="digits_small", batchsize=2, dgxngpu=1), me)


@pytest.mark.parametrize(
    ("kind", "change", "count"),
    [("real", lose_a_class, 36), ("real", list_in_another_order, 40), ("synthetic", lose_a_class, 36)],
)
def test_a_node_with_another_data_set_is_named(
    kind: str, change: Callable[[Path], None], count: int, tmp_path: Path
) -> None:
    """Its ranks trained with other labels or on others' samples, and hung where their epoch had fewer steps."""
    here = small.by_class(small.data_set(tmp_path / "here"))
    there = Path(shutil.copytree(here, tmp_path / "there"))
    change(there)
    parts = [data.find(there, part, 10) for part in ("train", "val")]
    theirs = iter([(len(part), part.numbering()) for part in parts])
    comm = mock.create_autospec(MPI.Comm, instance=True)
    comm.allgather.side_effect = lambda mine: [mine, next(theirs)]
    me = Ranks(comm=comm, rank=0, size=2, local_rank=0, node="n0", nodes=("n0", "n1"))
    said = rf"training set of rank 1 on n1 \({count} samples\) is not that of rank 0 on n0 \(40 samples\): .*: give all"
    with pytest.raises(ValueError, match=said):
        task_of(job_of(data=kind, datadir=str(here), recipe="digits_small", batchsize=2, dgxngpu=2), me)

    facts = [doctor_node.data_facts(job_of(datadir=str(root)), has_packages=True) for root in (here, there)]
    digests = {doctor_checks._data_digests({"data": data_of_node}) for data_of_node in facts}
    assert len(digests) == 2
