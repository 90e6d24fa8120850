"""What a person sees of a run on a terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

from tests import jobs

RANK = """
import sys, time
from pathlib import Path
from harness.progress import Progress, Timing
with Progress("bar", 100) as progress:
    progress.window(step=40, epoch=1, window=Timing(steps=5, images=80, time_s=2.0), loss=1.5)
    print("a library's chatter", file=sys.stderr)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""


def test_the_bar_is_on_the_terminal_while_the_run_goes_on(tmp_path: Path) -> None:
    """mpirun holds back a line that has no end, so that a bar of one such line would never show."""
    seen_it = tmp_path / "seen"
    terminal, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("mpirun")), "-n", "1", sys.executable, "-u", "-c", RANK, str(seen_it)]
    with (tmp_path / "stderr").open("wb") as stderr:
        ranks = subprocess.Popen(
            command, stdout=theirs, stderr=stderr, stdin=subprocess.DEVNULL, env=jobs.environment(), cwd=jobs.REPOSITORY
        )
    os.close(theirs)
    try:
        shown, deadline = b"", time.monotonic() + jobs.LIMIT_S
        while b"40.0 images/s" not in shown and time.monotonic() < deadline:
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 65536)
        assert ranks.poll() is None, "the run must not end before the bar is looked for"
        text = shown.decode()
        assert "epoch 1 loss 1.5000" in text and "40/100" in text and "40.0 images/s" in text
        assert "chatter" not in text
    finally:
        seen_it.touch()
        os.close(terminal)
        ranks.terminate()
        ranks.wait(jobs.LIMIT_S)
