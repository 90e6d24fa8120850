"""What two ranks hold and exchange, by a script on two real ranks."""

from pathlib import Path

import pytest

from tests import jobs


@pytest.mark.xdist_group("ranks")
def test_two_ranks_broadcast_and_average() -> None:
    done = jobs.on_ranks(2, str(Path(__file__).with_name("two_ranks.py")), THREADS=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 agrees", "rank 1 agrees"]


@pytest.mark.xdist_group("ranks")
def test_another_number_of_ranks_than_the_environment_says_is_refused(standing_in: Path) -> None:
    done = jobs.on_ranks(2, "-m", "harness", cwd=standing_in, DGXNNODES=2, HOSTS="a,b")
    assert done.returncode == 2
    assert "2 ranks were started, but DGXNNODES=2 x DGXNGPU=2 is 4" in done.stderr
