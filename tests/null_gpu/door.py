"""Starts jobs on null GPUs by the user's command, and reads what their processes asked of the GPU."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import nvidia_smi
from tests import jobs
from tests.null_gpu import cases
from tests.null_gpu.cases import Case

RUN = Path(__file__).with_name("run.sh")
NODE = Path("/sys/devices/system/node/node0/cpulist")  # cores of this machine's first NUMA node
BLOCKING = ", blocking"
FEW: dict[str, Any] = {  # a job of two steps an epoch: the first reads no loss, the second does
    **{"DGXSYSTEM": "DGXA100", "RANK_NUMA": "", "DEVICE": "gpu", "SEED": "7", "CLEAR_CACHES": "0", "PROGRESS": "plain"},
    **{"PRINT_STEPS": "2", "WARMUP_STEPS": "2", "MEASURED_STEPS": "2", "TELEMETRY_S": "0"},
    **{"HANG_TIMEOUT_S": "900", "THREADS": "1", "DATA_THREADS": "1"},  # several jobs share the machine
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One run of the executor, with what followed it up to the next."""

    program: int  # in order of their first runs
    fed: tuple[str, ...]
    counts: Counter[tuple[str, str]]  # calls by kind and name
    events: list[list[str]]  # fields of each line of the trace, in order

    def of(self, kind: str) -> Counter[str]:
        """Calls of one kind by name."""
        return Counter({name: n for (of, name), n in self.counts.items() if of == kind})

    def work(self, library: str) -> Counter[tuple[str, ...]]:
        """Calls that compute, of "cudnn" or "cublas": name and what they work on, without sizes."""
        lines = (event[1:3] for event in self.events if event[0] == library and len(event) > 2)
        return Counter((name, *about.split()[:2]) for name, about in lines)

    @property
    def collectives(self) -> list[tuple[str, ...]]:
        """Name, elements, type, communicator, stream and place of each of NCCL's, in order."""
        return [tuple(event[1:]) for event in self.events if event[0] == "nccl" and len(event) > 2]


@dataclass(kw_only=True)
class Process:
    """What one rank did."""

    rank: int = 0
    ranks: int = 1
    steps: list[Step] = field(default_factory=list)
    peak_bytes: int = 0  # of the device's memory that Paddle's allocator took
    communicators: int = 0  # of NCCL that it opened
    refused: int = 0  # allocations for which there was no room
    devices: set[int] = field(default_factory=set)  # of whose memory it took some
    cores: set[int] = field(default_factory=set)  # that it may run on
    computes_on: set[str] = field(default_factory=set)  # streams of cuDNN's calls

    @property
    def training(self) -> list[Step]:
        """Runs of the training program, the warm-up's first."""
        return [step for step in self.steps if "image" in step.fed and "valid" not in step.fed]

    @property
    def replayed(self) -> list[Step]:
        """Steps of a captured graph, each up to the next run."""
        return [step for step in self.steps if step.fed == ("captured",)]

    @property
    def evaluation(self) -> list[Step]:
        """Runs of the evaluation program, the warm-up's first."""
        return [step for step in self.steps if "valid" in step.fed]


def _sections(path: Path) -> list[tuple[str, list[list[str]]]]:
    """Labels of the marks of a file, each with the lines from it to the next one."""
    found: list[tuple[str, list[list[str]]]] = []
    for fields in (line.split("\t") for line in path.read_text().splitlines()):
        if fields[0] == "mark":
            found.append((fields[1], []))
        elif found:
            found[-1][1].append(fields)
    return found


