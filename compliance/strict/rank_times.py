"""The events rank_times of a log of this project, each held against the window of steps that it belongs to."""

import functools
from typing import NamedTuple

from compliance.logged_run import LoggedRun
from compliance.strict.possible_values import are_possible_rank_times, contradiction_of_ranks
from compliance.strict.schema_types import fits
from runlog import schema
from runlog.reader import Event, from_json
from runlog.text import printable


class _RankTimesAtStep(NamedTuple):
    """The ranks' times in a window, and the step at which the window ends."""

    step: int
    times: schema.RankTimes


class RankTimesOfWindows:
    """Follows the events rank_times: a run of several ranks logs one right above the step_window of the same steps.

    The methods that return a text say what a log of this project cannot hold; the text is empty if nothing is wrong.
    """

    def __init__(self, run: LoggedRun) -> None:
        self.logged_ms: float | None = None  # the time of the latest one since the last window; None: there is none
        self._run = run
        self._logged_since_window = 0  # how many `take` has been given since the last window, also wrong ones
        self._times_of_next_window: _RankTimesAtStep | None = None  # the first of these, if it is right
        self._window_began_ms = 0.0  # by the log's clock: the time of the last window, or of the start of its epoch

    def begin_window(self, time_ms: float) -> None:
        """Note that a window begins with the run or with an epoch.

        Args:
            time_ms: The time of the run_start or epoch_start.
        """
        self._window_began_ms = time_ms

    def take(self, event: Event) -> str:
        """Keep the ranks' times of an event for the window that follows, and return what is wrong with the event.

        Wrong is a second event of one window, an event of values that this run cannot have, or one without a step. Its
        times are not kept, but its own time is noted, and it counts: the window does not lack its rank_times then.

        Args:
            event: The event rank_times.
        """
        self.logged_ms = event.time_ms
        self._logged_since_window += 1
        if self._logged_since_window > 1:
            return "a second rank_times of one window"
        times = from_json(schema.RankTimes, event.value)  # None if it does not fit the schema
        if times is None or not self._are_of_this_run(times):
            return f"no rank_times of this run: {printable(event.value)}"
        position = from_json(schema.AtStep, event.metadata)  # None if it does not fit the schema
        if position is None:
            return "a rank_times that states no step"
        self._times_of_next_window = _RankTimesAtStep(position.step, times)
        return ""

    def _are_of_this_run(self, times: schema.RankTimes) -> bool:
        """Return whether the ranks of this run can have these times. False without a run_summary, which has the ranks.

        Args:
            times: The value of an event rank_times.
        """
        summary = self._run.summary
        is_on_gpus = self._run.header_section(schema.HARDWARE).get("device") == "gpu"
        was_computing_measured = times.compute_most_s is not None
        if summary is None or (is_on_gpus and was_computing_measured):  # on GPUs it is never measured
            return False
        return are_possible_rank_times(times, ranks=summary.devices, hosts=self._hosts)

    @functools.cached_property
    def _hosts(self) -> frozenset[str] | None:
        """Return the hosts that the header describes, above the first window; None if it does not fit the schema."""
        hardware = self._run.header_section(schema.HARDWARE)
        if not fits(schema.Hardware, hardware):
            return None
        return frozenset(node["host"] for node in hardware["nodes"])

    def compare_with_window(self, event: Event, window: schema.StepWindow, step: int) -> str:
        """Describe how a window contradicts its rank_times, or that a run of several ranks has logged none for it.

        For each window, `take` is called with its rank_times first, then this, then `window_ends`, which forgets them.

        Args:
            event: The event step_window.
            window: Its value: how long the window took, and how much of it rank 0 waited for data.
            step: The step at which the window ends.

        Returns:
            What is wrong, in words. Empty if nothing is, or if the rank_times were wrong, as `take` has said then.
        """
        summary = self._run.summary
        if summary is None:  # then no rank_times are kept
            return ""
        # Wrong rank_times have been counted, so they are not missing. A run of a single rank logs none.
        are_missing = self._logged_since_window == 0 and summary.devices > 1
        if are_missing:
            return f"a window without the rank_times of its {summary.devices} ranks"
        of_ranks = self._times_of_next_window
        if of_ranks is None:  # the rank_times were wrong, as `take` has said, or the run has one rank
            return ""
        if of_ranks.step != step:
            return f"a window to step {step} after the rank_times of step {of_ranks.step}"
        # Since the window before, or the start of the epoch or run.
        passed_s = (event.time_ms - self._window_began_ms) / 1000
        return contradiction_of_ranks(of_ranks.times, window, passed_s, ranks=summary.devices)

    def window_ends(self, time_ms: float) -> None:
        """Begin the next window.

        Args:
            time_ms: The time of the step_window of the window that ended.
        """
        self._window_began_ms = time_ms
        self.forget()

    def forget(self) -> None:
        """Forget the events since the last window: they were of a window that ended or could not be read."""
        self.logged_ms = None
        self._logged_since_window = 0
        self._times_of_next_window = None
