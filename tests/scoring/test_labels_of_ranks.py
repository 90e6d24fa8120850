"""Logs into which several ranks write, one ahead of the other, each behind a launcher's label."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from scoring.importers import read_record
from scoring.record import InputError
from tests.scoring import samples

NAMES = ["paddleclas_static", "paddleclas_dygraph", "paddleseg", "nvidia_pytorch", "gluoncv", "mmseg"]
LABELS = ["{}: ", " {}: ", "[rank{}]: ", "[default{}]:", "[{}] ", "trainer_{}  | ", "trainer-{}  | ", "[1,{}]<stdout>:"]
LABELS += ["[1,mpirank:{},algo-1]<stdout>:"]
LABELS += ["[pod/trainer-{}/main] ", "[pod/trainer-{}-x7k2p/main] "]
LABELS += ["2023-07-28T07:50:00.123456789Z {}: ", "2023-07-28T07:50:00.123456789+02:00 stdout F [rank{}]: "]


def log_of_rank(name: str, rank: int) -> list[str]:
    """A rank's own lines; its steps take the longer, the higher it is."""
    times = [(0.5 + 0.05 * (step % 3)) * (1 + 0.01 * rank) for step in range(240)]
    return samples.WRITERS[name](samples.run_of(times)).splitlines()


def interleaved(ranks: Sequence[Sequence[str]], label: str) -> str:
    """The lines of all ranks, where each rank is 3 lines behind the one before."""
    last_turn = len(ranks[0]) + 3 * len(ranks)
    lines = []
    for turn, (rank, own) in itertools.product(range(last_turn), enumerate(ranks)):
        place = turn - 3 * rank
        if 0 <= place < len(own):
            lines.append(label.format(rank) + own[place])
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_the_lowest_rank_count(tmp_path: Path, name: str, label: str) -> None:
    ranks = [log_of_rank(name, rank) for rank in range(4)]
    of_rank_0 = read_record(samples.write(tmp_path, "alone.log", "\n".join(ranks[0])), format=name)
    of_all = read_record(samples.write(tmp_path, "all.log", interleaved(ranks, label)), format=name)
    assert [window.printed_rate for window in of_all.windows] == [window.printed_rate for window in of_rank_0.windows]
    assert [window.seconds for window in of_all.windows] == [window.seconds for window in of_rank_0.windows]
    results = [(quality.epoch, quality.value) for quality in of_all.quality]
    assert results == [(quality.epoch, quality.value) for quality in of_rank_0.quality]


@pytest.mark.parametrize("number_of_line", [lambda line: line, lambda line: line // 4], ids=["grep -n", "seconds"])
def test_numbers_that_only_grow_are_no_labels(tmp_path: Path, number_of_line: Callable[[int], int]) -> None:
    lines = log_of_rank("mmseg", 0)
    clean = read_record(samples.write(tmp_path, "clean.log", "\n".join(lines)))
    numbered = "".join(f"{number_of_line(place)}: {line}\n" for place, line in enumerate(lines))
    assert len(read_record(samples.write(tmp_path, "numbered.log", numbered)).windows) == len(clean.windows)


EVENT_LABELS = ["[default{}]:", "trainer-{}  | ", "[pod/trainer-{}-x7k2p/main] ", "node0{}: ", "(pid=471{}) "]
EVENT_LABELS += [
    "[pod/training-job-of-a-long-name-worker-{}-x7k2p/container-of-a-long-name-too-main] 2026-01-01T00:00:00.1Z "
]
EVENT_LABELS += ["trainer-{}  | 2026-01-01T00:00:00.123456789Z ", "2026-01-01 00:00:00,123 [algo-{}] "]


@pytest.mark.parametrize("label", EVENT_LABELS)
def test_events_behind_labels_are_those_of_one_writer(tmp_path: Path, label: str) -> None:
    text = samples.mllog(samples.run_of(samples.steady(240))).splitlines()
    later = samples.moved("\n".join(text), 30).splitlines()
    record = read_record(samples.write(tmp_path, "all.log", interleaved([text, later], label)))
    alone = read_record(samples.write(tmp_path, "alone.log", "\n".join(text)))
    assert record.run_start_s == alone.run_start_s and len(record.windows) == len(alone.windows)
    assert [quality.value for quality in record.quality] == [quality.value for quality in alone.quality]


def test_runs_one_after_the_other_behind_labels_of_two_hosts_stay_two(tmp_path: Path) -> None:
    text = samples.mllog(samples.run_of(samples.steady(240))).splitlines()
    lines = [f"node0{host}: {line}" for host in (1, 2) for line in text]
    with pytest.raises(InputError, match="2 runs in one log"):
        read_record(samples.write(tmp_path, "both.log", "\n".join(lines)))


@pytest.mark.parametrize("label", [*LABELS, "Jul 28 07:50:00 node0{} python3[4711]: "])
def test_arguments_of_paddle_1_8_are_read_behind_a_label(tmp_path: Path, label: str) -> None:
    lines = [label.format(0) + line for line in log_of_rank("paddle18", 0)]
    record = read_record(samples.write(tmp_path, "labelled.log", "\n".join(lines)))
    assert (record.model, record.precision) == ("ResNet50", "fp32")
