"""Fleets that are made up: steps with correlated jitter, stalls and nodes that differ a little, as real ones do."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from runlog.verdict import WARNING
from tools.fleet import measure as fleet_measure
from tools.fleet import record as fleet_record
from tools.fleet import verdicts as fleet_verdicts

STEPS = 8  # of a turn


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Of times, on a scale of logarithms."""

    nodes_sd: float = 0.002  # by which healthy nodes differ for good
    step_sd: float = 0.01
    correlation: float = 0.6  # of a step with the one before it
    stalls: float = 0.01  # share of the steps that take 2 to 10 times as long
    turns_sd: float = 0.01  # what all nodes share in a turn


def times(
    rng: np.random.Generator, noise: Noise, *, count: int, turns: int, slower: dict[int, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Medians and means [count, turns] of the steps of each turn; those in `slower` take so much more time."""
    jitter = np.empty((count, turns * STEPS))
    fresh = rng.standard_normal(jitter.shape) * noise.step_sd
    jitter[:, 0] = fresh[:, 0]
    for step in range(1, jitter.shape[1]):
        jitter[:, step] = noise.correlation * jitter[:, step - 1] + np.sqrt(1 - noise.correlation**2) * fresh[:, step]
    stalled = np.log(rng.uniform(2, 10, jitter.shape)) * (rng.random(jitter.shape) < noise.stalls)
    level = noise.nodes_sd * rng.standard_normal(count)
    for node, share in slower.items():
        level[node] += np.log1p(share)
    common = noise.turns_sd * rng.standard_normal(turns)
    found = np.exp(level[:, None, None] + common[:, None] + (jitter + stalled).reshape(count, turns, STEPS))
    return np.median(found, axis=2), found.mean(axis=2)


USUAL = Noise()
USUAL_FACTS = {"kernel": "6.1", "driver": "535"}


def record(
    nodes: int = 8, seed: int = 1, *, noise: Noise = USUAL, groups: Any = None, facts: Any = None, **slow: Any
) -> dict[str, Any]:
    """What a fleet would measure, in the form that tools/fleet/measure.py keeps it.

    `slow` says by which share more time parts of it take: `step`, `disk` and `network` by node, `link` by two nodes;
    `facts` are what is other on some nodes.
    """
    rng = np.random.default_rng([nodes, seed])

    def series(slower: dict[int, float], *, count: int = nodes, turns: int = fleet_measure.TURNS) -> Any:
        return tuple(x.tolist() for x in times(rng, noise, count=count, turns=turns, slower=slower))

    step, disk, network, link = (slow.get(part, {}) for part in ("step", "disk", "network", "link"))
    median, mean = series(step)
    metrics = {"step_s": median, "step_mean_s": mean, "memory_s_per_gib": series({})[0], "input_s": series({})[0]}
    metrics["disk_s_per_gib"] = series(disk)[0]
    pairs = [pair for of_round in fleet_measure.rounds(groups or [""] * nodes) for pair in of_round]
    slower = {
        i: (1 + link.get((pair.a, pair.b), 0.0))
        * max(1 + network.get(node, 0.0) for node in (pair.a, pair.b))
        * (1.6 if pair.across else 1.0)  # the way across switches is longer
        - 1
        for i, pair in enumerate(pairs)
    }
    sizes = {"count": len(pairs), "turns": fleet_measure.LINK_TURNS}
    of_links = {name: series(slower, **sizes)[0] for name in fleet_verdicts.LINK_METRICS}
    found = fleet_record.FORMAT | {
        **{"whole_s": [1.1, 1.2], "took_s": 100.0, "system": "64xCPU", "time": "2026-11-22T18:00:00Z"},
        "hosts": [f"node{i}" for i in range(nodes)],
        "nodes": [{"failed": [], "clock_offset_s": 0.0, "facts": dict(USUAL_FACTS)} for _ in range(nodes)],
        "metrics": {name: {"series": values, "reasons": {}} for name, values in metrics.items()},
        "links": [
            {"a": pair.a, "b": pair.b, "across": pair.across, **{name: of_links[name][i] for name in of_links}}
            for i, pair in enumerate(pairs)
        ],
    }
    for name, values in (facts or {}).items():
        for node, value in values.items():
            found["nodes"][node]["facts"][name] = value
    return found


def named(made: dict[str, Any]) -> list[tuple[str, str]]:
    """(node or link, metric) of each that is called slow."""
    by_node, by_link = fleet_verdicts.judge_links(made)
    verdicts = [*fleet_verdicts.judge_nodes(made), *by_node, *by_link]
    return [(verdict.where, verdict.check) for verdict in verdicts if verdict.status == WARNING]
