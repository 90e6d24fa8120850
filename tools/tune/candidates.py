"""The strategies that a search tries."""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.job import Job, with_values
from harness.refusals import layout_of, of_automatic_mode
from program import strategy

SERIAL = "FLAGS_new_executor_serial_run"  # an environment variable: "1" is the serial executor, "0" the parallel one


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change to the base: knobs of STRATEGY, and other variables of the job."""

    name: str
    knobs: tuple[str, ...] = ()  # as `enable_inplace=1`
    variables: tuple[tuple[str, str], ...] = ()  # name and value

    @property
    def is_auto(self) -> bool:
        """Return whether this candidate is Paddle's automatic mode, which takes no other knob."""
        return strategy.AUTO in self.knobs

    @property
    def touches(self) -> set[str]:
        """Return the names of the knobs and variables that this candidate sets."""
        knobs = {knob.partition("=")[0] for knob in self.knobs}
        return knobs | {name for name, _ in self.variables}

    def excludes(self, other: "Candidate") -> bool:
        """Return whether this candidate cannot be joined with another one.

        Args:
            other: The other candidate. Two cannot be joined if both set the same knob (option of STRATEGY) or variable,
                or if one is Paddle's automatic mode.
        """
        return self.is_auto or other.is_auto or bool(self.touches & other.touches)

    def exports(self, base_strategy: str) -> dict[str, str]:
        """Return the environment variables with which the user's own job (the base) runs as this candidate.

        With the base's STRATEGY "enable_inplace=0", a candidate of the knob "cuda_graph=1" gives {"STRATEGY":
        "enable_inplace=0,cuda_graph=1"}. If both set the same knob, the candidate's value wins.

        Args:
            base_strategy: The setting STRATEGY of the base: options (knobs) of the training program.

        Returns:
            The variables by name. Without knobs there is no STRATEGY among them, so that the base's remains.

        Raises:
            ValueError: A knob is unknown, or cannot have its value.
        """
        variables = dict(self.variables)
        if self.is_auto:  # this mode takes no other knobs
            variables["STRATEGY"] = strategy.AUTO
        elif self.knobs:
            all_knobs = ",".join((base_strategy, *self.knobs))
            parsed = strategy.parse(all_knobs)  # of a knob that is named twice, the last value counts
            variables["STRATEGY"] = strategy.in_words(parsed)
        return variables


BASE = Candidate(name="base")
CONTROL = Candidate(name="control", knobs=("perturb_input=1",))


def candidates(job: Job) -> list[Candidate]:
    """Return the changes to a job that are worth trying on its device, to find the fastest.

    Most set one knob (an option of STRATEGY) that may make the job faster, such as `enable_inplace`. One takes the
    other mode of Paddle's executor. On GPUs, one is Paddle's automatic mode if it can run; on a CPU, some have fewer
    ranks, if the job has several.

    Args:
        job: The user's own job, described by the environment.

    Raises:
        ValueError: The job's own strategy is the automatic mode, to which no knob can be added.
    """
    if job.model.knobs.auto:
        raise ValueError("STRATEGY=auto: it is measured as one of the strategies where it can run: unset STRATEGY")

    on_gpu = job.cluster.device == "gpu"
    new_knobs = [knob for knob in _knobs_to_try(job) if _changes_strategy(knob, job)]  # not set so by the job already
    chosen = [Candidate(name=knob, knobs=(knob,)) for knob in new_knobs]
    chosen.append(_other_executor(on_gpu=on_gpu))
    if _can_run_automatic_mode(job):
        chosen.append(Candidate(name=strategy.AUTO, knobs=(strategy.AUTO,)))
    if not on_gpu:
        chosen += _with_fewer_ranks(job)
    return chosen


def _can_run_automatic_mode(job: Job) -> bool:
    """Return whether a job's throughput can be measured in Paddle's automatic mode.

    Args:
        job: The user's own job. Its number of GPUs, precision and loss scale decide.
    """
    only_measured = with_values(job, MODE="throughput")  # as each run of a search is
    return not any(of_automatic_mode(only_measured))


def _changes_strategy(knob: str, job: Job) -> bool:
    """Return whether a knob, such as "cuda_graph=1", changes the job's strategy if it is added at its end.

    Args:
        knob: An option of STRATEGY with its value.
        job: The user's own job.
    """
    strategy_with_knob = strategy.parse(f"{job.model.strategy},{knob}")
    return strategy_with_knob != job.model.knobs


