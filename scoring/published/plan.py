"""The plan of a campaign: a published report's figures as runs here, and which of them are missing.

What is done is read from the logs alone, so a campaign can be stopped at any time.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from runlog.reader import settings_of
from scoring.figure.protocols import Protocol
from scoring.importers import read_record
from scoring.published import campaign_file
from scoring.published.table import Published, read_published, select
from scoring.record import InputError, Record

REPOSITORY = Path(__file__).resolve().parents[2]
CAMPAIGNS = REPOSITORY / "campaigns"
# Paddle 2.6.2's automatic strategy takes sharding of degree 8 without data parallelism and asserts that many ranks.
AUTO_RANKS = 8
MIN_CAPABILITY = {"tf32": 8.0, "amp_o1": 7.0, "amp_o2": 7.0}  # compute capability, by precision

# `shrink` makes each run of a campaign a tiny one that any machine can do on its CPU. Such a run shows that every
# throughput of a report goes through the whole chain; its figure says nothing else.
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


@dataclass(frozen=True)
class Run:
    """The conditions of one call of run_and_time.sh, such as the devices. Several throughputs may share a run."""

    nodes: int
    devices: int  # of all nodes
    batch_per_device: int
    precision: str
    strategy: str | None

    @property
    def devices_per_node(self) -> int:
        """Return the number of devices of one node."""
        return self.devices // self.nodes

    @property
    def name(self) -> str:
        """Return the name of the folder of its trials, in the form of the reports' logs: `2n8g_b128_fp32`."""
        strategy = f"_{self.strategy}" if self.strategy else ""
        return f"{self.nodes}n{self.devices_per_node}g_b{self.batch_per_device}_{self.precision}{strategy}"


