"""Logs with events removed, repeated, moved and changed, and forged beside another of their submission."""

import ast
import functools
import itertools
import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compliance.__main__ import main
from compliance.official import rule_files
from compliance.official.language import State, compile_expression
from compliance.official.metrics import JOINED_METRICS_KEY
from compliance.official.rule_files import Rule
from runlog.reader import Event
from tests import jobs

TOKEN = ":::MLLOG "
Fields = dict[str, Any]


class Altered:
    """The lines of a log; each method changes it and returns it. `number` counts the events of a key, -1 the last."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def events(self) -> list[int]:
        return [index for index, line in enumerate(self.lines) if TOKEN in line]

    def at(self, key: str, number: int = 0) -> int:
        return [index for index in self.events() if f'"key": "{key}"' in self.lines[index]][number]

    def fields(self, index: int) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.lines[index].partition(TOKEN)[2])
        return fields

    def write(self, index: int, fields: dict[str, Any]) -> None:
        self.lines[index] = TOKEN + json.dumps(fields)

    def change(self, key: str, change: Callable[[dict[str, Any]], object], number: int = 0) -> "Altered":
        index = self.at(key, number)
        fields = self.fields(index)
        change(fields)
        self.write(index, fields)
        return self

    def value(self, key: str, value: Any, number: int = 0) -> "Altered":
        return self.change(key, lambda fields: fields.update(value=value), number)

    def inside(self, key: str, number: int = 0, **values: Any) -> "Altered":
        """Other fields of a value that is a table."""
        return self.change(key, lambda fields: fields["value"].update(values), number)

    def metadata(self, key: str, number: int = 0, **metadata: Any) -> "Altered":
        return self.change(key, lambda fields: fields["metadata"].update(metadata), number)

    def without_metadata(self, key: str, name: str, number: int = 0) -> "Altered":
        return self.change(key, lambda fields: fields["metadata"].pop(name), number)

    def seed(self, seed: int) -> "Altered":
        """Another seed, in the event and in the header of a log of ours."""
        self.lines = [re.sub(r'("SEED": {"value": )-?\d+', rf"\g<1>{seed}", line) for line in self.lines]
        return self.value("seed", seed)

    def aborted(self) -> "Altered":
        """As a run of ours that did not reach the target ends: it sums up no telemetry."""
        return self.metadata("run_stop", status="aborted").drop("telemetry_summary")

    def later(self, key: str, ms: float, number: int = 0) -> "Altered":
        return self.change(key, lambda fields: fields.update(time_ms=fields["time_ms"] + ms), number)

    def drop(self, key: str, number: int = 0) -> "Altered":
        del self.lines[self.at(key, number)]
        return self

    def drop_all(self, *keys: str) -> "Altered":
        self.lines = [line for line in self.lines if not any(f'"key": "{key}"' in line for key in keys)]
        return self

    def repeat(self, key: str, number: int = 0) -> "Altered":
        index = self.at(key, number)
        self.lines.insert(index, self.lines[index])
        return self

    def move_after(self, key: str, other: str, number: int = 0) -> "Altered":
        line = self.lines.pop(self.at(key, number))
        self.lines.insert(self.at(other, -1) + 1, line)
        return self

    def add_after(self, key: str, line: str, number: int = 0) -> "Altered":
        self.lines.insert(self.at(key, number) + 1, line)
        return self

    def line(self, key: str, change: Callable[[str], str], number: int = 0) -> "Altered":
        index = self.at(key, number)
        self.lines[index] = change(self.lines[index])
        return self


def foreign(text: str) -> str:
    """The log without what only this project writes."""
    log = Altered("\n".join(line for line in text.splitlines() if not line.startswith("# {")))
    return log.drop_all("run_summary", "rank_times", "step_window", "epoch_throughput", "telemetry_summary").text


def write(folder: Path, *texts: str) -> list[Path]:
    """The logs of a submission."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"result_{index}.txt" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


compliance = functools.partial(jobs.called, main)


