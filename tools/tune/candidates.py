"""What a search for a strategy tries: changes to the base that make sense for a job."""

from dataclasses import dataclass

from harness import env
from program import strategy

SERIAL = "FLAGS_new_executor_serial_run"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change to the base: knobs of STRATEGY, and other variables of the job."""

    name: str
    knobs: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def touches(self) -> set[str]:
        """Knobs and variables that it sets."""
        return {knob.partition("=")[0] for knob in self.knobs} | {name for name, _ in self.variables}

    def exports(self, base_strategy: str) -> dict[str, str]:
        """What the environment of its run says beyond the base's."""
        found = dict(self.variables)
        if self.knobs == (strategy.AUTO,):
            found["STRATEGY"] = strategy.AUTO
        elif self.knobs:
            found["STRATEGY"] = strategy.in_words(strategy.parse(",".join((base_strategy, *self.knobs))))
        return found


BASE = Candidate(name="base")
CONTROL = Candidate(name="control", knobs=("perturb_input=1",))


def candidates(job: env.Job) -> list[Candidate]:
    """The strategies that make sense for the job; the base is not among them.

    Raises ValueError where the base is Paddle's automatic mode.
    """
    base = job.knobs
    if base.auto:
        raise ValueError("STRATEGY=auto: it is measured as one of the strategies where it can run: unset STRATEGY")
    gpu, half = job.device == "gpu", job.precision in ("amp_o1", "amp_o2")
    nhwc = half and job.workload == "rn50" and job.layout != "NCHW"
    lars, ranks = "lars" in job.recipe, job.dgxngpu
    makes_sense = {
        f"enable_inplace={0 if gpu else 1}": True,
        "merged_lars=1": lars,
        "merged_optimizer=0": not lars,
        **dict.fromkeys(("fuse_bn_act_ops=0", "fuse_bn_add_act_ops=0"), nhwc),
        "fuse_elewise_add_act_ops=0": not nhwc,
        **{f"fuse_grad_size_in_MB={size}": ranks > 1 for size in (1, 4, 64)},
        "resnet_unit=1": gpu and nhwc,
        "cuda_graph=1": gpu and job.workload == "rn50" and base.gradient_merge == 1,
        **dict.fromkeys(("enable_addto=0", "cudnn_exhaustive_search=0", "cudnn_batchnorm_spatial_persistent=0"), gpu),
        **{f"conv_workspace_size_limit={size}": gpu for size in (512, 8000)},
    }
    changes = (knob for knob, so in makes_sense.items() if so and strategy.parse(f"{job.strategy},{knob}") != base)
    found = [Candidate(name=knob, knobs=(knob,)) for knob in changes]
    serial = "1" if gpu else "0"  # the other way than harness/env.py has it
    found.append(Candidate(name=f"{SERIAL}={serial}", variables=((SERIAL, serial),)))
    if gpu and ranks == strategy.AUTO_RANKS:
        found.append(Candidate(name=strategy.AUTO, knobs=(strategy.AUTO,)))
    if gpu:
        return found
    # The same update by fewer processes with more threads each: batch norm sees the same images together.
    for fewer in (count for count in range(1, ranks) if ranks % count == 0):
        times = ranks // fewer
        variables = (("DGXNGPU", str(fewer)), ("BATCHSIZE", str(job.batchsize * times)))
        knobs = (f"gradient_merge={times * base.gradient_merge}",)
        found.append(Candidate(name=f"DGXNGPU={fewer}", knobs=knobs, variables=variables))
    return found
