"""Shows runs while they go on, or after: `python -m tools.watch LOGDIR [--once] [--json]`.

Reads the newest log under LOGDIR and the telemetry files beside it; it never writes and knows nothing but them.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runlog import named_files, schema
from runlog.errors import RunError, one_line
from runlog.reader import Problem, read_text
from runlog.run import Run, real
from runlog.text import called, visible

REFRESH_S = 1.0
SILENT_S = 10.0  # a node without a sample for so long is shown as silent
MEAN_OF = 20  # windows of the mean throughput
NEEDED = ("steps", "images", "time_s", "data_wait_s")  # what such a window must say
ENDED = ("finished", "aborted")  # phases of a run
SENSORS = {  # of a GPU, in the table's order
    "utilization_percent": "{} %",
    "memory_mib": "{:.0f} MiB",
    "power_w": "{:.0f} W",
    "sm_clock_mhz": "{} MHz",
    "temperature_c": "{} C",
}


def total_steps(run: Run) -> int | None:
    """Steps of the whole run, as far as its configuration says."""
    setting = run.settings.get
    if setting("MODE") == "throughput":
        warmup, measured = real(setting("WARMUP_STEPS")), real(setting("MEASURED_STEPS"))
        return None if warmup is None or measured is None else int(warmup + measured)
    samples, batch = (real(run.last_value(event)) for event in (schema.TRAIN_SAMPLES, schema.GLOBAL_BATCH_SIZE))
    epochs = real(setting("MAX_EPOCHS") or setting("RECIPE.epochs"))
    return math.ceil(epochs) * int(samples // batch) if samples is not None and batch and epochs is not None else None


def state_of(run: Run) -> dict[str, Any]:
    """Return what is shown. Throughput is images / time over the last windows, as steps of a run differ."""
    windows = [w.metadata | w.value for w in run.windows[-MEAN_OF:] if isinstance(w.value, dict)]
    windows = [w for w in windows if all(real(w.get(name)) is not None for name in NEEDED)]
    last = windows[-1] if windows else {}
    steps, images, time_s, wait_s = (sum(window[name] for window in windows) for name in NEEDED)
    step: Any = last.get("step")
    total, left_s = total_steps(run), None
    if total and real(step) is not None and time_s and steps and run.phase not in ENDED:
        left_s = round((total - step) * time_s / steps, 1)
    reason = run.last_value(schema.ABORT_REASON)
    return {
        "phase": run.phase,
        "reason": None if reason is None else str(reason),
        "epoch": last.get("epoch_num"),
        "step": step,
        "total_steps": total,
        "loss": last.get("loss"),
        "images_per_s": images / time_s if time_s else None,
        "data_wait_share": wait_s / time_s if time_s else None,
        "quality": run.last_value(schema.EVAL_ACCURACY),
        "target": next((v for k, v in run.settings.items() if k.startswith("RECIPE.target")), None),
        "left_s": left_s,
        "rank_times": next((vars(times) for times in reversed(run.rank_times.values())), None),
        "last_event_s": None if run.last_ms is None else run.last_ms / 1000,
        "checkpoint": run.last_value(schema.CHECKPOINT),
        "summary": run.last_value(schema.TELEMETRY_SUMMARY),
    }


class View:
    """The newest run under a folder, followed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log: Path | None = None
        self._run = Run()
        self._known_lines = 0  # of this log that a training run writes
        self._read: dict[Path, int] = {}  # bytes of each file that are read
        self._nodes: dict[Path, dict[str, Any]] = {}  # the last sample of each

    def look(self) -> dict[str, Any]:
        """Reads what is new: the run and the last sample of each node. Raises RunError where there is no log, and
        ValueError where the newest file is none.
        """
        logs = [self._folder] if self._folder.is_file() else list(self._folder.rglob("result_*.txt"))
        if not logs:
            raise RunError(f"{self._folder}: holds no result_*.txt: give the LOGDIR of a job")
        newest = max(logs, key=lambda path: path.stat().st_mtime)
        if self._log != newest:
            self._log, self._run, self._read, self._nodes = newest, Run(), {}, {}
            self._known_lines = 0
        for entry in read_text(self._new(newest)):
            self._known_lines += not isinstance(entry, Problem)
            self._run.take(entry)
        if self._known_lines == 0 and self._read[newest] > 0:
            raise ValueError(f"{newest}: has no line of a training log: give a result_*.txt, or the LOGDIR of a job")
        for path in newest.parent.glob(f"{newest.stem}.node*.telemetry.jsonl"):
            for line in self._new(path).splitlines()[-1:]:
                with contextlib.suppress(ValueError):  # a line cut by a crash; the next one is whole
                    self._nodes[path] = json.loads(line)
        return {"log": str(newest), **state_of(self._run), "nodes": [last for _, last in sorted(self._nodes.items())]}

    def _new(self, path: Path) -> bytes:
        """The whole lines that a file got since the last look; one that is still being written waits for its end."""
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return whole


