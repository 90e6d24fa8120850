"""The levels of repetition: windows of a run, runs of a host, hosts of a system."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from scoring.figure import levels
from scoring.figure.calibration import smallest_difference
from scoring.figure.levels import Level, in_words
from tests.scoring import samples
from tests.scoring.samples import command, scoring, write
from tests.scoring.test_compare import on_host
from tools.fleet import outliers


def test_each_level_has_the_spread_of_its_own_values() -> None:
    """Two hosts 10 % apart, whose runs lie 2 % apart, whose windows lie 0.2 apart in 10."""
    values = [99.0, 101.0, 109.0, 111.0]
    rates = [[9.9, 10.1]] * 4
    window, run, host = levels.levels_of_repetition(values, rates, ["a", "a", "b", "b"])
    assert (window.count, run.count, host.count) == (8, 4, 2)
    assert window.relative_sd == pytest.approx(math.sqrt(0.02) / 10)
    pooled = math.sqrt((2 / 100**2 + 2 / 110**2) / 2)
    assert run.relative_sd == pytest.approx(pooled)
    assert host.relative_sd == pytest.approx(math.sqrt(50) / 105)


def test_what_is_not_known_of_a_level_is_said() -> None:
    one_host = levels.levels_of_repetition([99.0, 101.0], [[], []], ["a", "a"])
    assert in_words(one_host) == "windows: the figure is not made of windows; 2 runs +-1.41%; one host"
    one_set = levels.levels_of_repetition([99.0, 101.0], [[], []], ["a, b", "a, b"])
    assert in_words([one_set.host]) == "one set of 2 hosts"
    unsaid = levels.levels_of_repetition([99.0, 101.0], [[1.0], [1.0]], None)
    assert unsaid[2] == Level(name="host", count=None, unknown=levels.HOSTS_UNSAID)
    assert in_words(unsaid) == "2 windows (no run has two windows); 2 runs +-1.41%; hosts: " + levels.HOSTS_UNSAID


def test_runs_without_a_figure_are_counted_and_not_called_one_run() -> None:
    _, *unknown = levels.levels_of_repetition([math.nan, math.nan], [[], []], None)
    assert in_words(unknown[:1]) == "2 runs (too few of them have a figure)"
    _, *hosted = levels.levels_of_repetition([math.nan, 2.0], [[], []], ["a", "b"])
    assert in_words(hosted) == "2 runs (one run of each host); 2 hosts (too few of them have a figure)"


def test_a_run_that_did_not_converge_is_not_counted() -> None:
    _, run, host = levels.levels_of_repetition([math.inf, 99.0, 101.0], [[], [], []], ["a", "b", "b"])
    assert (run.count, run.not_converged, host.count, host.not_converged) == (2, 1, 1, 0)
    assert in_words([run, host]) == "2 runs +-1.41% (1 run that did not converge is not counted); one host"
    _, run, _ = levels.levels_of_repetition([math.inf, math.inf, 2.0], [[], [], []], None)
    assert in_words([run]) == "one run (2 runs that did not converge are not counted)"
    _, run, _ = levels.levels_of_repetition([math.inf], [[]], ["a"])
    assert in_words([run]) == "no run (1 run that did not converge is not counted)"


def test_score_says_that_an_aborted_run_is_not_counted(tmp_path: Path) -> None:
    texts = [samples.mllog(samples.run_of([0.5 + at / 100] * 200)) for at in range(5)]
    texts[2] = texts[2].replace('"status": "success"', '"status": "aborted"')
    logs = [write(tmp_path, f"{at}.txt", text) for at, text in enumerate(texts)]
    shown = scoring("score", *logs, "--protocol", "mlperf").stdout
    assert "4 runs +-" in shown and "(1 run that did not converge is not counted)" in shown


def test_runs_on_the_same_hosts_are_not_called_runs_of_one_host(tmp_path: Path) -> None:
    nodes: list[dict[str, Any]] = [
        {"host": host, "cpu": "Example CPU", "cores": 4, "gpus": []} for host in ("node1", "node2")
    ]
    header = f"# {json.dumps({'hardware': {'nodes': nodes}})}\n"
    texts = [samples.mllog(samples.run_of([0.5 + at / 100] * 200), nodes=2) for at in range(2)]
    logs = [write(tmp_path, f"{at}.txt", header + text) for at, text in enumerate(texts)]
    shown = scoring("score", *logs, "--protocol", "window").stdout
    assert "(t over 2 runs of one set of 2 hosts)" in shown and "; one set of 2 hosts\n" in shown


def test_more_runs_for_1_percent_are_on_further_hosts_where_hosts_are_the_repeats(tmp_path: Path) -> None:
    """Three hosts that lie 0.5 % apart, with two runs each: more runs of these three would not narrow the interval."""
    logs = []
    for number, factor in enumerate((0.995, 1, 1.005)):
        runs = [samples.steady_log(tmp_path, f"{number}{at}.txt", 0.5 * factor + at / 1e4) for at in range(2)]
        logs += on_host(tmp_path / str(number), f"node{number}", runs)
    assert " more runs on further hosts, all of them counted" in scoring("score", *logs, "--protocol", "window").stdout


def test_score_and_compare_show_the_levels(tmp_path: Path) -> None:
    logs = [write(tmp_path, f"{at}.txt", samples.mllog(samples.run_of([0.5 + at / 100] * 200))) for at in range(2)]
    hosted = on_host(tmp_path / "a", "node1", logs[:1]) + on_host(tmp_path / "a", "node2", logs[1:])
    _, result, _ = command("score", *hosted, "--protocol", "window")
    assert [(level["name"], level["count"]) for level in result["levels"]] == [("window", 36), ("run", 2), ("host", 2)]
    shown = scoring("compare", *logs, "--protocol", "window").stdout
    assert shown.count(f"one run; hosts: {levels.HOSTS_UNSAID}") == 2


def test_the_history_takes_hosts_as_repeats_and_lets_like_hosts_differ(tmp_path: Path) -> None:
    """Nine runs of three hosts are three repeats; 0.3 % less is what like hosts differ by."""

    def logs(name: str, seconds: list[float]) -> list[Path]:
        texts = [samples.mllog(samples.run_of([value] * 200)) for value in seconds]
        return [write(tmp_path, f"{name}{at}.txt", text) for at, text in enumerate(texts)]

    file = ("--file", tmp_path / "history.sqlite")
    for at, host in enumerate(("node1", "node2", "node3")):
        base = 0.5 * (1 + at / 10_000)
        named = on_host(tmp_path / host, host, logs(host, [base, base * 1.0001, base * 1.0002]))
        assert scoring("history", "add", *named, *file).returncode == 0
    new = on_host(tmp_path / "new", "node4", logs("new", [0.5 * 1.003, 0.5 * 1.0031, 0.5 * 1.0032]))
    done = scoring("history", "check", *new, *file)
    assert done.returncode == 0 and done.stdout.startswith("not called lower: like hosts differ by up to 0.4%")
    assert "3 runs +-" in done.stdout and "one host" in done.stdout and "9 runs +-" in done.stdout
    slow = on_host(tmp_path / "slow", "node4", logs("slow", [0.51, 0.5101, 0.5102]))
    assert scoring("history", "check", *slow, *file).returncode == 1


def test_several_new_runs_of_one_host_are_one_repeat_where_the_past_shows_how_far_hosts_differ(tmp_path: Path) -> None:
    """Hosts of the past lie 0.2 % apart. Another is 0.8 % slower: its own runs, however close, do not show the spread.

    By hand: t(2) of 98 % to both sides is 6.96; 6.96 * 0.2 % * sqrt(1 + 1 / 3) = 1.6 %.
    """
    file = ("--file", tmp_path / "history.sqlite")
    for host, ratio in (("node1", 1.0), ("node2", 1.002), ("node3", 0.998)):
        log = write(tmp_path, f"{host}.txt", samples.mllog(samples.run_of([0.5 * ratio] * 200)))
        assert scoring("history", "add", *on_host(tmp_path / host, host, [log]), *file).returncode == 0
    logs = []
    for number, ratio in enumerate((1.008, 1.00801, 1.00802)):
        logs.append(write(tmp_path, f"new{number}.txt", samples.mllog(samples.run_of([0.5 * ratio] * 200))))
    named = scoring("history", "check", *on_host(tmp_path / "new", "node4", logs), *file)
    assert named.returncode == 0 and named.stdout.startswith("not shown to be lower")
    spread_out = []
    for host, log in zip(("node4", "node5", "node6"), logs, strict=True):
        spread_out += on_host(tmp_path / host, host, [log])
    done = scoring("history", "check", *spread_out, *file)
    assert done.returncode == 1 and done.stdout.startswith("LOWER")


def test_the_fleet_names_no_node_that_is_slower_by_less_than_like_hosts_differ() -> None:
    """Seven nodes that are alike, and one that is slower for certain."""
    for slower, named in ((0.9, []), (1.1, ["slow"])):
        places = {f"node{at}": at * 1e-6 for at in range(7)} | {"slow": slower * smallest_difference()}
        assert outliers.find_slow(places, noise=1e-6, alpha=0.001) == named
