"""A rank that trains nothing and loads no Paddle: it stands in the place of harness/train.py.

For tests of what starts ranks, watches them, ends them and reads their log: the environment, MPI, the watchdog,
telemetry and the log's writer are the real ones; a step is a pause and an exchange between the ranks. Its log is the
trainer's without what only Paddle knows (tests/runlog/test_schema.py). The fixture `standing_in` is a checkout with it,
and the image STANDS_IN of tests/cluster/containers.py has it too.
"""

import contextlib
import signal
import time
from pathlib import Path
from typing import Any

from harness import ranks
from harness.hooks import telemetry
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins
from harness.processes import STOPPED_BY
from runlog import schema
from runlog.errors import RunError
from runlog.writer import RunLog, open_log

SET_UP_S, STEP_S, EVALUATION_S = 0.5, 0.1, 0.5
STEPS_PER_EPOCH = 10


def main(job: Job, origins: Origins) -> None:
    """Writes the log of a run whose loss goes down and whose evaluations stay below the target.

    Raises:
        RunError: a signal asked for the end, or all epochs are done.
    """
    me = ranks.start(job.cluster)
    with open_log(Path(job.trials.result_file) if me.is_first else None) as log, contextlib.ExitStack() as stack:
        for hook in telemetry.of_rank(job.course, job.cluster, me, Path(job.trials.result_file)):
            stack.enter_context(hook)
        rank = _Rank(job, me, log)
        rank.begin(origins)
        if job.course.mode == "throughput":
            rank.train(job.course.warmup_steps, epoch=1, phase="warmup")
            rank.train(job.course.measured_steps, epoch=1, phase="measured")
        else:
            rank.train_to_target(job.course.max_epochs or 2)
        me.comm.Barrier()
        log.mark(schema.RUN_STOP, schema.Ended(status="success"))


class _Rank:
    """This rank's way through a run."""

    def __init__(self, job: Job, me: ranks.Ranks, log: RunLog) -> None:
        self._job, self._ranks, self._log, self._step, self._asked = job, me, log, 0, 0

    def begin(self, origins: Origins) -> None:
        job, log = self._job, self._log
        log.section(schema.LOG, schema.Format())
        log.section(schema.CONFIG, origins)
        log.event(schema.SUBMISSION_BENCHMARK, "resnet")
        log.event(schema.SUBMISSION_PLATFORM, job.cluster.dgxsystem)
        log.mark(schema.INIT_START)
        log.event(schema.SEED, job.course.seed if job.course.seed >= 0 else 1)
        log.event(schema.GLOBAL_BATCH_SIZE, job.global_batch)
        WATCHDOG.beat("setting up")
        time.sleep(SET_UP_S)
        summary: dict[str, Any] = {name: job.value(name.upper()) for name in ("precision", "mode", "data")}
        summary |= {
            "devices": job.cluster.world_size,
            "nodes": job.cluster.dgxnnodes,
            "batch_per_device": job.model.batchsize,
        }
        summary |= {"math_mode": job.model.precision, "resumed": False, "profiled": False}
        summary |= {"framework": "a stand-in", "model": "resnet50_v1.5"}
        log.event(schema.RUN_SUMMARY, schema.RunSummary(**summary))
        log.mark(schema.INIT_STOP)
        self._ranks.comm.Barrier()
        log.mark(schema.RUN_START)

    def train(self, steps: int, *, epoch: int, phase: str) -> None:
        """A window of the log each PRINT_STEPS steps and at the end."""
        since, began_s = 0, time.perf_counter()
        for number in range(1, steps + 1):
            self._step, since = self._step + 1, since + 1
            WATCHDOG.beat(f"computing step {self._step}")
            time.sleep(STEP_S)
            if number % self._job.course.print_steps and number < steps:
                continue
            loss = self._ranks.comm.allreduce(1 + 1 / self._step) / self._ranks.size
            window = schema.StepWindow(
                steps=since,
                images=since * self._job.global_batch,
                time_s=round(time.perf_counter() - began_s, 6),
                data_wait_s=0.0,
                loss=loss,
                gpu_memory_mib=None,
                power_w=None,
            )
            self._log.event(schema.STEP_WINDOW, window, schema.InWindow(step=self._step, epoch_num=epoch, phase=phase))
            since, began_s = 0, time.perf_counter()
            self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self._job.course.mode == "throughput":
            return  # it has nothing to save: a signal ends the rank at once
        for (
            number
        ) in STOPPED_BY:  # only now, as the trainer does: before there is anything to save a signal ends the rank
            signal.signal(number, self._on_signal)
        if asked := max(self._ranks.comm.allgather(self._asked)):
            raise RunError(f"stopped by {STOPPED_BY[signal.Signals(asked)]} after step {self._step}")

    def _on_signal(self, number: int, frame: object) -> None:
        self._asked = number

    def train_to_target(self, epochs: int) -> None:
        log, target = self._log, 0.9
        for epoch in range(1, epochs + 1):
            block, here = schema.InBlock(first_epoch_num=epoch, epoch_count=1), schema.InEpoch(epoch_num=epoch)
            log.mark(schema.BLOCK_START, block)
            log.mark(schema.EPOCH_START, here)
            self.train(STEPS_PER_EPOCH, epoch=epoch, phase="train")
            log.mark(schema.EPOCH_STOP, here)
            log.mark(schema.EVAL_START, here)
            time.sleep(EVALUATION_S)
            log.mark(schema.EVAL_STOP, here)
            log.event(schema.EVAL_ACCURACY, 0.1, here)
            log.mark(schema.BLOCK_STOP, block)
        raise RunError(f"evaluation is {0.1:.4f} after {epochs} epochs, below the target {target:.4f}")
