"""The time and the convergence of a run, read from its events as mlperf-logging's result_summarizer and rcp_checker
read them: where a log says a thing twice, the one that these tools take counts for the official score."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from compliance.official import convergence
from compliance.official.convergence import NOT_CONVERGED, STABLE_DIFFUSION
from runlog import schema
from runlog.reader import Event
from runlog.text import printable

_EVALUATIONS = (schema.EVAL_ACCURACY.key, "eval_error")
_MOST_FID = 90.0  # rcp_checker: the target of stable_diffusion
_LEAST_CLIP = 0.15
_STABLE_DIFFUSION_STEPS = {"3.1.0": "step_num"}  # in later rounds samples_count
_EPOCH_DECIMALS = 3  # rcp_checker rounds so


@dataclass(frozen=True, kw_only=True)
class ToolReading:
    """The values that the official tools read from one log."""

    minutes: float | None = None  # from run_start to run_stop; None where one of them is missing
    batch: Any = None  # the last global_batch_size, as the log has it; None without one
    to_target: float | None = NOT_CONVERGED  # epochs or samples; None: the tool ends, and `problem` says why
    problem: str = ""


class ToolReader:
    """Takes the events of one log, in their order."""

    def __init__(self, ruleset: str) -> None:
        self._ruleset = ruleset
        self._benchmark: object = None
        self._batch: Any = None
        self._last: float | None = None  # of the last evaluation
        self._to_target = NOT_CONVERGED
        self._problem = ""
        self._start_ms: float | None = None
        self._stop_ms: float | None = None
        self._metrics: defaultdict[Any, dict[Any, Any]] = defaultdict(dict)  # of stable_diffusion, by evaluation

    def take(self, event: Event) -> None:
        """Read the next event."""
        self._time(event)
        if self._problem:
            return
        try:
            self._converge(event)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            self._problem = f"line {event.line}: {event.key} without {printable(str(error), 80)}"

    def result(self) -> ToolReading:
        """Return what was read, after the last event."""
        minutes = None
        if self._start_ms is not None and self._stop_ms is not None:
            minutes = (float(self._stop_ms) - float(self._start_ms)) / 60 / 1000
        to_target = None if self._problem else self._to_target
        return ToolReading(minutes=minutes, batch=self._batch, to_target=to_target, problem=self._problem)

    def _time(self, event: Event) -> None:
        """Like result_summarizer, take the last of each until there are both."""
        if self._start_ms is not None and self._stop_ms is not None:
            return
        if event.key == schema.RUN_START.key:
            self._start_ms = event.time_ms
        elif event.key == schema.RUN_STOP.key:
            self._stop_ms = event.time_ms

    def _converge(self, event: Event) -> None:
        """Read what rcp_checker reads. Raises where that tool would end with an error."""
        if event.key == schema.GLOBAL_BATCH_SIZE.key:
            self._batch = event.value
        elif event.key == schema.SUBMISSION_BENCHMARK.key:
            self._benchmark = event.value
        elif event.key in _EVALUATIONS:
            self._evaluate(event)
        elif event.key == schema.RUN_STOP.key:
            self._stop(event)

    def _evaluate(self, event: Event) -> None:
        if self._benchmark == STABLE_DIFFUSION:
            unit = _STABLE_DIFFUSION_STEPS.get(self._ruleset, "samples_count")
            evaluation = self._metrics[event.metadata[unit]]
            evaluation[event.metadata["metric"]] = event.value
        elif self._benchmark in convergence.COUNTED_IN_SAMPLES:
            self._last = event.metadata["samples_count"]
        else:
            self._last = round(event.metadata["epoch_num"], _EPOCH_DECIMALS)

    def _stop(self, event: Event) -> None:
        if event.metadata["status"] != "success":
            self._to_target = NOT_CONVERGED
            return
        if self._benchmark == STABLE_DIFFUSION:
            self._last = min(at for at, metrics in self._metrics.items() if _reaches_target(metrics))
        if self._last is None:
            raise KeyError("an evaluation before it")
        self._to_target = self._last


def _reaches_target(metrics: dict[Any, Any]) -> bool:
    return bool(metrics["FID"] <= _MOST_FID and metrics["CLIP"] >= _LEAST_CLIP)
