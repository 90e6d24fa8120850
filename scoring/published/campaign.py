"""Campaigns: a published report's figures as runs here, which of them are missing, and ours beside the report's.

`launch/campaign.sh` is the door: it asks `plan` for the missing jobs, runs each as one call of `run_and_time.sh`, and
ends with `table`. What is done is read from the logs alone, so a campaign can be stopped at any time.
"""

import argparse
import collections
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from runlog.text import safe_lines
from scoring.figure import protocols
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, score
from scoring.importers import count, jsonable, read_record
from scoring.published.table import Figure, Published, read_published, select
from scoring.record import InputError, Record, TooFewRunsError

REPOSITORY = Path(__file__).resolve().parents[2]
CAMPAIGNS = REPOSITORY / "campaigns"
# Paddle 2.6.2's automatic strategy takes sharding of degree 8 without data parallelism and asserts that many ranks.
AUTO_RANKS = 8
LEAST_CAPABILITY = {"tf32": 8.0, "amp_o1": 7.0, "amp_o2": 7.0}  # compute capability, by precision
START_UP_S, SHRUNK_RUN_S = 60.0, 15.0  # assumed: before the first step, and of a whole shrunk run

# A shrunk run shows that every cell of the grid goes through the whole chain; its figures say nothing else.
SHRUNK_RANKS = SHRUNK_BATCH = 2
SHRUNK_EXPORTS = (
    "DGXSYSTEM=CPU DEVICE=cpu DATA=synthetic IMAGE_SIZE=32 PRINT_STEPS=1 WARMUP_STEPS=1 MEASURED_STEPS=3 CLEAR_CACHES=0"
)
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
    strategy: str | None

    @property
    def devices_per_node(self) -> int:
        return self.devices // self.nodes

    @property
    def name(self) -> str:
        """Folder of its trials, as the reports name their logs: `2n8g_b128_fp32`."""
        strategy = f"_{self.strategy}" if self.strategy else ""
        return f"{self.nodes}n{self.devices_per_node}g_b{self.batch_per_device}_{self.precision}{strategy}"


def run_of(figure: Published, *, shrink: bool) -> Run:
    """The run that a published figure asks for, or the tiny one that stands for it."""
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
    """The campaign `name`, from `<folder>/<name>.yaml`; with `shrink` each cell has its tiny run on CPU ranks.

    Raises InputError for an unknown name, and for a file that is not a campaign, with what and where.
    """
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise InputError(f"no campaign {name!r} in {folder}: choose one of {', '.join(known)}")
    path = folder / f"{name}.yaml"
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        protocol = protocols.find(raw.pop("protocol"))
        environment = {key: str(value) for key, value in raw.pop("environment").items()}
        # A run's own warm-up is what the protocol drops, so the score drops nothing after it.
        of_a_skip = int(environment["PRINT_STEPS"]) if protocol.skip_unit == "window" else 1
        environment["WARMUP_STEPS"] = str(protocol.skip * of_a_skip)
        if shrink:
            environment |= dict(export.split("=") for export in SHRUNK_EXPORTS.split())
            protocol = replace(protocol, skip=1, take_steps=protocol.take_steps and 3, runs=1)  # as those exports say
        published = select(read_published(), table=name)
        ours = raw["frameworks"][0]
        cells = [row for row in select(published, metric="throughput") if row.framework.startswith(ours)]
        if not cells:
            raise ValueError(f"published.csv has no throughput of {ours}")
        return Campaign(
            name=name,
            protocol=replace(protocol, runs=repeats, by_benchmark=False) if repeats else protocol,
            environment=environment,
            cells=cells,
            published=published,
            shrunk=shrink,
            **raw,
        )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"{path}: not a campaign ({text}); see docs/campaigns.md for its fields") from error


