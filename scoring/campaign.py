"""Which runs a campaign still lacks, and the report's own table with our figures beside the published ones.

`launch/campaign.sh` is the door: it asks `plan` for the missing jobs, runs each as one call of `run_and_time.sh`,
and ends with `table`. What is done is read from the logs alone, so a campaign can be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from scoring import protocols
from scoring.importers import count, jsonable, read_record
from scoring.protocols import Protocol
from scoring.published import Published, read_published
from scoring.record import InputError, Record
from scoring.score import TooFewRunsError, score

REPOSITORY = Path(__file__).resolve().parents[1]
CAMPAIGNS = REPOSITORY / "campaigns"

# Before the first step of a run: process start, program building, data. Assumed until a run has been timed here.
ASSUMED_START_UP_S = 60.0
ASSUMED_SHRUNK_RUN_S = 15.0

# Paddle 2.6.2's automatic strategy takes sharding of degree 8 without data parallelism and asserts that many ranks.
AUTO_RANKS = 8

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


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the report: a grid of batch sizes and shapes at one precision and strategy."""

    title: str
    batches: tuple[int, ...]  # images a device
    shapes: tuple[tuple[int, int], ...]  # (nodes, devices a node)
    precision: str
    strategy: str | None = None
    accelerator: str | None = None  # whose published figures the table holds, where a report has several
    note: str | None = None  # shown under the title


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
    tables: tuple[Table, ...]
    speedup_base: tuple[int, int] | None = None
    gpu_memory: bool = False


@dataclass(frozen=True, order=True)
class Run:
    """What one call of run_and_time.sh measures; cells of several tables may share it."""

    nodes: int
    devices_per_node: int
    batch: int
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


