"""The training step as a CUDA graph: captured once, after the warm-up, and replayed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
from paddle import static
from paddle.device.cuda.graphs import CUDAGraph

from harness import state
from harness.hooks.watchdog import WATCHDOG
from harness.loop import LaunchedStep
from program import build
from program.capture import FLAGS, RATES, RATES_AT_ONCE, STEP
from runlog.errors import RunError


class CapturedStep(LaunchedStep):
    """Runs the step of a program that `program.capture` has prepared; from `capture` on by one launch of a graph.

    Nothing is fed and nothing fetched: a batch is copied to `inputs`, the variables that the program reads.
    """

    RUNS_BEFORE = 2  # of the program: Paddle builds it in the first, and its executor's threads in the second

    def __init__(self, executor: static.Executor, program: build.TrainingProgram) -> None:
        super().__init__(executor, program)
        paddle.set_flags(FLAGS)
        # Paddle's executor launches from threads of its own. Only a global capture is theirs too: their temporaries
        # then come from the graph's own memory, which nobody else is given.
        self._graph, self._addresses = CUDAGraph(executor.place, mode="global"), dict[str, int]()
        scope = static.global_scope()
        names = [variable.name for variable in program.main.list_vars() if variable.is_data]
        self.inputs = {name: scope.var(name).get_tensor() for name in names}

    def send_rate(self, step: int) -> None:
        """Gives the device the rates of the next steps once it has used up those that it has."""
        if step % RATES_AT_ONCE == 1:
            self.begin()

    def run(self, main: static.Program, feed: dict[str, Any]) -> None:
        """One step on tensors of the device."""
        for name, tensor in self.inputs.items():
            if feed[name] is not tensor:  # a loader may have written it there
                tensor._copy_from(feed[name], self.executor.place)
        if self._addresses:
            self._graph.replay()
        else:
            self.executor.run(self.program.main, fetch_list=[])

    def capture(self) -> None:
        """Records the step; nothing is computed. Memory that the warm-up has left is given back before."""
        WATCHDOG.beat("capturing the training step")
        paddle.device.cuda.empty_cache()
        self._graph.capture_begin()
        self.executor.run(self.program.main, fetch_list=[])
        self._graph.capture_end()
        self._addresses = dict(self._where())

    def begin(self) -> None:
        """Gives the device the rates of the next RATES_AT_ONCE steps.

        Raises RunError where a tensor of the run's state has moved since the capture.
        """
        scope, place = static.global_scope(), self.executor.place
        scope.var(RATES).get_tensor().set(self.program.schedule.ahead(RATES_AT_ONCE), place)
        scope.var(STEP).get_tensor().set(np.zeros((), np.int64), place)
        now = dict(self._where()) if self._addresses else {}
        moved = [name for name, address in now.items() if self._addresses[name] != address]
        if moved:
            raise RunError(f"{moved[0]} has moved since the step was captured: set STRATEGY without cuda_graph")

    def _where(self) -> Iterator[tuple[str, int]]:
        """Name and address of all that a replay reads and writes again."""
        yield from ((name, tensor._ptr()) for name, tensor in state.tensors(self.program.main))
        yield from ((name, tensor._ptr()) for name, tensor in self.inputs.items())
        for name in (RATES, STEP):
            yield name, static.global_scope().find_var(name).get_tensor()._ptr()
