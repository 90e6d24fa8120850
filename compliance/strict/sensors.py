"""The figures of GPUs in the step windows of a log: the most memory that was used, and the power at moments."""

import math

from runlog import schema


class Sensors:
    """Follows the windows of a run. Until a window has such a figure, the lines are 0 and the memories None."""

    def __init__(self) -> None:
        self.line_of_gpu = 0  # of the first window with a figure of GPUs
        self.first_memory_mib: float | None = None  # of the first window that states it
        self.least_memory_mib = math.inf
        self.most_memory_mib: float | None = None
        self.line_of_memory = 0  # of the window with the most
        self.line_of_less_memory = 0  # of the first window that states less than one before it
        self.powers = 0  # how many windows state a power
        self.least_power_w = math.inf
        self.most_power_w = -math.inf
        self.time_s = 0.0  # of the windows that state a power

    def take(self, line: int, window: schema.StepWindow) -> None:
        """Take the next window of steps: note its GPU memory and power, if it states them.

        Args:
            line: The line of the window's event.
            window: The figures of the window.
        """
        memory_mib = window.gpu_memory_mib
        power_w = window.power_w
        has_figure = memory_mib is not None or power_w is not None
        if has_figure and not self.line_of_gpu:
            self.line_of_gpu = line
        if self.first_memory_mib is None:
            self.first_memory_mib = memory_mib
        counted_mib = math.inf
        if memory_mib is not None and memory_mib > 0:  # 0: of an allocator that counts nothing
            counted_mib = memory_mib
        if counted_mib < (self.most_memory_mib or 0.0) and not self.line_of_less_memory:
            self.line_of_less_memory = line
        if memory_mib is not None:
            self.least_memory_mib = min(self.least_memory_mib, memory_mib)
        if memory_mib is not None and memory_mib > (self.most_memory_mib or 0.0):
            self.most_memory_mib = memory_mib
            self.line_of_memory = line
        if power_w is not None:
            self.powers += 1
            self.least_power_w = min(self.least_power_w, power_w)
            self.most_power_w = max(self.most_power_w, power_w)
            self.time_s += window.time_s
