"""`docker run` on each node by hand: 2 and 4 containers train as 2 and 4 ranks of one host do."""

from pathlib import Path

import pytest

from tests import jobs
from tests.cluster.containers import GOLDEN_JOB, IMAGE, Nodes, devices_and_nodes


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_nodes_train_as_ranks_of_one_host_do(nodes: Nodes, tmp_path: Path, count: int) -> None:
    job = {**GOLDEN_JOB, "BATCHSIZE": str(32 // count)}
    on_host = tmp_path / "host.txt"
    done = jobs.on_ranks(count, "-m", "harness", **job, RESULT_FILE=str(on_host))
    assert done.returncode == 0, done.stderr[-2000:]

    names = [nodes.start(rank, count, image=IMAGE, **job) for rank in reversed(range(count))]
    assert [nodes.wait(name) for name in names] == [0] * count, nodes.output(names[-1])
    logs = list(nodes.logdir.rglob("result_*.txt"))
    assert logs == [nodes.log(count)]  # one log, by rank 0
    assert devices_and_nodes(logs[0]) == (count, count)
    assert jobs.losses(logs[0]) == pytest.approx(jobs.losses(on_host), rel=1e-6)
