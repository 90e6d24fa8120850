"""The steps that a run must do by its settings: how many each of its windows has, and where its epochs end."""

from typing import NamedTuple

from compliance.logged_run import LoggedRun
from runlog import schema


class PlannedWindow(NamedTuple):
    """The number of steps and the phase that a window must have."""

    steps: int
    phase: str


class Plan(NamedTuple):
    """The sizes that the steps of a run must have by its settings; 0 for a size that the log does not state.

    A step is one update of the weights by a global batch of images. A window is the steps between two lines of
    progress.
    """

    batch: int = 0
    epoch_steps: int = 0
    most_window_steps: int = 0
    warmup_end: int = 0  # the last step of the phase "warmup", in a run that only measures throughput
    measured_end: int = 0  # the last step of its phase "measured"; 0 in a run that trains

    @property
    def only_measures_throughput(self) -> bool:
        """Whether the run has the phases "warmup" and "measured" in place of epochs."""
        return self.measured_end != 0

    def next_window(self, steps_done: int, epoch: int) -> PlannedWindow:
        """Return how many steps the next window of steps must have, and its phase.

        A window goes no further than its epoch, or in a run that only measures throughput than its phase. For instance,
        in a run that trains with epochs of 12 steps and windows of 5:

            next_window(steps_done=0, epoch=1)   -> 5 steps, "train"
            next_window(steps_done=10, epoch=1)  -> 2 steps, "train"

        Args:
            steps_done: The step at which the window before ended; 0 at the start.
            epoch: The epoch in which the next window begins, from 1. Not used in a run that only measures throughput.
        """
        if not self.only_measures_throughput:
            phase = "train"
            end = epoch * self.epoch_steps
        elif steps_done < self.warmup_end:
            phase = "warmup"
            end = self.warmup_end
        else:
            phase = "measured"
            end = self.measured_end
        steps_to_end = end - steps_done
        has_limit = self.most_window_steps != 0
        most_steps = self.most_window_steps if has_limit else end
        return PlannedWindow(steps=min(most_steps, steps_to_end), phase=phase)


def plan_of_run(run: LoggedRun) -> Plan:
    """Return the plan that a run's steps must follow: the sizes of windows, batches and epochs, and the ends of phases.

    Each field of the plan comes from settings or events of the log, for instance:

        most_window_steps    PRINT_STEPS                          50
        batch                global_batch_size                    64
        epoch_steps          train_samples // global_batch_size   1000 // 64 = 15
        warmup_end           WARMUP_STEPS                         10
        measured_end         WARMUP_STEPS + MEASURED_STEPS        10 + 20 = 30

    A setting that is missing or no whole number counts as 0. `batch` and `epoch_steps` are 0 unless the log states both
    events. `warmup_end` and `measured_end` are the last steps of the two phases of a run that only measures
    throughput, and 0 in any other run.

    Args:
        run: The facts that the log states of the run: its settings, and the events train_samples and global_batch_size.
    """
    plan = Plan(most_window_steps=run.whole_setting("PRINT_STEPS") or 0)  # all other fields are 0 so far

    samples = int(run.stated_count(schema.TRAIN_SAMPLES))  # 0 if it is not stated
    batch = int(run.stated_count(schema.GLOBAL_BATCH_SIZE))  # 0 if it is not stated
    if samples > 0 and batch > 0:
        plan = plan._replace(batch=batch, epoch_steps=samples // batch)

    only_measures_throughput = run.settings.get("MODE") == "throughput"
    if only_measures_throughput:
        warmup_steps = run.whole_setting("WARMUP_STEPS") or 0
        measured_steps = run.whole_setting("MEASURED_STEPS") or 0
        plan = plan._replace(warmup_end=warmup_steps, measured_end=warmup_steps + measured_steps)
    return plan