@dataclass(frozen=True)
class Cell:
    """One line of a table: what it asks for, and the run that stands for it (another one where shrunk)."""

    table: Table
    asked: Run
    run: Run


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What decides whether a run can be had here."""

    gpus: int
    gpu: str | None  # name of the first
    compute_capability: float | None
    hosts: tuple[str, ...]  # named in HOSTS or HOSTFILE
    in_container: bool  # CONT names the image
    system: str | None  # DGXSYSTEM
    variables: frozenset[str]  # that a job reads, by `python -m harness.env`


# ----------------------------------------------------------------------------------------------- reading


def read_campaign(name: str, folder: Path = CAMPAIGNS) -> Campaign:
    """The campaign `name`, from `<folder>/<name>.yaml`.

    Raises InputError for an unknown name, and for a file that is not a campaign, with what and where.
    """
    path = folder / f"{name}.yaml"
    if not re.fullmatch(r"\w+", name) or not path.is_file():
        known = ", ".join(sorted(found.stem for found in folder.glob("*.yaml")))
        raise InputError(f"no campaign {name!r} in {folder}: choose one of {known}")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        published = raw.pop("published")
        base = raw.pop("speedup_base", None)
        campaign = Campaign(
            name=name,
            environment={key: str(value) for key, value in raw.pop("environment").items()},
            published_table=published["table"],
            frameworks=tuple(published["frameworks"]),
            tables=tuple(_table(table) for table in raw.pop("tables")),
            speedup_base=_shape(base) if base else None,
            **raw,
        )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"{path}: not a campaign ({text}); see docs/campaigns.md for its fields") from error
    return campaign


def _table(raw: dict[str, Any]) -> Table:
    batches = tuple(int(batch) for batch in raw.pop("batches"))
    return Table(batches=batches, shapes=tuple(_shape(shape) for shape in raw.pop("shapes")), **raw)


def _shape(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(text))
    if not found:
        raise ValueError(f"shape {text!r} is not NODESxDEVICES, e.g. 2x8")
    return int(found[1]), int(found[2])


def cells(campaign: Campaign, *, shrink: bool) -> list[Cell]:
    """The lines of all tables in their order, each with its run."""
    batches = sorted({batch for table in campaign.tables for batch in table.batches})
    found = []
    for table in campaign.tables:
        for batch in table.batches:
            for nodes, devices in table.shapes:
                asked = Run(nodes, devices, batch, table.precision, table.strategy)
                found.append(Cell(table, asked, shrunk(asked, batches) if shrink else asked))
    return found


def shrunk(run: Run, batches: Sequence[int]) -> Run:
    """The tiny run on CPU ranks that stands for `run`.

    One node; as many ranks as it has devices, at most two; the smaller half of the campaign's batch sizes becomes 2,
    the larger 3; FP32, the only arithmetic whose operators all have a CPU kernel.
    """
    larger = batches.index(run.batch) >= (len(batches) + 1) // 2
    return Run(1, min(run.devices, SHRUNK_RANKS), 3 if larger else 2, "fp32", run.strategy)


SHRUNK_NOTE = (
    f"Shrunk: synthetic data of {SHRUNK_ENVIRONMENT['IMAGE_SIZE']} px on at most {SHRUNK_RANKS} CPU ranks of one node, "
    "batch 2 (smaller half of the batch sizes) or 3, FP32, one trial of "
    f"{SHRUNK_ENVIRONMENT['MEASURED_STEPS']} steps. Cells that become the same run share it, across campaigns too. "
    "The figures show that the chain works; they are not comparable with the published ones."
)


# ------------------------------------------------------------------------------------------------ planning


def machine(variables: frozenset[str]) -> Machine:
    """The accelerators of this node by nvidia-smi, and the hosts of the job by HOSTS or HOSTFILE."""
    names = _nvidia_smi("name")
    capabilities = _nvidia_smi("compute_cap")  # a driver before 510 does not know this field
    hosts = [host for host in re.split(r"[,\s]+", os.environ.get("HOSTS", "")) if host]
    hostfile = os.environ.get("HOSTFILE", "")
    if not hosts and hostfile:
        lines = [line.split("#")[0].split() for line in Path(hostfile).read_text(encoding="utf-8").splitlines()]
        hosts = [words[0] for words in lines if words]
    return Machine(
        gpus=len(names),
        gpu=names[0] if names else None,
        compute_capability=float(capabilities[0]) if capabilities else None,
        hosts=tuple(hosts),
        in_container=bool(os.environ.get("CONT")),
        system=os.environ.get("DGXSYSTEM") or None,
        variables=variables,
    )


def _nvidia_smi(field: str) -> list[str]:
    """One value a GPU; none where there is no driver or it does not know the field."""
    if not shutil.which("nvidia-smi"):
        return []
    asked = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def why_not(run: Run, here: Machine, *, workload: str, shrink: bool, repository: Path = REPOSITORY) -> str | None:
    """Why this machine, or this checkout, cannot do `run`; None where it can."""
    if run.strategy and "STRATEGY" not in here.variables:
        return f"strategy {run.strategy}: a job reads no STRATEGY"
    if run.strategy == "auto" and shrink:
        return "strategy auto: Paddle's automatic mode computes in FP16, for which a CPU has no kernels"
    if run.strategy == "auto" and run.devices != AUTO_RANKS:
        return f"strategy auto: Paddle 2.6.2's automatic mode shards over {AUTO_RANKS} ranks and refuses {run.devices}"
    if not (repository / f"paddle_{workload}" / "train.py").is_file():
        return f"workload {workload}: paddle_{workload}/train.py is not here"
    if shrink:
        return None
    if here.gpus < run.devices_per_node:
        return f"{run.devices_per_node} GPU(s) a node needed, {here.gpus} here"
    if max(1, len(here.hosts)) < run.nodes:
        return f"{run.nodes} nodes needed, HOSTS or HOSTFILE names {len(here.hosts)}"
    capability = here.compute_capability
    needed = {"tf32": 8.0, "amp_o1": 7.0, "amp_o2": 7.0}.get(run.precision, 0.0)
    if capability is not None and capability < needed:
        return f"{run.precision} needs compute capability {needed}, {here.gpu} has {capability}"
    return None


def environment(
    campaign: Campaign, run: Run, *, shrink: bool, system: str | None = None, repository: Path = REPOSITORY
) -> dict[str, str]:
    """What the job of `run` exports; all else (DATADIR, ...) is the user's environment.

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
    if system:
        one_node = re.sub(r"^\d+x", "", system)
        several = f"{run.nodes}x{one_node}"
        exports["DGXSYSTEM"] = several if (repository / f"config_{several}.sh").is_file() else one_node
    if run.strategy:
        exports["STRATEGY"] = run.strategy
    return exports | SHRUNK_ENVIRONMENT if shrink else exports


