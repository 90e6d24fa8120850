"""The watchdog, in processes that hang in every way, and the clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.hooks import watchdog
from tests import jobs

START = """
import sys, threading, time, ctypes
from harness.hooks.watchdog import WATCHDOG
from harness.hooks import watchdog
watchdog.GRACE_S, watchdog.TICK_S = 2, 0.1
WATCHDOG.beat("computing step 3")
WATCHDOG.start({limit}, rank=5, node="node7")
"""


def run(body: str, *, limit: int = 1) -> subprocess.CompletedProcess[str]:
    return jobs.run([sys.executable, "-c", START.format(limit=limit) + body])


def test_a_hang_ends_with_the_stacks_of_all_threads():
    body = """
def reader_that_hangs(): threading.Event().wait()
threading.Thread(target=reader_that_hangs, daemon=True).start()
def wait_for_the_reader(): threading.Event().wait()
wait_for_the_reader()
"""
    done = run(body)
    assert done.returncode == 1
    first, *rest = done.stderr.splitlines()
    assert first == "error: rank 5 on node7 hangs: no progress for 1 s while computing step 3"
    assert all(line.startswith("[rank 5] ") for line in rest)
    assert "in reader_that_hangs" in done.stderr and "in wait_for_the_reader" in done.stderr


def test_a_hang_that_keeps_the_interpreter_ends_too():
    """PyDLL calls keep the GIL: no Python thread runs any more."""
    done = run("def stuck(): ctypes.PyDLL(None).sleep(600)\nstuck()")
    assert done.returncode == 1 and "Timeout (" in done.stderr and "in stuck" in done.stderr


@pytest.mark.parametrize(
    ("limit", "body"),
    [
        (1, "for i in range(20):\n    time.sleep(0.1)\n    WATCHDOG.beat(f'computing step {i}')"),
        (0, "assert threading.active_count() == 1"),
    ],
    ids=["progress", "no limit"],
)
def test_what_keeps_it_quiet(limit, body):
    done = run(body, limit=limit)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_may_take_longer_is_given_longer_once():
    done = run("WATCHDOG.beat('warming up', extra_s=60)\ntime.sleep(1.5)\nWATCHDOG.beat('step')\ntime.sleep(600)")
    assert done.returncode == 1 and "no progress for 1 s while step" in done.stderr


def moved(clock_steps):
    """What a clock says after each (seconds by the system's clock, seconds by the steady one)."""
    wall, steady = [1000.0], [50.0]
    clock = watchdog.Clock(lambda: wall[0], lambda: steady[0])
    for wall_s, steady_s in clock_steps:
        wall[0] += wall_s
        steady[0] += steady_s
        yield clock.set_by_s()


@pytest.mark.parametrize(("jump_s", "seen_s"), [(-3600.0, -3600.0), (-1.5, -1.5), (7200.0, 7200.0), (0.2, 0.0)])
def test_a_clock_that_is_set_is_told_once(jump_s, seen_s):
    assert list(moved([(10, 10), (10 + jump_s, 10), (10, 10)])) == [0, pytest.approx(seen_s), 0]


def test_a_slewed_clock_was_not_set():
    assert not any(moved([(1.0005, 1)] * 10_000))
