"""What a log says of its times in two ways: agreement, contradictions, and what is none."""

import datetime
import re
from pathlib import Path

from tests.scoring import samples
from tests.scoring.test_importers import read, run


def test_our_own_windows_are_held_to_their_steps_and_stamps(tmp_path: Path) -> None:
    text = samples.mllog(run())
    assert [(check.what, check.agree) for check in read(tmp_path, text).checks] == [("time", True), ("images", True)]
    fewer = read(tmp_path, re.sub(r'"images": 2560', '"images": 2400', text)).checks
    assert [check.what for check in fewer if not check.agree] == ["images"] and not fewer[1].refused
    assert "counted, 57600" in str(fewer[1]) and "240 x 256" in str(fewer[1])
    longer = read(tmp_path, re.sub(r'"time_s": (\d)', r'"time_s": 1\1', text)).checks
    assert [check.what for check in longer if check.refused] == ["time"]


def test_rates_are_held_to_the_seconds_of_their_epochs(tmp_path: Path) -> None:
    """GluonCV's rows have no stamps; each epoch closes with its own seconds and rate."""
    text = samples.gluoncv(run())
    [check] = read(tmp_path, text).checks
    assert check.what == "rates against the epochs' time" and check.agree and "2 epochs" not in check.ways[0]
    for factor, refused in ((0.9, False), (0.6, True)):
        slower = re.sub(r"speed: (\d+)", lambda match: f"speed: {int(match[1]) * factor:.0f}", text)  # noqa: B023
        [check] = read(tmp_path, slower).checks
        assert (check.agree, check.refused) == (False, refused)


def test_pauses_and_a_clock_that_was_set_are_no_contradiction(tmp_path: Path) -> None:
    """An evaluation of 20 minutes without a line of its own, then the end of summer time."""
    lines = samples.mmseg(samples.run_of(samples.steady(240))).splitlines()
    for at in range(12, len(lines)):
        moved_s = 1200 - (3600 if at >= 20 else 0)
        stamp = datetime.datetime.fromisoformat(lines[at][:19]) + datetime.timedelta(seconds=moved_s)
        lines[at] = f"{stamp:%Y-%m-%d %H:%M:%S}{lines[at][19:]}"
    record = read(tmp_path, "\n".join(lines) + "\n")
    found = [(check.what, check.agree, check.refused) for check in record.checks]
    assert found == [("time", True, False), ("time with pauses", False, False)]  # said: no line tells of them
    slow = re.sub(r"\btime: 0\.5", "time: 0.2", "\n".join(lines) + "\n")
    assert [check.refused for check in read(tmp_path, slow).checks] == [True, False]