def command(run: Run, here: Machine, runner: str) -> str:
    """What does one job of `run`: the user's runner, else this node's job, or the launcher over the first hosts."""
    if runner:
        return runner
    if run.nodes == 1:
        return "launch/docker_node.sh" if here.in_container else "./run_and_time.sh"
    hosts = ",".join(here.hosts[: run.nodes]) or "HOSTS"
    return f"launch/mpirun.sh --hosts {hosts}{'' if here.in_container else ' --no-container'}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One trial of a run: one call of run_and_time.sh, or why there is none."""

    run: Run
    trial: int  # 1-based
    folder: Path
    state: str  # "done", "run" or "skip"
    reason: str  # of a skip, or what is wrong with a log that stands in the folder
    exports: dict[str, str]
    command: str
    estimate_s: float


def runs_folder(campaign: Campaign, results: Path, *, shrink: bool) -> Path:
    """Where the runs are: each campaign's own folder; shrunk ones are the same jobs in all campaigns of a workload."""
    return results / (f"shrunk_{campaign.workload}" if shrink else campaign.name)


def result_log(folder: Path) -> Path | None:
    """The log of the trial in `folder`; None where it has written none.

    Raises InputError for several: a trial has one.
    """
    found = sorted(folder.glob("**/result_*.txt"))
    if len(found) > 1:
        raise InputError(f"{folder}: {len(found)} logs, a trial has one; move the others away")
    return found[0] if found else None


def plan(
    campaign: Campaign,
    results: Path,
    here: Machine,
    *,
    shrink: bool,
    rows: Sequence[Published],
    repeats: int,
    runner: str = "",
) -> list[Job]:
    """The jobs of a campaign in the order of its tables; cells that share a run have its jobs once."""
    results = runs_folder(campaign, results, shrink=shrink)
    timed = wall_times(results)
    jobs = []
    for run in dict.fromkeys(cell.run for cell in cells(campaign, shrink=shrink)):
        exports = environment(campaign, run, shrink=shrink, system=here.system)
        reason = why_not(run, here, workload=campaign.workload, shrink=shrink)
        estimate_s = _estimate_s(campaign, run, rows, timed.get(run.name, []), shrink=shrink)
        for trial in range(1, repeats + 1):
            folder = results / run.name / f"trial_{trial}"
            log = result_log(folder)
            wrong = fault(log, exports) if log else "no log" if folder.is_dir() else ""
            state = "done" if log and not wrong else "skip" if reason else "run"
            jobs.append(
                Job(
                    run=run,
                    trial=trial,
                    folder=folder,
                    state=state,
                    reason=reason or "" if state == "skip" else wrong,
                    exports=exports | {"LOGDIR": str(folder)},
                    command=command(run, here, runner),
                    estimate_s=estimate_s,
                )
            )
    return jobs


def fault(log: Path, exports: dict[str, str]) -> str:
    """What keeps a log from standing for the job of `exports`; empty where nothing does."""
    try:
        record = read_record(log)
    except InputError as error:
        return str(error)
    if record.status != "success":
        return f"{log}: run_stop says {record.status or 'nothing'}"
    config = record.header.get("config", {})
    for name, wanted in exports.items():
        if name in ("NEXP", "LOGDIR"):
            continue
        value = config.get(name, {}).get("value")
        if str(value) != wanted:
            return f"{log}: its configuration has {name}={value}, the campaign wants {wanted}"
    return ""


