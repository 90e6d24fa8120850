"""What a campaign is, and which of its runs are still to be done here.

What is done is read from the logs alone, so a campaign can be stopped at any time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from scoring.importers import read_record
from scoring.published.table import Published, nearest, select
from scoring.record import InputError, Record

REPOSITORY = Path(__file__).resolve().parents[2]
CAMPAIGNS = REPOSITORY / "campaigns"

# Before the first step of a run: process start, program building, data.
ASSUMED_START_UP_S = 60.0
ASSUMED_SHRUNK_RUN_S = 15.0

# Paddle 2.6.2's automatic strategy takes sharding of degree 8 without data parallelism and asserts that many ranks.
AUTO_RANKS = 8
LEAST_CAPABILITY = {"tf32": 8.0, "amp_o1": 7.0, "amp_o2": 7.0}  # compute capability, by precision

# A shrunk run shows that every cell of the grid goes through the whole chain; its figures say nothing else.
SHRUNK_RANKS = 2
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
    f"Shrunk: synthetic data of {SHRUNK_ENVIRONMENT['IMAGE_SIZE']} px on at most {SHRUNK_RANKS} CPU ranks of one node, "
    "batch 2 (smaller half of the batch sizes) or 3, FP32, one trial of "
    f"{SHRUNK_ENVIRONMENT['MEASURED_STEPS']} steps. Cells that become the same run share it, across campaigns too. "
    "The figures show that the chain works; they are not comparable with the published ones."
)


@dataclass(frozen=True)
class RunSpec:
    """What one call of run_and_time.sh measures; cells of several tables may share it."""

    nodes: int
    devices_per_node: int
    batch: int  # images a device
    precision: str
    strategy: str | None = None

    @property
    def name(self) -> str:
        """Folder of its trials, as the reports name their logs: `2n8g_b128_fp32`."""
        strategy = f"_{self.strategy}" if self.strategy else ""
        return f"{self.nodes}n{self.devices_per_node}g_b{self.batch}_{self.precision}{strategy}"

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the report, with the fields that a campaign's file gives it."""

    title: str
    batches: Sequence[int]
    shapes: Sequence[str]  # nodes x devices a node
    precision: str
    strategy: str | None = None
    accelerator: str | None = None  # whose published figures the table holds, where a report has several
    note: str | None = None  # shown under the title


@dataclass(frozen=True)
class Cell:
    """One line of a table: what it asks for, and the run that stands for it (where shrunk, another)."""

    table: Table
    asked: RunSpec
    run: RunSpec


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """One report's tables as runs, with the protocol that turns the runs into figures."""

    name: str
    workload: str
    protocol: str
    repeats: int
    environment: dict[str, str]
    published_table: str  # `table` of published.csv
    frameworks: tuple[str, ...]  # published columns; the ratio is to the first
    cells: tuple[Cell, ...]  # of all tables, in their order
    speedup_base: tuple[int, int] | None = None  # nodes, devices a node
    gpu_memory: bool = False
    shrunk: bool = False


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What decides whether a run can be had here."""

    gpus: int
    gpu: str | None  # name of the first
    compute_capability: float | None
    hosts: tuple[str, ...]  # of HOSTS, which launch/campaign.sh makes of a HOSTFILE
    in_container: bool  # CONT names the image
    system: str | None  # DGXSYSTEM


@dataclass(frozen=True)
class Job:
    """One trial of a run: one call of run_and_time.sh, or why there is none."""

    run: RunSpec
    trial: int  # 1-based
    folder: Path  # its LOGDIR
    state: str  # "done", "run" or "skip"
    record: Record | None  # of its log, where it is done
    reason: str  # of a skip, or what is wrong with a log that stands in the folder
    exports: dict[str, str]
    command: str


def read_campaign(name: str, folder: Path = CAMPAIGNS, *, shrink: bool = False) -> Campaign:
    """The campaign `name`, from `<folder>/<name>.yaml`; with `shrink` each cell has its tiny run on CPU ranks.

    Raises InputError for an unknown name, and for a file that is not a campaign, with what and where.
    """
    path = folder / f"{name}.yaml"
    if not re.fullmatch(r"\w+", name) or not path.is_file():
        known = ", ".join(sorted(found.stem for found in folder.glob("*.yaml")))
        raise InputError(f"no campaign {name!r} in {folder}: choose one of {known}")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        published, base = raw.pop("published"), raw.pop("speedup_base", None)
        campaign = Campaign(
            name=name,
            environment={key: str(value) for key, value in raw.pop("environment").items()},
            published_table=published["table"],
            frameworks=tuple(published["frameworks"]),
            cells=tuple(cell for table in raw.pop("tables") for cell in _cells(Table(**table))),
            speedup_base=_shape(base) if base else None,
            **raw,
        )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"{path}: not a campaign ({text}); see docs/campaigns.md for its fields") from error
    return _shrunk(campaign) if shrink else campaign


def _cells(table: Table) -> list[Cell]:
    shapes = [_shape(shape) for shape in table.shapes]
    runs = [RunSpec(*shape, int(batch), table.precision, table.strategy) for batch in table.batches for shape in shapes]
    return [Cell(table, asked=run, run=run) for run in runs]


def _shape(text: str) -> tuple[int, int]:
    """Nodes, devices a node."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(text))
    if not found:
        raise ValueError(f"shape {text!r} is not NODESxDEVICES, e.g. 2x8")
    return int(found[1]), int(found[2])


