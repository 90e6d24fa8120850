"""Shows runs while they go on, or after: `python -m tools.watch LOGDIR [--once] [--json]`.

Reads the newest log under LOGDIR and the telemetry files next to it; it never writes and knows nothing but them.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from runlog import named_files, schema
from runlog.completion import complete
from runlog.errors import drop_output, one_line, print_to_reader
from runlog.json_types import JsonObject
from runlog.options import Parser, refuse_empty_words
from runlog.reader import Problem, read_text
from runlog.run import Run, real, setting_of_epochs
from runlog.strict_json import parse_json
from runlog.text import called, visible

REFRESH_S = 1.0
SILENT_S = 10.0  # a node without a sample for so long is shown as silent
MEAN_OF = 20  # windows of the mean throughput
NEEDED = ("steps", "images", "time_s", "data_wait_s")  # what such a window must say
ENDED = ("finished", "aborted")  # phases of a run
ANY_WIDTH = 10_000  # columns of a terminal that is wide enough for any table
SENSORS = {  # {a GPU's sensor: how its value is shown}, in the table's order
    "utilization_percent": "{} %",
    "memory_mib": "{:.0f} MiB",
    "power_w": "{:.0f} W",
    "sm_clock_mhz": "{} MHz",
    "temperature_c": "{} C",
}


def total_steps(run: Run) -> int | None:
    """Return how many steps a run has planned, by its configuration; None if the log does not say.

    For a training run these are the steps of all its epochs. It may reach its target and end earlier. In a throughput
    run they are the warm-up and the measured steps.

    Args:
        run: What the log has said so far.
    """
    if run.settings.get("MODE") == "throughput":
        return _steps_of_throughput_run(run)
    samples = real(run.last_value(schema.TRAIN_SAMPLES))
    batch = real(run.last_value(schema.GLOBAL_BATCH_SIZE))
    epochs = real(run.settings.get(setting_of_epochs(run.settings)))
    if samples is None or not batch or epochs is None:
        return None
    steps_of_epoch = int(samples // batch)  # samples that do not fill a batch are not trained on
    return math.ceil(epochs) * steps_of_epoch


def _steps_of_throughput_run(run: Run) -> int | None:
    """Return the number of warm-up and measured steps of a throughput run; None if the log does not say them.

    Args:
        run: What the log has said so far.
    """
    warmup = real(run.settings.get("WARMUP_STEPS"))
    measured = real(run.settings.get("MEASURED_STEPS"))
    if warmup is None or measured is None:
        return None
    return int(warmup + measured)


def last_windows(run: Run) -> list[JsonObject]:
    """Return the last MEAN_OF windows of steps, each as one dictionary of its event's metadata and value.

    A window is some consecutive steps that were logged as one event. It is left out if a field of NEEDED has no number,
    as a log may hold anything.

    Args:
        run: What the log has said so far.

    Returns:
        Dictionaries with at least "steps", "images", "time_s" and "data_wait_s", the latest window last.
    """
    windows = []
    for event in run.windows[-MEAN_OF:]:
        if not isinstance(event.value, dict):
            continue
        fields = event.metadata | event.value
        if all(real(fields.get(name)) is not None for name in NEEDED):
            windows.append(fields)
    return windows


@dataclass(kw_only=True)
class Sums:
    """Sums over windows."""

    steps: float = 0
    images: float = 0
    time_s: float = 0
    data_wait_s: float = 0


def summed(windows: list[JsonObject]) -> Sums:
    """Return the sums of the windows' steps, images, times and waits for data.

    Args:
        windows: Windows as `last_windows` returns them. Without any, all sums are 0.
    """
    sums = Sums()
    for window in windows:
        sums.steps += window["steps"]
        sums.images += window["images"]
        sums.time_s += window["time_s"]
        sums.data_wait_s += window["data_wait_s"]
    return sums


def target_of(run: Run) -> Any:
    """Return the quality at which the run ends, by its recipe; None if the recipe has no target.

    Args:
        run: What the log has said so far. A setting whose name begins with "RECIPE.target" has the quality.
    """
    for name, value in run.settings.items():
        if name.startswith("RECIPE.target"):  # the rest of the name depends on the workload
            return value
    return None


def _left_s(run: Run, step: Any, total: int | None, sums: Sums) -> float | None:
    """Estimate how many seconds a run still takes to its last planned step; it may reach its target earlier.

    Args:
        run: What the log has said so far.
        step: Number of the last step; anything that the log holds there.
        total: Number of all planned steps; None if it is unknown.
        sums: Sums over the last windows, which give the mean time of a step.

    Returns:
        Seconds; None if the run has ended, or a number is not known.
    """
    if run.phase in ENDED:
        return None
    step_number = real(step)
    if not total or step_number is None:
        return None
    if not sums.time_s or not sums.steps:  # no window has ended yet
        return None
    step_s = sums.time_s / sums.steps
    return round((total - step_number) * step_s, 1)


def state_of(run: Run) -> JsonObject:
    """Return what is shown of a run, for JSON: its phase, step, loss, throughput, quality and more.

    The throughput and the share of waiting for data are means over the last MEAN_OF windows of steps.

    Args:
        run: What the log has said so far.

    Returns:
        Values by name, such as "phase" and "images_per_s". What the log does not say is None.
    """
    windows = last_windows(run)
    last_window: JsonObject = windows[-1] if windows else {}
    total = total_steps(run)
    sums = summed(windows)
    images_per_s = None
    data_wait_share = None
    if sums.time_s:  # 0: no window has ended yet
        images_per_s = sums.images / sums.time_s
        data_wait_share = sums.data_wait_s / sums.time_s
    reason = run.last_value(schema.ABORT_REASON)
    rank_times = list(run.rank_times.values())  # in the order in which they were logged
    return {
        "phase": run.phase,
        "reason": None if reason is None else str(reason),
        "epoch": last_window.get("epoch_num"),
        "step": last_window.get("step"),
        "total_steps": total,
        "loss": last_window.get("loss"),
        "images_per_s": images_per_s,
        "data_wait_share": data_wait_share,
        "quality": run.last_value(schema.EVAL_ACCURACY),
        "target": target_of(run),
        "left_s": _left_s(run, last_window.get("step"), total, sums),
        "rank_times": rank_times[-1]._asdict() if rank_times else None,
        "last_event_s": None if run.last_ms is None else run.last_ms / 1000,
        "checkpoint": run.last_value(schema.CHECKPOINT),
        "summary": run.last_value(schema.TELEMETRY_SUMMARY),
    }


class View:
    """Shows the newest run under a folder: each call of `look` reads only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._followed: FollowedLog | None = None

    def look(self) -> JsonObject:
        """Read what is new in the newest log and in its nodes' telemetry, and return the state of the run.

        The newest log is the one that was written to last. If that is another one than before, it is read from its
        beginning.

        Returns:
            The state for JSON, as `FollowedLog.look` returns it.

        Raises:
            ValueError: There is no log, or the newest file is not a training log.
            OSError: A file cannot be read.
        """
        newest = self._newest()
        if self._followed is None or self._followed.log != newest:
            self._followed = FollowedLog(newest)
        return self._followed.look()

    def _newest(self) -> Path:
        """Return the log below the folder that was written to last, or the one file that the user named instead.

        Raises:
            ValueError: There is no log below the folder.
        """
        if self._folder.is_file():  # the user named one log instead of a folder
            return self._folder
        logs = list(self._folder.rglob("result_*.txt"))
        if not logs:
            raise ValueError(f"{self._folder}: holds no result_*.txt: give the LOGDIR of a job")
        return max(logs, key=lambda path: path.stat().st_mtime)


