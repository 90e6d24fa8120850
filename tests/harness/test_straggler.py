"""The ranks' own times: a log of real ranks names the slow one and why, and ranks that are alike give no name."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runlog.schema import RankTimes
from scoring.__main__ import main
from scoring.figure import warnings
from scoring.importers import read_record
from scoring.record import Record
from tests import jobs, make_log
from tests.harness import small

SLOW = """
                if self.ranks.rank == 1:
                    until = time.thread_time() + time.perf_counter() - ready
                    while time.thread_time() < until:
                        pass
"""


@pytest.mark.xdist_group("ranks")
def test_the_rank_that_computes_longer_and_the_one_that_waits_are_named(tmp_path: Path, capsys) -> None:
    """Rank 1 computes twice as long; rank 0 waits a quarter of a step for each batch, however busy the machine."""
    loop = (jobs.REPOSITORY / "harness" / "loop.py").read_text()
    step, wait = (
        "            for hook in self.hooks:\n                hook.step_ends(",
        "            batch = next(batches)\n",
    )
    assert loop.count(step) == loop.count(wait) == 1
    loop = loop.replace(step, SLOW.replace("\n    ", "\n") + step)
    loop = loop.replace(
        wait, wait + "            time.sleep(total.time_s / max(4 * total.steps, 1) * (self.ranks.rank == 0))\n"
    )
    checkout, log = tmp_path / "checkout", tmp_path / "log.txt"
    jobs.checkout(checkout, room="harness", loop=loop)
    (checkout / "paddle_rn50").unlink()
    (checkout / "paddle_rn50").symlink_to(small.checkout() / "paddle_rn50")
    settings = jobs.TINY | {"MEASURED_STEPS": "40", "THREADS": "1"}
    done = jobs.on_ranks(2, "-m", "harness", cwd=checkout, RESULT_FILE=log, BATCHSIZE=2, **settings)
    assert done.returncode == 0, done.stderr
    assert main(["score", str(log), "--protocol", "window", "--json"]) == 0
    found = [one["message"] for one in json.loads(capsys.readouterr().out)["warnings"] if one["rule"] == "straggler"]
    host = socket.gethostname()
    assert any(message.startswith(f"rank 0 on {host} waits for its input ") for message in found), found
    assert any(message.startswith(f"rank 1 on {host} computes ") for message in found), found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Record:
    path = tmp_path_factory.mktemp("log") / "result.txt"
    path.write_text(make_log.run())
    return read_record(path)


def of_ranks(run: Record, draw: np.random.Generator, ranks: int, slow: float = 0.0) -> Record:
    """A run of ranks whose times scatter by 2 % and are correlated by 0.6; rank 3 takes `slow` more."""
    noise = draw.standard_normal((60, ranks))
    for at in range(1, len(noise)):
        noise[at] = 0.6 * noise[at - 1] + 0.8 * noise[at]
    times = 1 + 0.02 * noise[20:]
    times[:, 3] += slow
    rows = []
    for row in times:
        slowest = int(row.argmax())
        input_s = (0.0, 0.0, 0.0, 0, "host0")
        compute_s = (float(row.min()), float(np.sort(row)[(ranks - 1) // 2]), float(row.max()))
        values = zip(RankTimes.__dataclass_fields__, (*input_s, *compute_s, slowest, f"host{slowest}"), strict=True)
        rows.append(replace(run.windows[0], rank_times=RankTimes(**dict(values)), seconds=float(row.max())))
    return replace(run, devices=ranks, windows=tuple(rows))


def named(one: Record) -> list[str]:
    return [w.found for w in warnings.of_windows(one, one.windows, False) if w.check == "straggler"]


@pytest.mark.parametrize("ranks", [4, 8, 256])
def test_ranks_that_are_alike_give_no_name_and_a_slow_one_its_own(ranks: int, run: Record) -> None:
    """400 runs each; at most the stated chance of 0.1 % is too rare to be seen here, so none may have a name."""
    draw = np.random.default_rng(7)
    assert sum(bool(named(of_ranks(run, draw, ranks))) for _ in range(400)) == 0
    found = [named(of_ranks(run, draw, ranks, slow=0.1)) for _ in range(50)]
    assert all(len(one) == 1 and one[0].startswith("rank 3 on host3 computes ") for one in found)