def _nvidia_smi(field: str) -> list[str]:
    """One value a GPU; none where there is no driver or it does not know the field."""
    if not shutil.which("nvidia-smi"):
        return []
    asked = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def why_not(run: Run, gpus: Sequence[str], capabilities: Sequence[str], hosts: Sequence[str], *, shrink: bool) -> str:
    """Why this machine, of GPUs by their names and compute capabilities, cannot do `run`; empty where it can."""
    if shrink:
        no_kernels = "strategy auto: Paddle's automatic mode computes in FP16, for which a CPU has no kernels"
        return no_kernels if run.strategy == "auto" else ""
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
    """What the job of `run` exports beside its LOGDIR; all else (DATADIR, ...) is the user's environment.

    A run of N nodes takes the config of `N x DGXSYSTEM` where there is one.
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
    if (system := os.environ.get("DGXSYSTEM")) and not campaign.shrunk:
        one_node = re.sub(r"^\d+x", "", system)
        several = f"{run.nodes}x{one_node}"
        exports["DGXSYSTEM"] = several if (REPOSITORY / f"config_{several}.sh").is_file() else one_node
    return exports | ({"STRATEGY": run.strategy} if run.strategy else {})


def command(run: Run, hosts: Sequence[str]) -> str:
    """What does one job of `run`: this node's job, or the launcher over the first hosts; CONT names an image."""
    in_container = bool(os.environ.get("CONT"))
    if run.nodes == 1:
        return "launch/container_node.sh" if in_container else "./run_and_time.sh"
    named = ",".join(hosts[: run.nodes]) or "HOSTS"
    return f"launch/mpirun.sh --hosts {named}{'' if in_container else ' --no-container'}"


def plan(campaign: Campaign, results: Path, *, runner: str = "") -> list[Job]:
    """The jobs of a campaign in the order of its tables; cells that share a run have its job once.

    Each campaign has its own folder in `results`; shrunk ones are the same jobs in all campaigns of a workload.
    """
    folder = results / (f"shrunk_{campaign.workload}" if campaign.shrunk else campaign.name)
    gpus, capabilities = _nvidia_smi("name"), _nvidia_smi("compute_cap")  # a driver before 510 does not know the second
    hosts = re.findall(r"[^,\s]+", os.environ.get("HOSTS", ""))  # launch/campaign.sh makes it of a HOSTFILE
    jobs: dict[Run, Job] = {}
    for figure in campaign.cells:
        if (run := run_of(figure, shrink=campaign.shrunk)) in jobs:
            continue
        exports = environment(campaign, run)
        found = {n: result(folder / run.name / f"trial_{n}", exports) for n in range(1, campaign.protocol.runs + 1)}
        jobs[run] = Job(
            figure=figure,
            run=run,
            folder=folder / run.name,
            done=[one for one in found.values() if isinstance(one, Record)],
            missing={n: one for n, one in found.items() if isinstance(one, str)},
            skipped=why_not(run, gpus, capabilities, hosts, shrink=campaign.shrunk),
            exports=exports,
            command=runner or command(run, hosts),
        )
    return list(jobs.values())


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


def plan_lines(campaign: Campaign, jobs: Sequence[Job]) -> Iterator[str]:
    """The plan for a reader: a line for each run with its published figure, below it what is wrong with its logs."""
    trials, seconds = collections.Counter[str](), 0.0
    for job in jobs:
        state = "done" if not job.missing else "skip" if job.skipped else "run"
        each_s, source = assumed(campaign, job)
        trials["done"] += len(job.done)
        trials[state] += len(job.missing)
        seconds += each_s * len(job.missing) * (state == "run")
        done = f"{len(job.done)} done, {len(job.missing)} missing"
        yield f"{state:<4} {job.run.name}: {done}, about {each_s:.0f} s each by {source}"
        yield from (f"     trial {trial}: {wrong}" for trial, wrong in job.missing.items() if wrong)
        if state == "skip":
            yield f"     {job.skipped}"
        if state == "run":
            exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in job.exports.items())
            yield f"     {exports} LOGDIR={job.folder}/trial_N {job.command}"
    yield (
        f"{campaign.name}: {trials.total()} jobs, {trials['done']} done, {trials['skip']} skipped, {trials['run']} to "
        f"run in about {seconds / 60:.0f} min: assumed, by the published rates and a start-up"
    )
    yield from [SHRUNK_NOTE] * campaign.shrunk


