"""The time and the convergence of a run, read from its events as mlperf-logging's tools read them.

The tools are result_summarizer and rcp_checker. If a log states a value twice, the one that they take counts for the
official score.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from compliance.official import convergence
from compliance.official.convergence import NOT_CONVERGED, STABLE_DIFFUSION
from runlog import schema
from runlog.reader import Event
from runlog.text import printable

_EVALUATION_KEYS = (schema.EVAL_ACCURACY.key, "eval_error")
_MOST_FID = 90.0  # rcp_checker: the target of stable_diffusion
_LEAST_CLIP = 0.15
_STABLE_DIFFUSION_COUNTS = {"3.1.0": "step_num"}  # the metadata that counts the training; later samples_count
_EPOCH_DECIMALS = 3  # rcp_checker rounds so


@dataclass(frozen=True, kw_only=True)
class ToolReading:
    """The values that the official tools read from one log."""

    minutes: float | None = None  # from run_start to run_stop; None if one of them is missing
    batch: Any = None  # the last global_batch_size, as the log has it; None without one
    to_target: float | None = NOT_CONVERGED  # epochs or samples; None if the tool ends with an error, the `problem`
    problem: str = ""


class ToolReader:
    """Reads the events of one log: `take` each of them in their order, then ask for the `result`."""

    def __init__(self, ruleset: str) -> None:
        self._ruleset = ruleset
        self._benchmark: object = None
        self._batch: Any = None
        self._last_trained: float | None = None  # the epochs or samples trained by the last evaluation
        self._to_target = NOT_CONVERGED
        self._problem = ""
        self._start_ms: float | None = None
        self._stop_ms: float | None = None
        # Of stable_diffusion: the metrics of each evaluation, by the steps or samples trained until then.
        self._metrics_by_count: defaultdict[Any, dict[Any, Any]] = defaultdict(dict)

    def take(self, event: Event) -> None:
        """Read the next event as result_summarizer and rcp_checker do.

        rcp_checker ends at its first error. This error is kept as `problem`, such as "line 7: run_stop without
        'status'". Later events then only give times, which result_summarizer reads.
        """
        self._read_time(event)
        if self._problem:
            return
        try:
            self._read_convergence(event)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            # A KeyError names the missing field. The other errors, of bad values, are quoted in the same place.
            self._problem = f"line {event.line}: {event.key} without {printable(str(error), 80)}"

    def result(self) -> ToolReading:
        """Return what was read. Call it after the last event."""
        minutes = None
        if self._start_ms is not None and self._stop_ms is not None:
            minutes = (float(self._stop_ms) - float(self._start_ms)) / 60 / 1000
        to_target = None if self._problem else self._to_target
        return ToolReading(minutes=minutes, batch=self._batch, to_target=to_target, problem=self._problem)

    def _read_time(self, event: Event) -> None:
        """Keep the time of run_start or run_stop, as result_summarizer does.

        A later event of the same key replaces an earlier one until there are both times; then neither changes.
        """
        if self._start_ms is not None and self._stop_ms is not None:
            return
        if event.key == schema.RUN_START.key:
            self._start_ms = event.time_ms
        elif event.key == schema.RUN_STOP.key:
            self._stop_ms = event.time_ms

    def _read_convergence(self, event: Event) -> None:
        """Read what rcp_checker reads. Raises an exception if that tool would end with an error."""
        if event.key == schema.GLOBAL_BATCH_SIZE.key:
            self._batch = event.value
        elif event.key == schema.SUBMISSION_BENCHMARK.key:
            self._benchmark = event.value
        elif event.key in _EVALUATION_KEYS:
            self._read_evaluation(event)
        elif event.key == schema.RUN_STOP.key:
            self._read_stop(event)

    def _read_evaluation(self, event: Event) -> None:
        """Keep what an evaluation states.

        - stable_diffusion, which logs each metric in an event of its own: the metric, by the samples (or steps) trained
        - a benchmark that counts samples: the samples trained
        - any other benchmark: the epochs trained
        """
        if self._benchmark == STABLE_DIFFUSION:
            count_field = _STABLE_DIFFUSION_COUNTS.get(self._ruleset, "samples_count")
            metrics = self._metrics_by_count[event.metadata[count_field]]
            metrics[event.metadata["metric"]] = event.value
        elif self._benchmark in convergence.COUNTED_IN_SAMPLES:
            self._last_trained = event.metadata["samples_count"]
        else:
            self._last_trained = round(event.metadata["epoch_num"], _EPOCH_DECIMALS)

    def _read_stop(self, event: Event) -> None:
        """Decide at run_stop how many epochs or samples the run needed to reach the target.

        - The status is not success: NOT_CONVERGED.
        - stable_diffusion: the samples (or steps) of the earliest evaluation whose metrics reach the target.
        - Any other benchmark: the epochs or samples that the last evaluation states.

        Raises KeyError if the event has no status, if there was no evaluation, or if an evaluation lacks a metric, and
        ValueError if no evaluation of stable_diffusion reaches the target. rcp_checker fails in these cases, too.
        """
        if event.metadata["status"] != "success":  # raises the KeyError of an event without a status
            self._to_target = NOT_CONVERGED
            return
        if self._benchmark == STABLE_DIFFUSION:
            counts_at_target = [count for count, metrics in self._metrics_by_count.items() if _reaches_target(metrics)]
            # The earliest evaluation at the target counts as the last one. An empty list raises the ValueError.
            self._last_trained = min(counts_at_target)
        if self._last_trained is None:
            # `take` makes a `problem` of it: "line 7: run_stop without 'an evaluation before it'".
            raise KeyError("an evaluation before it")
        self._to_target = self._last_trained


def _reaches_target(metrics: dict[Any, Any]) -> bool:
    return bool(metrics["FID"] <= _MOST_FID and metrics["CLIP"] >= _LEAST_CLIP)