class FollowedLog:
    """One log and the telemetry of its nodes; each call of `look` reads only what is new in them."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._run = Run()  # what the log has stated so far
        self._is_training_log = False  # whether any of its lines so far is one of a training log
        self._bytes_read: dict[Path, int] = {}  # of the log and of each telemetry file
        self._last_samples: dict[Path, JsonObject] = {}  # the last sample of each node, by its telemetry file

    def look(self) -> JsonObject:
        """Read what is new in the log and in its nodes' telemetry, and return the state of the run so far.

        Returns:
            The state for JSON: what `state_of` returns, with "log" (its path), "is_empty" (no complete line is there
            yet) and "nodes" (the last sample of each node).

        Raises:
            ValueError: The log has complete lines, but none of a training log.
            OSError: A file cannot be read.
        """
        self._read_log()
        has_lines = self._bytes_read[self.log] > 0  # only complete lines are read
        if has_lines and not self._is_training_log:
            raise ValueError(f"{self.log}: has no line of a training log: give a result_*.txt, or the LOGDIR of a job")
        nodes = self._look_at_nodes()
        return {"log": str(self.log), "is_empty": not has_lines, **state_of(self._run), "nodes": nodes}

    def _read_log(self) -> None:
        """Add the events, header sections and damaged events of the log's new lines to the run."""
        for entry in read_text(self._new_lines(self.log)):
            self._run.take(entry)
            is_damaged = isinstance(entry, Problem)
            if not is_damaged:  # text of any kind may look like a damaged event, so that does not count
                self._is_training_log = True

    def _look_at_nodes(self) -> list[JsonObject]:
        """Read what is new in the telemetry of the nodes, and return the last sample of each node.

        Returns:
            Samples in the order of the telemetry files' names; a node without a sound sample so far is left out. A
            sample is one measurement of a node and its GPUs, as `_sample_of` describes it.
        """
        for path in self.log.parent.glob(f"{self.log.stem}.node*.telemetry.jsonl"):
            new_lines = self._new_lines(path).splitlines()
            if not new_lines:
                continue
            sample = _sample_of(new_lines[-1])
            if sample is not None:  # else the line is damaged, and the sample before it stays
                self._last_samples[path] = sample
        return [self._last_samples[path] for path in sorted(self._last_samples)]

    def _new_lines(self, path: Path) -> bytes:
        """Return the complete lines that a file got since the last call for this file.

        A line without its line feed is still being written, and is left for the next call.

        Args:
            path: The log or a telemetry file. At the first call it is read from its beginning.

        Raises:
            UnusableError: The path leads to a pipe, a socket or a device.
            OSError: The file cannot be read.
        """
        named_files.refuse_unusable(path)
        already_read = self._bytes_read.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(already_read)
                data = file.read()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error  # that of a broken disk names no file
        complete_lines = data[: data.rfind(b"\n") + 1]
        self._bytes_read[path] = already_read + len(complete_lines)
        return complete_lines


