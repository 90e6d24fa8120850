"""The contents of a log of ours, each event and header section once: key, type, unit and meaning.

A log opens with lines `# {"<section>": ...}` of JSON, goes on with MLLOG lines of rank 0 (ruleset 4.0.0) and holds
lines for people between them. `python -m runlog schema` prints this file as JSON Schema (`json_schema.py`).

What a table holds is said by its section or its event, further down. A field is `Annotated[type, unit, meaning]`; its
name is the key in the log. A field that is None is written as null: it was not measured. A field with a default is
left out where it is None; one that joins a table later has a default, so that the logs before it still fit. `images`
count those of all ranks. Durations are by the monotonic clock.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from runlog.json_types import JsonObject

V = TypeVar("V")
Table = JsonObject
Texts = dict[str, str]
HALF_PRECISIONS = ("amp_o1", "amp_o2")  # those of `run_summary` that compute in half precision


@dataclass(frozen=True)
class Section(Generic[V]):
    """A line of the header. `value` is its type: a named tuple, or a table of values of one type."""

    name: str
    value: Any
    meaning: str


@dataclass(frozen=True)
class Point(Generic[V]):
    """An event at a point in time. `value` is its type, `metadata` a named tuple with what stands beside it."""

    key: str
    value: type[V]
    meaning: str
    _: KW_ONLY
    unit: str = ""
    least: int | None = None  # a lower value is wrong
    metadata: type | None = None
    event_type = "POINT_IN_TIME"


@dataclass(frozen=True)
class Mark:
    """Start or end of an interval; it has no value."""

    key: str
    meaning: str
    metadata: type | None = None

    @property
    def event_type(self) -> str:
        return "INTERVAL_START" if self.key.endswith("_start") else "INTERVAL_END"


# ---- header sections


class Format(NamedTuple):
    """The form of the log, which a reader looks at first."""

    format: Annotated[str, "", "name of the form"] = "paddle-reference-log"
    version: Annotated[int, "", "1 until a reader of it could be misled"] = 1


class Source(NamedTuple):
    """The code that ran."""

    commit: Annotated[str | None, "", "of the checkout or the image"]
    dirty: Annotated[bool | None, "", "whether the tree differs from its commit"]
    lock_sha256: Annotated[str, "", "SHA-256 of locks/run.lock"]
    image_digest: Annotated[str | None, "", "of the container image"]


class Setting(NamedTuple):
    """A setting of the job, and who set it."""

    value: Annotated[Any, "", "as resolved"]
    origin: Annotated[str, "", "environment, or the file that set it"]


class Gpu(NamedTuple):
    """A GPU that CUDA shows the job; null is what its driver does not say."""

    name: Annotated[str | None, "", "as the driver says it"]
    memory_gib: Annotated[float | None, "GiB", "memory"]
    driver: Annotated[str | None, "", "version of the driver"]


class Topology(NamedTuple):
    """The matrix of `nvidia-smi topo -m`."""

    devices: Annotated[list[str], "", "GPU0, GPU1, ..., then network devices"]
    links: Annotated[list[list[str]], "", "[row][column]: X, NV#, PIX, PXB, PHB, NODE or SYS"]
    cores: Annotated[dict[str, str], "", "of a GPU: the CPU cores next to it"]


class Node(NamedTuple):
    """A machine of the run, as the job sees it."""

    host: Annotated[str, "", "name of the host"]
    cpu: Annotated[str, "", "model of the processor"]
    cores: Annotated[int, "", "that the job may use"]
    memory_gib: Annotated[float, "GiB", "memory of the host"]
    kernel: Annotated[str, "", "release of the kernel"]
    gpus: Annotated[list[Gpu], "", "in CUDA's order"]
    topology: Annotated[Topology | None, "", "how the GPUs are linked"]


class Hardware(NamedTuple):
    """The machines of the run, and what computes on them."""

    nodes: Annotated[list[Node], "", "one for each host"]
    device: Annotated[str, "", "gpu or cpu: what trains"]
    math_mode: Annotated[str, "", "arithmetic of the multiplications, as PRECISION names it"]


class Passport(NamedTuple):
    """Which bytes a part of a data set holds; it says nothing of what they show."""

    files: Annotated[int, "", "files, or records of packed images"]
    bytes: Annotated[int, "bytes", "sum of their sizes, labels in files of their own not counted"]
    sha256: Annotated[str, "", "of the sorted lines of name, size and label of all"]
    is_exact: Annotated[bool, "", "whether the sizes are those of the encoded images, not of records with more in them"]


# What may hold the images for training, and whether its passport `is_exact`.
FORMS = {"files": True, "recordio": True, "tfrecord": False}


class Dataset(NamedTuple):
    """The data set of the run: its name, sizes and bytes."""

    name: Annotated[str, "", "folder, or name of the embedded set"]
    train_samples: Annotated[int, "images", "of an epoch"]
    eval_samples: Annotated[int, "images", "of an evaluation"]
    synthetic: Annotated[bool, "", "whether one made-up batch stands for all"]
    form: Annotated[str | None, "", f"what holds the images for training: {', '.join(FORMS)}"] = None
    train: Annotated[Passport | None, "", "of what is trained on, where real data is"] = None
    eval: Annotated[Passport | None, "", "of what is evaluated"] = None
    train_source: Annotated[Passport | None, "", "of the files that the training records were packed from"] = None
    eval_source: Annotated[Passport | None, "", "of the files that the evaluation records were packed from"] = None


class Program(NamedTuple):
    """The training program of a rank, after all passes over it."""

    operators: Annotated[dict[str, int], "", "count of each type"]
    all_reduces: Annotated[int, "", "of gradients, in a step"]
    all_reduce_mib: Annotated[float, "MiB", "that they sum"]
    fused: Annotated[dict[str, int], "", "count of each fused type"]
    verified: Annotated[list[str], "", "what was proved of the program, a line each"]


LOG = Section[Format]("log", Format, "form of the log")
SOURCE = Section[Source]("source", Source, "the code that ran")
CONFIG = Section[Table]("config", dict[str, Setting], "every setting, by its name")
ENVIRONMENT = Section[Texts]("environment", Texts, "variables of the libraries, as the process has them")
PACKAGES = Section[Texts]("packages", Texts, "versions of what decides speed")
HARDWARE = Section[Hardware]("hardware", Hardware, "the machines")
DATASET = Section[Dataset]("dataset", Dataset, "what the run trains on")
PROGRAM = Section[Program]("program", Program, "the training program of a rank")
SECTIONS: dict[str, Section[Any]] = {s.name: s for s in list(globals().values()) if isinstance(s, Section)}

# ---- tables that are values or metadata of events


class CacheState(NamedTuple):
    """Whether the page cache of a node was cleared before the run."""

    node: Annotated[str, "", "host"]
    status: Annotated[str, "", "done or skipped"]
    by: Annotated[str | None, "", "who cleared the page cache"] = None
    reason: Annotated[str | None, "", "why it was not cleared"] = None


class InEpoch(NamedTuple):
    """The epoch of an event."""

    epoch_num: Annotated[int, "", "number of the epoch, from 1"]


class InBlock(NamedTuple):
    """The epochs up to an evaluation, and the evaluation itself."""

    first_epoch_num: Annotated[int, "", "its first epoch"]
    epoch_count: Annotated[int, "", "how many epochs"]


class AtStep(NamedTuple):
    """The step of an event."""

    step: Annotated[int, "steps", "of the run, from 1"]


class InWindow(NamedTuple):
    """Where a window of steps ends."""

    step: Annotated[int, "steps", "the window's last one, from 1"]
    epoch_num: Annotated[int, "", "number of the epoch, from 1"]
    phase: Annotated[str, "", "train, warmup or measured"]


class Ended(NamedTuple):
    """How the run ended."""

    status: Annotated[str, "", "success or aborted"]


class RunSummary(NamedTuple):
    """The facts of the run that a score needs."""

    devices: Annotated[int, "", "ranks"]
    nodes: Annotated[int, "", "hosts"]
    batch_per_device: Annotated[int, "images", "of a step, on a rank"]
    precision: Annotated[str, "", "fp32, tf32, amp_o1 or amp_o2"]
    math_mode: Annotated[str, "", "arithmetic of the multiplications, in the same words"]
    mode: Annotated[str, "", "train or throughput"]
    data: Annotated[str, "", "real or synthetic"]
    resumed: Annotated[bool, "", "whether it went on from a checkpoint"]
    profiled: Annotated[bool, "", "whether a profiler ran"]
    framework: Annotated[str, "", "name and version"]
    model: Annotated[str, "", "name of the network"]


class StepWindow(NamedTuple):
    """Some steps; evaluation is outside."""

    steps: Annotated[int, "steps", "of the window"]
    images: Annotated[int, "images", "since the last window"]
    time_s: Annotated[float, "s", "from the end of the last window, or the start of the epoch, to its own last step"]
    data_wait_s: Annotated[float, "s", "the part of time_s that rank 0 waited for input"]
    loss: Annotated[float | None, "", "of the last step, mean over ranks; null: not finite"]
    gpu_memory_mib: Annotated[float | None, "MiB", "most that the allocator of rank 0 held"]
    power_w: Annotated[float | None, "W", "of the job's GPUs of rank 0's node at the last sample"]


class RankTimes(NamedTuple):
    """The ranks' own times in a window: the same few numbers for 2 ranks and 8,000.

    Computation is what a rank spends on its own, without its waits for others; on GPUs it is not measured.
    """

    data_wait_least_s: Annotated[float, "s", "waiting for input, of the rank that waited least"]
    data_wait_median_s: Annotated[float, "s", "of the median rank; of two in the middle the lower"]
    data_wait_most_s: Annotated[float, "s", "of the rank that waited most"]
    data_wait_rank: Annotated[int, "", "that rank"]
    data_wait_host: Annotated[str, "", "its host"]
    compute_least_s: Annotated[float | None, "s", "computing, of the rank that took least"]
    compute_median_s: Annotated[float | None, "s", "of the median rank; of two in the middle the lower"]
    compute_most_s: Annotated[float | None, "s", "of the rank that took most"]
    compute_rank: Annotated[int | None, "", "that rank"]
    compute_host: Annotated[str | None, "", "its host"]


class EpochThroughput(NamedTuple):
    """Training of an epoch, evaluation left out."""

    images: Annotated[int, "images", "of the epoch"]
    time_s: Annotated[float, "s", "sum over its windows"]
    images_per_s: Annotated[float, "images/s", "images / time_s"]
    data_wait_s: Annotated[float, "s", "the part of time_s that rank 0 waited for input"]


class TelemetrySummary(NamedTuple):
    """Peaks and totals of the nodes' samplers. A run that failed has none; its telemetry files have the samples."""

    peak_gpu_memory_mib: Annotated[float | None, "MiB", "most of a GPU"]
    peak_gpu_temperature_c: Annotated[float | None, "degrees C", "highest of a GPU"]
    energy_j: Annotated[float | None, "J", "of the job's GPUs from the first step to the end, evaluations included"]
    joules_per_image: Annotated[float | None, "J/image", "energy_j / images trained on"]
    samples: Annotated[int, "", "of all nodes"]
    sampler_cpu_share: Annotated[float, "", "CPU time over elapsed time of the busiest sampler"]


