"""The training program: built once by Paddle's fleet for every device, then fitted to its transport.

Fleet adds to the forward graph its gradients, the optimizer, and for N ranks the all-reduce of the gradients, each
scaled by 1/N. On GPUs the program runs as built. Where the ranks are CPU processes the operators that set up or
wait for NCCL are taken out and gloo carries the same all-reduce operators.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from paddle import static
from paddle.base import executor as base_executor
from paddle.base.framework import Block
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_optimizers import common as meta_optimizers

from program import capture, elsewhere, replaced
from program import precision as precisions
from program.arrays import Array
from program.count import counts_of
from program.ops import LOSS_VALUE, Refused
from program.optimizers import KINDS, OptimizerConfig, Schedule
from program.passes import buckets, edit, gradients, of_paddle, resnet_unit, sync_bn, updates
from program.precision import Precision
from program.proof import kernels, verify
from program.proof.knobs import check_knobs
from program.strategy import Strategy, resolve
from runlog.digits import six_digits

# Operators that only NCCL needs: gloo's collectives are synchronous and use no communicator of the program.
NCCL_ONLY = ("c_gen_nccl_id", "c_comm_init", "c_broadcast", "c_sync_calc_stream", "c_sync_comm_stream")


class StepSchedule(paddle.optimizer.lr.LRScheduler):  # type: ignore[misc]  # Paddle has no types
    """Our schedule in the form that Paddle's optimizers take."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        super().__init__(learning_rate=schedule.base)

    def get_lr(self) -> float:
        return self._schedule(self.last_epoch)

    def ahead(self, count: int) -> Array:
        """Return the rates of the next `count` steps, this step's first."""
        return np.array([self._schedule(self.last_epoch + number) for number in range(count)], np.float32)

    def send(self, place: Any) -> None:
        """Copy this step's rate to the device at `place`, without waiting for it."""
        on_device = static.global_scope().find_var(self._var_name).get_tensor()
        rate = paddle.base.core.LoDTensor()
        rate.set(np.full(on_device.shape(), self(), np.float32), paddle.CPUPlace())  # a checkpoint has it in this shape
        on_device._copy_from(rate, place)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a training program is to be built."""

    device: str  # cpu | gpu
    precision: Precision = precisions.PRECISIONS["fp32"]
    strategy: Strategy = field(default_factory=Strategy)
    layout: str = "NCHW"
    loss_scale: float = 0.0  # of FP16; 0: dynamic
    ranks_listen: bool = True  # False: only the program is wanted, the other ranks do not exist

    @property
    def knobs(self) -> Strategy:
        """The strategy with every knob decided.

        Raises ValueError where one is asked for that this Paddle cannot build here.
        """
        return resolve(self.strategy, dtype=self.precision.dtype, layout=self.layout, device=self.device)

    @property
    def fixed_scale(self) -> float:
        """The factor at which the gradients start and which the update takes off; 0 where the loss scale is dynamic."""
        if self.strategy.auto or self.precision.dtype != "float16":
            return 1.0
        return self.loss_scale

    @property
    def has_dynamic_scale(self) -> bool:
        """Whether Paddle's AMP scales the loss, by a factor that it changes from step to step."""
        return self.fixed_scale == 0.0

    def micro_batch(self, batch: int) -> int:
        """Return how many of a device's `batch` images for one update it computes at once."""
        return batch // self.strategy.gradient_merge


class Executor(static.Executor):  # type: ignore[misc]  # Paddle has no types
    """Paddle's executor with its buffer-sharing passes disabled, so that a program runs exactly as it was built."""

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Run a program; arguments and result are those of Paddle's `Executor.run`."""
        with replaced(base_executor, "_apply_inplace_addto_pass", lambda *arguments: None):
            return super().run(*arguments, **options)


@dataclass(frozen=True, kw_only=True)
class TrainingProgram:
    """A program that was built, proved and fitted to its transport."""

    startup: static.Program
    update: tuple[static.Program, ...]  # their runs, in this order, make one update: `main`, or micro-steps and `main`
    verified: tuple[str, ...]  # what was proved, or what Paddle's automatic mode made of it
    schedule: StepSchedule  # `.send()` gives the program the learning rate, `.step()` moves it to the next step

    @property
    def main(self) -> static.Program:
        """The last program of an update, which holds the optimizer."""
        return self.update[-1]


