"""Logs that the official rules pass, made from the rules themselves."""

import ast
import itertools
import json
from collections.abc import Iterator
from typing import Any

from compliance.official import checker, rule_files
from compliance.official.language import State, expression
from compliance.official.rule_files import Rule
from runlog.reader import Event

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
                    value = expression(ast.unparse(node))(None, state)
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
        between = [key for key in named if key not in (*_FIRST, *_LAST, "init_start", checker._AGGREGATED)]
        between.sort(key=lambda key: key != "global_batch_size")
        aggregates = any(file.aggregates for file, _ in self.files)
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
            for step in rule.post:
                step(event, state)
        self.line(key, event.value, event.metadata)

    def _events(self, key: str) -> Iterator[Event]:
        values = [_WANTED[key]] if key in _WANTED else []
        for rule, state in self._rules(key):
            checks = [*rule.checks, *(check for check in (rule.first_check, rule.any_check) if check)]
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
                for check in (*rule.checks, rule.first_check, rule.any_check):
                    if check and not check.code(event, state):
                        return False
            except (TypeError, ValueError):
                return False
        return True

    def _metrics(self) -> None:
        """Two evaluations of stable_diffusion."""
        [(rule, state)] = self._rules(checker._AGGREGATED)
        assert rule.any_check
        values = _candidates([ast.unparse(rule.any_check.node)], state)
        for samples in (512, 1024):
            joined = next(
                {"FID": fid, "CLIP": clip, "samples_count": samples}
                for fid, clip in itertools.product(values, repeat=2)
                if type(fid) is not str and type(clip) is not str
                if rule.any_check.code(Event("", {"FID": fid, "CLIP": clip}, {}, 0, "", 1, 0), state)
            )
            for metric in ("FID", "CLIP"):
                where = {"metric": metric, "samples_count": samples, "epoch_num": 1}
                self.line("eval_accuracy", joined[metric], where)

    def line(self, key: str, value: Any, metadata: dict[str, Any]) -> None:
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(key.rpartition("_")[2], "POINT_IN_TIME")
        time_ms = START_MS + 1000 * len(self.lines)
        fields = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": value}
        self.lines.append(f":::MLLOG {json.dumps(fields | {'metadata': metadata | {'file': 'x.py', 'lineno': 1}})}")
