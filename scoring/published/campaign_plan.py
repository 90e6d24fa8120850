"""What a campaign is, and which of its runs are still to be done here.

What is done is read from the logs alone, so a campaign can be stopped at any time.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from scoring.importers import read_record
from scoring.published.table import Published, read_published, select
from scoring.record import InputError, Record

REPOSITORY = Path(__file__).resolve().parents[2]
CAMPAIGNS = REPOSITORY / "campaigns"
# Paddle 2.6.2's automatic strategy takes sharding of degree 8 without data parallelism and asserts that many ranks.
AUTO_RANKS = 8
LEAST_CAPABILITY = {"tf32": 8.0, "amp_o1": 7.0, "amp_o2": 7.0}  # compute capability, by precision

# A shrunk run shows that every cell of the grid goes through the whole chain; its figures say nothing else.
SHRUNK_RANKS = SHRUNK_BATCH = 2
SHRUNK_ENVIRONMENT = {
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
    """What one call of run_and_time.sh measures; cells of several tables may share it."""

    nodes: int
    devices: int  # of all nodes
    batch_per_device: int
    precision: str
    strategy: str | None = None

    @property
    def devices_per_node(self) -> int:
        """Devices of one node."""
        return self.devices // self.nodes

    @property
    def name(self) -> str:
        """Folder of its trials, as the reports name their logs: `2n8g_b128_fp32`."""
        strategy = f"_{self.strategy}" if self.strategy else ""
        return f"{self.nodes}n{self.devices_per_node}g_b{self.batch_per_device}_{self.precision}{strategy}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of a table: what it asks for, and the run that stands for it (where shrunk, another)."""

    asked: Run
    run: Run
    title: str  # of its table
    note: str = ""  # shown below the title
    accelerator: str | None = None  # whose published figures the table holds, where a report has several


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """One report's tables as runs, with the protocol that turns the runs into figures."""

    name: str
    workload: str
    protocol: str
    repeats: int
    environment: dict[str, str]
    cells: Sequence[Cell]  # of all tables, in their order
    published: Sequence[Published]  # the report's own figures
    frameworks: Sequence[str]  # whose figures are shown; the ratio is to the first
    shrunk: bool


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What decides whether a run can be had here."""

    gpus: Sequence[str]  # their names
    compute_capability: float | None
    hosts: Sequence[str]  # of HOSTS, which launch/campaign.sh makes of a HOSTFILE
    in_container: bool  # CONT names the image
    system: str | None  # DGXSYSTEM


@dataclass(frozen=True, kw_only=True)
class Job:
    """The trials of a run, each one call of run_and_time.sh."""

    run: Run
    folder: Path  # of the trials' LOGDIRs
    done: list[Record]
    missing: dict[int, str]  # by trial, from 1: what is wrong with what lies in its folder
    skipped: str  # why this machine cannot do the missing ones; empty where it can
    exports: dict[str, str]
    command: str


def read_campaign(name: str, folder: Path = CAMPAIGNS, *, shrink: bool = False) -> Campaign:
    """The campaign `name`, from `<folder>/<name>.yaml`; with `shrink` each cell has its tiny run on CPU ranks.

    Raises InputError for an unknown name, and for a file that is not a campaign, with what and where.
    """
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise InputError(f"no campaign {name!r} in {folder}: choose one of {', '.join(known)}")
    path = folder / f"{name}.yaml"
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        published = raw.pop("published")
        environment = {key: str(value) for key, value in raw.pop("environment").items()}
        cells = [cell for table in raw.pop("tables") for cell in _cells(shrink, **table)]
        return Campaign(
            name=name,
            environment=environment | (SHRUNK_ENVIRONMENT if shrink else {}),
            cells=cells,
            published=select(read_published(), table=published["table"]),
            frameworks=published["frameworks"],
            shrunk=shrink,
            **raw,
        )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"{path}: not a campaign ({text}); see docs/campaigns.md for its fields") from error


def _cells(
    shrink: bool, batches: list[int], shapes: list[str], precision: str, strategy: str | None = None, **of: str
) -> Iterator[Cell]:
    """Of one table of a campaign's file; shrunk to FP32, the only arithmetic whose operators all have a CPU kernel."""
    for batch, shape in itertools.product(batches, shapes):
        nodes, _, devices = shape.partition("x")
        if not (nodes.isdecimal() and devices.isdecimal()):
            raise ValueError(f"shape {shape!r} is not NODESxDEVICES, e.g. 2x8")
        asked = Run(int(nodes), int(nodes) * int(devices), batch, precision, strategy)
        run = Run(1, min(asked.devices, SHRUNK_RANKS), SHRUNK_BATCH, "fp32", strategy) if shrink else asked
        yield Cell(asked=asked, run=run, **of)


# ----------------------------------------------------------------------------------------------- the plan


