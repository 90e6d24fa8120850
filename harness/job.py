"""The settings of a job, in groups, each with its meaning and its bounds; `harness/env.py` fills them in.

The variable that a user sets is the name of a field in capitals, or the name that the field states. A hyperparameter
belongs to a recipe of `paddle_<workload>/config.py`, not here. Nothing here needs a package, as a launcher's host reads
it too.
"""

import dataclasses
import functools
import importlib
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from harness import cgroup
from harness.traits import Traits, traits_of
from program.strategy import Strategy, parse
from runlog import workloads
from runlog.schema import HALF_PRECISIONS

NUMA_NODES = Path("/sys/devices/system/node")  # node0/ has cpu0/, cpu1/, .. of its cores

PRECISIONS = ("fp32", "tf32", *HALF_PRECISIONS)

LAST_PORT = 65_535
LAST_SEED = 2**31 - 1  # Paddle's own seeds are of C's integers
PER_WORKLOAD = ("BATCHSIZE", "RECIPE")  # what a config file gives for each workload, such as HRNET_BATCHSIZE
MAX_PIXELS = 65_535  # of a side, as JPEG has it
# Far above what any machine has, so that a slip of the hand is refused before a library fails on it.
MAX_IMAGES = 1_000_000  # a step on one device
MAX_RANKS = MAX_THREADS = 10_000  # of a node; of a rank
MAX_TRIALS = 10_000  # of a job


class ValueWithOrigin(TypedDict):
    """The value of a setting and who set it, as the log has them."""

    value: Any
    origin: str  # as "environment", or the name of a file


Origins = dict[str, ValueWithOrigin]  # by variable


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form that the text of a setting must have."""

    pattern: str  # regular expression of the whole text
    words: str  # the same for people


NODE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # or an IPv4 address: ranks of several nodes meet by IPv4 alone
NODES = Form(
    pattern=f"{NODE_NAME}(?:,{NODE_NAME})*",
    words="names or IPv4 addresses, comma-separated, none empty or with a port: SSH_PORT is that of all",
)
OWN_ADDRESS = Form(pattern=r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*", words="the name or the IP address of a machine")
NUMBERS = Form(pattern=r"[0-9]{1,4}(,[0-9]{1,4})*", words="whole numbers, comma-separated, of 4 digits at most")
GROUP_NAMES = Form(pattern=r"[\w.-]+(,[\w.-]+)*", words="names of letters, digits, `_`, `.` and `-`, comma-separated")
TRACED_STEPS = Form(pattern=r"steps:[0-9]{1,9}-[0-9]{1,9}", words="steps:a-b with 1 <= a <= b, as steps:20-25")
COMMIT = Form(pattern=r"([0-9a-f]{7,64}(-dirty)?|unknown)", words="a git commit in hexadecimal, or one with `-dirty`")
DIGEST = Form(pattern=r"sha256:[0-9a-f]{64}", words="sha256: and 64 hexadecimal digits")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One variable that a user may set."""

    variable: str
    group: str  # the field of `Job` that holds it
    name: str  # its own field there
    default: str | int
    doc: str
    choices: tuple[str, ...]  # the only texts allowed; empty: any
    least: int | None  # of a number
    most: int | None
    form: Form | None  # of a text that is not empty

    @property
    def is_number(self) -> bool:
        """Whether its value is a whole number."""
        return isinstance(self.default, int)

    def parse(self, text: str) -> str | int:
        """Return the value of this setting for the text that a user has given its environment variable.

        For a whole number "16" gives 16. For any other setting the value is the text itself.

        Args:
            text: What the user has set, such as "16" for BATCHSIZE.

        Raises:
            ValueError: The text does not fit. The message names the variable and says what it must be.
        """
        if self.is_number:
            return self._number(text)
        if self.choices and text not in self.choices:
            choices = ", ".join(choice or "empty" for choice in self.choices)
            raise ValueError(f"{self.variable}={text!r}: must be one of {choices}")
        if not text.isprintable():
            raise ValueError(f"{self.variable}={text!r}: must be one line of printable text ({self.doc})")
        # An empty text need not have the form.
        if text and self.form and not re.fullmatch(self.form.pattern, text):
            raise ValueError(f"{self.variable}={text!r}: must be {self.form.words} ({self.doc})")
        return text

    def _number(self, text: str) -> int:
        """Return the whole number that a text is.

        Args:
            text: At most 18 decimal digits, with a minus before a negative number.

        Raises:
            ValueError: The text has another form, or the number is out of the setting's bounds.
        """
        if not re.fullmatch(r"-?[0-9]+", text):
            raise ValueError(f"{self.variable}={text!r}: must be a whole number ({self.doc})")
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError(f"{self.variable}={text}: must have at most 18 digits ({self.doc})")
        value = int(text)
        if self.least is not None and value < self.least:
            raise ValueError(f"{self.variable}={value}: must be at least {self.least} ({self.doc})")
        if self.most is not None and value > self.most:
            raise ValueError(f"{self.variable}={value}: must be at most {self.most} ({self.doc})")
        return value