def minimize(loss: static.Variable, optimizer: OptimizerConfig, schedule: Schedule, *, plan: Plan) -> TrainingProgram:
    """Make the forward program of `loss` a training program: add gradients, their all-reduce and the optimizer.

    The program of `loss` and Paddle's default start-up program are changed in place, in a fixed order:

    1. `resnet_unit`, a fused operator, replaces parts of the forward program, as Paddle knows its gradient.
    2. Paddle's fleet adds gradients, all-reduce and optimizer; our own passes change what it built. The all-reduce
       joins the ranks that the PADDLE_TRAINER variables name (`harness.ranks.connect`).
    3. The finished program is proved to be what was asked for. It is the same on GPUs and CPUs.
    4. On CPUs, operators that have no CPU kernel are replaced.

    Returns the built programs, with what was proved of them. Raises ValueError where the plan asks for what this Paddle
    cannot build, or the built program is not what was asked for.
    """
    main = loss.block.program
    startup = static.default_startup_program()
    loss = loss.block._rename_var(loss.name, LOSS_VALUE)  # the name by which the training loop finds it
    loss.persistable = True  # so that it can be read after a step
    knobs = plan.knobs

    # ---- build
    if knobs.resnet_unit:
        resnet_unit.fuse(main, startup)
    paddle_optimizer = KINDS[optimizer.kind].build(
        optimizer, StepSchedule(schedule), main, bool(knobs.merged_optimizer)
    )
    if not knobs.auto:
        paddle_optimizer = precisions.decorate(paddle_optimizer, plan.precision, dynamic=plan.has_dynamic_scale)
    _minimize_by_fleet(loss, startup, paddle_optimizer, plan)
    micro_step = _apply_passes(main, startup, plan)
    programs = [main]
    update = (main,)
    if micro_step is not None:
        programs = [micro_step, main]
        before_last = [micro_step] * (knobs.gradient_merge - 1)
        update = (*before_last, main)
    paddle_schedule = main.lr_scheduler
    for program in programs:
        # Without the attribute Paddle's executor leaves the rate to us: else it would copy it anew at each run.
        vars(program).pop("lr_scheduler", None)

    # ---- prove, and fit to the device
    verified = _verify(update, startup, optimizer, plan)
    if plan.device == "cpu":
        _fit_to_cpu(programs, startup)
    for program in programs:
        kernels.check(program, plan.device)
    return TrainingProgram(startup=startup, update=update, verified=tuple(verified), schedule=paddle_schedule)


def _minimize_by_fleet(loss: static.Variable, startup: static.Program, optimizer: Any, plan: Plan) -> None:
    """Have Paddle's fleet add to the program of `loss` its gradients, their all-reduce and the optimizer's update.

    `optimizer` is one of Paddle's, wrapped for mixed precision. Fleet's later optimizations are turned off, as our own
    passes take their place, so the program that fleet leaves is the one that runs. In Paddle's automatic mode
    (`knobs.auto`) fleet does what it chooses. A few of Paddle's functions are replaced for the call, each for the
    reason beside it.
    """
    knobs = plan.knobs
    # Up to this many gradients of one variable are added two at a time, which is the form that enable_addto looks for;
    # more, by one `sum`. No variable of our networks has as many as 8. Paddle reads the flag when it adds gradients.
    most_added_in_pairs = 8 if knobs.enable_addto else 0
    paddle.set_flags(knobs.flags | {"FLAGS_max_inplace_grad_add": most_added_in_pairs})
    strategy = fleet.DistributedStrategy()
    if knobs.auto:
        strategy.auto = True
    else:
        strategy.without_graph_optimization = True  # the program after this call is the program that runs
        strategy.fuse_all_reduce_ops = False  # our own pass cuts the buckets

    with contextlib.ExitStack() as stack:
        stack.enter_context(precisions.fp32_statistics())
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # fleet prints to the user's screen
        stack.enter_context(elsewhere())  # its sharding writes its programs to files
        # Else Paddle compares the whole program with C++'s at each inserted operator, which takes squared time.
        stack.enter_context(replaced(Block, "_insert_op", Block._insert_op_without_sync))
        if plan.device == "cpu" or not plan.ranks_listen:  # fleet would wait for other ranks, which do not listen
            stack.enter_context(replaced(meta_optimizers, "wait_server_ready", lambda endpoints: None))
        if not knobs.auto:
            stack.enter_context(of_paddle.applying_only_fusions_of(knobs))
        fleet.init(is_collective=True, strategy=strategy, log_level="ERROR")
        fleet.distributed_optimizer(optimizer).minimize(loss, startup)