def _or_dash(value: Any, form: str) -> str:
    return "-" if real(value) is None else form.format(value)


def _plain(text: Any) -> Text:
    """Text of a log, which may hold anything, without what a terminal would obey."""
    return Text(visible(text))


def draw(state: dict[str, Any], now_s: float) -> Group:
    """A state as text."""
    run = Table(show_header=False, box=None, pad_edge=False)
    running = state["phase"] not in ENDED
    silent_s = now_s - (state["last_event_s"] or now_s)
    run.add_row("log", _plain(state["log"]))
    silent = f", nothing new for {silent_s:.0f} s" if running and silent_s > SILENT_S else ""
    run.add_row("state", _plain(f"{state['phase']}{': ' + state['reason'] if state['reason'] else ''}{silent}"))
    step, total, epoch = (_or_dash(state[name], "{}") for name in ("step", "total_steps", "epoch"))
    run.add_row("step", f"{step} of {total}, epoch {epoch}, loss {_or_dash(state['loss'], '{:.4f}')}")
    run.add_row("throughput", _or_dash(state["images_per_s"], "{:.1f} images/s"))
    share = state["data_wait_share"]
    run.add_row("data wait", "-" if share is None else f"{100 * share:.2f} % of the step time")
    if times := state["rank_times"]:
        run.add_row("slowest rank", _plain("; ".join(_slowest(times, kind) for kind in ("compute", "data_wait"))))
    run.add_row("quality", f"{_or_dash(state['quality'], '{:.4f}')} (target {_or_dash(state['target'], '{:.4f}')})")
    if running:
        run.add_row("time left", _or_dash(state["left_s"], "{:.0f} s at most"))
    if isinstance(summary := state["summary"], dict):
        run.add_row("peak GPU memory", _or_dash(summary.get("peak_gpu_memory_mib"), "{:.0f} MiB"))
        run.add_row("energy", _or_dash(summary.get("joules_per_image"), "{:.3f} J an image"))
    return Group(run, "", _nodes_table(state["nodes"], now_s, running))


def _slowest(times: dict[str, Any], kind: str) -> str:
    """The slowest rank of the last window beside the median one."""
    name, most_s = kind.replace("_", " "), times[f"{kind}_most_s"]
    if most_s is None:
        return f"{name} not measured"
    median_s, rank, host = (times[f"{kind}_{field}"] for field in ("median_s", "rank", "host"))
    return f"{name} {most_s:.3f} s (rank {rank} on {host}; median {median_s:.3f} s)"


def _nodes_table(nodes: list[dict[str, Any]], now_s: float, running: bool) -> Table | str:
    if not nodes:
        return "no telemetry"
    table = Table(box=None, pad_edge=False)
    for column in ("node", "CPU", "memory", "GPU", "busy", "memory", "power", "clock", "temperature", "held back by"):
        table.add_column(column, justify="left" if column in ("node", "held back by") else "right")
    for node in nodes:
        age_s = now_s - node["time_s"]
        name = _plain(node["node"] + (f" (silent for {age_s:.0f} s)" if running and age_s > SILENT_S else ""))
        host: tuple[Text | str, ...] = (name, f"{node['cpu_percent']:.0f} %", f"{node['memory_used_gib']:.1f} GiB")
        if not node["gpus"]:
            table.add_row(*host, "none")
        for index, gpu in enumerate(node["gpus"]):
            sensors = (_or_dash(gpu[sensor], form) for sensor, form in SENSORS.items())
            table.add_row(*host, str(index), *sensors, _plain(", ".join(gpu["throttle"])))
            host = ("", "", "")
    return table


@one_line
def main() -> int:
    """Shows the newest run until it ends; 1 if there is none, 2 for wrong use."""
    parser = argparse.ArgumentParser(prog=called("tools.watch"), description=__doc__)
    parser.add_argument("logdir", type=Path, metavar="LOGDIR", help="folder of results, or one log")
    parser.add_argument("--once", action="store_true", help="print one view and end")
    parser.add_argument("--json", action="store_true", help="print one view as JSON and end")
    args = parser.parse_args()
    named_files.check_options(args)
    if not args.logdir.exists():
        raise ValueError(f"{args.logdir}: no such folder or log: give the LOGDIR of a job")
    view = View(args.logdir)
    console = Console(highlight=False)
    try:
        state = view.look()
        if args.json:
            print(json.dumps(state, indent=1))
        elif args.once or not console.is_terminal or state["phase"] in ENDED:
            console.print(draw(state, time.time()))
        else:
            with Live(draw(state, time.time()), console=console, auto_refresh=False) as live:
                while state["phase"] not in ENDED:
                    time.sleep(REFRESH_S)
                    state = view.look()
                    live.update(draw(state, time.time()), refresh=True)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise RunError(f"{error.filename}: {error.strerror}") from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
