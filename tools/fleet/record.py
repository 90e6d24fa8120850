"""The record of a fleet's acceptance, fleet.json: whether it is whole, and fit to be the baseline of another."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runlog import named_files
from runlog.text import visible
from tools.fleet import arithmetic
from tools.fleet.judged import Judged, judge_record
from tools.fleet.verdicts import LINK_METRICS, STALLS, STEP, Record, Series, links_of, of_hosts

FORMAT = {"format": "paddle-reference-fleet", "version": 1}
EXCHANGE_MIB = 4  # of an all-reduce between two nodes


def read(path: Path) -> Judged:
    """Read the record of a fleet's measurements from a file, and judge its nodes and links.

    Args:
        path: The file fleet.json that the option --fleet of a launcher wrote.

    Returns:
        The record with the verdicts on it.

    Raises:
        ValueError: The file cannot be read, or is not a whole record of this version. The message names the file and
            says what to do.
    """
    record = _read_format(path)
    try:
        _check(record)
        return judge_record(record)
    except (LookupError, TypeError, AttributeError) as error:  # a field is missing, or of another type
        damage = f"damaged ({type(error).__name__}: {visible(error)})"
        raise ValueError(f"{path}: {damage}: give the file as --fleet wrote it") from error
    except ValueError as error:  # a wrong value, which the text names
        raise ValueError(f"{path}: {visible(error)}: give the file as --fleet wrote it") from error


def _read_format(path: Path) -> dict[str, Any]:
    """Read the record of a fleet's measurements from a file, and check that it states the format and version FORMAT.

    Other fields are not checked: they may be missing or have values of any type.

    Args:
        path: The file fleet.json that the option --fleet of a launcher wrote.

    Returns:
        The JSON object in the file, such as {"format": "paddle-reference-fleet", "version": 1, "hosts": [...], ...}.

    Raises:
        ValueError: The file cannot be read, is not JSON, or does not state this format and version. The message names
            the file and says what to do.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))  # any JSON value, until checked below
    except OSError as error:
        raise ValueError(f"{named_files.explain(error)}; give the fleet.json of a --fleet") from error
    except (ValueError, RecursionError) as error:  # The file is not UTF-8, not JSON, or too deeply nested JSON.
        raise ValueError(f"{path}: {error}: give the fleet.json of a --fleet") from error
    is_object = isinstance(record, dict)
    has_this_format = is_object and all(record.get(name) == FORMAT[name] for name in FORMAT)
    if not has_this_format:
        raise ValueError(f"{path}: no record of a --fleet in this version's form: give its fleet.json")
    return record


def _check(record: Record) -> None:
    """Check that the values in the record of a fleet are right, and that its parts fit together.

    Args:
        record: The content of fleet.json, of which only format and version are known to be right.

    Raises:
        ValueError: A value is wrong, or two parts do not fit together.
        LookupError: A field is missing.
        TypeError: A field is of another type.
        AttributeError: A field is of another type.
    """
    hosts = record["hosts"]
    _raise_unless_texts((record["system"], record["time"], *hosts))
    _raise_unless_mapping(record.get("job", {}))
    if len(set(hosts)) < len(hosts):
        raise ValueError(f"its hosts have {max(hosts, key=hosts.count)} more than once")
    _check_length("facts", record["nodes"], hosts)
    for host, node in zip(hosts, record["nodes"], strict=True):
        _check_node(host, node)
    _check_metrics(record["metrics"], hosts)
    _check_links(record["links"], hosts)
    _check_times(record)
    if record.get("digests") is not None:
        _check_digests(record)


