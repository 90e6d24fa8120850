"""The time and the convergence of a run, read from its events as mlperf-logging's tools read them.

The tools are result_summarizer and rcp_checker. If a log states a value twice, the one that they take counts for the
official score.
"""

from collections import defaultdict
from typing import Any, NamedTuple

from compliance.official import convergence
from compliance.official.convergence import NOT_CONVERGED, STABLE_DIFFUSION
from runlog import schema
from runlog.reader import LARGEST_FLOAT, Event
from runlog.text import printable

_EVALUATION_KEYS = (schema.EVAL_ACCURACY.key, "eval_error")
_MAX_FID = 90.0  # rcp_checker: the target of stable_diffusion
_MIN_CLIP = 0.15
_EPOCH_DECIMALS = 3  # rcp_checker rounds so


class ToolReading(NamedTuple):
    """The values that the official tools read from one log."""

    minutes: float | None = None  # from run_start to run_stop; None if one of them is missing
    batch: Any = None  # the last global_batch_size, as the log has it; None without one
    to_target: float | None = NOT_CONVERGED  # epochs or samples; None if the tool ends with an error, the `problem`
    problem: str = ""


class ToolReader:
    """Reads the events of one log: `take` each of them in their order, then ask for the `result`.

    rcp_checker ends with an error at data that it cannot use. The methods for the convergence raise an error there,
    too, which `take` keeps as the `problem` of the result.
    """

    def __init__(self, ruleset: str) -> None:
        # The metadata by which stable_diffusion says how far the training was at an evaluation.
        self._metric_count_field = "step_num" if ruleset == "3.1.0" else "samples_count"
        self._benchmark: object = None
        self._batch: Any = None
        self._trained_at_last_evaluation: float | None = None  # in epochs or samples; None: no evaluation so far
        self._to_target = NOT_CONVERGED
        self._problem = ""
        self._start_ms: float | None = None
        self._stop_ms: float | None = None
        # Of stable_diffusion: the metrics of each evaluation, by the steps or samples trained until then.
        self._metrics_by_count: defaultdict[Any, dict[Any, Any]] = defaultdict(dict)

    def take(self, event: Event) -> None:
        """Read the next event for two results: the minutes of the run, and the epochs (or samples) to its target.

        The minutes are read as by result_summarizer, and the epochs as by rcp_checker. rcp_checker ends at its first
        error. From there on, events are read for the minutes only, and a text such as "line 7: run_stop without
        'status'" stays in `_problem`.

        Args:
            event: The event, in the order of the log.
        """
        self._read_time(event)  # for the minutes, even after an error below
        has_rcp_checker_ended = self._problem != ""  # the text of an error at an event above
        if has_rcp_checker_ended:
            return
        try:
            self._read_convergence(event)  # for the epochs; raises an error where rcp_checker ends with one
        except KeyError as error:  # the metadata lack a name, or an evaluation lacks a metric
            missing = str(error)  # the missing name in quotes, such as 'status'
            self._problem = f"line {event.line}: {event.key} without {printable(missing, 80)}"
        except (TypeError, ValueError, OverflowError) as error:  # such as a ValueError "no evaluation before it"
            self._problem = f"line {event.line}: {event.key}: {printable(str(error), 80)}"

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

        Args:
            event: Any event of the log.
        """
        if self._start_ms is not None and self._stop_ms is not None:
            return
        if event.key == schema.RUN_START.key:
            self._start_ms = event.time_ms
        elif event.key == schema.RUN_STOP.key:
            self._stop_ms = event.time_ms

    def _read_convergence(self, event: Event) -> None:
        """Read an event for the epochs (or samples) that the run needed to reach its target, as rcp_checker does.

            global_batch_size, submission_benchmark    its value is kept, and replaces an earlier one
            eval_accuracy, eval_error                  how far the training was is kept, such as 34 epochs;
                                                       for stable_diffusion with the metric of this event
            run_stop                                   gives the result, by the benchmark and evaluations above it

        Args:
            event: Any event of the log.

        Raises:
            KeyError, TypeError, ValueError: rcp_checker ends with an error at this event.
        """
        # rcp_checker looks for the names anywhere in the line, such as in the key eval_global_batch_size.
        line = f"{event.key} {event.value} {event.metadata}"
        if schema.GLOBAL_BATCH_SIZE.key in line:
            self._batch = event.value
        if schema.SUBMISSION_BENCHMARK.key in line:
            self._benchmark = event.value
        if any(key in line for key in _EVALUATION_KEYS):
            self._read_evaluation(event)
        if event.key == schema.RUN_STOP.key:
            self._to_target = self._trained_to_target(event)  # NOT_CONVERGED, 1e9, without success

    def _read_evaluation(self, event: Event) -> None:
        """Keep how far the training was at an evaluation; of stable_diffusion one of the evaluation's metrics.

        Args:
            event: An eval_accuracy or eval_error, or another event that has one of these names in it.

        Raises:
            KeyError, TypeError: rcp_checker ends with an error at this event.
        """
        if self._benchmark == STABLE_DIFFUSION:
            self._keep_metric(event)  # the metrics of an evaluation are looked at together at run_stop
        else:
            self._trained_at_last_evaluation = self._trained_at(event)  # the epochs or samples in its metadata

    def _keep_metric(self, event: Event) -> None:
        """Keep one metric of an evaluation of stable_diffusion in `_metrics_by_count`, next to the evaluation's others.

        stable_diffusion logs each metric of an evaluation in an event of its own. All events of one evaluation state
        the same count in their metadata: `step_num` in ruleset 3.1.0, `samples_count` in any other. For instance:

            value 88.1, metadata {"metric": "FID", "samples_count": 512}  ->  _metrics_by_count[512]["FID"] = 88.1

        Args:
            event: An eval_accuracy or eval_error, with the name of the metric and the count in its metadata.

        Raises:
            KeyError: The metadata lack the name or the count.
            TypeError: The name or the count is a list or a dict, or the metadata are not a dict.
        """
        count = event.metadata[self._metric_count_field]  # the steps or samples trained before the evaluation
        metrics = self._metrics_by_count[count]  # a defaultdict: a new count gets an empty dict
        name = event.metadata["metric"]
        metrics[name] = event.value

    def _trained_at(self, evaluation: Event) -> float:
        """Return how far the training was at an evaluation: the samples if the benchmark counts these, else the epochs.

        Args:
            evaluation: The event of the evaluation.

        Raises:
            KeyError: The event does not say it.
            TypeError: Its epoch is not a number, or its metadata are not a dict.
        """
        if self._benchmark in convergence.COUNTED_IN_SAMPLES:
            samples: float = evaluation.metadata["samples_count"]
            return samples
        epochs: float = round(evaluation.metadata["epoch_num"], _EPOCH_DECIMALS)
        return epochs

    def _trained_to_target(self, stop: Event) -> float:
        """Return how far the run had trained when it reached the target, as rcp_checker takes this from a log.

        rcp_checker believes the status, and takes the last evaluation above run_stop. Only for stable_diffusion does it
        look for the evaluation that reached the target. Where it crashes, such as at a run_stop without a status, this
        method raises an error on purpose: the caller keeps its text.

        Args:
            stop: The run_stop of the run.

        Returns:
            The epochs, samples or steps. NOT_CONVERGED, 1e9, for a run without success.

        Raises:
            KeyError, TypeError, ValueError: rcp_checker ends with an error at `stop`, or has no number to compute with.
        """
        if stop.metadata["status"] != "success":  # KeyError without a status, TypeError if the metadata are not a dict
            return NOT_CONVERGED
        if self._benchmark == STABLE_DIFFUSION:
            # The fewest samples or steps at which FID and CLIP reach their targets. KeyError, TypeError or ValueError.
            trained = self._earliest_at_target()
        elif self._trained_at_last_evaluation is None:
            raise ValueError("no evaluation before it")
        else:
            trained = self._trained_at_last_evaluation  # rcp_checker takes this one, whatever its accuracy
        if not _is_usable_number(trained):  # such as a text, for "samples_count": "512" in a log
            raise ValueError("no usable number of epochs or samples before it")
        return trained

    def _earliest_at_target(self) -> float:
        """Return the samples (or steps) after which an evaluation of stable_diffusion first reached the target.

        For instance, 1024 if the evaluations after 1024 and after 1536 samples reached it.

        Raises:
            KeyError: An evaluation lacks a metric that is needed to tell.
            TypeError: A metric is not a number, or the evaluations at the target have counts that cannot be compared.
            ValueError: No evaluation reached the target.
        """
        # `_reaches_target` raises KeyError for a missing metric, and TypeError for a metric that is not a number.
        counts_at_target = [count for count, metrics in self._metrics_by_count.items() if _reaches_target(metrics)]
        if not counts_at_target:
            # The user reads "line 7: run_stop: no evaluation before it reaches the target".
            raise ValueError("no evaluation before it reaches the target")
        earliest: float = min(counts_at_target)  # TypeError for counts such as 512 and "1024"
        return earliest


def _is_usable_number(trained: Any) -> bool:
    """Return whether a figure can be computed with the epochs or samples that an evaluation states.

    Args:
        trained: The value in the log, which may be a text, or a whole number that is too large for a float.
    """
    if type(trained) is int:
        return abs(trained) < LARGEST_FLOAT
    return type(trained) is float


def _reaches_target(metrics: dict[Any, Any]) -> bool:
    """Return whether an evaluation of stable_diffusion reaches the target: FID at most 90, and CLIP at least 0.15.

    Args:
        metrics: The metrics of the evaluation by their names.

    Raises:
        KeyError: There is no FID, or no CLIP although FID reaches its target.
        TypeError: One of them is not a number.
    """
    return bool(metrics["FID"] <= _MAX_FID and metrics["CLIP"] >= _MIN_CLIP)
