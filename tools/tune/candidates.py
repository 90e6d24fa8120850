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
        """Return the names of the knobs and variables that it sets."""
        knobs = {knob.partition("=")[0] for knob in self.knobs}
        return knobs | {name for name, _ in self.variables}

    def excludes(self, other: "Candidate") -> bool:
        """Return whether it cannot be joined with another candidate.

        That is so if both set the same knob or variable, or if one of them is Paddle's automatic mode.
        """
        return self.is_auto or other.is_auto or bool(self.touches & other.touches)

    def exports(self, base_strategy: str) -> dict[str, str]:
        """Return the environment variables in which its run differs from the base, with STRATEGY=`base_strategy`.

        In Paddle's automatic mode the base's knobs are dropped. Otherwise the candidate's knobs are added to them.
        """
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
    """Return the strategies that are worth trying for the job on its device, each as a change to the job's own.

    - Single knobs, such as "cuda_graph=1", without those that would not change the job's strategy.
    - Paddle's executor in its other mode: serial on GPUs, parallel on a CPU.
    - On as many GPUs as it needs: Paddle's automatic mode.
    - On a CPU: fewer processes with more threads.

    Raises ValueError if the job's strategy is already the automatic mode, to which no knob can be added.
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
    # harness/env.py sets the executor to serial on a CPU only.
    other_executor_mode = "1" if on_gpu else "0"
    chosen.append(Candidate(name=f"{SERIAL}={other_executor_mode}", variables=((SERIAL, other_executor_mode),)))
    if on_gpu and job.cluster.dgxngpu == strategy.AUTO_RANKS:
        chosen.append(Candidate(name=strategy.AUTO, knobs=(strategy.AUTO,)))
    if not on_gpu:
        chosen += _fewer_processes(job)
    return chosen


def _sensible_knobs(job: Job) -> Iterator[str]:
    """Yield settings of STRATEGY that may make a job faster, such as "cuda_graph=1".

    A switch is yielded with the value that is not its default, as program/strategy.py has it: "=0" if it is on by
    default. Settings that cannot change the job's program are left out:

    - the switch of another optimizer;
    - fusions of operators for another layout;
    - sizes of gradient buckets, for a job of one rank;
    - settings for GPUs, on a CPU;
    - a CUDA graph, of a program that cannot be captured.
    """
    on_gpu = job.cluster.device == "gpu"
    traits = job.model.traits
    # In half precision NHWC is the layout unless the job asks for NCHW.
    is_half_nhwc = job.model.is_half and "NHWC" in traits.layouts and job.model.layout != "NCHW"
    can_capture = traits.captures(is_half=job.model.is_half) and job.model.knobs.gradient_merge == 1

    yield "enable_inplace=0" if on_gpu else "enable_inplace=1"
    yield "merged_lars=1" if "lars" in job.model.recipe else "merged_optimizer=0"
    if is_half_nhwc:
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

    # From here on: settings for GPUs only.
    if is_half_nhwc:
        yield "resnet_unit=1"
    if can_capture:
        yield "cuda_graph=1"
    yield "enable_addto=0"
    yield "cudnn_exhaustive_search=0"
    yield "cudnn_batchnorm_spatial_persistent=0"
    yield "conv_workspace_size_limit=512"
    yield "conv_workspace_size_limit=8000"


def _fewer_processes(job: Job) -> Iterator[Candidate]:
    """Yield candidates that compute the same update with fewer processes, each with more threads.

    For 4 ranks with batch 32: 1 rank with batch 128 in 4 parts, and 2 ranks with batch 64 in 2 parts.

    The number of processes must divide the job's. A process computes the batches of the processes that it replaces one
    after the other (gradient_merge). So batch norm takes its statistics over the same images as before.
    """
    ranks = job.cluster.dgxngpu
    for fewer in range(1, ranks):
        if ranks % fewer != 0:
            continue
        parts = ranks // fewer  # how many processes each one replaces
        batch = job.model.batchsize * parts
        yield Candidate(
            name=f"DGXNGPU={fewer}",
            knobs=(f"gradient_merge={parts * job.model.knobs.gradient_merge}",),
            variables=(("DGXNGPU", str(fewer)), ("BATCHSIZE", str(batch))),
        )