def _sample_of(line: bytes) -> JsonObject | None:
    """Return the sample in a line of a node's telemetry, which is one measurement of the node and its GPUs.

    Args:
        line: The line, which should be a JSON object.

    Returns:
        {"node": its name, "time_s": ..., "cpu_percent": ..., "gpus": [...], ...}. All but the name may be absent, as
        where another version of this project trains. None if the line is damaged or names no node.
    """
    try:
        sample = parse_json(line.decode(errors="replace"))
    except ValueError:
        return None
    names_node = isinstance(sample, dict) and isinstance(sample.get("node"), str)
    return sample if names_node else None


def _gpus_of(sample: JsonObject) -> list[JsonObject]:
    """Return what a node's sample says of each of its GPUs; an empty list on a node without GPUs.

    Args:
        sample: The sample, as `_sample_of` returns it.
    """
    gpus = sample.get("gpus")
    if not isinstance(gpus, list):
        return []
    return [gpu for gpu in gpus if isinstance(gpu, dict)]


def _or_dash(value: Any, template: str) -> str:
    """Return a number as text by a template; "-" if the value is not a number.

    Args:
        value: Anything that a log may hold; None: unknown.
        template: A template of `str.format`, such as "{:.1f} W".
    """
    if real(value) is None:
        return "-"
    return template.format(value)


def _plain(text: Any) -> Text:
    """Return a log's text for the terminal, with control characters escaped: a log may hold anything."""
    return Text(visible(text))


def draw(state: JsonObject, now_s: float) -> Group:
    """Return what the terminal shows of a run: a table of the run, and one of its nodes.

    What is not known is a dash. A running job that has written nothing for more than SILENT_S seconds is marked, and so
    is such a node.

    Args:
        state: The state of the run, as `View.look` returned it.
        now_s: The current Unix time in seconds.
    """
    is_running = state["phase"] not in ENDED
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")  # in a narrow terminal a long path goes on in the next line
    table.add_row("log", _plain(state["log"]))
    table.add_row("state", _plain(_phase(state, now_s, is_running)))
    step = _or_dash(state["step"], "{}")
    total_steps = _or_dash(state["total_steps"], "{}")
    epoch = _or_dash(state["epoch"], "{}")
    loss = _or_dash(state["loss"], "{:.4f}")
    table.add_row("step", f"{step} of {total_steps}, epoch {epoch}, loss {loss}")
    table.add_row("throughput", _or_dash(state["images_per_s"], "{:.1f} images/s"))
    share = state["data_wait_share"]
    table.add_row("data wait", "-" if share is None else f"{100 * share:.2f} % of the step time")
    rank_times = state["rank_times"]
    if rank_times:
        slowest = [_slowest(rank_times, kind) for kind in ("compute", "data_wait")]
        table.add_row("slowest rank", _plain("; ".join(slowest)))
    quality = _or_dash(state["quality"], "{:.4f}")
    target = _or_dash(state["target"], "{:.4f}")
    table.add_row("quality", f"{quality} (target {target})")
    if is_running:
        table.add_row("time left", _or_dash(state["left_s"], "{:.0f} s at most"))
    summary = state["summary"]
    if isinstance(summary, dict):
        table.add_row("peak GPU memory", _or_dash(summary.get("peak_gpu_memory_mib"), "{:.0f} MiB"))
        table.add_row("energy", _or_dash(summary.get("joules_per_image"), "{:.3f} J an image"))
    return Group(table, "", _nodes_table(state["nodes"], now_s, is_running))


