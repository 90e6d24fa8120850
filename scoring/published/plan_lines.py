"""The plan of a campaign as lines, as `launch/campaign.sh --dry-run` prints them."""

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scoring.published.plan import Campaign, Job

START_UP_S = 60.0  # assumed: before the first step
SHRUNK_RUN_S = 15.0  # assumed: of a whole shrunk run
SHRUNK_NOTE = (
    "Shrunk: synthetic data of 32 px on at most 2 CPU ranks of one node, batch 2, FP32, one trial of 3 steps. "
    "Throughputs that become the same run share it, across campaigns too. The figures show that the chain works; they "
    "are not comparable with the published ones."
)


class ExpectedTime(NamedTuple):
    """How long one trial takes, and where that is from."""

    seconds: float
    source: str


def plan_lines(campaign: Campaign, jobs: Sequence[Job]) -> Iterator[str]:
    """Yield lines that say which benchmark runs are done, skipped or still to do, and how long these will take.

    If the campaign is shrunk to tiny runs on the CPU, a last line says what its figures are good for.

    Args:
        campaign: The runs that measure a report's figures again.
        jobs: The runs with their trials.

    Yields:
        A line of text.
    """
    trials_done = 0
    trials_skipped = 0
    trials_to_run = 0
    seconds = 0.0
    for job in jobs:
        state = _state(job)
        expected = expected_time(campaign, job)
        trials_done += len(job.done)
        if state == "skip":
            trials_skipped += len(job.missing)
        elif state == "run":
            trials_to_run += len(job.missing)
            seconds += expected.seconds * len(job.missing)
        yield from _lines_of_job(job, state, expected)

    yield (
        f"{campaign.name}: {trials_done + trials_skipped + trials_to_run} trials, {trials_done} done, "
        f"{trials_skipped} skipped, {trials_to_run} to run in about {math.ceil(seconds / 60)} min: assumed, by the "
        "published rates and a start-up"
    )
    if campaign.shrunk:
        yield SHRUNK_NOTE


def _lines_of_job(job: Job, state: str, expected: ExpectedTime) -> Iterator[str]:
    """Yield the lines on one benchmark run: its trials and expected time, why trials do not count, and the command.

    Args:
        job: The run with its trials.
        state: "done", "skip" if this machine cannot do the missing trials, or "run".
        expected: Expected time of one trial, and where that is from.

    Yields:
        A line of text. The command is shown only for "run", and for "skip" the reason.
    """
    counts = f"{len(job.done)} done, {len(job.missing)} missing"
    yield f"{state:<4} {job.run.name}: {counts}, about {expected.seconds:.0f} s each by {expected.source}"
    for trial, reason in job.missing.items():
        if reason:  # empty if the trial was not run yet
            yield f"     trial {trial}: {reason}"
    if state == "skip":
        yield f"     {job.skipped}"
    if state == "run":
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in job.exports.items())
        yield f"     {exports} LOGDIR={job.folder}/trial_N {job.command}"


def _state(job: Job) -> str:
    """Return the state of a benchmark run: "done", "skip" if this machine cannot do its missing trials, or "run".

    Args:
        job: The run with its trials.
    """
    if not job.missing:
        return "done"
    return "skip" if job.skipped else "run"


def expected_time(campaign: Campaign, job: Job) -> ExpectedTime:
    """Return the expected seconds of one trial of a benchmark run, and in words what the estimate rests on.

    A trial is one execution of the run.

    - In a campaign that is shrunk to tiny runs on the CPU, a trial is assumed to take 15 s (SHRUNK_RUN_S).
    - In any other campaign, a trial takes an assumed start-up of 60 s (START_UP_S), and then the time that the images
      of all its steps, warm-up included, take at the published images/s. 51,200 images at 1,024 images/s give
      60 + 50 = 110 s.

    Args:
        campaign: The campaign. Only whether it is shrunk matters here.
        job: The benchmark run, with the published throughput that it measures again.
    """
    if campaign.shrunk:
        return ExpectedTime(SHRUNK_RUN_S, "assumption")

    throughput = job.throughput  # the published one: `value` is the images/s of all devices together
    run = job.run
    # `exports` are the environment variables of the run, as texts: {"WARMUP_STEPS": "20", ...}.
    steps = int(job.exports["WARMUP_STEPS"]) + int(job.exports["MEASURED_STEPS"])
    images = steps * run.batch_per_device * run.devices  # on all devices
    seconds = START_UP_S + images / throughput.value
    shape = f"batch {run.batch_per_device} x {run.devices} {throughput.accelerator}"
    return ExpectedTime(seconds, f"{throughput.printed} {throughput.unit} of {shape} ({throughput.source})")