def wall_times(folder: Path) -> dict[str, list[float]]:
    """{run: wall seconds of its trials that succeeded}, from the `campaign.jsonl` that the launcher appends to."""
    path = folder / "campaign.jsonl"
    timed: dict[str, list[float]] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            attempt = json.loads(line)
            if attempt["exit"] == 0:
                timed.setdefault(attempt["run"], []).append(attempt["wall_s"])
    return timed


def _estimate_s(
    campaign: Campaign, run: Run, rows: Sequence[Published], timed: Sequence[float], *, shrink: bool
) -> float:
    """Seconds one trial takes: as timed here before, else the published rate and an assumed start-up."""
    if timed:
        return median(timed)
    if shrink:
        return ASSUMED_SHRUNK_RUN_S
    rates = [
        (abs(row.batch_per_device - run.batch), abs(row.devices - run.devices), row.value / row.devices)
        for row in rows
        if row.table == campaign.published_table
        and row.metric == "throughput"
        and row.batch_per_device
        and row.devices
        and _family(row.precision) in (None, _family(run.precision))
    ]
    steps = int(campaign.environment["WARMUP_STEPS"]) + int(campaign.environment["MEASURED_STEPS"])
    return ASSUMED_START_UP_S + steps * run.batch / min(rates)[2]


def _family(precision: str | None) -> str | None:
    """Reports say AMP where they mean O1, O2 or do not know which."""
    return "amp" if precision and precision.startswith("amp") else precision


def published_figure(
    rows: Sequence[Published], campaign: Campaign, cell: Cell, framework: str, metric: str
) -> Published | None:
    """The published figure of a cell; None where the report has none."""
    found = [
        row
        for row in rows
        if row.table == campaign.published_table
        and row.metric == metric
        and row.framework.startswith(framework)
        and row.nodes == cell.asked.nodes
        and row.devices == cell.asked.devices
        and row.batch_per_device == cell.asked.batch
        and _family(row.precision) in (None, _family(cell.asked.precision))
        and row.strategy == cell.asked.strategy
        and (cell.table.accelerator is None or row.accelerator == cell.table.accelerator)
    ]
    assert len(found) <= 1, f"{cell}: {len(found)} published figures"
    return found[0] if found else None


# --------------------------------------------------------------------------------------------------- table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What our own runs of one cell give under the campaign's protocol."""

    value: float
    unit: str
    runs: int
    interval_95: tuple[float, float] | None
    interval_method: str
    gpu_memory_mib: float | None
    warnings: tuple[str, ...]
    logs: tuple[str, ...]


def protocol_of(campaign: Campaign, *, shrink: bool, repeats: int) -> tuple[Protocol, int | None]:
    """The campaign's protocol for our own logs, and the windows to drop instead of its own number.

    Our runs set their warm-up apart: WARMUP_STEPS is what the protocol drops, so nothing more is dropped after it.
    """
    protocol = protocols.find(campaign.protocol)
    exports = campaign.environment | (SHRUNK_ENVIRONMENT if shrink else {})
    warm_up, measured = int(exports["WARMUP_STEPS"]), int(exports["MEASURED_STEPS"])
    protocol = replace(
        protocol,
        skip=warm_up if protocol.skip_unit == "step" else protocol.skip,
        take_steps=measured if protocol.take_steps else None,
        runs=repeats,
    )
    return protocol, 0 if protocol.skip_unit == "window" else None