def _phase(state: JsonObject, now_s: float, is_running: bool) -> str:
    """Return the phase of a run in words, such as "training, nothing new for 42 s" or "aborted: out of memory".

    Args:
        state: The state of the run, as `View.look` returned it.
        now_s: The current Unix time in seconds.
        is_running: Whether the run has neither finished nor aborted. Only then is its silence mentioned.
    """
    if state["is_empty"]:
        return "nothing is written yet"
    words = str(state["phase"])
    if state["reason"]:
        words += f": {state['reason']}"
    last_event_s = state["last_event_s"]
    if is_running and last_event_s:  # None: the log has no event with a time
        silent_s = now_s - last_event_s
        if silent_s > SILENT_S:
            words += f", nothing new for {silent_s:.0f} s"
    return words


def _slowest(rank_times: JsonObject, kind: str) -> str:
    """Return in words which rank was slowest in the last window of steps, and the median rank's time.

    An example is "compute 0.412 s (rank 3 on n1; median 0.398 s)".

    Args:
        rank_times: The times of the ranks in that window. Its fields are named KIND_most_s, KIND_rank, KIND_host and
            KIND_median_s.
        kind: "compute" or "data_wait".

    Returns:
        The words; "compute not measured" if the log has no time.
    """
    name = kind.replace("_", " ")
    most_s = rank_times[f"{kind}_most_s"]
    if most_s is None:
        return f"{name} not measured"
    rank = rank_times[f"{kind}_rank"]
    host = rank_times[f"{kind}_host"]
    median = _or_dash(rank_times[f"{kind}_median_s"], "{:.3f} s")
    return f"{name} {most_s:.3f} s (rank {rank} on {host}; median {median})"


def _nodes_table(nodes: list[JsonObject], now_s: float, is_running: bool) -> RenderableType:
    """Return what the terminal shows of the nodes' last samples; "no telemetry" if there are no samples.

    A node whose last sample is older than SILENT_S seconds while the run goes on is marked as silent.

    Args:
        nodes: The last sample of each node, as `_sample_of` returns it.
        now_s: The current Unix time in seconds.
        is_running: Whether the run has neither finished nor aborted.
    """
    if not nodes:
        return "no telemetry"
    names = []
    for node in nodes:
        name = node["node"]
        sampled_s = real(node.get("time_s"))
        if is_running and sampled_s is not None and now_s - sampled_s > SILENT_S:
            name += f" (silent for {now_s - sampled_s:.0f} s)"
        names.append(visible(name))
    return NodesView(names, nodes)


class NodesView:
    """Last samples of nodes as a table, a row for each GPU; as lines of words in a terminal narrower than the table."""

    def __init__(self, names: list[str], samples: list[JsonObject]) -> None:
        """Keep what is shown.

        Args:
            names: Name of each node as shown, perhaps with a mark such as "(silent for 42 s)".
            samples: The last sample of each node, as `_sample_of` returns it.
        """
        self._names = names
        self._samples = samples

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table if the terminal is wide enough for it, else the lines; rich calls this.

        Args:
            console: The terminal.
            options: How rich draws on it, with the width in columns.
        """
        table = self._table()
        needed = Measurement.get(console, options.update(max_width=ANY_WIDTH), table).maximum
        if needed <= options.max_width:
            yield table
        else:
            yield from self._lines()

    def _table(self) -> Table:
        """Return the table: a row for each GPU, and one for a node without GPUs.

        The cells of the node itself stand in the row of its first GPU only. If no node has a GPU, the table has no
        columns of GPUs.
        """
        columns = ["node", "CPU", "memory"]
        if any(_gpus_of(sample) for sample in self._samples):
            columns += ["GPU", "busy", "memory", "power", "clock", "temperature", "held back by"]
        table = Table(box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, justify="left" if column in ("node", "held back by") else "right")
        for name, sample in zip(self._names, self._samples, strict=True):
            host_cells: list[Text | str] = [Text(name), *_host_cells(sample)]
            gpus = _gpus_of(sample)
            if not gpus:
                table.add_row(*host_cells)
            for index, gpu in enumerate(gpus):
                table.add_row(*host_cells, str(index), *_sensor_cells(gpu), _held_back_by(gpu))
                host_cells = ["", "", ""]  # for the rows of the node's other GPUs
        return table

    def _lines(self) -> Iterator[Text]:
        """Yield a line for each node, and one for each of its GPUs."""
        for name, sample in zip(self._names, self._samples, strict=True):
            cpu, memory = _host_cells(sample)
            yield Text(f"{name}: CPU {cpu}, memory {memory}")
            for index, gpu in enumerate(_gpus_of(sample)):
                line = Text(f"  GPU {index}: {', '.join(_sensor_cells(gpu))}")
                held_back_by = _held_back_by(gpu)
                if held_back_by:
                    line.append(", held back by ").append(held_back_by)
                yield line


def _host_cells(sample: JsonObject) -> tuple[str, str]:
    """Return the use of a node's CPU and of its memory as text, such as ("12 %", "31.0 GiB"); "-" if not known."""
    return _or_dash(sample.get("cpu_percent"), "{:.0f} %"), _or_dash(sample.get("memory_used_gib"), "{:.1f} GiB")


