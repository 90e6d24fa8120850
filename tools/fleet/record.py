"""What a fleet's acceptance measured, fleet.json: read, and refused where it is damaged or of another job."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.fleet import verdicts as fleet_verdicts

FORMAT = {"format": "paddle-reference-fleet", "version": 1}


def read(path: Path) -> dict[str, Any]:
    """A record. Raises ValueError where the file is none, or has a figure or a list that none can have."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}: give the fleet.json of a --fleet") from error
    if not isinstance(record, dict) or {name: record.get(name) for name in FORMAT} != FORMAT:
        raise ValueError(f"{path}: no record of a --fleet in this version's form: give its fleet.json")
    try:
        _check(record)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        why = str(error) if type(error) is ValueError else f"damaged ({type(error).__name__}: {error})"
        raise ValueError(f"{path}: {why}: give the file as --fleet wrote it") from error
    return record


def _check(record: Mapping[str, Any]) -> None:
    """Raises the error of whatever is not as a fleet's acceptance writes it."""
    hosts, metrics, links = record["hosts"], record["metrics"], record["links"]
    twice = [host for host, times in Counter(hosts).items() if times > 1]
    if twice or not hosts:
        raise ValueError(f"its hosts have {twice[0]} more than once" if twice else "it has no hosts")
    if len(record["nodes"]) != len(hosts):
        raise ValueError(f"it has {len(hosts)} hosts and facts of {len(record['nodes'])}")
    for node in record["nodes"]:
        _times("the offset of a clock", [[1 + abs(node["clock_offset_s"])]])
        if not isinstance(node["failed"] + list(node["facts"].items()), list):
            raise TypeError("facts")
    for metric in (fleet_verdicts.STEP, fleet_verdicts.STALLS, *metrics):
        series, reasons = metrics[metric]["series"], metrics[metric]["reasons"]
        if len(series) != len(hosts):
            raise ValueError(f"{metric} has {len(series)} series of {len(hosts)} hosts")
        _times(metric, series, hosts)
        if not all(0 <= int(i) < len(hosts) and isinstance(why, str) for i, why in reasons.items()):
            raise ValueError(f"{metric} has a reason of no host")
    for link in links:
        if not 0 <= link["a"] < link["b"] < len(hosts) or not isinstance(link["across"], bool):
            raise ValueError(f"a link of {link['a']} and {link['b']} is none of {len(hosts)} hosts")
    for metric in fleet_verdicts.LINK_METRICS:
        _times(metric, [link[metric] for link in links], fleet_verdicts.names_of(hosts, links))
    _times("whole_s", [[*record["whole_s"], 1.0]])
    _times("took_s", [[record["took_s"]]])
    if not isinstance(record["system"] + record["time"], str):
        raise TypeError("system and time")


def _times(metric: str, series: Sequence[Sequence[float] | None], names: Sequence[str] = ()) -> None:
    """Raises ValueError where a time is none, or the series are not of the same turns."""
    turns = len(next((taken for taken in series if taken is not None), ()))
    for i, taken in enumerate(series):
        of = f"{metric} of {names[i]}" if names else metric
        if taken is not None and not (len(taken) == turns > 0):
            raise ValueError(f"{of} has {len(taken)} turns, another {turns}: all are of the same turns")
        for value in taken or ():
            if not 0 < value < math.inf:
                raise ValueError(f"{of} is {value}: a time is above 0 and finite")


def comparable(path: Path, now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Raises ValueError where the baseline has other hosts, or its job took other steps."""
    if not set(now["hosts"]) & set(then["hosts"]):
        raise ValueError(f"{path}: has none of these hosts: give an earlier record of the same ones")
    jobs = [record.get("job", {}) for record in (then, now)]
    other = [name for name in {**jobs[0], **jobs[1]} if jobs[0].get(name) != jobs[1].get(name)]
    if other:
        differences = ", ".join(f"{name} {jobs[0].get(name)} then, {jobs[1].get(name)} now" for name in other)
        raise ValueError(f"{path}: is of another job ({differences}): give an earlier record of the same job")