def run_that_repeats(throughput: Published, *, shrink: bool) -> Run:
    """Return the benchmark run that measures a published throughput again.

    Args:
        throughput: The published throughput. It must state its nodes, devices and batch size.
        shrink: Whether to return a tiny run on at most SHRUNK_RANKS processes of a CPU instead.
    """
    assert throughput.nodes and throughput.devices and throughput.batch_per_device
    if shrink:
        return Run(
            nodes=1,
            devices=min(throughput.devices, SHRUNK_RANKS),
            batch_per_device=SHRUNK_BATCH,
            precision="fp32",  # only in FP32 do all operators have a CPU kernel
            strategy=throughput.strategy,
        )
    return Run(
        nodes=throughput.nodes,
        devices=throughput.devices,
        batch_per_device=throughput.batch_per_device,
        precision=throughput.precision
        or "amp_o1",  # FleetX leaves it out for its automatic strategy; the figures fit AMP
        strategy=throughput.strategy,
    )


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """The runs that measure one report's figures again, and the protocol that turns the runs into figures."""

    name: str
    workload: str
    protocol: Protocol  # its `runs` are the trials of a run
    environment: dict[str, str]
    throughputs: Sequence[Published]  # the report's, of the first framework, in its order: the runs measure them again
    figures_of_report: Sequence[Published]  # of all metrics and frameworks; most are only shown next to ours
    frameworks: Sequence[str]  # whose figures are shown; the ratio is to the first
    note: str = ""  # shown above the tables
    shrunk: bool


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run with its trials, each one call of run_and_time.sh."""

    throughput: Published  # the first of the report that needs this run
    run: Run
    folder: Path  # of the trials' LOGDIRs
    done: list[Record]
    missing: dict[int, str]  # {trial, from 1: why its log does not count}; empty if it was not run yet
    skipped: str  # why this machine cannot do the missing ones; empty if it can
    exports: dict[str, str]
    command: str


def read_campaign(name: str, folder: Path = CAMPAIGNS, *, shrink: bool = False, repeats: int | None = None) -> Campaign:
    """Read a campaign: the benchmark runs that measure the figures of one published report again.

    Args:
        name: Name of the campaign, such as "dlperf".
        folder: Folder with the file `<name>.yaml`.
        shrink: Whether the runs are to be tiny ones on the CPU, which show that everything works.
        repeats: Number of trials of each run. None: as many as the protocol asks for, which is 1 if `shrink` is True.

    Raises:
        InputError: There is no campaign of this name, or the file is not a campaign.
        OSError: The file cannot be read.
    """
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        raise InputError(f"no campaign {name!r} in {folder}: choose one of {', '.join(names)}")

    campaign = _full_size_campaign(folder / f"{name}.yaml")
    if shrink:
        campaign = _shrunk_campaign(campaign)
    if repeats is not None:
        campaign = replace(campaign, protocol=campaign.protocol.asking(repeats))
    return campaign


def _full_size_campaign(path: Path) -> Campaign:
    """Return the campaign that a file describes, with runs on as many devices and with the same batch as the report's.

    Args:
        path: The file, as campaigns/dlperf.yaml. The rows of published.csv with its name as `table` are its report.

    Raises:
        InputError: The file is not a campaign, or published.csv has no figures for it.
        OSError: The file, or that of its protocol, cannot be read.
    """
    file = campaign_file.read(path)
    # A run's log then marks as warm-up exactly the steps that the protocol drops.
    environment = {**file.environment, "WARMUP_STEPS": str(_warm_up_steps(file.protocol, file.environment))}
    figures_of_report = select(read_published(), table=path.stem)
    if not figures_of_report:
        raise InputError(
            f"{path}: not a campaign (published.csv has no table {path.stem}, after which the file is named)"
        )
    for framework in file.frameworks:
        if not _throughputs_of(figures_of_report, framework):
            raise InputError(f"{path}: not a campaign (published.csv has no throughput of {framework} in {path.stem})")
    return Campaign(
        name=path.stem,
        workload=file.workload,
        protocol=file.protocol,
        environment=environment,
        throughputs=_throughputs_of(figures_of_report, file.frameworks[0]),
        figures_of_report=figures_of_report,
        frameworks=file.frameworks,
        note=file.note,
        shrunk=False,
    )


def _shrunk_campaign(campaign: Campaign) -> Campaign:
    """Return a campaign with tiny runs on the CPU in place of its own, and a protocol for their few steps.

    Args:
        campaign: The campaign, whose runs measure the figures of a published report again.
    """
    return replace(
        campaign,
        protocol=_shrunk_protocol(campaign.protocol),
        environment={**campaign.environment, **SHRUNK_EXPORTS},
        shrunk=True,
    )


def _throughputs_of(published: Sequence[Published], framework: str) -> list[Published]:
    """Return the published throughputs of a framework, whatever its version; empty if there are none.

    Args:
        published: All figures of a report.
        framework: Beginning of the framework's name, such as "Paddle".
    """
    return [row for row in select(published, metric="throughput") if row.framework.startswith(framework)]


def _warm_up_steps(protocol: Protocol, environment: dict[str, str]) -> int:
    """Return how many steps at the start of a run the protocol drops.

    Args:
        protocol: The protocol, which counts what it drops in steps or in printed rows.
        environment: Environment variables of the run. PRINT_STEPS is the number of steps of a printed row.
    """
    if protocol.skip_unit == "window":
        return protocol.skip * int(environment["PRINT_STEPS"])  # a window is a printed row of PRINT_STEPS steps
    return protocol.skip


def _shrunk_protocol(protocol: Protocol) -> Protocol:
    """Return the protocol for one tiny run on the CPU, with its few steps of warm-up and of measurement.

    Args:
        protocol: The protocol of full-size runs. It says which steps of a run count, and how they become one figure.
    """
    # A shrunk run prints a row for each step, so that `skip` is the same number in windows and in steps.
    shrunk = replace(protocol, skip=int(SHRUNK_EXPORTS["WARMUP_STEPS"]), runs=1)
    if protocol.take_steps:
        shrunk = replace(shrunk, take_steps=int(SHRUNK_EXPORTS["MEASURED_STEPS"]))
    return shrunk


def _ask_nvidia_smi(field: str) -> list[str]:
    """Return what nvidia-smi says of each GPU.

    Args:
        field: What to ask for, such as "name".

    Returns:
        A text for each GPU. The list is empty without nvidia-smi, or if it fails, as for a field that the driver does
        not know.
    """
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def reason_to_skip(
    run: Run, gpus: Sequence[str], capabilities: Sequence[str], hosts: Sequence[str], *, shrink: bool
) -> str:
    """Return why this machine cannot do a benchmark run, as a text for the plan.

    Args:
        run: The run.
        gpus: Names of the GPUs of this machine.
        capabilities: Compute capability of each GPU, such as "8.0"; that of the first one counts. Empty if unknown.
        hosts: The nodes that the user named. Empty stands for this machine alone.
        shrink: Whether the run is a tiny one on the CPU. Then GPUs and hosts do not matter.

    Returns:
        The reason, or an empty text if the machine can do the run.
    """
    if shrink:
        if run.strategy == "auto":
            return "strategy auto: Paddle's automatic mode computes in FP16, for which a CPU has no kernels"
        return ""
    if run.strategy == "auto" and run.devices != AUTO_RANKS:
        return f"strategy auto: Paddle 2.6.2's automatic mode shards over {AUTO_RANKS} ranks and refuses {run.devices}"
    if len(gpus) < run.devices_per_node:
        return f"{run.devices_per_node} GPU(s) a node needed, {len(gpus)} here"
    nodes = max(1, len(hosts))  # without hosts there is this machine alone
    if nodes < run.nodes:
        return f"{run.nodes} nodes needed, HOSTS or HOSTFILE names {len(hosts)}"
    needed_capability = MIN_CAPABILITY.get(run.precision, 0.0)
    capability = _capability(capabilities)
    if capability is not None and capability < needed_capability:
        return f"{run.precision} needs compute capability {needed_capability}, {gpus[0]} has {capability}"
    return ""


def _capability(capabilities: Sequence[str]) -> float | None:
    """Return the compute capability of the first GPU, such as 8.0; None if nvidia-smi does not tell it.

    Args:
        capabilities: What nvidia-smi prints for each GPU: a number, or words such as "[N/A]".
    """
    if not capabilities or not re.fullmatch(r"[0-9]+\.[0-9]+", capabilities[0].strip()):
        return None
    return float(capabilities[0])


def job_environment(campaign: Campaign, run: Run) -> dict[str, str]:
    """Return the environment variables with which a benchmark run is started, except LOGDIR.

    - The variables of the campaign replace general ones of the same name.
    - DGXSYSTEM names the configuration of the machine. If the user has set it, the user's value replaces the campaign's
      and is adapted to the number of nodes. A campaign that is shrunk to tiny runs on the CPU keeps its own.

    Args:
        campaign: The campaign that the run belongs to.
        run: The run. If it has a strategy, this becomes the variable STRATEGY.

    Returns:
        The values by name: {"BATCHSIZE": "256", "PRECISION": "fp32", ..}.
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
    system_of_user = os.environ.get("DGXSYSTEM")
    if system_of_user and not campaign.shrunk:  # a shrunk campaign has a DGXSYSTEM of its own
        exports["DGXSYSTEM"] = _system_of_nodes(system_of_user, run.nodes)
    if run.strategy:
        exports["STRATEGY"] = run.strategy
    return exports