def figures(
    campaign: Campaign, jobs: Sequence[Job], *, shrink: bool, repeats: int
) -> tuple[dict[Run, Figure], dict[Run, str], list[Record]]:
    """Figures of the runs that are done, why the others have none, and the records read."""
    protocol, skip = protocol_of(campaign, shrink=shrink, repeats=repeats)
    found: dict[Run, Figure] = {}
    missing: dict[Run, str] = {}
    read: list[Record] = []
    for run in dict.fromkeys(job.run for job in jobs):
        own = [job for job in jobs if job.run == run]
        logs = [log for job in own if job.state == "done" and (log := result_log(job.folder))]
        if not logs:
            missing[run] = "skipped: " + own[0].reason if own[0].state == "skip" else own[0].reason or "not run yet"
            continue
        records = [read_record(log) for log in logs]
        read += records
        try:
            result = score(records, protocol, skip=skip)
        except TooFewRunsError as error:
            if error.partial is None:
                missing[run] = str(error)
                continue
            result = error.partial
        except InputError as error:
            missing[run] = str(error)
            continue
        memory = [[w.gpu_memory_mib for w in r.windows if w.gpu_memory_mib is not None] for r in records]
        found[run] = Figure(
            value=result.value,
            unit=result.unit,
            runs=len(records),
            interval_95=result.interval_95,
            interval_method=result.interval_method,
            gpu_memory_mib=max(max(one) for one in memory) if all(memory) else None,
            warnings=tuple(dict.fromkeys(f"{warning.rule}: {warning.message}" for warning in result.warnings)),
            logs=tuple(str(log) for log in logs),
        )
    return found, missing, read


def table(
    campaign: Campaign,
    *,
    shrink: bool,
    figures: dict[Run, Figure],
    missing: dict[Run, str],
    rows: Sequence[Published],
) -> list[dict[str, Any]]:
    """The report's tables as rows of plain values: ours, published, ratio and interval side by side.

    A cell without a figure of ours says why in `notes`; one that the report leaves empty has `published` None.
    """
    lines = []
    all_cells = cells(campaign, shrink=shrink)
    for cell in all_cells:
        ours = figures.get(cell.run)
        found = {name: published_figure(rows, campaign, cell, name, "throughput") for name in campaign.frameworks}
        published = found[campaign.frameworks[0]]
        interval = ours.interval_95 if ours else None
        line: dict[str, Any] = {
            "table": cell.table.title,
            "nodes": cell.asked.nodes,
            "devices": cell.asked.devices,
            "batch_per_device": cell.asked.batch,
            "precision": cell.asked.precision,
            "strategy": cell.asked.strategy,
            "ours": ours.value if ours else None,
            "unit": ours.unit if ours else published.unit if published else None,
            "interval_95": list(interval) if interval else None,
            "interval_method": ours.interval_method if ours else None,
            "runs": ours.runs if ours else 0,
            "published": {name: row.value if row else None for name, row in found.items()},
            "ratio": ours.value / published.value if ours and published else None,
            "ratio_95": [bound / published.value for bound in interval] if published and interval else None,
        }
        if campaign.speedup_base:
            base = next(
                other
                for other in all_cells
                if other.table == cell.table
                and other.asked.batch == cell.asked.batch
                and (other.asked.nodes, other.asked.devices_per_node) == campaign.speedup_base
            )
            base_figure = figures.get(base.run)
            speedups = {name: published_figure(rows, campaign, cell, name, "speedup") for name in campaign.frameworks}
            line["speedup"] = ours.value / base_figure.value if ours and base_figure else None
            line["speedup_published"] = {name: row.value if row else None for name, row in speedups.items()}
        if campaign.gpu_memory:
            memory = published_figure(rows, campaign, cell, campaign.frameworks[0], "gpu_memory")
            line["gpu_memory_mib"] = ours.gpu_memory_mib if ours else None
            line["gpu_memory_mib_published"] = memory.value if memory else None
        line["ran_as"] = cell.run.name
        line["notes"] = (
            [missing.get(cell.run, "")] if not ours else [f"interval: {ours.interval_method}", *ours.warnings]
        )
        line["logs"] = list(ours.logs) if ours else []
        lines.append(line)
    return lines