def answer(*arguments: object, status: int = 0) -> dict[str, Any]:
    """What the command says in JSON; it ends with `status`."""
    done = compliance(*arguments, "--json")
    assert done.returncode == status, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# --- ways to forge a log ---


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
        if fields["key"] == "rank_times":
            fields["value"] |= {name: value[name] * factor for name in value if name.endswith("_s")}
        slower = {"time_s": factor, "data_wait_s": factor, "images_per_s": 1 / factor, "imgs_sec": 1 / factor}
        for name in slower.keys() & (value if isinstance(value, dict) else {}):
            value[name] *= slower[name]
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
    for number, (old, new) in enumerate(zip(took, change(took), strict=True)):
        clock(log, functools.partial(operator.add, new - old), f"{kind}_stop", number)
    return by_clock(log)


def lasting(new_ms: Sequence[float]) -> Callable[[list[float]], list[float]]:
    """A change of the intervals to these times."""
    return lambda took: [*new_ms]


def accuracies(log: Altered) -> list[float]:
    return [log.fields(index)["value"] for index in log.events() if '"eval_accuracy"' in log.lines[index]]


def numbered(log: Altered, change: Callable[[int], Any]) -> Altered:
    """Epochs numbered in another way."""

    def number(fields: Fields) -> None:
        where = fields["metadata"]
        where |= {name: change(where[name]) for name in ("epoch_num", "first_epoch_num") if name in where}

    return each(log, "", number)


def curve(log: Altered, change: Callable[[list[float]], list[float]]) -> Altered:
    """Other accuracies."""
    for number, value in enumerate(change(accuracies(log))):
        log.value("eval_accuracy", value, number)
    return log


def more_images(log: Altered, other: Altered, added: Callable[[int], int]) -> Altered:
    """The other run's accuracies with some images more at each evaluation."""
    values = enumerate(accuracies(other))
    return curve(log, lambda _: [(round(value * 50_000) + added(i)) / 50_000 for i, value in values])


def without_block(log: Altered, number: int) -> Altered:
    """The run without a block; what follows moves up in time."""
    start, stop = log.at("block_start", number), log.at("block_start", number + 1)
    start_ms, stop_ms = (log.fields(line)["time_ms"] for line in (start, stop))
    del log.lines[start:stop]
    return clock(log, lambda ms: ms - stop_ms + start_ms, "block_start", number)


def copied(log: Altered, other: Altered) -> Altered:
    """The other run a day later, by this one's seed and accuracies."""
    seed, own = log.fields(log.at("seed"))["value"], accuracies(log)
    log.lines = list(other.lines)
    each(log, "", lambda fields: fields.update(time_ms=fields["time_ms"] + 86_400_000))
    return curve(log.seed(seed), lambda _: own)


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