def _shrunk(campaign: Campaign) -> Campaign:
    """The same cells on tiny runs: one node, FP32, the only arithmetic whose operators all have a CPU kernel."""
    batches = sorted({cell.asked.batch for cell in campaign.cells})
    smaller = batches[: (len(batches) + 1) // 2]
    cells = []
    for cell in campaign.cells:
        ranks, batch = min(cell.asked.devices, SHRUNK_RANKS), 2 if cell.asked.batch in smaller else 3
        cells.append(replace(cell, run=RunSpec(1, ranks, batch, "fp32", cell.asked.strategy)))
    environment = campaign.environment | SHRUNK_ENVIRONMENT
    return replace(campaign, cells=tuple(cells), environment=environment, shrunk=True)


def machine() -> Machine:
    """The accelerators of this node by nvidia-smi, and what the environment says."""
    names = _nvidia_smi("name")
    capabilities = _nvidia_smi("compute_cap")  # a driver before 510 does not know this field
    return Machine(
        gpus=len(names),
        gpu=names[0] if names else None,
        compute_capability=float(capabilities[0]) if capabilities else None,
        hosts=tuple(re.findall(r"[^,\s]+", os.environ.get("HOSTS", ""))),
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


def why_not(run: RunSpec, here: Machine, *, shrink: bool) -> str:
    """Why this machine cannot do `run`; empty where it can."""
    if run.strategy == "auto" and shrink:
        return "strategy auto: Paddle's automatic mode computes in FP16, for which a CPU has no kernels"
    if run.strategy == "auto" and run.devices != AUTO_RANKS:
        mode = f"Paddle 2.6.2's automatic mode shards over {AUTO_RANKS} ranks"
        return f"strategy auto: {mode} and refuses {run.devices}"
    if shrink:
        return ""
    if here.gpus < run.devices_per_node:
        return f"{run.devices_per_node} GPU(s) a node needed, {here.gpus} here"
    if max(1, len(here.hosts)) < run.nodes:
        return f"{run.nodes} nodes needed, HOSTS or HOSTFILE names {len(here.hosts)}"
    needed, capability = LEAST_CAPABILITY.get(run.precision, 0.0), here.compute_capability
    if capability is not None and capability < needed:
        return f"{run.precision} needs compute capability {needed}, {here.gpu} has {capability}"
    return ""


def environment(
    campaign: Campaign, run: RunSpec, *, system: str | None = None, repository: Path = REPOSITORY
) -> dict[str, str]:
    """What the job of `run` exports beside its LOGDIR; all else (DATADIR, ...) is the user's environment.

    `system` is the user's DGXSYSTEM; a run of N nodes takes `N x system` where there is such a config.
    """
    exports = {
        "WORKLOAD": campaign.workload,
        "MODE": "throughput",
        "NEXP": "1",
        "DGXNNODES": str(run.nodes),
        "DGXNGPU": str(run.devices_per_node),
        "BATCHSIZE": str(run.batch),
        "PRECISION": run.precision,
        "DEVICE": "gpu",
        **campaign.environment,
    }
    if system and not campaign.shrunk:
        one_node = re.sub(r"^\d+x", "", system)
        several = f"{run.nodes}x{one_node}"
        exports["DGXSYSTEM"] = several if (repository / f"config_{several}.sh").is_file() else one_node
    return exports | ({"STRATEGY": run.strategy} if run.strategy else {})


def command(run: RunSpec, here: Machine, runner: str) -> str:
    """What does one job of `run`: the user's runner, else this node's job, or the launcher over the first hosts."""
    if runner:
        return runner
    if run.nodes == 1:
        return "launch/container_node.sh" if here.in_container else "./run_and_time.sh"
    hosts = ",".join(here.hosts[: run.nodes]) or "HOSTS"
    return f"launch/mpirun.sh --hosts {hosts}{'' if here.in_container else ' --no-container'}"


def plan(campaign: Campaign, results: Path, here: Machine, *, repeats: int, runner: str = "") -> list[Job]:
    """The jobs of a campaign in the order of its tables; cells that share a run have its jobs once.

    Each campaign has its own folder in `results`; shrunk ones are the same jobs in all campaigns of a workload.
    """
    results = results / (f"shrunk_{campaign.workload}" if campaign.shrunk else campaign.name)
    jobs = []
    for run in dict.fromkeys(cell.run for cell in campaign.cells):
        reason = why_not(run, here, shrink=campaign.shrunk)
        exports = environment(campaign, run, system=here.system)
        for trial in range(1, repeats + 1):
            folder = results / run.name / f"trial_{trial}"
            record, wrong = result(folder, exports)
            state = "done" if record else "skip" if reason else "run"
            why = reason if state == "skip" else wrong
            jobs.append(Job(run, trial, folder, state, record, why, exports, command(run, here, runner)))
    return jobs


def result(folder: Path, exports: dict[str, str]) -> tuple[Record | None, str]:
    """The result of the trial in `folder` if it stands for the job of `exports`, and what is wrong where it does not.

    Raises InputError for several logs: a trial has one.
    """
    logs = sorted(folder.glob("**/result_*.txt"))
    if len(logs) > 1:
        raise InputError(f"{folder}: {len(logs)} logs, a trial has one; move the others away")
    if not logs:
        return None, "no log" if folder.is_dir() else ""
    try:
        record = read_record(logs[0])
    except InputError as error:
        return None, str(error)
    if record.status != "success":
        return None, f"{logs[0]}: run_stop says {record.status or 'nothing'}"
    config = record.header.get("config", {})
    for name, wanted in exports.items():
        value = config.get(name, {}).get("value")
        if str(value) != wanted and name != "NEXP":
            return None, f"{logs[0]}: its configuration has {name}={value}, the campaign wants {wanted}"
    return record, ""


def assumed_s(campaign: Campaign, run: RunSpec, rows: Sequence[Published]) -> float:
    """Seconds one trial takes, by the published rate and an assumed start-up."""
    if campaign.shrunk:
        return ASSUMED_SHRUNK_RUN_S
    row = nearest(like(run, campaign, rows), batch=run.batch, devices=run.devices)
    assert row and row.devices, f"{run.name}: {campaign.published_table} has no figure of the like"
    steps = int(campaign.environment["WARMUP_STEPS"]) + int(campaign.environment["MEASURED_STEPS"])
    return ASSUMED_START_UP_S + steps * run.batch * row.devices / row.value


def like(run: RunSpec, campaign: Campaign, rows: Sequence[Published], metric: str = "throughput") -> list[Published]:
    """The report's figures in the run's precision; a row that does not say its own may be of any."""
    figures = select(rows, table=campaign.published_table, metric=metric)
    return [row for row in figures if _family(row.precision) in (None, _family(run.precision))]


def _family(precision: str | None) -> str | None:
    """Reports say AMP where they mean O1, O2 or do not know which."""
    return "amp" if precision and precision.startswith("amp") else precision


def published_figures(
    rows: Sequence[Published], campaign: Campaign, cell: Cell, metric: str
) -> dict[str, Published | None]:
    """The published figure of a cell by framework; None where the report has none."""
    asked = cell.asked
    conditions: dict[str, object] = {"nodes": asked.nodes, "devices": asked.devices, "batch_per_device": asked.batch}
    conditions |= {"accelerator": cell.table.accelerator} if cell.table.accelerator else {}
    alike = select(like(asked, campaign, rows, metric), strategy=asked.strategy, **conditions)
    return {
        framework: next((row for row in alike if row.framework.startswith(framework)), None)
        for framework in campaign.frameworks
    }
