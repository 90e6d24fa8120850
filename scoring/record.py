"""The record that an importer makes of any log. What the log does not state is None, never a default."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runlog.json_types import JsonObject
from runlog.run import real
from runlog.schema import RankTimes

MIN_ALIKE_ROWS = 3  # fewer rows may be alike in two runs
# Fields of a record that say what ran, in the order in which they are shown.
FACTS = ("framework", "model", "devices", "nodes", "batch_per_device", "precision", "math_mode")


class InputError(ValueError):
    """A user's mistake: its text says what is wrong, where, and what to do. Commands exit 2 on it."""


class TooFewRunsError(Exception):
    """Fewer runs than the protocol asks for, or too few that converged. Commands exit 1 on it.

    `partial` is the score of the runs that are there, or None if the protocol cannot score so few.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class NoRunError(InputError):
    """A file has no line of a known format, or no row of training figures and no start of a run."""


class NothingMeasuredError(InputError):
    """Nothing of a run is left after its warm-up. For a finished run resumed near its end, that is not a mistake."""


@dataclass(kw_only=True, slots=True)  # not frozen: that makes a row take four times as long
class Window:
    """The steps between two printed rows, or an epoch. It has times rather than rates if the log prints times."""

    line: int  # 1-based line of the source file
    step: int | None = None  # last step of the window, as printed
    epoch: int | None = None  # as printed
    steps: int | None = None  # steps of the window
    images: float | None = None  # of all devices; None if the batch or the devices are unknown
    seconds: float | None = None  # wall time of the window
    data_wait_s: float | None = None  # the part of `seconds` that rank 0 waited for input
    printed_rate: float | None = None  # images/s as the log prints it; scope: Record.rate_scope
    printed_step_time_s: float | None = None  # mean step time as the log prints it
    end_s: float | None = None  # time stamp of the row, seconds since any fixed origin
    phase: str | None = None  # "train", "warmup" or "measured", if the log says
    loss: float | None = None  # may be NaN
    gpu_memory_mib: float | None = None
    power_w: float | None = None
    rank_times: RankTimes | None = None  # how far the ranks' own times lie apart

    @property
    def images_per_s(self) -> float | None:
        """Global throughput of the window: images / seconds; None if one of them is not known."""
        return self.images / self.seconds if self.images is not None and self.seconds else None

    @property
    def step_s(self) -> float | None:
        """Step time in seconds: seconds / steps, or else as printed, or None."""
        return self.seconds / self.steps if self.seconds is not None and self.steps else self.printed_step_time_s


class TimeSpan(NamedTuple):
    """The time between two moments. Both are in seconds, with the origin of the log's other stamps."""

    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """The length of the span."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """One evaluation result, with the log's own name for it (`eval_accuracy`, `val.top1`, `mIoU`)."""

    line: int
    name: str
    value: float
    epoch: int | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """The comparison of two or more ways in which a log states the same thing."""

    what: str  # what is compared: devices, batch, or a name from importers/checks.py
    ways: tuple[str, ...]  # in words, one for each way: its lines and what they state
    agree: bool
    refused: bool = False  # the ways differ so much that the log supports no figure of speed
    one_sided: bool = False  # one of the ways is missing or cannot be read, so nothing was compared

    @classmethod
    def not_compared(cls, what: str, ways: tuple[str, ...]) -> "Check":
        """Return a check that says that nothing was compared, because one of its sides cannot be read.

        Args:
            what: Name of the check, such as "images".
            ways: Each side in words, with its lines in the log.
        """
        return cls(what=what, ways=ways, agree=False, one_sided=True)

    def __str__(self) -> str:
        return f"{self.what}: {'; '.join(self.ways)}"