class Checkpoint(NamedTuple):
    """A checkpoint that was written."""

    step: Annotated[int, "steps", "of the run, from 1"]
    file: Annotated[str, "", "its name"]
    mib: Annotated[float, "MiB", "its size"]
    blocked_s: Annotated[float, "s", "what training waited for it"]
    write_s: Annotated[float, "s", "what the thread took to write it"]


class FailedCheckpoint(NamedTuple):
    """A checkpoint that could not be written."""

    step: Annotated[int, "steps", "of the run, from 1"]
    blocked_s: Annotated[float, "s", "what training waited for it"]


# ---- events

# Keys of MLPerf logs
SUBMISSION_BENCHMARK = Point("submission_benchmark", str, "resnet or hrnet")
SUBMISSION_ORG = Point("submission_org", str, "who submits")
SUBMISSION_DIVISION = Point("submission_division", str, "closed or open")
SUBMISSION_STATUS = Point("submission_status", str, "cloud, onprem, preview or research")
SUBMISSION_PLATFORM = Point("submission_platform", str, "name of the system")
CACHE_CLEAR = Point("cache_clear", bool, "a node's page cache was cleared", metadata=CacheState)
SEED = Point("seed", int, "of the run, the same on every rank")
TRAIN_SAMPLES = Point("train_samples", int, "of an epoch", unit="images", least=1)
EVAL_SAMPLES = Point("eval_samples", int, "of an evaluation", unit="images", least=1)
GLOBAL_BATCH_SIZE = Point("global_batch_size", int, "of a step, over all ranks", unit="images", least=1)
GRADIENT_ACCUMULATION_STEPS = Point("gradient_accumulation_steps", int, "parts of a rank's batch", least=1)
MODEL_BN_SPAN = Point("model_bn_span", float, "over which a normalization takes its statistics", unit="images")
OPT_NAME = Point("opt_name", str, "sgd or lars")
EVAL_ACCURACY = Point("eval_accuracy", float, "top-1 or mean IoU of the evaluation, 0 to 1", metadata=InEpoch)
INIT_START = Mark("init_start", "the preparation, without training data, begins")
INIT_STOP = Mark("init_stop", "it ends")
RUN_START = Mark("run_start", "the timed run begins: training data may be touched")
RUN_STOP = Mark("run_stop", "it ends", Ended)
BLOCK_START = Mark("block_start", "the epochs up to an evaluation begin", InBlock)
BLOCK_STOP = Mark("block_stop", "that evaluation is done", InBlock)
EPOCH_START = Mark("epoch_start", "an epoch's training begins", InEpoch)
EPOCH_STOP = Mark("epoch_stop", "it ends", InEpoch)
EVAL_START = Mark("eval_start", "an evaluation begins", InEpoch)
EVAL_STOP = Mark("eval_stop", "it ends", InEpoch)

