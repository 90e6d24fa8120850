"""The plan of a campaign: a published report's figures as runs here, and which of them are missing.

What is done is read from the logs alone, so a campaign can be stopped at any time.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import yaml

from runlog.json_types import JsonObject
from scoring.figure import protocols
from scoring.figure.protocols import Protocol
from scoring.importers import read_record
from scoring.published.table import Published, read_published, select
from scoring.record import InputError, Record

REPOSITORY = Path(__file__).resolve().parents[2]
CAMPAIGNS = REPOSITORY / "campaigns"
# Paddle 2.6.2's automatic strategy takes sharding of degree 8 without data parallelism and asserts that many ranks.
AUTO_RANKS = 8
LEAST_CAPABILITY = {"tf32": 8.0, "amp_o1": 7.0, "amp_o2": 7.0}  # compute capability, by precision
START_UP_S = 60.0  # assumed: before the first step
SHRUNK_RUN_S = 15.0  # assumed: of a whole shrunk run

# `shrink` makes each run of a campaign a tiny one that any machine can do on its CPU. Such a run shows that every cell
# of a report's tables goes through the whole chain; its figure says nothing else.
SHRUNK_RANKS = 2
SHRUNK_BATCH = 2
SHRUNK_EXPORTS = {
    "DGXSYSTEM": "CPU",
    "DEVICE": "cpu",
    "DATA": "synthetic",
    "IMAGE_SIZE": "32",
    "PRINT_STEPS": "1",
    "WARMUP_STEPS": "1",
    "MEASURED_STEPS": "3",
    "CLEAR_CACHES": "0",
}
SHRUNK_NOTE = (
    "Shrunk: synthetic data of 32 px on at most 2 CPU ranks of one node, batch 2, FP32, one trial of 3 steps. Cells "
    "that become the same run share it, across campaigns too. The figures show that the chain works; they are not "
    "comparable with the published ones."
)


@dataclass(frozen=True)
class Run:
    """The conditions of one call of run_and_time.sh; cells of several tables may share it."""

    nodes: int
    devices: int  # of all nodes
    batch_per_device: int
    precision: str
    strategy: str | None

    @property
    def devices_per_node(self) -> int:
        """Devices of one node."""
        return self.devices // self.nodes

    @property
    def name(self) -> str:
        """Folder of its trials, as the reports name their logs: `2n8g_b128_fp32`."""
        strategy = f"_{self.strategy}" if self.strategy else ""
        return f"{self.nodes}n{self.devices_per_node}g_b{self.batch_per_device}_{self.precision}{strategy}"


def run_of(figure: Published, *, shrink: bool) -> Run:
    """Return the run that a published figure asks for, or with `shrink` the tiny run on CPU ranks in its place."""
    assert figure.nodes and figure.devices and figure.batch_per_device
    if shrink:  # to FP32, the only arithmetic whose operators all have a CPU kernel
        return Run(1, min(figure.devices, SHRUNK_RANKS), SHRUNK_BATCH, "fp32", figure.strategy)
    # FleetX does not say what precision its automatic strategy chose: its figures are those of AMP.
    return Run(figure.nodes, figure.devices, figure.batch_per_device, figure.precision or "amp_o1", figure.strategy)


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """One report's figures as runs, with the protocol that turns the runs into figures."""

    name: str
    workload: str
    protocol: Protocol  # its `runs` are the trials of a run
    environment: dict[str, str]
    cells: Sequence[Published]  # throughput of the first framework, in the report's order
    published: Sequence[Published]  # the report's own figures
    frameworks: Sequence[str]  # whose figures are shown; the ratio is to the first
    note: str = ""  # shown above the tables
    shrunk: bool


@dataclass(frozen=True, kw_only=True)
class Job:
    """The trials of a run, each one call of run_and_time.sh."""

    figure: Published  # whose run it is
    run: Run
    folder: Path  # of the trials' LOGDIRs
    done: list[Record]
    missing: dict[int, str]  # by trial, from 1: what is wrong with what lies in its folder
    skipped: str  # why this machine cannot do the missing ones; empty where it can
    exports: dict[str, str]
    command: str


