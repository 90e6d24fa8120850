"""Ways to forge a log: each alters it, beside another of its submission, and returns it."""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.compliance.altered import TOKEN, Altered

Fields = dict[str, Any]


def each(log: Altered, key: str, change: Callable[[Fields], object]) -> Altered:
    """Changes each event of `key`; of all keys where it is empty."""
    for index in log.events():
        fields = log.fields(index)
        if key in ("", fields["key"]):
            change(fields)
            log.write(index, fields)
    return log


def clock(log: Altered, new_ms: Callable[[float], float], first: str = "run_start", number: int = 0) -> Altered:
    """Another time for each event from the one of a key on."""
    for index in log.events()[log.events().index(log.at(first, number)) :]:
        fields = log.fields(index)
        log.write(index, fields | {"time_ms": new_ms(fields["time_ms"])})
    return log


def rates(log: Altered, factor: float) -> Altered:
    """Each figure but the clock that tells of time, for a run in so much of its time."""

    def change(fields: Fields) -> None:
        value = fields["value"]
        if fields["key"] == "throughput":
            fields["value"] /= factor
        for name, by in (
            ("time_s", factor),
            ("data_wait_s", factor),
            ("images_per_s", 1 / factor),
            ("imgs_sec", 1 / factor),
        ):
            if isinstance(value, dict) and name in value:
                value[name] *= by
        if fields["key"] == "telemetry_summary":
            value["samples"] = int(value["samples"] * factor)

    return each(log, "", change)


def scaled(log: Altered, factor: float) -> Altered:
    """The clock runs so much slower."""
    start = log.fields(log.at("run_start"))["time_ms"]
    return clock(log, lambda ms: round(start + (ms - start) * factor))


def by_clock(log: Altered) -> Altered:
    """The rates that others log, by the clock."""
    samples, start, took = log.fields(log.at("train_samples"))["value"], 0.0, 1.0
    for index in log.events():
        fields = log.fields(index)
        start = fields["time_ms"] if fields["key"] == "epoch_start" else start
        took = fields["time_ms"] - start if fields["key"] == "epoch_stop" else took
        if fields["key"] == "throughput":
            log.write(index, fields | {"value": samples / took * 1000})
        elif fields["key"] == "tracked_stats":
            log.write(index, fields | {"value": {"imgs_sec": samples / took * 1000}})
    return log


def intervals(log: Altered, change: Callable[[list[float]], list[float]], kind: str = "epoch") -> Altered:
    """Other times of the epochs, or evaluations; what lies between keeps its own."""
    bounds = [log.fields(log.at(f"{kind}_{end}", n))["time_ms"]
              for n in range(log.text.count(f'"{kind}_start"')) for end in ("start", "stop")]  # fmt: skip
    took = [stop - start for start, stop in zip(bounds[::2], bounds[1::2], strict=True)]
    moved = 0.0
    for number, (old, new) in enumerate(zip(took, change(took), strict=True)):
        moved = new - old
        clock(log, lambda ms, by=moved: ms + by, f"{kind}_stop", number)
    return by_clock(log)


def accuracies(log: Altered) -> list[float]:
    return [log.fields(index)["value"] for index in log.events() if '"eval_accuracy"' in log.lines[index]]


def curve(change: Callable[[list[float]], list[float]]) -> Callable[[Altered, Altered], Altered]:
    def forge(log: Altered, _: Altered) -> Altered:
        for number, value in enumerate(change(accuracies(log))):
            log.value("eval_accuracy", value, number)
        return log

    return forge


def more_images(added: Callable[[int], int]) -> Callable[[Altered, Altered], Altered]:
    """The other run's accuracies with some images more at each evaluation."""
    return lambda log, other: curve(
        lambda _: [(round(value * 50_000) + added(i)) / 50_000 for i, value in enumerate(accuracies(other))]
    )(log, other)


def without_block(log: Altered, number: int) -> Altered:
    """The run without a block; what follows moves up in time."""
    start, stop = log.at("block_start", number), log.at("block_start", number + 1)
    start_ms, stop_ms = (log.fields(line)["time_ms"] for line in (start, stop))
    del log.lines[start:stop]
    return clock(log, lambda ms: ms - stop_ms + start_ms, "block_start", number)


def copied(change: Callable[[Altered], Altered]) -> Callable[[Altered, Altered], Altered]:
    """The other run a day later, by this one's seed and accuracies, and changed."""

    def forge(log: Altered, other: Altered) -> Altered:
        seed, own = log.fields(log.at("seed"))["value"], accuracies(log)
        log.lines = list(other.lines)
        each(log, "", lambda fields: fields.update(time_ms=fields["time_ms"] + 86_400_000))
        return curve(lambda _: own)(change(log.seed(seed)), other)

    return forge


def replaced(log: Altered, *changes: tuple[str, str]) -> Altered:
    """Texts of the header replaced; each stands in it."""
    for old, new in changes:
        assert any(line.startswith("# {") and old in line for line in log.lines), old
        log.lines = [line.replace(old, new) if line.startswith("# {") else line for line in log.lines]
    return log


def settings(log: Altered, **values: Any) -> Altered:
    """Other values of the header's settings; a name's first _ is a dot."""
    at = next(i for i, line in enumerate(log.lines) if line.startswith('# {"config"'))
    section = json.loads(log.lines[at][2:])
    for name, value in values.items():
        section["config"][re.sub("^RECIPE_", "RECIPE.", name)] = {"value": value, "origin": "environment"}
    log.lines[at] = f"# {json.dumps(section)}"
    return log


def twice(log: Altered, first: str, last: str, number: int) -> Altered:
    """The events from one to another once more behind it, later by what they take."""
    lines = log.lines[log.at(first, number) : log.at(last, number) + 1]
    copied = Altered("\n".join(line for line in lines if TOKEN in line))
    times = [copied.fields(index)["time_ms"] for index in copied.events()]
    took = times[-1] - times[0] + 1
    clock(log, lambda ms: ms + took, last, number)
    log.change(last, lambda fields: fields.update(time_ms=fields["time_ms"] - took), number)
    each(copied, "", lambda fields: fields.update(time_ms=fields["time_ms"] + took))
    at = log.at(last, number) + 1
    log.lines[at:at] = copied.lines
    return log


def rank_times(**changes: Any) -> Callable[[Altered, Altered], Altered]:
    """The ranks' times of a window, as a run of two ranks logs them."""
    value = {f"{kind}_{name}_s": s for kind in ("data_wait", "compute")
             for name, s in (("least", 0.01), ("median", 0.02), ("most", 0.03))}  # fmt: skip
    value |= {
        f"{kind}_{name}": at for kind in ("data_wait", "compute") for name, at in (("rank", 1), ("host", "node0"))
    }

    def forge(log: Altered, _: Altered) -> Altered:
        index = log.at("step_window")
        fields = log.fields(index) | {"key": "rank_times", "value": value | changes}
        log.lines.insert(index, TOKEN + json.dumps(fields | {"metadata": {"step": 22}}))
        return log

    return forge
