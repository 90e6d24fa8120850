"""The figures of GPUs in the step windows of a log: the most memory that was used, and the power at moments.

A step window is the steps between two lines of progress.
"""

import math

from runlog import schema


class Sensors:
    """The extremes of GPU memory and power in a run's windows so far, and the lines where they stand.

    Until a window has such a figure, the lines are 0, the first and the most memory None, the least figures infinite,
    and the most power minus infinity. The most memory stays None as long as no memory is above 0.
    """

    def __init__(self) -> None:
        self.line_of_gpu = 0  # of the first window with a figure of GPUs
        self.line_without_memory = 0  # of the first window that states no memory
        self.first_memory_mib: float | None = None  # of the first window that states it
        self.least_memory_mib = math.inf
        self.most_memory_mib: float | None = None
        self.line_of_memory = 0  # of the window with the most
        self.line_of_less_memory = 0  # of the first window that states less than one before it
        self.windows_with_power = 0
        self.least_power_w = math.inf
        self.most_power_w = -math.inf
        self.time_s = 0.0  # of the windows that state a power

    def take(self, line: int, window: schema.StepWindow) -> None:
        """Add the GPU memory and the power that the next window of steps states to the extremes of the run so far.

        Args:
            line: The line of the window's event in the log.
            window: The figures of the window. A memory or a power that it does not state is None.
        """
        has_figure = window.gpu_memory_mib is not None or window.power_w is not None
        if has_figure and not self.line_of_gpu:
            self.line_of_gpu = line

        if window.gpu_memory_mib is not None:
            self._take_memory(line, window.gpu_memory_mib)
        elif not self.line_without_memory:
            self.line_without_memory = line

        if window.power_w is not None:
            self.windows_with_power += 1
            self.least_power_w = min(self.least_power_w, window.power_w)
            self.most_power_w = max(self.most_power_w, window.power_w)
            self.time_s += window.time_s  # power * time is compared with the run's energy later

    def _take_memory(self, line: int, memory_mib: float) -> None:
        """Add a window's GPU memory to the run's first, least and most, and keep the first line where it is less.

        Each window states the most memory that was held since the run began. So less than in a window before, such as
        900 MiB after 1000 MiB, is a sign of an altered log, and the line is kept for a report. 0 MiB is no such sign.

        Args:
            line: The line of the window's event.
            memory_mib: The memory in MiB.
        """
        if self.first_memory_mib is None:
            self.first_memory_mib = memory_mib
        self.least_memory_mib = min(self.least_memory_mib, memory_mib)

        most_before_mib = 0.0 if self.most_memory_mib is None else self.most_memory_mib
        if memory_mib > most_before_mib:
            self.most_memory_mib = memory_mib
            self.line_of_memory = line
        has_fallen = 0 < memory_mib < most_before_mib  # 0 is not a fall: some allocators of Paddle count nothing
        if has_fallen and not self.line_of_less_memory:  # 0: no window before has stated less
            self.line_of_less_memory = line