def assumed(campaign: Campaign, job: Job) -> tuple[float, str]:
    """Seconds that one trial takes, by a start-up and the published rate, and where that is from."""
    if campaign.shrunk:
        return SHRUNK_RUN_S, "assumption"
    of, run = job.figure, job.run
    steps = int(job.exports["WARMUP_STEPS"]) + int(job.exports["MEASURED_STEPS"])
    shape = f"batch {run.batch_per_device} x {run.devices} {of.accelerator}"
    seconds = START_UP_S + steps * run.batch_per_device * run.devices / of.value
    return seconds, f"{of.printed} {of.unit} of {shape} ({of.source})"


def figure_of(job: Job, protocol: Protocol) -> Score | str:
    """The figure of a run, or why it has none."""
    if not job.done:
        return f"skipped: {job.skipped}" if job.skipped else next(filter(None, job.missing.values()), "not run yet")
    try:
        return score(job.done, protocol)
    except (InputError, TooFewRunsError) as error:
        return getattr(error, "partial", None) or str(error)


def published_figures(campaign: Campaign, cell: Published, metric: str) -> dict[str, Figure | None]:
    """The published figure of a cell by framework; None where the report has none."""
    same = ("accelerator", "nodes", "devices", "batch_per_device", "strategy")
    rows = select(campaign.published, metric=metric, **{name: getattr(cell, name) for name in same})
    amp_or_not = (cell.precision or "")[:3]  # reports say AMP where they mean O1, O2 or do not know which
    rows = [row for row in rows if (row.precision or "")[:3] == amp_or_not]
    return {n: next((row.value for row in rows if row.framework.startswith(n)), None) for n in campaign.frameworks}