def _system_of_nodes(system: str, nodes: int) -> str:
    """Return the value of the variable DGXSYSTEM for a run on several nodes, from the value that the user has set.

    "DGX1" or "4xDGX1" on 2 nodes becomes "2xDGX1", or "DGX1" if there is no file config_2xDGX1.sh.

    Args:
        system: The value that the user has set.
        nodes: Number of nodes of the run.
    """
    system_of_one_node = re.sub(r"^\d+x", "", system)
    system_of_all_nodes = f"{nodes}x{system_of_one_node}"
    if (REPOSITORY / f"config_{system_of_all_nodes}.sh").is_file():
        return system_of_all_nodes
    return system_of_one_node


def job_command(run: Run, hosts: Sequence[str]) -> str:
    """Return the shell command of one trial of a benchmark run.

    If the variable CONT is set, which names an image, the command runs in a container.

    Args:
        run: The run.
        hosts: Names of nodes. A run on several nodes takes the first of them. If there are none, the word HOSTS stands
            in the command.
    """
    in_container = bool(os.environ.get("CONT"))
    if run.nodes == 1:
        return "launch/container_node.sh" if in_container else "./run_and_time.sh"
    host_names = ",".join(hosts[: run.nodes]) or "HOSTS"
    container_option = "" if in_container else " --no-container"
    return f"launch/mpirun.sh --hosts {host_names}{container_option}"