def read_campaign(name: str, folder: Path = CAMPAIGNS, *, shrink: bool = False, repeats: int | None = None) -> Campaign:
    """Return the campaign `name`, read from `<folder>/<name>.yaml`.

    With `shrink` each of its runs becomes a tiny one on CPU ranks. `repeats` is how many trials each run has, instead
    of the protocol's number. Raises InputError for an unknown name, with those that are known, and for a file that is
    no campaign, with what is wrong in it.
    """
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        raise InputError(f"no campaign {name!r} in {folder}: choose one of {', '.join(names)}")

    path = folder / f"{name}.yaml"
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _campaign_of(name, fields, shrink=shrink, repeats=repeats)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"{path}: not a campaign ({text}); see docs/campaigns.md for its fields") from error


def _campaign_of(name: str, fields: JsonObject, *, shrink: bool, repeats: int | None) -> Campaign:
    """Return the campaign that a file's fields make with the published figures of the table `name`.

    Each job has the protocol's warm-up as its variable WARMUP_STEPS, in steps, so that the steps which a run marks as
    warm-up in its log are just those that the protocol drops.

    With `shrink` the variables of SHRUNK_EXPORTS replace those of the same names. The protocol then drops and takes as
    many steps as these say, and asks for one run. `repeats`, if given, is the number of runs even then.

    Mutates `fields`: only those that are fields of Campaign too are left. Raises KeyError, TypeError, AttributeError or
    ValueError for a field that is missing or wrong, and where the table has no throughput of the first framework.
    """
    protocol = protocols.find(fields.pop("protocol"))
    environment = {key: str(value) for key, value in fields.pop("environment").items()}
    warm_up_steps = protocol.skip
    if protocol.skip_unit == "window":
        warm_up_steps *= int(environment["PRINT_STEPS"])  # a window is a printed row, of so many steps each
    environment["WARMUP_STEPS"] = str(warm_up_steps)
    if shrink:
        environment |= SHRUNK_EXPORTS
        # Of windows or of steps, whichever the protocol counts: a shrunk run prints a row for each step.
        protocol = replace(protocol, skip=int(SHRUNK_EXPORTS["WARMUP_STEPS"]), runs=1)
        if protocol.take_steps:
            protocol = replace(protocol, take_steps=int(SHRUNK_EXPORTS["MEASURED_STEPS"]))

    published = select(read_published(), table=name)
    own_framework = fields["frameworks"][0]
    cells = [row for row in select(published, metric="throughput") if row.framework.startswith(own_framework)]
    if not cells:
        raise ValueError(f"published.csv has no throughput of {own_framework}")
    return Campaign(
        name=name,
        protocol=protocol.asking(repeats) if repeats else protocol,
        environment=environment,
        cells=cells,
        published=published,
        shrunk=shrink,
        **fields,
    )