# Ours: what MLPerf lacks
RUN_SUMMARY = Point("run_summary", RunSummary, "what a score must know of the run")
STEP_WINDOW = Point("step_window", StepWindow, "some steps", metadata=InWindow)
RANK_TIMES = Point("rank_times", RankTimes, "the ranks' own times in the window that ends here", metadata=AtStep)
EPOCH_THROUGHPUT = Point("epoch_throughput", EpochThroughput, "training of an epoch", metadata=InEpoch)
TELEMETRY_SUMMARY = Point("telemetry_summary", TelemetrySummary, "what the nodes' samplers saw")
CHECKPOINT = Point("checkpoint", Checkpoint, "a checkpoint was written")
CHECKPOINT_FAILED = Point("checkpoint_failed", FailedCheckpoint, "a checkpoint could not be written")
ABORT_REASON = Point("abort_reason", str, "why the run ended, in one line")
_BY_HOW_MUCH = "by which somebody set the system's clock (below 0: back); durations stay right"
CLOCK_SET = Point("clock_set", float, _BY_HOW_MUCH, unit="s", metadata=AtStep)


# ---- optimizers


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer that recipes have, by what the log of its runs holds."""

    operators: frozenset[str]  # types of those that update the weights, as the header's `program` counts them
    hyperparameters: dict[str, Point[float]]  # their events by their names; rates are of the global batch
    warmup_epochs: Point[float]


def _optimizer_points(kind: str) -> dict[str, Point[float]]:
    """Return the log events for the hyperparameters of an optimizer, by the name of the hyperparameter.

    For example, "momentum" of "sgd" is the event `sgd_opt_momentum`.

    Args:
        kind: Name of the optimizer in MLPerf, "sgd" or "lars", with which the key of each event begins.

    Returns:
        {name of a hyperparameter: its Point}. A Point describes an event of the log.
    """
    prefix = f"{kind}_opt_"
    points = [
        Point(f"{prefix}base_learning_rate", float, "after the warm-up"),
        Point(f"{prefix}end_learning_rate", float, "where the decay ends"),
        Point(f"{prefix}learning_rate_decay_poly_power", float, "of a polynomial decay"),
        Point(f"{prefix}learning_rate_decay_steps", float, "length of the schedule", unit="steps"),
        Point(f"{prefix}momentum", float, "share of the last update"),
        Point(f"{prefix}weight_decay", float, "factor of the L2 penalty"),
    ]
    return {point.key.removeprefix(prefix): point for point in points}


OPTIMIZERS = {  # by their `opt_name`
    "sgd": Optimizer(
        operators=frozenset({"momentum", "merged_momentum"}),
        hyperparameters=_optimizer_points("sgd"),
        warmup_epochs=Point("opt_learning_rate_warmup_epochs", float, "length of the warm-up", unit="epochs"),
    ),
    "lars": Optimizer(
        operators=frozenset({"lars_momentum"}),
        hyperparameters=_optimizer_points("lars"),
        warmup_epochs=Point("lars_opt_learning_rate_warmup_epochs", float, "length of the warm-up", unit="epochs"),
    ),
}
LARS_EPSILON = Point("lars_epsilon", float, "added to the denominator of the trust ratio")
# Types of all operators that update weights: of optimizers that no recipe has, and of those above.
UPDATES = {"sgd", "dgc_momentum", "adam", "adamw", "merged_adam", "lamb", "adagrad", "rmsprop"}
for known_optimizer in OPTIMIZERS.values():
    UPDATES |= known_optimizer.operators

_ALL = [value for value in globals().values() if isinstance(value, Point | Mark)]
_ALL += [known_optimizer.warmup_epochs for known_optimizer in OPTIMIZERS.values()]
for known_optimizer in OPTIMIZERS.values():
    _ALL += known_optimizer.hyperparameters.values()
EVENTS: dict[str, Point[Any] | Mark] = {event.key: event for event in _ALL}


# ---- values as JSON


def is_table(kind: Any) -> bool:
    """Return whether a type is a named tuple of this module, which stands in a log as a JSON object of its fields."""
    return hasattr(kind, "_field_defaults")


def is_optional(kind: Any, name: str) -> bool:
    """Return whether a log may leave a field out: its default is None.

    Args:
        kind: A named tuple of this module.
        name: One of its fields.
    """
    return name in kind._field_defaults and kind._field_defaults[name] is None


def as_json(value: Any) -> Any:
    """Convert a value of an event or a header section into types that `json.dumps` takes.

    Args:
        value: A named tuple of this module, a dict, a list or a plain value, nested in any way.

    Returns:
        The value, in which each named tuple has become a dictionary of its fields, and any other tuple a list. A field
        is left out of the dictionary if its value and its default are both None.
    """
    if is_table(type(value)):  # a named tuple
        table = {}
        for name, item in value._asdict().items():
            default_is_none = is_optional(type(value), name)
            if item is None and default_is_none:
                continue
            table[name] = as_json(item)
        return table
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value