def markdown(campaign: Campaign, lines: Sequence[dict[str, Any]], *, shrink: bool, system: str) -> str:
    """The table as aligned Markdown, one section for each table of the report."""
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol}; "ours" was measured here, all else is published.', ""]
    if shrink:
        text += [SHRUNK_NOTE, ""]
    notes: dict[str, list[int]] = {}
    number = 0
    for table in campaign.tables:
        title = table.title
        rows = []
        for line in lines:
            if line["table"] != title:
                continue
            number += 1
            for note in line["notes"]:
                notes.setdefault(note, []).append(number)
            rows.append(_markdown_row(line, number, shrink=shrink))
        unit = next((line["unit"] for line in lines if line["unit"]), "images/s")
        text += [f"## {title} ({unit})", "", *([table.note, ""] if table.note else []), *_aligned(rows), ""]
    if notes:
        text += ["Notes", ""]
        text += [f"- row {', '.join(map(str, numbers))}: {note}" for note, numbers in notes.items()]
        text += [""]
    return "\n".join(text)


def _markdown_row(line: dict[str, Any], number: int, *, shrink: bool) -> dict[str, str]:
    row = {
        "row": str(number),
        "nodes": str(line["nodes"]),
        "GPUs": str(line["devices"]),
        "batch/GPU": str(line["batch_per_device"]),
        **({"ran as": line["ran_as"]} if shrink else {}),
        "ours": _number(line["ours"], "not measured"),
        "95 % interval": _interval(line),
        "runs": str(line["runs"]),
    }
    names = list(line["published"])
    row[names[0]] = _printed(line["published"][names[0]], "not published")
    row["ratio"] = _number(line["ratio"], "-", digits=3)
    if line["ratio_95"]:
        low, high = line["ratio_95"]
        row["ratio"] += f" ({low:.3f} to {high:.3f})"
    if "speedup" in line:
        row["speedup ours"] = _number(line["speedup"], "-")
        for name, value in line["speedup_published"].items():
            row[f"speedup {name}"] = _printed(value, "-")
    if "gpu_memory_mib" in line:
        row["MiB ours"] = _number(line["gpu_memory_mib"], "not measured", digits=0)
        row["MiB published"] = _printed(line["gpu_memory_mib_published"], "-")
    for name in names[1:]:
        row[name] = _printed(line["published"][name], "-")
    return row


def _interval(line: dict[str, Any]) -> str:
    if line["interval_95"]:
        low, high = line["interval_95"]
        return f"{low:.2f} to {high:.2f}"
    return "not measured" if line["ours"] is None else "none"


def _number(value: float | None, absent: str, *, digits: int = 2) -> str:
    return absent if value is None else f"{value:.{digits}f}"


def _printed(value: float | None, absent: str) -> str:
    """A published figure with the digits that it has."""
    return absent if value is None else f"{value:.10g}"


def _aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    names = list(rows[0])
    width = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    head = "| " + " | ".join(name.rjust(width[name]) for name in names) + " |"
    rule = "|" + "|".join("-" * (width[name] + 1) + ":" for name in names) + "|"
    return [head, rule, *("| " + " | ".join(row[n].rjust(width[n]) for n in names) + " |" for row in rows)]


# ------------------------------------------------------------------------------------------------- command


def _describe(jobs: Sequence[Job], campaign: Campaign, *, shrink: bool) -> str:
    """The plan for a reader: each job with its command and time, and whether it is done, would run or is skipped."""
    lines = []
    for job in jobs:
        note = f": {job.reason}" if job.reason else ""
        lines.append(f"{job.state:<5} {job.run.name} trial {job.trial}, about {job.estimate_s:.0f} s{note}")
        if job.state != "done":
            words = [f"{name}={shlex.quote(value)}" for name, value in job.exports.items()]
            lines.append("      " + " ".join([*words, job.command]))
    jobs_of = {state: sum(job.state == state for job in jobs) for state in ("done", "run", "skip")}
    minutes = {state: sum(job.estimate_s for job in jobs if job.state == state) / 60 for state in jobs_of}
    lines.append(
        f"{campaign.name}: {len(jobs)} jobs, {jobs_of['done']} done, {jobs_of['run']} to run in about "
        f"{minutes['run']:.0f} min, {jobs_of['skip']} skipped (about {minutes['skip']:.0f} min where they can run)"
    )
    assumed = (
        f"assumed, {ASSUMED_SHRUNK_RUN_S:.0f} s a run"
        if shrink
        else f"from the published rates and {ASSUMED_START_UP_S:.0f} s a start-up, assumed"
    )
    lines.append(f"The time is that of earlier runs here where there are any, else {assumed}.")
    if shrink:
        lines.append(SHRUNK_NOTE)
    return "\n".join(lines)