def _other_executor(*, on_gpu: bool) -> Candidate:
    """Return the candidate with the mode of Paddle's executor that is not the default of a run (harness/env.py).

    Args:
        on_gpu: Whether the job runs on GPUs, where the default is parallel. On a CPU it is serial.
    """
    not_the_default = "1" if on_gpu else "0"  # "1" is serial
    return Candidate(name=f"{SERIAL}={not_the_default}", variables=((SERIAL, not_the_default),))


def _knobs_to_try(job: Job) -> Iterator[str]:
    """Yield the options (knobs) of STRATEGY that may make a job faster, such as "cuda_graph=1". Each is tried alone.

    A knob that is on or off is yielded with the value that is not its default.

    Args:
        job: The user's own job. Its device, recipe, precision and number of ranks decide which knobs can help.
    """
    on_gpu = job.cluster.device == "gpu"
    yield "enable_inplace=0" if on_gpu else "enable_inplace=1"  # on by default for GPUs only
    if "lars" in job.model.recipe:
        yield "merged_lars=1"  # off by default
    else:
        yield "merged_optimizer=0"  # on by default
    yield from _fusions_to_switch_off(job)
    has_several_ranks = job.cluster.dgxngpu > 1
    if has_several_ranks:  # how many MB of gradients one all-reduce sums
        yield from ("fuse_grad_size_in_MB=1", "fuse_grad_size_in_MB=4", "fuse_grad_size_in_MB=64")
    if on_gpu:
        yield from _gpu_knobs_to_try(job)


def _fusions_to_switch_off(job: Job) -> Iterator[str]:
    """Yield the knobs that switch off the fusions which Paddle makes in the job's program by default."""
    if _is_half_nhwc(job):
        yield "fuse_bn_act_ops=0"  # batch norm is fused only in such a program
        yield "fuse_bn_add_act_ops=0"
    else:
        yield "fuse_elewise_add_act_ops=0"


def _is_half_nhwc(job: Job) -> bool:
    """Return whether the job computes in half precision with images in the layout NHWC."""
    return job.model.is_half and layout_of(job.model) == "NHWC"


def _gpu_knobs_to_try(job: Job) -> Iterator[str]:
    """Yield the knobs of STRATEGY that act only on GPUs and may make a job faster. Each is tried alone."""
    if _is_half_nhwc(job):  # `resnet_unit` needs it
        yield "resnet_unit=1"  # off by default
    if _can_capture_a_step(job):
        yield "cuda_graph=1"  # off by default
    yield from ("enable_addto=0", "cudnn_exhaustive_search=0", "cudnn_batchnorm_spatial_persistent=0")
    yield from ("conv_workspace_size_limit=512", "conv_workspace_size_limit=8000")  # MiB


def _can_capture_a_step(job: Job) -> bool:
    """Return whether a step can be captured as a CUDA graph: the model allows it, and the batch is not in parts."""
    batch_is_whole = job.model.knobs.gradient_merge == 1
    return job.model.traits.captures(is_half=job.model.is_half) and batch_is_whole


def _with_fewer_ranks(job: Job) -> Iterator[Candidate]:
    """Yield candidates that compute the same update of the weights with fewer ranks (DGXNGPU) on a CPU.

    A job of 4 ranks with BATCHSIZE=32 computes 4 times 32 images for each update. Fewer ranks compute as many:

        DGXNGPU=1, BATCHSIZE=128, gradient_merge=4    4 parts of 32 images, one after the other
        DGXNGPU=2, BATCHSIZE=64, gradient_merge=2     on each rank 2 parts of 32 images

    gradient_merge=N computes a rank's batch in N parts one after the other, with one update after the last.

    Args:
        job: The user's own job, which runs on CPUs.

    Yields:
        A candidate for each divisor of the number of ranks that is below it; nothing for one rank.
    """
    ranks = job.cluster.dgxngpu
    smaller_divisors = [divisor for divisor in range(1, ranks) if ranks % divisor == 0]
    for fewer_ranks in smaller_divisors:
        replaced_ranks = ranks // fewer_ranks  # how many ranks of the job each rank of the candidate stands for
        batch = job.model.batchsize * replaced_ranks
        # The number of parts grows by the same factor as the batch. So a part is as large as before, and batch norm
        # takes its statistics over as many images.
        parts = job.model.knobs.gradient_merge * replaced_ranks
        yield Candidate(
            name=f"DGXNGPU={fewer_ranks}",
            knobs=(f"gradient_merge={parts}",),
            variables=(("DGXNGPU", str(fewer_ranks)), ("BATCHSIZE", str(batch))),
        )
