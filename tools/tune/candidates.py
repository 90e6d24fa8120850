"""The strategies that a search tries."""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.job import Job
from program import strategy

SERIAL = "FLAGS_new_executor_serial_run"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change to the base: knobs of STRATEGY, and other variables of the job."""

    name: str
    knobs: tuple[str, ...] = ()  # as `enable_inplace=1`
    variables: tuple[tuple[str, str], ...] = ()  # name and value

    @property
    def is_auto(self) -> bool:
        """Return whether it is Paddle's automatic mode, which takes no other knob."""
        return strategy.AUTO in self.knobs

    @property
    def touches(self) -> set[str]:
        """Knobs and variables that it sets."""
        knobs = {knob.partition("=")[0] for knob in self.knobs}
        return knobs | {name for name, _ in self.variables}

    def excludes(self, other: "Candidate") -> bool:
        """Tell whether it cannot go together with another one: both set one thing, or one is the automatic mode."""
        return self.is_auto or other.is_auto or bool(self.touches & other.touches)

    def exports(self, base_strategy: str) -> dict[str, str]:
        """Return the variables that its run has beyond those of the base, whose STRATEGY is given."""
        variables = dict(self.variables)
        if self.is_auto:
            variables["STRATEGY"] = strategy.AUTO
        elif self.knobs:
            knobs = ",".join((base_strategy, *self.knobs))
            variables["STRATEGY"] = strategy.in_words(strategy.parse(knobs))
        return variables


BASE = Candidate(name="base")
CONTROL = Candidate(name="control", knobs=("perturb_input=1",))


def candidates(job: Job) -> list[Candidate]:
    """Return the strategies that make sense for the job on its device, each as a change to the job's own strategy.

    They are single knobs, as "cuda_graph=1", but for those that the job's strategy has already; Paddle's executor in
    the mode that is not the default; on GPUs Paddle's automatic mode, if it can run; on a CPU fewer processes with
    more threads. Raises ValueError if the job's strategy is `auto`, to which no knob can be added.
    """
    base = job.model.knobs
    if base.auto:
        raise ValueError("STRATEGY=auto: it is measured as one of the strategies where it can run: unset STRATEGY")

    chosen = []
    for knob in _sensible_knobs(job):
        changes_something = strategy.parse(f"{job.model.strategy},{knob}") != base
        if changes_something:
            chosen.append(Candidate(name=knob, knobs=(knob,)))

    on_gpu = job.cluster.device == "gpu"
    serial = "1" if on_gpu else "0"  # the opposite of the default in harness/env.py
    chosen.append(Candidate(name=f"{SERIAL}={serial}", variables=((SERIAL, serial),)))
    if on_gpu and job.cluster.dgxngpu == strategy.AUTO_RANKS:
        chosen.append(Candidate(name=strategy.AUTO, knobs=(strategy.AUTO,)))
    if not on_gpu:
        chosen += _fewer_processes(job)
    return chosen


def _sensible_knobs(job: Job) -> Iterator[str]:
    """Yield settings of STRATEGY that may make a job faster, such as "cuda_graph=1", each unlike the default.

    Settings that cannot change the job's program are left out, by its device, precision, layout, optimizer and ranks: a
    fusion of operators in NHWC changes nothing in NCHW, and the size of a gradient bucket nothing for one rank.
    """
    on_gpu = job.cluster.device == "gpu"
    traits = job.model.traits
    is_nhwc = job.model.is_half and "NHWC" in traits.layouts and job.model.layout != "NCHW"  # the default in half
    can_capture = traits.captures(is_half=job.model.is_half) and job.model.knobs.gradient_merge == 1

    # Each is the opposite of its default, so far as it has one (program/strategy.py).
    yield "enable_inplace=0" if on_gpu else "enable_inplace=1"
    yield "merged_lars=1" if "lars" in job.model.recipe else "merged_optimizer=0"
    if is_nhwc:
        yield "fuse_bn_act_ops=0"
        yield "fuse_bn_add_act_ops=0"
    else:
        yield "fuse_elewise_add_act_ops=0"
    if job.cluster.dgxngpu > 1:
        yield "fuse_grad_size_in_MB=1"
        yield "fuse_grad_size_in_MB=4"
        yield "fuse_grad_size_in_MB=64"
    if not on_gpu:
        return

    # Settings of GPUs alone.
    if is_nhwc:
        yield "resnet_unit=1"
    if can_capture:
        yield "cuda_graph=1"
    yield "enable_addto=0"
    yield "cudnn_exhaustive_search=0"
    yield "cudnn_batchnorm_spatial_persistent=0"
    yield "conv_workspace_size_limit=512"
    yield "conv_workspace_size_limit=8000"


def _fewer_processes(job: Job) -> Iterator[Candidate]:
    """Yield candidates that compute the job's update by fewer processes, with more threads each.

    Their numbers are those that divide the job's. Each process takes the batches of the processes that it replaces one
    after the other (gradient_merge), so that batch norm sees the same images together. Of 4 ranks at batch 32 this
    yields 1 rank with 4 parts of its batch of 128, and 2 ranks with 2 parts of 64.
    """
    ranks = job.cluster.dgxngpu
    for fewer in range(1, ranks):
        if ranks % fewer != 0:
            continue
        parts = ranks // fewer  # the processes that each replaces
        batch = job.model.batchsize * parts
        yield Candidate(
            name=f"DGXNGPU={fewer}",
            knobs=(f"gradient_merge={parts * job.model.knobs.gradient_merge}",),
            variables=(("DGXNGPU", str(fewer)), ("BATCHSIZE", str(batch))),
        )