def read(folder: Path) -> list[Process]:
    """The processes that used a null GPU and left their counts in `folder`, by rank."""
    found = []
    for path in folder.glob("counts.*"):
        process, sums = Process(), []
        for _, lines in _sections(path):  # sums up to the mark
            sums.append(Counter({(f[1], f[2]): int(f[3]) for f in lines if f[0] == "count"}))
            process.peak_bytes = max([process.peak_bytes, *(int(f[4]) for f in lines if f[1].startswith("device"))])
        events = _sections(path.with_name(path.name.replace("counts", "trace")))
        for label, lines in events:
            process.devices |= {int(line[1].split()[1]) for line in lines if line[0] == "alloc"}
            process.computes_on |= {line[1] for line in lines if line[0] == "computes"}
            if label.startswith("cores "):
                process.cores = nvidia_smi.cpu_list(label.removeprefix("cores "))
        starts = [n for n, (label, _) in enumerate(events) if label.startswith("run ")]
        ends = [*starts[1:], len(events) - 1] if starts else []  # a job that was refused ran nothing
        for start, end in zip(starts, ends, strict=True):
            _, number, *fed = events[start][0].split(" ")
            counts = Counter({key: n - sums[start][key] for key, n in sums[end].items() if n > sums[start][key]})
            lines = [line for _, section in events[start:end] for line in section]
            names = tuple(name for name in fed[0].split(",") if name) if fed else ()
            process.steps.append(Step(program=int(number), fed=names, counts=counts, events=lines))
            for line in lines:
                if line[0] == "communicator":
                    process.communicators += 1
                    process.rank, process.ranks = int(line[2].split()[1]), int(line[2].split()[3])
        process.refused = sums[-1]["alloc", "device, refused"] if sums else 0
        if process.steps:
            found.append(process)
    return sorted(found, key=lambda process: process.rank)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that has ended."""

    done: subprocess.CompletedProcess[str]
    log: Path
    ranks: list[Process]

    @property
    def error(self) -> str:
        """Its one line `error: ...`; empty where there is none."""
        lines = [line for line in self.done.stderr.splitlines() if line.startswith("error: ")]
        return lines[0].removeprefix("error: ") if lines else ""

    @property
    def program(self) -> dict[str, Any]:
        """What the log's header says of the training program."""
        header = next(line for line in self.log.read_text().splitlines() if line.startswith('# {"program": '))
        return dict(json.loads(header[2:])["program"])

    @property
    def explained(self) -> str:
        """What it said, for a failed assertion."""
        messages = self.log.with_suffix(".stderr")
        said = messages.read_text()[-3000:] if messages.exists() else ""
        return f"{self.done.stdout[-1000:]}\n{self.done.stderr[-1000:]}\n{said}"


def start(folder: Path, *before: str, timeout_s: float = 1200, trial: str = "result_0", **variables: str) -> Job:
    """./run_and_time.sh with `variables` on null GPUs, to its end; logs and counts are in `folder`.

    `before` is a command that runs it.
    """
    counts = folder / f"{trial}.counts"
    counts.mkdir(parents=True)
    settings: dict[str, Any] = {**FEW, "LOGDIR": str(folder / "logs"), "NULLGPU_OUT": str(counts), **variables}
    done = jobs.run([*before, str(RUN), "./run_and_time.sh"], timeout_s=timeout_s, **settings)
    log = folder / "logs" / settings["DGXSYSTEM"] / settings.get("WORKLOAD", "rn50") / f"{trial}.txt"
    return Job(done=done, log=log, ranks=read(counts))


def trained_twice(case: Case, folder: Path, **variables: Any) -> list[Job]:
    """A training, and its resumption in the middle; both have ended as they must."""
    end = f"evaluation is 0.0000 after {case.epochs} epochs, below the target"  # nothing is computed
    first = start(folder, **variables)
    assert first.error.startswith(end), first.explained
    (checkpoint,) = (first.log.parent / "result_0.checkpoints").iterdir()
    assert checkpoint.name == f"step_{cases.STEPS * (case.epochs - 1):09d}.safetensors"
    again = start(folder, trial="result_0.resumed_1", RESUME="auto", **variables)
    assert again.error.startswith(end), again.explained
    return [first, again]


def report(folder: Path) -> str:
    """Each rank's peak of memory and what its runs of the executor asked for, for people."""
    lines = []
    for process in read(folder):
        peak = f"{process.peak_bytes / 2**20:.0f} MiB peak, {process.refused} allocations refused"
        lines.append(f"rank {process.rank} of {process.ranks}: {peak}")
        for number, step in enumerate(process.steps):
            lines.append(f"  run {number} of program {step.program}, fed {', '.join(step.fed) or 'nothing'}")
            shown = {**step.of("copy"), **step.of("sync"), **step.of("nccl work"), **step.of("cudnn work")}
            lines += [f"    {n:6d} {name}" for name, n in sorted(shown.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(Path(sys.argv[1])))