def plan_jobs(campaign: Campaign, results: Path, *, runner: str = "") -> list[Job]:
    """Return a job for each benchmark run of a campaign: the run with its trials that are done or missing.

    A run is a set of conditions, such as 8 devices with a batch of 128. A trial is one execution of a run.

    Args:
        campaign: The campaign, with the published throughputs that its runs measure again.
        results: Folder of all campaigns. The logs of the trials lie in a folder of it.
        runner: Command of one trial. Empty stands for this project's own command.

    Returns:
        The jobs, in the order of the report's throughputs.

    Raises:
        OSError: A log cannot be opened.
    """
    folder = results / _folder_name(campaign)
    gpus = _ask_nvidia_smi("name")
    capabilities = _ask_nvidia_smi("compute_cap")  # a driver before 510 does not know this field
    hosts = re.findall(r"[^,\s]+", os.environ.get("HOSTS", ""))  # launch/campaign.sh sets HOSTS from a HOSTFILE
    jobs: dict[Run, Job] = {}
    for throughput in campaign.throughputs:
        run = run_that_repeats(throughput, shrink=campaign.shrunk)
        if run in jobs:  # an earlier throughput has the same conditions
            continue

        exports = job_environment(campaign, run)
        trials = read_trials(folder / run.name, campaign.protocol.runs, exports)
        why_this_machine_cannot = reason_to_skip(run, gpus, capabilities, hosts, shrink=campaign.shrunk)  # "": it can
        jobs[run] = Job(
            throughput=throughput,
            run=run,
            folder=folder / run.name,
            done=trials.done,
            missing=trials.missing,
            skipped=why_this_machine_cannot,
            exports=exports,
            command=runner or job_command(run, hosts),
        )
    return list(jobs.values())


def _folder_name(campaign: Campaign) -> str:
    """Return the name of the folder that has the logs of a campaign's trials."""
    if campaign.shrunk:  # the runs are the same for all campaigns of a workload
        return f"shrunk_{campaign.workload}"
    return campaign.name


class Trials(NamedTuple):
    """The trials of a run, by what lies in their folders."""

    done: list[Record]
    missing: dict[int, str]  # {trial, from 1: why its log does not count}; empty if it was not run yet


def read_trials(folder: Path, count: int, exports: dict[str, str]) -> Trials:
    """Read the repeated trials of a benchmark run, and return which are done and which are missing.

    A trial is one execution of the run, with its log in the folder `trial_1`, `trial_2` and so on. It is done if it
    left exactly one log, of a successful run with the wanted settings.

    Args:
        folder: Folder of the run, which contains the folders of its trials.
        count: Number of trials that the run should have.
        exports: The wanted settings as environment variables: {"BATCHSIZE": "256"}.

    Returns:
        What was read from the logs of the trials that are done, and for each missing trial why it does not count. The
        reason is empty for a trial that was not run yet.

    Raises:
        OSError: A log cannot be opened.
    """
    trials = Trials(done=[], missing={})
    for number in range(1, count + 1):
        record_or_reason = read_trial(folder / f"trial_{number}", exports)
        if isinstance(record_or_reason, Record):
            trials.done.append(record_or_reason)
        else:
            trials.missing[number] = record_or_reason
    return trials


def read_trial(folder: Path, exports: dict[str, str]) -> Record | str:
    """Read one trial, which is one execution of a benchmark run, and return its record or why it does not count.

    A trial counts if it left exactly one log, of a successful run with the wanted settings.

    Args:
        folder: Folder of the trial.
        exports: Environment variables with which it must have run, as {"BATCHSIZE": "256"}. NEXP is not compared.

    Returns:
        The record, or the reason as a text. The text is empty if the trial was not run yet.

    Raises:
        OSError: The log cannot be opened.
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
    difference = _first_difference(record, exports)
    return f"{logs[0]}: {difference}" if difference else record


def _first_difference(record: Record, exports: dict[str, str]) -> str:
    """Return in words the first setting of a run that is not the wanted one.

    Args:
        record: What the log of the run says. The header of the log has its settings.
        exports: Wanted environment variables, as {"BATCHSIZE": "256"}. NEXP is not compared.

    Returns:
        The difference, or an empty text if there is none.
    """
    settings = settings_of(record.header.get("config"))
    for name, wanted in exports.items():
        if name == "NEXP":  # the number of runs in one call does not change a run
            continue
        value = settings.get(name)
        if str(value) != wanted:
            return f"its configuration has {name}={value}, the campaign wants {wanted}"
    return ""