def _setting(
    doc: str,
    default: Any,
    *,
    variable: str = "",
    choices: tuple[str, ...] = (),
    least: int | None = None,
    most: int | None = None,
    form: Form | None = None,
) -> Any:
    """Return a dataclass field for a setting, with a description of the environment variable that sets it.

    The description is kept in the field's metadata, from which `_settings` makes the table of all settings.

    Args:
        doc: What the setting is for, in words for users.
        default: Its value if it is not set. An integer makes the setting a whole number.
        variable: Name of the environment variable; empty: the field's name in capitals.
        choices: The only texts allowed; empty: any.
        least: The smallest number allowed; None: no bound.
        most: The largest number allowed; None: no bound.
        form: Pattern of a text that is not empty; None: any printable line.
    """
    metadata = {"doc": doc, "variable": variable, "choices": choices, "least": least, "most": most, "form": form}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model that is trained, and how its program computes."""

    workload: str = _setting("model to train", "rn50", choices=workloads.NAMES)
    recipe: str = _setting(
        "recipe of `paddle_<workload>/config.py`; empty: that of `RN50_RECIPE` or `HRNET_RECIPE`, "
        "else the workload's small default",
        "",
    )
    batchsize: int = _setting(
        "images a step on one device; for one workload alone: `RN50_BATCHSIZE`, `HRNET_BATCHSIZE`",
        16,
        least=1,
        most=MAX_IMAGES,
    )
    precision: str = _setting("arithmetic of the training program", "fp32", choices=PRECISIONS)
    loss_scale: int = _setting("scale of the FP16 loss; 0: dynamic, and fixed for a captured step", 0, least=0)
    layout: str = _setting(
        "NCHW or NHWC, the image layout of the program; empty: NHWC in half precision where the network has it",
        "",
        choices=("", "NCHW", "NHWC"),
    )
    strategy: str = _setting("`auto`, or `knob=value,...` of program/strategy.py; empty: its defaults", "")
    image_size: int = _setting(
        "side of the square training crop in pixels; 0: the recipe's", 0, least=0, most=MAX_PIXELS
    )
    pretrained: str = _setting("hrnet: weights to start from, a .pdparams file of PaddleSeg; empty: none", "")

    @property
    def package(self) -> str:
        """Python package of the workload."""
        return f"paddle_{self.workload}"

    @property
    def row(self) -> workloads.Workload:
        """The workload's row: its names in logs, its metric and size."""
        return workloads.named(self.workload)

    @property
    def traits(self) -> Traits:
        """The abilities and needs of the workload's network and recipes."""
        return traits_of(self.workload)

    @property
    def is_half(self) -> bool:
        """Whether convolutions compute in FP16."""
        return self.precision in HALF_PRECISIONS

    @functools.cached_property
    def knobs(self) -> Strategy:
        """STRATEGY, parsed. Raises ValueError where it names an unknown or refused knob, or gives one a wrong value."""
        return parse(self.strategy)


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where a rank's images come from."""

    kind: str = _setting(
        "`real`, or `synthetic`: one batch made once, and of `DATADIR` the length of an epoch alone",
        "real",
        variable="DATA",
        choices=("real", "synthetic"),
    )
    folder: str = _setting(
        "data set, as docs/data.md says; empty: the embedded digits or scenes", "", variable="DATADIR"
    )
    embedded_in: str = _setting("folder in which the embedded data set is made", "data", variable="DATA_CACHE")
    threads: int = _setting(
        "CPU threads a rank for the input pipeline; 0: as many as `THREADS`",
        0,
        variable="DATA_THREADS",
        least=0,
        most=MAX_THREADS,
    )
    clear_caches: int = _setting("1: flush the page cache before each trial (needs root)", 1, least=0, most=1)

    @property
    def is_synthetic(self) -> bool:
        """Whether one batch of noise stands for all batches."""
        return self.kind == "synthetic"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The nodes and ranks of a job."""

    dgxsystem: str = _setting("system: the SYSTEM of a `config_<SYSTEM>.sh`", "CPU")
    device: str = _setting("where the program runs", "cpu", choices=("cpu", "gpu"))
    dgxnnodes: int = _setting("nodes", 1, least=1)
    dgxngpu: int = _setting("ranks on a node: its GPUs, or on a CPU its processes", 2, least=1, most=MAX_RANKS)
    threads: int = _setting("CPU threads a rank for compute; 0: usable cores / ranks", 0, least=0, most=MAX_THREADS)
    rank_numa: str = _setting("NUMA node of each rank of a node, comma-separated; empty: ranks roam", "", form=NUMBERS)
    gloo_port: int = _setting("TCP port of the ranks' rendezvous on a CPU; 0: a free one", 0, least=0, most=LAST_PORT)
    hang_timeout_s: int = _setting("seconds without progress after which a rank ends the run; 0: never", 300, least=0)
    hosts: str = _setting("the nodes' names, each once, comma-separated, the first node first", "", form=NODES)
    hostfile: str = _setting("file with the name of one node a line, in place of `HOSTS`", "")
    node_rank: int = _setting("this node's number, from 0", 0, least=0)
    job_key: str = _setting("several nodes: file of the job's private ssh key, the same on each", "")
    ssh_port: int = _setting("several nodes: port of the waiting nodes' sshd", 2222, least=1, most=LAST_PORT)
    ssh_address: str = _setting("several nodes: address that sshd listens on; empty: all", "", form=OWN_ADDRESS)
    node_wait_s: int = _setting("several nodes: seconds that they wait for each other", 300, least=1)
    switch_groups: str = _setting(
        "fleet: switch group of each of `HOSTS`, comma-separated; empty: all in one", "", form=GROUP_NAMES
    )
    fleet_baseline: str = _setting("fleet: an earlier fleet.json, on the first node, to compare with; empty: none", "")

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.dgxnnodes * self.dgxngpu

    @property
    def on_gpu(self) -> bool:
        """Whether the ranks compute on GPUs."""
        return self.device == "gpu"

    @property
    def threads_per_rank(self) -> int:
        """CPU threads that a rank computes with: THREADS, or the rank's share of the node's CPUs if THREADS is 0.

        The share is the smaller of two, rounded down, but at least 1:

        - the cores that this process may use, divided by the ranks that share these cores
        - the CPU time that a cgroup allows, for example by docker --cpus, divided by all ranks of the node; without a
          known limit of CPU time, the first of the two is the share

        For example, 4 ranks that share 16 cores under docker --cpus=10 have 10 / 4 = 2.5, so 2 threads each, and not
        16 / 4 = 4.
        """
        if self.threads > 0:
            return self.threads
        own_cores = os.sched_getaffinity(0)
        share_of_cores = len(own_cores) / self._ranks_on_cores(own_cores)
        # Threads beyond the CPU time would slow the rank: on half a CPU, 2 threads took twice the time of 1.
        cpus_of_node = cgroup.cpus() or math.inf  # as 10.0; `cpus` returns None if no limit is known
        share_of_quota = cpus_of_node / self.dgxngpu  # DGXNGPU is the number of ranks of a node
        return max(1, int(min(share_of_cores, share_of_quota)))

    def _ranks_on_cores(self, cores: Iterable[int]) -> int:
        """Return how many ranks of the node share the cores that this process may use.

        RANK_NUMA names the NUMA node to whose cores launch/bind.sh binds each rank. With RANK_NUMA="0,0,0,1", for
        example, three ranks share the cores of NUMA node 0. This process is taken to be on that NUMA node of RANK_NUMA
        which has all of its cores. If there is none, or RANK_NUMA is empty, the result is the number of all ranks of
        the node.

        Args:
            cores: The numbers of the cores that this process may use.
        """
        ranks_of_node = self.dgxngpu
        if self.rank_numa == "":
            return ranks_of_node
        numa_node_of_ranks = self.rank_numa.split(",")[:ranks_of_node]  # it may name more than the node has ranks
        for numa_node in set(numa_node_of_ranks):
            # /sys/devices/system/node/node0, where Linux has an entry cpu0, cpu1, ... for each core of NUMA node 0
            folder = NUMA_NODES / f"node{numa_node}"
            has_all_cores = all((folder / f"cpu{core}").exists() for core in cores)
            if has_all_cores:
                return numa_node_of_ranks.count(numa_node)
        return ranks_of_node  # the process is not bound to one NUMA node


@dataclass(frozen=True, kw_only=True)
class CourseSettings:
    """The course of a run: its mode and length, and what is shown and measured of it."""

    mode: str = _setting(
        "`train` to the target, or `throughput`: a fixed number of steps", "train", choices=("train", "throughput")
    )
    seed: int = _setting("seed of the first trial, later ones count up; -1: from the OS", -1, least=-1, most=LAST_SEED)
    max_epochs: int = _setting(
        "epochs of training and schedule (mlperf_lars keeps its schedule); 0: the recipe's", 0, least=0
    )
    warmup_steps: int = _setting("throughput mode: steps before the measured ones", 10, least=1)
    measured_steps: int = _setting("throughput mode: measured steps", 50, least=1)
    print_steps: int = _setting("steps between two printed windows", 5, least=1)
    progress: str = _setting(
        "`bar` or `plain` output while it runs; empty: as the terminal allows", "", choices=("", "bar", "plain")
    )
    telemetry_s: int = _setting("seconds between two samples of each node's sensors; 0: none", 1, least=0)
    telemetry_prometheus: str = _setting("text file for node_exporter, rewritten with each sample; empty: none", "")
    profile: str = _setting("`steps:a-b`: trace steps a to b; the run may then not be published", "", form=TRACED_STEPS)

    @property
    def trains(self) -> bool:
        """Whether the run trains to the target, and not for a fixed number of steps."""
        return self.mode == "train"

    @property
    def throughput_steps(self) -> int:
        """Steps of a run of MODE=throughput."""
        return self.warmup_steps + self.measured_steps

    @property
    def traced(self) -> range:
        """Steps that PROFILE traces, counted from 1; none where it is empty."""
        if not self.profile:
            return range(0)
        first, last = self.profile.removeprefix("steps:").split("-")
        return range(int(first), int(last) + 1)


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """The runs that a job is made of, and where their logs go."""

    logdir: str = _setting("folder of the results", "results")
    nexp: int = _setting("trials, one log each", 1, least=1, most=MAX_TRIALS)
    on_failure: str = _setting("after a failed trial `stop`, or `go_on`", "stop", choices=("stop", "go_on"))
    keep_trials: int = _setting(
        "1, set by a launcher that goes on: trials that have a log are not run again", 0, least=0, most=1
    )
    result_file: str = _setting("set by the trial loop: the log of this trial", "")


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """When a run saves its state, and whether it goes on from one."""

    epochs: int = _setting(
        "epochs between two checkpoints; 0: none by epochs", 0, variable="CHECKPOINT_EPOCHS", least=0
    )
    minutes: int = _setting(
        "minutes between two checkpoints; 0: none by time", 15, variable="CHECKPOINT_MINUTES", least=0
    )
    keep: int = _setting("checkpoints kept, the newest", 2, variable="CHECKPOINT_KEEP", least=1)
    folder: str = _setting(
        "folder of the checkpoints, by trial if `NEXP` > 1; empty: next to the log", "", variable="CHECKPOINT_DIR"
    )
    resume: str = _setting(
        "`auto`: resume from the last good checkpoint; `no`: start afresh", "no", choices=("no", "auto")
    )


@dataclass(frozen=True, kw_only=True)
class SubmissionSettings:
    """Who submits, and by which code; only the log reads it."""

    org: str = _setting("organisation named in the log", "not stated", variable="SUBMISSION_ORG")
    division: str = _setting("MLPerf division", "open", variable="SUBMISSION_DIVISION", choices=("closed", "open"))
    status: str = _setting(
        "MLPerf status",
        "research",
        variable="SUBMISSION_STATUS",
        choices=("cloud", "onprem", "preview", "research"),
    )
    platform: str = _setting("platform named in the log; empty: `DGXSYSTEM`", "", variable="SUBMISSION_PLATFORM")
    source_commit: str = _setting("set in an image, which has no git: commit of the code", "", form=COMMIT)
    image_digest: str = _setting("set in a container by its launcher: digest of the image", "", form=DIGEST)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job as its environment describes it."""

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    course: CourseSettings = field(default_factory=CourseSettings)
    trials: TrialSettings = field(default_factory=TrialSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    submission: SubmissionSettings = field(default_factory=SubmissionSettings)

    @property
    def global_batch(self) -> int:
        """Images a step over all ranks."""
        return self.model.batchsize * self.cluster.world_size

    @functools.cached_property
    def hyperparameters(self) -> Any:
        """The recipe of `paddle_<workload>/config.py`. Raises ValueError where there is none, or none for the batch.

        IMAGE_SIZE replaces the recipe's size in it. MAX_EPOCHS does not replace the epochs: `task_of` puts it before
        them, and the log keeps both.
        """
        config = importlib.import_module(f"{self.model.package}.config")
        return config.recipe(self.model.recipe, global_batch=self.global_batch, image_size=self.model.image_size)

    def value(self, variable: str) -> Any:
        """Return the value of a setting of this job.

        Args:
            variable: Name of its environment variable, such as "BATCHSIZE".

        Raises:
            KeyError: No setting has that variable.
        """
        setting = SETTINGS[variable]
        return getattr(getattr(self, setting.group), setting.name)


GROUPS: dict[str, Any] = {
    "model": ModelSettings,
    "data": DataSettings,
    "cluster": ClusterSettings,
    "course": CourseSettings,
    "trials": TrialSettings,
    "checkpoints": CheckpointSettings,
    "submission": SubmissionSettings,
}


def _settings() -> dict[str, Setting]:
    """Return every setting of a job by the name of its environment variable, such as "SEED".

    The settings are the fields of the dataclasses in GROUPS. Each was made by `_setting`, which described it in the
    field's metadata.

    Returns:
        {variable: its setting}, in the order of the groups and their fields.
    """
    by_variable = {}
    for group, dataclass_of_group in GROUPS.items():
        for member in dataclasses.fields(dataclass_of_group):
            variable = member.metadata["variable"] or member.name.upper()  # the field's name, if none is given
            by_variable[variable] = Setting(
                variable=variable,
                group=group,
                name=member.name,
                default=getattr(dataclass_of_group, member.name),
                doc=member.metadata["doc"],
                choices=member.metadata["choices"],
                least=member.metadata["least"],
                most=member.metadata["most"],
                form=member.metadata["form"],
            )
    return by_variable


SETTINGS = _settings()


def names() -> list[str]:
    """List every variable that describes a job."""
    listed = list(SETTINGS)
    for workload in workloads.NAMES:
        for name in PER_WORKLOAD:
            listed.append(f"{workload.upper()}_{name}")
    return listed


def prefix_of(workload: str, precision: str) -> str:
    """Return the prefix of variables for one workload in one precision, as "RN50_AMP_O2_" of RN50_AMP_O2_STRATEGY.

    Args:
        workload: Name of the workload, such as "rn50".
        precision: Value of PRECISION, such as "amp_o2".
    """
    return f"{workload}_{precision}_".upper()


def job_of(**values: Any) -> Job:
    """Return a job in which some settings have given values and all others their defaults.

    An example is `job_of(batchsize=4, SEED=1)`.

    Args:
        values: Values by the names of their environment variables, in capitals or small letters. They are not checked.

    Raises:
        KeyError: No setting has that name.
    """
    values_by_group: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}  # {group: {field: value}}
    for name, value in values.items():
        setting = SETTINGS[name.upper()]
        values_by_group[setting.group][setting.name] = value

    groups = {}
    for group, dataclass_of_group in GROUPS.items():
        groups[group] = dataclass_of_group(**values_by_group[group])
    return Job(**groups)


def with_values(job: Job, **values: Any) -> Job:
    """Return a copy of a job with some settings changed.

    Args:
        job: The job, which itself stays as it is.
        values: New values by the names of their environment variables, in capitals or small letters. They are not
            checked.

    Raises:
        KeyError: No setting has that name.
    """
    settings = {variable: job.value(variable) for variable in SETTINGS}
    for name, value in values.items():
        settings[name.upper()] = value
    return job_of(**settings)