class NodeKind(NamedTuple):
    """A kind of node that a run used."""

    gpus: int  # their number; 0: the run was on the CPU
    name: str  # of the GPUs, or of the CPU


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run as its log describes it."""

    file: str
    sha256: str  # of the whole text, unpacked
    lines: int  # lines of the file
    segment: tuple[int, int] | None = None  # first and last line of this run, if the file holds more than one
    format: str  # the importer's name
    framework: str | None = None  # with its version, if the log has it
    model: str | None = None
    benchmark: str | None = None  # as an MLPerf log names it (submission_benchmark)
    devices: int | None = None
    nodes: int | None = None
    platform: str | None = None  # the system as an MLPerf log names it
    accelerator: str | None = None  # the devices' name as a system description has it
    # The system description that said devices and nodes, and batch_per_device unless the log's own value remains.
    described_by: str | None = None
    batch_per_device: int | None = None
    batch_of_all: int | None = None  # images of one step over all devices, if the log states that
    train_samples: int | None = None  # images of an epoch, if an MLPerf log states that
    eval_samples: int | None = None  # of an evaluation, if an MLPerf log states that
    seed: int | None = None  # of the run, if an MLPerf log states that
    division: str | None = None  # closed or open, as an MLPerf log names it
    precision: str | None = None  # fp32, amp_o1, amp_o2, fp16, amp (level unsaid)
    software: dict[str, str] = field(default_factory=dict)  # versions that the log prints
    math_mode: str | None = None  # fp32 or tf32: what FP32 matrix products really use
    rate_scope: str | None = None  # "device" or "global": whose images/s the log prints
    first_step: int = 1  # the number that this format prints for the first step
    cumulative: bool = False  # printed rates are running averages, not of one window
    summary_rate: float | None = None  # images/s as the log's own closing line has it; scope: rate_scope
    mode: str | None = None  # "train" or "throughput" (our own logs)
    windows: tuple[Window, ...] = ()
    epochs: tuple[Window, ...] = ()  # the summary of each, if the log prints one; evaluation excluded
    quality: tuple[Quality, ...] = ()
    evaluations: tuple[TimeSpan, ...] = ()  # when the model was evaluated, if an MLPerf log states that
    run_start_s: float | None = None  # stamps share one origin
    run_stop_s: float | None = None
    telemetry: JsonObject = field(default_factory=dict)  # `telemetry_summary` of our own logs
    status: str | None = None  # "success" or "aborted", if the log says
    truncated: bool | None = None  # None: this format has no end by which to tell
    # Line on which each of framework, model, devices, ..., run_start_s, run_stop_s, telemetry, status was read.
    field_lines: dict[str, int] = field(default_factory=dict)
    from_options: tuple[str, ...] = ()  # fields that the command line gave, not the log
    problems: tuple[str, ...] = ()  # what in the text could not be read, with its line
    checks: tuple[Check, ...] = ()  # what it says in two ways, and whether they agree
    header: JsonObject = field(default_factory=dict)  # header sections of our own logs

    def is_of_same_run(self, other: "Record") -> bool:
        """Return whether two logs are of one training run, even if one of them is cut or has further lines.

        The first of these cases that applies decides:

        - Both logs are the same lines of the same text: they are of one run.
        - Both state when their run started: they are of one run if they agree in that time and in the time stamp of
          their first row of training figures.
        - Otherwise they are of one run if the longer log begins with all rows of the shorter one. These must be at
          least 3 (MIN_ALIKE_ROWS), and must not all print the same figures.

        Args:
            other: What the other log says.
        """
        is_same_text = self.sha256 == other.sha256
        if is_same_text and self.segment == other.segment:  # the segment: first and last line of the run in its file
            return True
        if self.run_start_s is None or other.run_start_s is None:
            return _begin_alike(self.windows, other.windows)
        return self.run_start_s == other.run_start_s and self._first_end_s == other._first_end_s

    @property
    def _first_end_s(self) -> float | None:
        """The time stamp of the first row; None without one."""
        return self.windows[0].end_s if self.windows else None

    def is_continuation_of(self, earlier: "Record") -> bool:
        """Return whether this log is the next part of the training run whose previous part is another log.

        A log may be rotated: the program then writes the rest of its run to a new file.

        Args:
            earlier: What the other log says.
        """
        if not self.windows or not earlier.windows or self.format != earlier.format:
            return False
        first_row = self.windows[0]
        last_of_earlier = earlier.windows[-1]
        if self.format == "keras":
            # A row of this format shows the step at which it begins. The rule for other formats compares the lengths of
            # rows, and could be misled by a short row, or by a log of one row.
            step_before = _step_before(first_row)
            if step_before is None or last_of_earlier.step is None:
                return False
            # A row between the two is left out if an evaluation is in it.
            return 0 <= step_before - last_of_earlier.step <= (first_row.steps or 0)

        earlier_has_end = earlier.run_stop_s is not None
        if earlier_has_end or not self._lacks_beginning(last_of_earlier):
            return False
        # If the earlier log has a row every 10 steps, the last at step 60, this one may begin with the row of step 70,
        # but not with that of step 80.
        return _comes_right_after(earlier.windows, first_row, self.first_step)

    def _lacks_beginning(self, last_of_earlier: Window) -> bool:
        """Return whether this log begins in the middle of a run, so that it may be the next part of an earlier log.

        An MLPerf log does so if the event run_start is missing. Any other log does so if one of these holds:

        - The first row of training figures does not show how many steps it covers. Many programs show this only by the
          distance from the row before, which is not in this log.
        - Rows before the first row are missing.
        - The first row is of a later epoch than the last row of the earlier log. A new run would begin at the first
          epoch again.

        Args:
            last_of_earlier: Last row of the earlier log.
        """
        if self.format == "mllog":
            return self.run_start_s is None
        first = self.windows[0]
        hides_its_steps = first.steps is None
        is_of_later_epoch = _epochs_between(last_of_earlier, first) > 0
        return hides_its_steps or self._lacks_rows_before_first() or is_of_later_epoch

    def _lacks_rows_before_first(self) -> bool:
        """Return whether rows are missing that the program printed before the first row of this log.

        A log that begins with the rows of steps 70 and 80 lacks the rows of steps 10 to 60: its rows are of 10 steps,
        and 70 steps were done up to the first one.

        Returns:
            False also if the log has fewer than two rows, or does not show these numbers of steps.
        """
        if len(self.windows) < 2:
            return False
        first, second = self.windows[:2]
        if first.step is None or second.steps is None:
            return False
        # Since the start of the run, or of the epoch if the program counts steps anew in each. It counts from
        # `first_step`, 0 or 1.
        steps_up_to_first_row = first.step - self.first_step + 1
        most_steps_of_first_row = second.steps  # in a log from the beginning
        return steps_up_to_first_row > most_steps_of_first_row

    def resumes_run_of(self, earlier: "Record") -> bool:
        """Return whether the run of this log went on from a checkpoint of another log's run. Both logs are ours.

        It did if all of these hold:

        - This log says that its run was resumed.
        - Both runs have the same seed: a resumed run keeps the seed of the run that wrote its checkpoint.
        - The other run did not end with success, and it started earlier.

        Args:
            earlier: What the other log says.
        """
        if not self.is_resumed or self.seed is None or self.seed != earlier.seed or earlier.status == "success":
            return False
        if self.run_start_s is None or earlier.run_start_s is None:
            return False
        return earlier.run_start_s < self.run_start_s

    @property
    def run_span(self) -> TimeSpan | None:
        """The time from run_start to run_stop; None if one of them is not known."""
        if self.run_start_s is None or self.run_stop_s is None:
            return None
        return TimeSpan(self.run_start_s, self.run_stop_s)

    @property
    def run_time_s(self) -> float | None:
        """The seconds from run_start to run_stop; None if one of them is not known."""
        span = self.run_span
        return None if span is None else span.seconds

    @property
    def is_resumed(self) -> bool:
        """Whether a log of ours says that its run went on from a checkpoint, which another log leads up to."""
        return section(self, "run_summary").get("resumed") is True

    @property
    def time_to_train_s(self) -> float | None:
        """The seconds from run_start to run_stop; None if one is not known, or if the run was resumed.

        The log of a resumed run lacks the time before its checkpoint, and the time until it went on.
        """
        return None if self.is_resumed else self.run_time_s

    @property
    def global_batch(self) -> int | None:
        """Images of one step over all devices, or None if the log does not state enough."""
        if self.devices is None or self.batch_per_device is None:
            return self.batch_of_all
        return self.devices * self.batch_per_device

    @property
    def framework_name(self) -> str:
        """The framework without its version. If the log does not state a framework, the format."""
        return (self.framework or self.format).rsplit(" ", 1)[0]

    @property
    def data(self) -> str | None:
        """The images of a run of this project, as `1437 images of 64 x 64` or `synthetic images of 224 x 224`.

        The name of a data set is left out, because it is that of its folder. None if the log does not state the rest.
        """
        dataset = section(self, "dataset")
        height = image_side(self, "height")
        width = image_side(self, "width")
        samples = dataset.get("train_samples")
        is_synthetic = dataset.get("synthetic")
        is_stated = type(samples) is int and isinstance(is_synthetic, bool)
        if not height or not width or not is_stated:
            return None
        which = "synthetic" if is_synthetic else str(samples)
        return f"{which} images of {width} x {height}"

    @property
    def machine(self) -> str | None:
        """The GPUs of each kind of node, such as `8 x A100`, or its CPU, from our own logs; else the platform."""
        nodes = sorted(f"{node.gpus} x {node.name}" if node.gpus else node.name for node in self._kinds_of_nodes())
        return ", ".join(nodes) or self.platform

    @property
    def device_kinds(self) -> str | None:
        """The models of the devices without their numbers, so that it is the same for one device and for eight.

        If the header does not describe nodes, this is the accelerator, or else the platform.
        """
        names = {node.name for node in self._kinds_of_nodes()}
        return ", ".join(sorted(names)) or self.accelerator or self.platform

    def _kinds_of_nodes(self) -> set[NodeKind]:
        """Return the kinds of nodes that the header of the log describes, such as nodes of 8 A100.

        All GPUs of a node are taken to be of the model of its first GPU. A node with neither GPUs nor a CPU is left
        out.

        Returns:
            The kinds. The set is empty for logs of other programs than this project's.
        """
        kinds = set()
        for node in nodes_of(self):
            gpus = node.get("gpus")
            if isinstance(gpus, list) and gpus:
                first_gpu = gpus[0]
                name = first_gpu.get("name") if isinstance(first_gpu, dict) else first_gpu
                kinds.add(NodeKind(gpus=len(gpus), name=str(name)))
            elif node.get("cpu"):
                cores = f", {node['cores']} cores" if node.get("cores") is not None else ""
                kinds.add(NodeKind(gpus=0, name=f"{node['cpu']}{cores}"))
        return kinds


def _begin_alike(one: Sequence[Window], other: Sequence[Window]) -> bool:
    """Return whether the longer of two logs begins with all rows of the shorter one.

    Args:
        one: Rows of training figures of one log.
        other: Rows of training figures of the other log.

    Returns:
        False also if one log has fewer than 3 (MIN_ALIKE_ROWS) rows. False also if all compared rows print the same
        figures. In both cases the rows may agree by chance.
    """
    if min(len(one), len(other)) < MIN_ALIKE_ROWS:
        return False
    different_figures = set()
    for row, other_row in zip(one, other, strict=False):  # up to the end of the shorter log
        if not _are_alike(row, other_row):
            return False
        different_figures.add(_figures_of(row))
    return len(different_figures) > 1


def _are_alike(one: Window, other: Window) -> bool:
    """Return whether two rows print the same epoch and step, and either one exact time stamp or the same figures.

    An exact stamp has a fraction of a second. Rows of two runs do not share one, and so it shows that two rows are of
    one run although one log prints their figures with fewer digits. Otherwise the same figures are the same rate, step
    time and loss; and the time stamps must not differ.

    Args:
        one: One row.
        other: The other row. If one of the two lacks a time stamp, the stamps count as the same.
    """
    if (one.epoch, one.step) != (other.epoch, other.step):
        return False
    if one.end_s is not None and other.end_s is not None:
        if one.end_s != other.end_s:
            return False
        is_exact_stamp = not one.end_s.is_integer()
        if is_exact_stamp:
            return True
    return _figures_of(one) == _figures_of(other)


class _Figures(NamedTuple):
    """The figures that a row prints of its steps; None for what it does not print."""

    rate: float | None
    step_time_s: float | None
    loss: str  # a text, in which NaN is equal to NaN


def _figures_of(row: Window) -> _Figures:
    """Return the figures that a row prints."""
    return _Figures(rate=row.printed_rate, step_time_s=row.printed_step_time_s, loss=str(row.loss))


def _step_before(row: Window) -> int | None:
    """Return the step after which a row begins, such as 100 for `between steps 100 and 200`.

    Args:
        row: The row of training figures.

    Returns:
        The step, or None if the last step or the number of steps of the row is not known.
    """
    if row.step is None or row.steps is None:
        return None
    return row.step - row.steps


def _comes_right_after(rows_before: Sequence[Window], row: Window, first_step: int) -> bool:
    """Return whether a printed row can come right after other rows of a training run, with no row missing between them.

    After rows of 10 steps, the last at step 90 of epoch 3, with `first_step` 1:

        epoch 3, step 90   -> False: 0 steps after the last row
        epoch 3, step 95   -> True: 5 steps after the last row
        epoch 3, step 110  -> False: 20 steps after the last row
        epoch 4, step 100  -> True: 10 steps after the last row
        epoch 4, step 10   -> True: steps are counted anew, and it is 10 steps after the start of the epoch
        epoch 4, step 0    -> True: counted anew, 0 steps after the start; OneFlow prints a row there
        epoch 5, step 10   -> False: neither the same epoch nor the next

    Args:
        rows_before: The rows before, at least one.
        row: The row in question.
        first_step: The number that the program gives to a first step: 0 or 1.
    """
    last = rows_before[-1]
    epochs_later = _epochs_between(last, row)
    if epochs_later not in (0, 1):
        return False
    if row.step is None:  # then the epoch alone decides
        return True
    if last.step is None:
        return False

    steps_of_longest_row = max(before.steps or 0 for before in rows_before)
    # Some programs count the steps of each epoch, others those of the whole run, which would have gone on.
    is_counted_anew = epochs_later == 1 and row.step <= last.step
    if is_counted_anew:
        # From the first step of the epoch to this one, both included: 10 at step 10 if the first one is step 1.
        steps_of_new_epoch = row.step - first_step + 1
        return steps_of_new_epoch <= steps_of_longest_row
    steps_since_last_row = row.step - last.step
    return 0 < steps_since_last_row <= steps_of_longest_row


def _epochs_between(before: Window, row: Window) -> int:
    """Return by how many epochs a row is later than the row before.

    Args:
        before: The row before. A row that prints no epoch counts as one of epoch 0.
        row: The later row.
    """
    return (row.epoch or 0) - (before.epoch or 0)


def config_of(record: Record) -> dict[str, JsonObject]:
    """Return the settings of a run of this project by their names, each with its value and its origin.

    Args:
        record: What the log of the run says. For other programs' logs the result is empty.
    """
    return {str(name): entry for name, entry in section(record, "config").items() if isinstance(entry, dict)}


def image_side(record: Record, side: str) -> int:
    """Return the height or the width of the training images in pixels, as the run was configured.

    Args:
        record: The run as read from its log. Only a log of this project has a configuration.
        side: "height" or "width".

    Returns:
        The pixels; 0 if the configuration has no size.
    """
    config = config_of(record)
    side_of_square = real(config.get("RECIPE.image_size", {}).get("value"))
    if side_of_square:
        return int(side_of_square)
    this_side = real(config.get(f"RECIPE.image_{side}", {}).get("value"))
    return int(this_side or 0)


def recipe_target(record: Record) -> float | None:
    """Return the quality, such as the accuracy, to which a run of this project trains by its recipe.

    Args:
        record: What the log says.

    Returns:
        The target, or None if the log does not state it.
    """
    for name, entry in config_of(record).items():
        if name.startswith("RECIPE.target_"):
            target = real(entry.get("value"))
            if target is not None:
                return target
    return None


def section(record: Record, name: str) -> JsonObject:
    """Return a section of the header that logs of this project begin with, such as the settings of the run.

    Args:
        record: What the log says.
        name: Name of the section, such as "config".

    Returns:
        The section, or an empty dictionary if it is missing or not a dictionary.
    """
    return _table_in(record.header, name)


def nodes_of(record: Record) -> list[JsonObject]:
    """Return the nodes that the header of a log describes, each with its GPUs or its CPU.

    Args:
        record: What the log says. For other programs' logs the result is empty.
    """
    return nodes_of_header(record.header)


def nodes_of_header(header: JsonObject) -> list[JsonObject]:
    """Return the nodes that the header of a log describes.

    Args:
        header: The header. Its section "hardware" has them as the list "nodes".

    Returns:
        A dictionary for each node, with its GPUs or its CPU. The list is empty if there are none.
    """
    nodes = _table_in(header, "hardware").get("nodes")
    if not isinstance(nodes, list):
        return []
    return [node for node in nodes if isinstance(node, dict)]


def _table_in(header: JsonObject, name: str) -> JsonObject:
    """Return one section of a log's header.

    Args:
        header: The header.
        name: Name of the section, such as "config".

    Returns:
        The section, or an empty dictionary if it is missing or not a dictionary.
    """
    table = header.get(name)
    return table if isinstance(table, dict) else {}