def _apply_passes(main: static.Program, startup: static.Program, plan: Plan) -> static.Program | None:
    """Apply our own passes to the training program that fleet built, in place.

    The order matters: sums of gradients are simplified before anything renames gradients; the loss is scaled before
    updates are merged; gradients of micro-steps are merged before they are put into buckets; and buffers are shared
    last, as that looks at each variable's last reader.

    With `gradient_merge` an update consists of several runs, micro-steps, of which `main` is the last: returns the
    program of the others. Else returns None.
    """
    knobs = plan.knobs
    precisions.feed_half(main, plan.precision)
    if knobs.perturb_input:
        precisions.perturb_input(main)
    if knobs.fuse_elewise_add_act_ops:
        gradients.simplify_sums(main)
    gradients.spread_mean(main)
    if not plan.has_dynamic_scale and plan.fixed_scale != 1.0:
        updates.scale_loss(main, plan.fixed_scale)
    if knobs.merged_lars:
        updates.merge_lars(main)

    micro_step = None
    if knobs.gradient_merge > 1:
        micro_step = updates.merge_gradients(main, startup, steps=knobs.gradient_merge)
    if not knobs.auto and fleet.worker_num() > 1:
        buckets.bucket_all_reduces(main, limit_mib=knobs.fuse_grad_size_in_MB, one_stream=knobs.cuda_graph)
    if knobs.cuda_graph:
        capture.prepare(main, main.lr_scheduler._var_name)
    precisions.cast_startup(main, startup)
    if knobs.enable_inplace:
        if micro_step is not None:
            of_paddle.share_buffers(micro_step)
        of_paddle.share_buffers(main)
    return micro_step


def _fit_to_cpu(programs: list[static.Program], startup: static.Program) -> None:
    """Replace operators that have no CPU kernel or a slow one, and take out those that only NCCL needs."""
    for program in programs:
        gradients.convolve_gradients(program)
        sync_bn.on_cpu(program, fleet.worker_num())
        buckets.remove_redundant_depends(program)
    for program in (*programs, startup):
        edit.remove(program, lambda op: op.type in NCCL_ONLY)


def keep_communicators(startup: static.Program) -> None:
    """Take out of a start-up program that has run what opens communicators, so that another run keeps those it opened.

    A second run sets all state anew. It would also open further communicators, on which some of a step's all-reduces
    would then run: by NCCL's guide two communicators in use at once may wait for each other for ever.
    """
    edit.remove(startup, lambda op: op.type in ("c_gen_nccl_id", "c_comm_init"))


