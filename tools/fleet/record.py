"""What a fleet's acceptance measured, fleet.json: read, and refused where it is damaged or of another job."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.fleet import verdicts

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
    host, times = Counter(hosts).most_common(1)[0]
    if times > 1:
        raise ValueError(f"its hosts have {host} more than once")
    series = {metric: metrics[metric]["series"] for metric in (verdicts.STEP, verdicts.STALLS, *metrics)}
    for what, of in ({"facts": record["nodes"]} | series).items():
        if len(of) != len(hosts):
            raise ValueError(f"it has {len(hosts)} hosts and {what} of {len(of)}")
    for metric, times in series.items():
        _check_times(metric, times, hosts)
    for link in links:
        if not 0 <= link["a"] < link["b"] < len(hosts):
            raise ValueError(f"a link of {link['a']} and {link['b']} is none of {len(hosts)} hosts")
    for metric in verdicts.LINK_METRICS:
        _check_times(metric, [link[metric] for link in links], verdicts.names_of(hosts, links))
    _check_times("whole_s", [record["whole_s"] or None], ["all"])
    _check_times("took_s", [[record["took_s"]]], ["all"])


def _check_times(metric: str, series: verdicts.Series, names: Sequence[str]) -> None:
    """Raises ValueError where a time is none, or the series are not of the same turns."""
    turns = len(next((taken for taken in series if taken is not None), ()))
    for name, taken in zip(names, series, strict=True):
        if taken is not None and not (len(taken) == turns > 0):
            raise ValueError(f"{metric} of {name} has {len(taken)} turns, another {turns}: all are of the same turns")
        for value in taken or ():
            if not 0 < value < math.inf:
                raise ValueError(f"{metric} of {name} is {value}: a time is above 0 and finite")


def unlike(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """Why a record is no baseline: it has other hosts, or its job took other steps; empty if it is one."""
    if not set(now["hosts"]) & set(then["hosts"]):
        return "has none of these hosts: give an earlier record of the same ones"
    old, new = (record.get("job", {}) for record in (then, now))
    other = ", ".join(f"{n} {old.get(n)} then, {new.get(n)} now" for n in old | new if old.get(n) != new.get(n))
    return other and f"is of another job ({other}): give an earlier record of the same job"