def epochs_before(log: Altered, count: int, each_ms: float) -> Altered:
    """So many epochs before the first; all labels and times are later by them."""
    start, stop = log.at("epoch_start"), log.at("epoch_stop")
    began_ms = log.fields(start)["time_ms"]
    more = Altered("\n".join([log.lines[start], log.lines[stop]] * count))
    for place in range(2 * count):
        time_ms = began_ms + (place + 1) // 2 * each_ms
        fields = more.fields(place)
        more.write(place, fields | {"time_ms": time_ms, "metadata": fields["metadata"] | {"epoch_num": place // 2 + 1}})
    numbered(log, lambda number: number + count)
    fields = log.fields(log.at("block_start"))["metadata"]
    log.metadata("block_start", first_epoch_num=1, epoch_count=fields["epoch_count"] + count)
    log.metadata("block_stop", first_epoch_num=1)
    clock(log, lambda ms: ms + count * each_ms, "epoch_start")
    log.lines[start:start] = more.lines
    return log


def restarted(log: Altered, number: int) -> Altered:
    """An epoch that broke down, and began again ten minutes later."""
    line = log.lines[log.at("epoch_start", number)]
    clock(log, lambda ms: ms + 600_000, "epoch_start", number)
    log.lines.insert(log.at("epoch_start", number), line)
    return log


def waiting(log: Altered) -> Altered:
    """Half of each epoch is called waiting for a checkpoint, so its images/s are twice as many."""
    by_half = {f"compute_{name}_s": 8.0 for name in ("least", "median", "most")}
    each(log, "rank_times", lambda fields: fields["value"].update(by_half))
    for epoch in range(3):
        for window in (2 * epoch, 2 * epoch + 1):
            log.inside("step_window", window, time_s=9.0)
        log.inside("epoch_throughput", epoch, time_s=18.0, images_per_s=1408 / 18)
        waited = checkpoint(log, step=44 * epoch + 22, number=2 * epoch).replace(
            '"blocked_s": 1.0', '"blocked_s": 18.0'
        )
        log.add_after("step_window", waited, 2 * epoch)
    return log


def stalled(log: Altered) -> Altered:
    """Within the second epoch training waited for a checkpoint for four minutes."""
    clock(log, lambda ms: ms + 240_000, "rank_times", 3)
    waited = checkpoint(log, step=66, number=3).replace('"blocked_s": 1.0', '"blocked_s": 240.0')
    return log.add_after("step_window", waited, 3).inside("telemetry_summary", samples=354)


def stalled_at_the_end(log: Altered) -> Altered:
    """The same after the last step of the second epoch, before the epoch ends."""
    clock(log, lambda ms: ms + 240_000, "epoch_stop", 1)
    waited = checkpoint(log, step=88, number=3).replace('"blocked_s": 1.0', '"blocked_s": 240.0')
    return log.add_after("epoch_stop", waited, 1).later("checkpoint", 240_002).inside("telemetry_summary", samples=354)


def shifted(log: Altered, by_s: float) -> Altered:
    """In each epoch the first window takes so much less, and the second so much more."""
    for window, more_s in enumerate((-by_s, by_s) * 3):
        time_s = log.fields(log.at("step_window", window))["value"]["time_s"]
        log.inside("step_window", window, time_s=time_s + more_s)
        log.inside("rank_times", window, compute_least_s=1.0, compute_median_s=1.0, compute_most_s=1.0)
    return log


def rank_times(log: Altered, *, step: int = 22, **changes: Any) -> Altered:
    """Other times of the ranks in the first window."""
    return log.inside("rank_times", **changes).metadata("rank_times", step=step)


def padded(log: Altered) -> Altered:
    """1,200 images of padding count as right in each evaluation."""
    return curve(log, lambda v: [(round(x * 50_000) + 1200) / 51_200 for x in v])


def checkpoint(log: Altered, *, step: int, number: int = 0) -> str:
    """The event of one that took 1 s of the training, with the time of a window."""
    value = {"step": step, "file": f"step_{step:09d}.safetensors", "mib": 97.5, "blocked_s": 1.0, "write_s": 2.5}
    fields = log.fields(log.at("step_window", number))
    return TOKEN + json.dumps(fields | {"key": "checkpoint", "value": value})


def unwritten(log: Altered) -> Altered:
    """No checkpoint could be written; training waited for each all the same."""

    def fail(fields: Fields) -> None:
        waited = {name: fields["value"][name] for name in ("step", "blocked_s")}
        fields.update(key="checkpoint_failed", value=waited)

    return each(log, "checkpoint", fail)


# ---- logs that the official rules pass, made from the rules themselves

START_MS = 1_700_000_000_000
_FIRST = ("submission_division", "submission_benchmark", "submission_org", "submission_platform", "cache_clear")
_LAST = (
    *("init_stop", "run_start", "block_start", "epoch_start", "eval_start", "eval_accuracy", "eval_stop"),
    *("epoch_stop", "block_stop", "run_stop"),
)

# where the rules allow it; qwen35 asks for 16 answers to each prompt
_WANTED: dict[str, Any] = {"global_batch_size": 16, "opt_name": "adam"}


def _candidates(texts: list[str], state: State) -> list[Any]:
    """What the parts of the checks that do not speak of the event say, and quotients of the numbers."""
    found: list[Any] = [1, 1.0, "x", 0.5]
    for text in texts:
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.expr) and not any(
                isinstance(n, ast.Name) and n.id in ("v", "ll") for n in ast.walk(node)
            ):
                try:
                    value = compile_expression(node)(None, state)
                except (SyntaxError, TypeError, KeyError, AttributeError):
                    continue
                found += value if isinstance(value, list) else [value]
    plain = [value for value in found if type(value) in (int, float, str)]
    numbers = [value for value in plain if type(value) is not str and value]
    return [*plain, *(one / other for one, other in itertools.product(numbers, repeat=2))]


class Writer:
    """Writes a log; each event is the first of the candidates that meets all rules of its key."""

    def __init__(self, version: str, division: str, benchmark: str) -> None:
        names = ("common", f"{division}_common", f"{division}_{benchmark}")
        self.files = [(rule_files.load(f"training_{version}/{name}.yaml"), State()) for name in names]
        self.said = {"submission_division": division, "submission_benchmark": benchmark}
        self.said |= {"submission_org": "Example", "submission_platform": "CPU"}
        self.lines: list[str] = []
        for file, state in self.files:
            for step in file.begin:
                step(None, state)

    def text(self) -> str:
        named = list(dict.fromkeys(key for file, _ in self.files for key in file.rules))
        between = [key for key in named if key not in (*_FIRST, *_LAST, "init_start", JOINED_METRICS_KEY)]
        between.sort(key=lambda key: key != "global_batch_size")
        aggregates = any(file.joining_field for file, _ in self.files)
        for key in (*_FIRST, "init_start", *between, *_LAST):
            if key == "eval_accuracy" and aggregates:
                self._metrics()
            elif key in named:
                self._write(key)
        self.line("seed", 1, {})
        return "\n".join(self.lines) + "\n"

    def _rules(self, key: str) -> list[tuple[Rule, State]]:
        return [(file.rules[key], state) for file, state in self.files if key in file.rules]

    def _write(self, key: str) -> None:
        event = next(event for event in self._events(key) if key in self.said or self._meets(key, event))
        for rule, state in self._rules(key):
            for step in rule.code_after_checks:
                step(event, state)
        self.line(key, event.value, event.metadata)

    def _events(self, key: str) -> Iterator[Event]:
        values = [_WANTED[key]] if key in _WANTED else []
        for rule, state in self._rules(key):
            checks = [*rule.checks, *(check for check in (rule.first_check, rule.at_least_one_check) if check)]
            values += _candidates([ast.unparse(check.node) for check in checks], state)
        if key in self.said:
            values = [self.said[key]]
        where: dict[str, Any] = {"epoch_num": 1, "epoch_count": 1, "first_epoch_num": 1}
        if key == "run_stop":
            where["status"] = "success"
        for samples, value in itertools.product(values if key == "eval_accuracy" else [1], values):
            yield Event(key, value, where | {"samples_count": samples}, START_MS, "POINT_IN_TIME", 1, 0)

    def _meets(self, key: str, event: Event) -> bool:
        for rule, state in self._rules(key):
            try:
                for check in (*rule.checks, rule.first_check, rule.at_least_one_check):
                    if check and not check.is_met(event, state):
                        return False
            except (TypeError, ValueError):
                return False
        return True

    def _metrics(self) -> None:
        """Two evaluations of stable_diffusion."""
        [(rule, state)] = self._rules(JOINED_METRICS_KEY)
        assert rule.at_least_one_check
        values = _candidates([ast.unparse(rule.at_least_one_check.node)], state)
        for samples in (512, 1024):
            joined = next(
                {"FID": fid, "CLIP": clip, "samples_count": samples}
                for fid, clip in itertools.product(values, repeat=2)
                if type(fid) is not str and type(clip) is not str
                if rule.at_least_one_check.is_met(Event("", {"FID": fid, "CLIP": clip}, {}, 0, "", 1, 0), state)
            )
            for metric in ("FID", "CLIP"):
                where = {"metric": metric, "samples_count": samples, "epoch_num": 1}
                self.line("eval_accuracy", joined[metric], where)

    def line(self, key: str, value: Any, metadata: dict[str, Any]) -> None:
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(key.rpartition("_")[2], "POINT_IN_TIME")
        time_ms = START_MS + 1000 * len(self.lines)
        fields = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": value}
        self.lines.append(f":::MLLOG {json.dumps(fields | {'metadata': metadata | {'file': 'x.py', 'lineno': 1}})}")