def machine() -> Machine:
    """The accelerators of this node by nvidia-smi, and what the environment says."""
    capabilities = _nvidia_smi("compute_cap")  # a driver before 510 does not know this field
    return Machine(
        gpus=_nvidia_smi("name"),
        compute_capability=float(capabilities[0]) if capabilities else None,
        hosts=re.findall(r"[^,\s]+", os.environ.get("HOSTS", "")),
        in_container=bool(os.environ.get("CONT")),
        system=os.environ.get("DGXSYSTEM") or None,
    )


def _nvidia_smi(field: str) -> list[str]:
    """One value a GPU; none where there is no driver or it does not know the field."""
    if not shutil.which("nvidia-smi"):
        return []
    asked = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def why_not(run: Run, here: Machine, *, shrink: bool) -> str:
    """Why this machine cannot do `run`; empty where it can."""
    if run.strategy == "auto" and shrink:
        return "strategy auto: Paddle's automatic mode computes in FP16, for which a CPU has no kernels"
    if run.strategy == "auto" and run.devices != AUTO_RANKS:
        return f"strategy auto: Paddle 2.6.2's automatic mode shards over {AUTO_RANKS} ranks and refuses {run.devices}"
    if shrink:
        return ""
    if len(here.gpus) < run.devices_per_node:
        return f"{run.devices_per_node} GPU(s) a node needed, {len(here.gpus)} here"
    if max(1, len(here.hosts)) < run.nodes:
        return f"{run.nodes} nodes needed, HOSTS or HOSTFILE names {len(here.hosts)}"
    needed, capability = LEAST_CAPABILITY.get(run.precision, 0.0), here.compute_capability
    if capability is not None and capability < needed:
        return f"{run.precision} needs compute capability {needed}, {here.gpus[0]} has {capability}"
    return ""


def environment(campaign: Campaign, run: Run, system: str | None) -> dict[str, str]:
    """What the job of `run` exports beside its LOGDIR; all else (DATADIR, ...) is the user's environment.

    `system` is the user's DGXSYSTEM; a run of N nodes takes `N x system` where there is such a config.
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
    if system and not campaign.shrunk:
        one_node = re.sub(r"^\d+x", "", system)
        several = f"{run.nodes}x{one_node}"
        exports["DGXSYSTEM"] = several if (REPOSITORY / f"config_{several}.sh").is_file() else one_node
    return exports | ({"STRATEGY": run.strategy} if run.strategy else {})


def command(run: Run, here: Machine) -> str:
    """What does one job of `run`: this node's job, or the launcher over the first hosts."""
    if run.nodes == 1:
        return "launch/container_node.sh" if here.in_container else "./run_and_time.sh"
    hosts = ",".join(here.hosts[: run.nodes]) or "HOSTS"
    return f"launch/mpirun.sh --hosts {hosts}{'' if here.in_container else ' --no-container'}"


def plan(campaign: Campaign, results: Path, here: Machine, *, repeats: int, runner: str = "") -> list[Job]:
    """The jobs of a campaign in the order of its tables; cells that share a run have its job once.

    Each campaign has its own folder in `results`; shrunk ones are the same jobs in all campaigns of a workload.
    """
    folder = results / (f"shrunk_{campaign.workload}" if campaign.shrunk else campaign.name)
    jobs = []
    for run in dict.fromkeys(cell.run for cell in campaign.cells):
        exports = environment(campaign, run, here.system)
        found = {n: result(folder / run.name / f"trial_{n}", exports) for n in range(1, repeats + 1)}
        job = Job(
            run=run,
            folder=folder / run.name,
            done=[one for one in found.values() if isinstance(one, Record)],
            missing={n: one for n, one in found.items() if isinstance(one, str)},
            skipped=why_not(run, here, shrink=campaign.shrunk),
            exports=exports,
            command=runner or command(run, here),
        )
        jobs.append(job)
    return jobs


def result(folder: Path, exports: dict[str, str]) -> Record | str:
    """The result of the trial in `folder` for a job of `exports`, or what is wrong with it ("": there is none)."""
    logs = list(folder.glob("**/result_*.txt"))
    if len(logs) != 1:
        return f"{len(logs) or 'no'} log(s), a trial has one" if folder.is_dir() else ""
    try:
        record = read_record(logs[0])
    except InputError as error:
        return str(error)
    if record.status != "success":
        return f"{logs[0]}: run_stop says {record.status or 'nothing'}"
    config = record.header.get("config", {})
    for name, wanted in exports.items():
        value = config.get(name, {}).get("value")
        if str(value) != wanted and name != "NEXP":
            return f"{logs[0]}: its configuration has {name}={value}, the campaign wants {wanted}"
    return record


def like(run: Run, campaign: Campaign, metric: str = "throughput") -> list[Published]:
    """The report's figures in the run's precision; a row that does not say its own may be of any."""
    rows = select(campaign.published, metric=metric)
    return [row for row in rows if _family(row.precision) in (None, _family(run.precision))]


def _family(precision: str | None) -> str | None:
    """Reports say AMP where they mean O1, O2 or do not know which."""
    return "amp" if precision and precision.startswith("amp") else precision