def _system(records: Sequence[Record]) -> str:
    """What the runs were done on, by their logs."""
    seen = []
    for record in records:
        for node in record.header.get("hardware", {}).get("nodes", []):
            gpus = node.get("gpus") or []
            first = gpus[0] if gpus else node.get("cpu")
            name = first.get("name") if isinstance(first, dict) else first
            seen.append(f"{len(gpus)} x {name}" if gpus else f"{name}, {node.get('cores')} cores")
    return ", ".join(dict.fromkeys(seen)) or "nothing measured yet"


def main(argv: Sequence[str] | None = None) -> int:
    """`plan` prints the jobs, `table` the report's table. Returns 0, or 2 for wrong use with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m scoring.campaign", description=__doc__)
    parser.add_argument("action", choices=["plan", "table"])
    parser.add_argument("name", help="a campaign of campaigns/")
    parser.add_argument("--results", type=Path, required=True, help="folder of all campaigns' runs and tables")
    parser.add_argument("--shrink", action="store_true", help="the grid tiny on CPU ranks")
    parser.add_argument("--repeats", type=count, help="trials of a run (default: the campaign's; shrunk: 1)")
    parser.add_argument("--variables", default="", help="that a job reads, by spaces; others are not exported")
    parser.add_argument("--runner", default="", help="command of one job, instead of this project's")
    parser.add_argument("--jobs", action="store_true", help="plan: tab-separated run, trial, folder, command, exports")
    parser.add_argument("--campaigns", type=Path, default=CAMPAIGNS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        campaign = read_campaign(args.name, args.campaigns)
        repeats = args.repeats or (1 if args.shrink else campaign.repeats)
        rows = read_published()
        here = machine(frozenset(args.variables.split()))
        jobs = plan(campaign, args.results, here, shrink=args.shrink, rows=rows, repeats=repeats, runner=args.runner)
        if args.action == "table":
            _write_tables(campaign, args.results, jobs, rows, shrink=args.shrink, repeats=repeats)
        elif args.jobs:
            wanted = [job for job in jobs if job.state == "run"]
            if wanted and not args.shrink and not here.system:
                raise InputError("DGXSYSTEM is not set: name the config_<SYSTEM>.sh of a node, e.g. DGXSYSTEM=DGX1")
            for job in wanted:
                exports = " ".join(f"{name}={value}" for name, value in job.exports.items() if name != "LOGDIR")
                print(job.run.name, job.trial, job.folder, job.command, exports, sep="\t")
        else:
            print(_describe(jobs, campaign, shrink=args.shrink))
    except (InputError, OSError) as error:
        print(f"python -m scoring.campaign: {error}", file=sys.stderr)
        return 2
    return 0


def _write_tables(
    campaign: Campaign, results: Path, jobs: Sequence[Job], rows: Sequence[Published], *, shrink: bool, repeats: int
) -> None:
    """The table on stdout, and as NAME.md and NAME.json in `results`."""
    found, missing, read = figures(campaign, jobs, shrink=shrink, repeats=repeats)
    lines = table(campaign, shrink=shrink, figures=found, missing=missing, rows=rows)
    text = markdown(campaign, lines, shrink=shrink, system=_system(read))
    results.mkdir(parents=True, exist_ok=True)
    name = campaign.name + ("-shrunk" if shrink else "")
    (results / f"{name}.md").write_text(text, encoding="utf-8")
    whole = {"campaign": campaign.name, "protocol": campaign.protocol, "shrunk": shrink, "rows": lines}
    (results / f"{name}.json").write_text(json.dumps(jsonable(whole), indent=1), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