def table(campaign: Campaign, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The report's tables as rows of plain values: ours, published, ratio and interval side by side.

    A cell without a figure of ours says why in `notes`; a framework without a published one has None.
    """
    found = {job.run: figure_of(job, campaign.protocol) for job in jobs}
    lines = []
    units = {row.metric: row.unit for row in campaign.published}
    values: dict[Run, float | None] = {}
    for cell in campaign.cells:
        asked, run = (run_of(cell, shrink=shrink) for shrink in (False, campaign.shrunk))
        ours = found[run]
        value, unit, interval, method = (
            getattr(ours, name, None) for name in ("value", "unit", "interval_95", "interval_method")
        )
        records: Sequence[Record] = getattr(ours, "records", ())
        warned = dict.fromkeys(f"{warning.check}: {warning.found}" for warning in getattr(ours, "warnings", ()))
        values[asked] = value
        line: dict[str, Any] = {
            "table": " ".join(filter(None, (cell.accelerator, asked.precision, asked.strategy))),
            **vars(asked),
            "ours": value,
            "unit": unit or units["throughput"],
            "interval_95": interval,
            "interval_method": method,
            "runs": len(records),
            "published": published_figures(campaign, cell, "throughput"),
            "ratio": value / cell.value if value else None,
            "ratio_95": [bound / cell.value for bound in interval] if interval else None,
        }
        if "speedup" in units:
            base = values.get(replace(asked, nodes=1, devices=1))
            line["speedup"] = value / base if value and base else None
            line["speedup_published"] = published_figures(campaign, cell, "speedup")
        if "gpu_memory" in units:
            line["gpu_memory_mib"] = _memory_mib(records)
            line["gpu_memory_mib_published"] = published_figures(campaign, cell, "gpu_memory")[campaign.frameworks[0]]
        line |= {"ran_as": run.name, "notes": [f"interval: {method}", *warned] if records else [str(ours)]}
        lines.append(line | {"logs": [record.file for record in records]})
    return lines


def _memory_mib(records: Sequence[Record]) -> float | None:
    """The most that any run took; None where one does not say."""
    of_runs = [[w.gpu_memory_mib for w in record.windows if w.gpu_memory_mib is not None] for record in records]
    return max(map(max, of_runs)) if of_runs and all(of_runs) else None


def markdown(campaign: Campaign, lines: Sequence[dict[str, Any]], *, system: str) -> str:
    """The tables as aligned Markdown, a section each; notes are numbered."""
    text = [f"# {campaign.name}: {system}", ""]
    text += [f'Protocol {campaign.protocol.name}; "ours" was measured here, all else is published.', ""]
    text += [*[SHRUNK_NOTE, ""] * campaign.shrunk, *[campaign.note, ""] * bool(campaign.note)]
    notes = list(dict.fromkeys(note for line in lines for note in line["notes"]))
    for title in dict.fromkeys(line["table"] for line in lines):
        rows = [_row(line, notes) for line in lines if line["table"] == title]
        text += [f"## {title} ({lines[0]['unit']})", "", *_aligned(rows), ""]
    text += ["Notes", "", *(f"- [{number}]: {note}" for number, note in enumerate(notes, 1)), ""]
    return "\n".join(text)


UNSHOWN = ("table", "precision", "strategy", "unit", "interval_method", "logs")  # what a table's head and notes say


def _row(line: dict[str, Any], notes: Sequence[str]) -> dict[str, str]:
    """A cell's figures by the heads of their columns."""
    row = {}
    for name, value in line.items():
        if name == "notes":
            row[name] = " ".join(f"[{notes.index(note) + 1}]" for note in value)
        elif isinstance(value, dict):
            row |= {f"{name} {framework}": _shown(figure, "not published") for framework, figure in value.items()}
        elif name not in UNSHOWN:
            row[name] = _shown(value, "not measured" if name == "ours" else "-")
    return row


def _shown(value: float | str | Sequence[float] | None, nothing: str = "-") -> str:
    """A figure, a published one as printed, both ends of an interval, or the word for none."""
    if value is None or isinstance(value, str):
        return value or nothing
    if isinstance(value, int | float):
        return getattr(value, "printed", "") or f"{value:.6g}"
    return " to ".join(map(_shown, value))


def _aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    head, rule = {name: name for name in widths}, {name: "-" * (size - 1) + ":" for name, size in widths.items()}
    cells = ([row[name].rjust(size) for name, size in widths.items()] for row in (head, rule, *rows))
    return [f"| {' | '.join(row)} |" for row in cells]


def main(argv: Sequence[str] | None = None) -> int:
    """`plan` prints the jobs, `table` the report's table. Returns 0, or 2 for wrong use with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m scoring.published.campaign", description=__doc__)
    parser.add_argument("action", choices=["plan", "table"])
    parser.add_argument("name", help="a campaign of campaigns/")
    parser.add_argument("--results", type=Path, required=True, help="folder of all campaigns' runs and tables")
    parser.add_argument("--shrink", action="store_true", help="the grid tiny on CPU ranks")
    parser.add_argument("--repeats", type=count, help="trials of a run (default: the protocol's; shrunk: 1)")
    parser.add_argument("--runner", default="", help="command of one job, instead of this project's")
    parser.add_argument("--jobs", action="store_true", help="plan: tab-separated run, trial, folder, command, exports")
    args = parser.parse_args(argv)
    try:
        campaign = read_campaign(args.name, shrink=args.shrink, repeats=args.repeats)
        jobs = plan(campaign, args.results, runner=args.runner)
        if args.action == "table":
            lines = table(campaign, jobs)
            systems = sorted({record.machine for job in jobs for record in job.done if record.machine})
            text = markdown(campaign, lines, system=", ".join(systems) or "nothing measured yet")
            args.results.mkdir(parents=True, exist_ok=True)
            name = args.results / (campaign.name + "-shrunk" * campaign.shrunk)
            name.with_suffix(".md").write_text(text, encoding="utf-8")
            about = {"campaign": campaign.name, "protocol": campaign.protocol.name, "shrunk": campaign.shrunk}
            name.with_suffix(".json").write_text(
                json.dumps(jsonable(about | {"rows": lines}), indent=1), encoding="utf-8"
            )
            print(text)
        elif not args.jobs:
            print("\n".join(plan_lines(campaign, jobs)))
        else:
            wanted = [(job, trial) for job in jobs for trial in job.missing if not job.skipped]
            if wanted and not args.shrink and not os.environ.get("DGXSYSTEM"):
                raise InputError("DGXSYSTEM is not set: name the config_<SYSTEM>.sh of a node, e.g. DGXSYSTEM=DGX1")
            for job, trial in wanted:
                exports = " ".join(f"{name}={value}" for name, value in job.exports.items())
                print(job.run.name, trial, job.folder / f"trial_{trial}", job.command, exports, sep="\t")
    except (InputError, OSError) as error:
        print(safe_lines([f"python -m scoring.published.campaign: {error}"]), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