def _check_node(host: str, node: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError unless a node's facts and failures are texts, and its clock's offset is finite."""
    _raise_unless_mapping(node["facts"])
    _raise_unless_texts((*node["facts"].values(), *node["failed"]))
    offset_s = node["clock_offset_s"]
    if not abs(offset_s) <= sys.float_info.max:  # also if it is NaN
        raise ValueError(f"clock_offset_s of {host} is {offset_s}: an offset is finite")


def _check_metrics(metrics: Mapping[str, Any], hosts: Sequence[str]) -> None:
    """Raise KeyError unless the metrics have those of training steps, and ValueError unless each is of all hosts."""
    for needed in (STEP, STALLS):
        if needed not in metrics:
            raise KeyError(needed)  # as for any other missing field
    for metric, entry in metrics.items():
        _check_length(metric, entry["series"], hosts)


def _check_links(links: Iterable[Mapping[str, Any]], hosts: Sequence[str]) -> None:
    """Raise ValueError unless each link is of two hosts, given by their indices in `hosts`, the lower one first."""
    for link in links:
        if not 0 <= link["a"] < link["b"] < len(hosts):
            raise ValueError(f"a link of {link['a']} and {link['b']} is none of {len(hosts)} hosts")


def _check_times(record: Record) -> None:
    """Raise ValueError unless the times in a record are above 0 and finite, and each series of times is complete.

    A series is the list of the times of a node or link, one for each turn (a repetition of the measurement). The times
    in "steps_s", the seconds of each rank's own steps, are not checked.

    Args:
        record: The content of fleet.json. The lengths of its lists and the numbers of its links have been checked.

    Raises:
        ValueError: A time is not above 0 and finite, a series has no times or not as many as the others of its metric,
            or a link has none.
        LookupError: A field is missing.
        TypeError: A field is of another type.
    """
    # A node that did not measure a metric has None in place of a series. `_check_series` passes over it.
    for metric in record["metrics"]:
        _check_series(metric, of_hosts(record, metric))
    links = links_of(record)  # only measured links are listed, so none may have None
    for metric in LINK_METRICS:
        times_by_link = {name: link[metric] for name, link in links.items()}
        for name, times in times_by_link.items():
            if times is None:
                raise ValueError(f"{metric} of {name} is null: a link has a time of each turn")
        _check_series(metric, times_by_link)
    # The name "all" stands in messages: "whole_s of all is ...".
    if record["whole_s"]:  # else no steps were taken together
        _check_series("whole_s", {"all": record["whole_s"]})
    _check_series("took_s", {"all": [record["took_s"]]})


def _raise_unless_mapping(value: Any) -> None:
    """Raise TypeError if a value is not a mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is not an object")


def _raise_unless_texts(values: Iterable[Any]) -> None:
    """Raise TypeError if one of the values is not a text."""
    "".join(values)


def _check_length(what: str, entries: Sequence[Any], hosts: Sequence[str]) -> None:
    """Raise ValueError unless a list of the record has one entry for each host; `what` names the list."""
    if len(entries) != len(hosts):
        raise ValueError(f"it has {len(hosts)} hosts and {what} of {len(entries)}")


def _check_series(metric: str, series: Series) -> None:
    """Check that each measured node or link has one time of each turn, by one metric.

    All were measured in the same turns, so they must have equally many times, and at least one.

    Args:
        metric: The metric's name, for messages.
        series: For each node or link its times, one a turn. None: not measured, so there is nothing to check.

    Raises:
        ValueError: A series is empty or of another length, or a time is not above 0 and finite.
    """
    measured = {name: values for name, values in series.items() if values is not None}
    values_of_first = next(iter(measured.values()), ())  # () if nothing was measured
    turns_of_first = len(values_of_first)
    for name, values in measured.items():
        if len(values) == 0:
            raise ValueError(f"{metric} of {name} has no turns: at least one is needed")
        if len(values) != turns_of_first:
            difference = f"{metric} of {name} has {len(values)} turns, another {turns_of_first}"
            raise ValueError(f"{difference}: all are of the same turns")
        for value in values:
            if not 0 < value <= sys.float_info.max:  # JSON may have a whole number of any size
                raise ValueError(f"{metric} of {name} is {value}: a time is above 0 and finite")


def _check_digests(record: Record) -> None:
    """Check that the digests (hashes of computed tensors) of a record are complete, and that they fit together.

    Args:
        record: The content of fleet.json, which has digests.

    Raises:
        ValueError: A value is wrong.
        LookupError: A field is missing.
        TypeError: A field is of another type.
        AttributeError: A field is of another type.
    """
    _check_tables(record["digests"])
    _check_ranks(record["digests"]["ranks"], record["hosts"])
    for rank in arithmetic.ranks_of(record):
        _check_repetitions(rank)


def _check_repetitions(rank: arithmetic.Rank) -> None:
    """Check that a rank has either counts of its results or a failure, and not both.

    A rank repeats the same training steps, and `count_by_result` says how many repetitions gave each result.

    Args:
        rank: The rank, as the record has it.

    Raises:
        ValueError: The rank has neither or both, or a count is not a whole number above 0.
        TypeError: Its node, device, class or failure is not a text.
        AttributeError: Its counts are not a mapping.
    """
    _raise_unless_texts((rank.node, rank.device, rank.class_name or "", rank.failure or ""))
    for count in rank.count_by_result.values():
        if type(count) is not int or count < 1:
            raise ValueError(f"rank {rank.rank} has {count} repetitions of a table")
    has_failed = rank.failure is not None
    has_repetitions = bool(rank.count_by_result)
    has_both_or_neither = has_failed == has_repetitions
    if has_both_or_neither:
        raise ValueError(f"rank {rank.rank} has neither repetitions nor a failure, or both")


def _check_ranks(entries: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> None:
    """Check that a record numbers its ranks 0, 1, 2, ... in order, and that each host has a rank.

    Args:
        entries: The ranks as the record has them. "rank" is a rank's number, and "unit" the index of its host.
        hosts: The names of the compared hosts.

    Raises:
        ValueError: The numbers are others, a host has no rank, or a rank's host is none of `hosts`.
    """
    rank_numbers = [entry["rank"] for entry in entries]
    if rank_numbers != list(range(len(entries))):
        raise ValueError(f"the digests' ranks are not numbered from 0 to {len(entries) - 1}")
    indices_with_a_rank = {entry["unit"] for entry in entries}
    for host_index, host in enumerate(hosts):
        if host_index not in indices_with_a_rank:
            raise ValueError(f"no rank of {host} has digests or a failure")
    unknown_indices = indices_with_a_rank - set(range(len(hosts)))
    if unknown_indices:
        raise ValueError(f"the digests have a rank of host {min(unknown_indices)}, of {len(hosts)} hosts")


def _check_tables(digests: arithmetic.Digests) -> None:
    """Check that each table of digests has a row for each training step, and each row a digest of each tensor.

    Args:
        digests: The entry "digests" of fleet.json. A digest is a hash of a tensor.

    Raises:
        ValueError: A table has another number of rows, or a row another number of digests.
        TypeError: The name of a tensor or a digest is not a text.
    """
    steps = digests["steps"]
    tensors = digests["tensors"]
    _raise_unless_texts(tensors)
    for result, table in digests["tables"].items():
        row_lengths = set(map(len, table))
        for row in table:
            _raise_unless_texts(row)
        is_complete = len(table) == steps and row_lengths == {len(tensors)}  # every row has this length
        if not is_complete:
            raise ValueError(f"table {result} has not {len(tensors)} digests in each of {steps} steps")


def why_no_baseline(now: Record, then: Record) -> str:
    """Return why an earlier record cannot be the baseline of a new one; empty if it can.

    The two must have at least one host in common, and their jobs must have the same settings.

    Args:
        now: The new record of a fleet (fleet.json).
        then: The earlier one.
    """
    hosts_in_both = set(now["hosts"]) & set(then["hosts"])
    if not hosts_in_both:
        return "has none of these hosts: give an earlier record of the same ones"
    settings_now = now.get("job", {})  # by name
    settings_then = then.get("job", {})
    changed_settings = []
    for name in settings_then | settings_now:  # of both
        value_now = settings_now.get(name)
        value_then = settings_then.get(name)
        if value_then != value_now:
            changed_settings.append(f"{name} {value_then} then, {value_now} now")
    if changed_settings:
        return f"is of another job ({', '.join(changed_settings)}): give an earlier record of the same job"
    return ""