def _nvidia_smi(field: str) -> list[str]:
    """Return a field of nvidia-smi, such as `name`, for each GPU; none without a driver that knows the field."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def reason_to_skip(
    run: Run, gpus: Sequence[str], capabilities: Sequence[str], hosts: Sequence[str], *, shrink: bool
) -> str:
    """Return why this machine cannot do `run`, as a text for the plan; empty where it can.

    `gpus` and `capabilities` are the names and the compute capabilities of its GPUs, which are taken to be alike. Where
    no capabilities are known, the precision is taken to be possible. `hosts` are the nodes that the user named; without
    any there is one node, this machine. With `shrink` the run is a tiny one on CPU ranks, which needs none of them;
    only the automatic strategy cannot run so.
    """
    if shrink:
        if run.strategy == "auto":
            return "strategy auto: Paddle's automatic mode computes in FP16, for which a CPU has no kernels"
        return ""
    if run.strategy == "auto" and run.devices != AUTO_RANKS:
        return f"strategy auto: Paddle 2.6.2's automatic mode shards over {AUTO_RANKS} ranks and refuses {run.devices}"
    if len(gpus) < run.devices_per_node:
        return f"{run.devices_per_node} GPU(s) a node needed, {len(gpus)} here"
    if max(1, len(hosts)) < run.nodes:
        return f"{run.nodes} nodes needed, HOSTS or HOSTFILE names {len(hosts)}"
    needed = LEAST_CAPABILITY.get(run.precision, 0.0)
    if capabilities and float(capabilities[0]) < needed:
        return f"{run.precision} needs compute capability {needed}, {gpus[0]} has {float(capabilities[0])}"
    return ""


def environment(campaign: Campaign, run: Run) -> dict[str, str]:
    """Return the variables that the job of `run` sets, but for LOGDIR; all others, as DATADIR, are left to the user.

    A variable that the campaign's file sets has the value given there, in the place of any of these. Only DGXSYSTEM,
    which names the file `config_<DGXSYSTEM>.sh`, is the user's: where it is set to `DGX1`, or to `4xDGX1`, a run of 2
    nodes takes `2xDGX1` if there is such a file, and else `DGX1`. A shrunk campaign has its own.
    """
    exports = {
        "WORKLOAD": campaign.workload,
        "MODE": "throughput",
        "NEXP": "1",
        "DGXNNODES": str(run.nodes),
        "DGXNGPU": str(run.devices_per_node),
        "BATCHSIZE": str(run.batch_per_device),
        "PRECISION": run.precision,
        "DEVICE": "gpu",
        **campaign.environment,
    }
    system = os.environ.get("DGXSYSTEM")
    if system and not campaign.shrunk:
        one_node = re.sub(r"^\d+x", "", system)
        all_nodes = f"{run.nodes}x{one_node}"
        has_config_of_all = (REPOSITORY / f"config_{all_nodes}.sh").is_file()
        exports["DGXSYSTEM"] = all_nodes if has_config_of_all else one_node
    if run.strategy:
        exports["STRATEGY"] = run.strategy
    return exports


def command(run: Run, hosts: Sequence[str]) -> str:
    """Return the command of one job of `run`.

    On one node it is the job itself, on several the launcher over the first so many of `hosts`. The job runs in a
    container where the variable CONT names an image. Where no hosts are known, the word `HOSTS` stands for them.
    """
    in_container = bool(os.environ.get("CONT"))
    if run.nodes == 1:
        return "launch/container_node.sh" if in_container else "./run_and_time.sh"
    names = ",".join(hosts[: run.nodes]) or "HOSTS"
    option = "" if in_container else " --no-container"
    return f"launch/mpirun.sh --hosts {names}{option}"


def plan(campaign: Campaign, results: Path, *, runner: str = "") -> list[Job]:
    """Return the jobs of a campaign in the order of its tables, each with its trials that are done or missing.

    Cells that share a run have its job once. The logs lie in the campaign's own folder in `results`; shrunk runs are
    the same for all campaigns of a workload, so they share a folder. `runner` is the command of one job, instead of
    this project's own. Reads the logs, asks nvidia-smi for this machine's GPUs and takes the hosts from HOSTS.
    """
    folder = results / campaign.name
    if campaign.shrunk:
        folder = results / f"shrunk_{campaign.workload}"
    gpus = _nvidia_smi("name")
    capabilities = _nvidia_smi("compute_cap")  # a driver before 510 does not know this field
    hosts = re.findall(r"[^,\s]+", os.environ.get("HOSTS", ""))  # launch/campaign.sh makes it of a HOSTFILE
    jobs: dict[Run, Job] = {}
    for figure in campaign.cells:
        run = run_of(figure, shrink=campaign.shrunk)
        if run in jobs:
            continue

        exports = environment(campaign, run)
        trials = read_trials(folder / run.name, campaign.protocol.runs, exports)
        jobs[run] = Job(
            figure=figure,
            run=run,
            folder=folder / run.name,
            done=trials.done,
            missing=trials.missing,
            skipped=reason_to_skip(run, gpus, capabilities, hosts, shrink=campaign.shrunk),
            exports=exports,
            command=runner or command(run, hosts),
        )
    return list(jobs.values())


class Trials(NamedTuple):
    """The trials of a run, by what lies in their folders."""

    done: list[Record]
    missing: dict[int, str]  # by trial, from 1: what is wrong with its log; empty where there is none


def read_trials(folder: Path, count: int, exports: dict[str, str]) -> Trials:
    """Return the trials 1 to `count` of a run, whose logs lie in `<folder>/trial_<number>`."""
    trials = Trials(done=[], missing={})
    for number in range(1, count + 1):
        record_or_fault = read_trial(folder / f"trial_{number}", exports)
        if isinstance(record_or_fault, Record):
            trials.done.append(record_or_fault)
        else:
            trials.missing[number] = record_or_fault
    return trials


def read_trial(folder: Path, exports: dict[str, str]) -> Record | str:
    """Return the record of the trial whose log lies in `folder`, or a text that says why it does not count.

    A trial counts if there is one log that can be read, if its run was a success, and if its configuration has the
    values that the job exports now. The text is empty where the folder is not there: the trial was not run yet.
    """
    if not folder.is_dir():
        return ""
    logs = list(folder.glob("**/result_*.txt"))
    if len(logs) != 1:
        return f"{len(logs) or 'no'} log(s), a trial has one"
    try:
        record = read_record(logs[0])
    except InputError as error:
        return str(error)

    if record.status != "success":
        return f"{logs[0]}: run_stop says {record.status or 'nothing'}"
    config = record.header.get("config", {})
    for name, wanted in exports.items():
        value = config.get(name, {}).get("value")
        if str(value) != wanted and name != "NEXP":  # how many runs one call makes changes none of them
            return f"{logs[0]}: its configuration has {name}={value}, the campaign wants {wanted}"
    return record


class ExpectedTime(NamedTuple):
    """How long one trial takes, and where that is from."""

    seconds: float
    source: str


def plan_lines(campaign: Campaign, jobs: Sequence[Job]) -> Iterator[str]:
    """Yield the plan of a campaign as lines, one or more for each job, and at the end a line for all of them.

    The line for all jobs has the number of trials, and the time of those that are to run. A shrunk campaign has a note
    behind it, which says what its figures are good for.
    """
    trials_done = 0
    trials_skipped = 0
    trials_to_run = 0
    seconds = 0.0
    for job in jobs:
        state = _what_to_do(job)
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
        f"{trials_skipped} skipped, {trials_to_run} to run in about {seconds / 60:.0f} min: assumed, by the published "
        f"rates and a start-up"
    )
    if campaign.shrunk:
        yield SHRUNK_NOTE


def _lines_of_job(job: Job, state: str, expected: ExpectedTime) -> Iterator[str]:
    """Yield the lines of one job: what is to be done with it (`state`), its trials and the time of one.

    Below that stand what is wrong with the logs of missing trials, and why the job is skipped or the command that runs
    it. A trial that was not run yet has no line.
    """
    counts = f"{len(job.done)} done, {len(job.missing)} missing"
    yield f"{state:<4} {job.run.name}: {counts}, about {expected.seconds:.0f} s each by {expected.source}"
    for trial, wrong in job.missing.items():
        if wrong:
            yield f"     trial {trial}: {wrong}"
    if state == "skip":
        yield f"     {job.skipped}"
    if state == "run":
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in job.exports.items())
        yield f"     {exports} LOGDIR={job.folder}/trial_N {job.command}"


def _what_to_do(job: Job) -> str:
    """Return what is to be done with a job: `done` for nothing, `skip` where this machine cannot do it, or `run`."""
    if not job.missing:
        return "done"
    return "skip" if job.skipped else "run"


def expected_time(campaign: Campaign, job: Job) -> ExpectedTime:
    """Return the time of one trial, by a start-up and the published rate."""
    if campaign.shrunk:
        return ExpectedTime(SHRUNK_RUN_S, "assumption")

    figure = job.figure
    run = job.run
    steps = int(job.exports["WARMUP_STEPS"]) + int(job.exports["MEASURED_STEPS"])
    seconds = START_UP_S + steps * run.batch_per_device * run.devices / figure.value
    shape = f"batch {run.batch_per_device} x {run.devices} {figure.accelerator}"
    return ExpectedTime(seconds, f"{figure.printed} {figure.unit} of {shape} ({figure.source})")