def _sensor_cells(gpu: JsonObject) -> list[str]:
    """Return what the SENSORS of a GPU say as text, such as "287 W"; "-" for what is not known."""
    return [_or_dash(gpu.get(sensor), template) for sensor, template in SENSORS.items()]


def _held_back_by(gpu: JsonObject) -> Text:
    """Return why a GPU runs at a lower clock; empty if it does not, "-" if that is not known."""
    reasons = gpu.get("throttle")
    if not isinstance(reasons, list):
        return _plain("-")
    return _plain(", ".join(map(str, reasons)))


def _parse() -> argparse.Namespace:
    """Return the options of the command line.

    Raises:
        UnusableError: An option names a pipe, a socket or a device.
    """
    parser = Parser(prog=called("tools.watch"), description=__doc__)
    parser.add_argument("logdir", type=Path, metavar="LOGDIR", help="folder of results, or one log")
    parser.add_argument("--once", action="store_true", help="print one view and end")
    parser.add_argument("--json", action="store_true", help="print one view as JSON and end")
    complete(parser)
    refuse_empty_words(parser, sys.argv[1:])
    args = parser.parse_args()
    named_files.check_options(args)
    return args


def _show(args: argparse.Namespace, view: View, console: Console) -> None:
    """Print the run once, as JSON or as tables; on a terminal draw its tables again until the run ends.

    Args:
        args: Options of the command line. `json` and `once` ask for one view; without them, output that is not a
            terminal gets only one, too.
        view: The view of the newest run, which reads the files.
        console: Where the tables are printed.

    Raises:
        ValueError: There is no log, or the newest file is not a training log.
        OSError: A file cannot be read.
        RunError: The view cannot be written.
    """
    state = view.look()
    goes_on = state["phase"] not in ENDED
    if args.json:
        print_to_reader(json.dumps(state, indent=1))
    elif args.once or not console.is_terminal or not goes_on:
        with console.capture() as printed:  # rich would end the process with status 1 where `| head` has gone
            console.print(draw(state, time.time()))
        print_to_reader(printed.get(), end="")
    else:
        with Live(draw(state, time.time()), console=console, auto_refresh=False) as live:
            while state["phase"] not in ENDED:
                time.sleep(REFRESH_S)
                state = view.look()
                live.update(draw(state, time.time()), refresh=True)


@one_line
def main() -> int:
    """Print a view of the newest run of a folder; on a terminal draw the view again every second until the run ends.

    With --once or --json, the view is printed only once, also on a terminal.

    Returns:
        0, also after Ctrl-C or when the reader of a pipe has gone.

    Raises:
        ValueError: There is no run, the folder or a file cannot be read or is a pipe, a socket or a device, or the
            terminal that shows the view is gone.
        RunError: The view cannot be written, as on a full disk.
    """
    args = _parse()
    view = View(args.logdir)
    console = Console(highlight=False)
    try:
        if not args.logdir.exists():
            raise ValueError(f"{args.logdir}: no such folder or log: give the LOGDIR of a job")
        if args.logdir.is_dir():
            _raise_unless_readable(args.logdir)  # the search for logs would find nothing
        _show(args, view, console)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        is_of_output = error.filename is None  # an error of a file has its name
        if is_of_output:
            drop_output()  # what is still to be printed, or Python would report the error again at its end
        raise ValueError(named_files.explain(error)) from error
    return 0


def _raise_unless_readable(folder: Path) -> None:
    """Raise OSError, such as PermissionError, if a folder cannot be listed."""
    os.listdir(folder)  # noqa: PTH208


if __name__ == "__main__":
    sys.exit(main())