def _verify(
    update: tuple[static.Program, ...], startup: static.Program, optimizer: OptimizerConfig, plan: Plan
) -> list[str]:
    """Prove that the built program is data-parallel training by the optimizer, precision and knobs asked for.

    `update` has the programs whose runs, in this order, make one update of the parameters.

    Returns a phrase for each thing that was proved, as "161 gradients summed over 8 ranks once, scaled by 1/8 once".
    Raises ValueError for the first that does not hold. A program of Paddle's automatic mode (STRATEGY=auto) is never
    refused: the phrases say what that mode made of it.
    """
    main = update[-1]
    knobs = plan.knobs
    ranks = fleet.worker_num()
    if knobs.auto:
        return _describe_auto(main, optimizer, ranks=ranks)

    micro_steps = knobs.gradient_merge
    scale = plan.fixed_scale
    if plan.has_dynamic_scale:
        scale = 1.0  # AMP multiplies the loss, so its gradient starts at 1
    parameters = verify.gradients(update, ranks=ranks, scale=scale)
    parameters_by_operator = verify.optimizer(main, optimizer)
    verify.arithmetic(main, plan.precision.dtype)

    summed = f"summed over {ranks} ranks once, " if ranks > 1 else ""
    updates_in_words = ", ".join(f"{kind} of {number}" for kind, number in parameters_by_operator.items())
    proved = [
        f"{len(parameters)} gradients {summed}scaled by 1/{ranks * micro_steps} once",
        f"{optimizer.kind} by {updates_in_words}",
    ]
    if scale != 1.0:
        proved.append(f"a fixed loss scale of {six_digits(scale)} taken off by the update")
    if micro_steps > 1:
        proved.append(f"{len(parameters)} gradients of {micro_steps} micro-steps merged before their sum")
    if ranks > 1:
        verify.communicator(startup, ranks=ranks)
        # On CPUs other operators sum them. And a program that is only looked at, without its ranks, need not be refused
        # for a flag of this process, which the check is about.
        if plan.device == "gpu" and plan.ranks_listen:
            count = sync_bn.check_on_gpu(main)
            if count:
                proved.append(f"{count} normalizations summed over {ranks} ranks, forward and backward")
    if knobs.cuda_graph:
        proved.append(capture.check(main))
    return proved + check_knobs(main, knobs, asked=plan.strategy, ranks=ranks)


def _describe_auto(main: static.Program, optimizer: OptimizerConfig, *, ranks: int) -> list[str]:
    """Describe in a few sentences what Paddle's automatic mode (STRATEGY=auto) made of the program.

    The first sentence names the strategies that fleet chose. Another follows if the program does not sum its gradients
    as data-parallel training does, and another if it does not train by the recipe's optimizer. Neither is an error, as
    the user asked for this mode.
    """
    context = fleet.fleet._context
    chosen = [*context["applied_meta_list"], *context["applied_graph_list"]]
    report = [f"STRATEGY=auto chose {', '.join(chosen)}"]
    try:
        verify.gradients([main], ranks=ranks)
    except Refused as reason:
        report.append(f"STRATEGY=auto is not the job asked for: {reason}")
    try:
        verify.optimizer(main, optimizer)
    except Refused as reason:
        report.append(f"STRATEGY=auto is not the job asked for: {reason}")
    return report


def summary(training: TrainingProgram) -> dict[str, Any]:
    """Return a log header's account of a program: operators by type, all-reduces and their MiB, what was proved."""
    counts = counts_of(training.main)
    kept = {name: counts[name] for name in ("operators", "all_reduces", "all_reduce_mib", "fused")}
    return kept | {"verified": list(training.verified)}


def evaluation(append_step: Callable[[], None], training: TrainingProgram, plan: Plan) -> static.Program:
    """Build the evaluation program that goes with a training program.

    `append_step` appends the operators of one evaluation step to Paddle's default program: the network, and what a step
    adds to the evaluation's totals, as the number of correct images. The variables have the names of the training
    program's, so both share their values.

    Returns the program, in the plan's precision, and with units and shared buffers where the plan's knobs say so
    (`resnet_unit`, `enable_inplace`). Raises ValueError where Paddle has no kernel of an operator, or a variable that
    both programs have differs in shape or type.
    """
    main = static.Program()
    knobs = plan.knobs
    create_parameter = Block.create_parameter

    def create_without_initializer(block: Block, *args: Any, initializer: Any = None, **kwargs: Any) -> Any:
        return create_parameter(block, *args, **kwargs)

    # Parameters need no initializer, as they have the training's values. With initializers Paddle would search the
    # whole start-up program for each of them.
    with (
        static.program_guard(main, static.Program()),
        replaced(Block, "create_parameter", create_without_initializer),
    ):
        append_step()
        if knobs.resnet_unit:
            resnet_unit.fuse(main)
        precisions.cast_evaluation(main, plan.precision)
    if knobs.enable_inplace:
        of_paddle.share_buffers(main)
    kernels.evaluation(main, training.main, plan.device)
    return main
