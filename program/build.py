"""The training program: built once by Paddle's fleet for every device, then fitted to its transport.

Fleet adds to the forward graph its gradients, the optimizer, and for N ranks the all-reduce of the gradients, each
scaled by 1/N. On GPUs the program runs as built. Where the ranks are CPU processes the operators that set up or
wait for NCCL are taken out and gloo carries the same all-reduce operators.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from paddle import static
from paddle.base import executor as base_executor
from paddle.base.framework import Block
from paddle.distributed import fleet

from program import by_fleet, capture, replaced
from program import precision as precisions
from program.arrays import Array
from program.count import counts_of
from program.ops import LOSS_VALUE, Refused
from program.optimizers import KINDS, OptimizerConfig, Schedule
from program.passes import buckets, edit, gradients, of_paddle, resnet_unit, sync_bn, updates
from program.precision import Precision
from program.proof import kernels, verify
from program.proof.gradients import check_gradients
from program.proof.knobs import check_knobs
from program.proof.network import Network, as_written, check_network
from program.proof.values import check_values
from program.strategy import Strategy, resolve
from runlog.digits import six_digits

# Operators that only NCCL needs: gloo's collectives are synchronous and use no communicator of the program.
NCCL_ONLY = ("c_gen_nccl_id", "c_comm_init", "c_broadcast", "c_sync_calc_stream", "c_sync_comm_stream")


# Programs whose runs, in this order, make one update. The last one holds the optimizer.
Update = tuple[static.Program, ...]


class StepSchedule(paddle.optimizer.lr.LRScheduler):  # type: ignore[misc]  # Paddle has no types
    """Our schedule in the form that Paddle's optimizers take."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        super().__init__(learning_rate=schedule.base)

    def get_lr(self) -> float:
        return self._schedule(self.last_epoch)

    def ahead(self, count: int) -> Array:
        """Return the learning rates of the next steps, this step's first.

        Args:
            count: How many steps.

        Returns:
            Rates, [count] float32.
        """
        return np.array([self._schedule(self.last_epoch + number) for number in range(count)], np.float32)

    def send(self, place: Any) -> None:
        """Copy this step's learning rate to the device, without waiting for the copy.

        Args:
            place: The device, as Paddle names it.
        """
        on_device = static.global_scope().find_var(self._var_name).get_tensor()
        rate = paddle.base.core.LoDTensor()
        rate.set(np.full(on_device.shape(), self(), np.float32), paddle.CPUPlace())  # the shape is that in checkpoints
        on_device._copy_from(rate, place)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a training program is to be built."""

    device: str  # cpu | gpu
    precision: Precision = precisions.PRECISIONS["fp32"]
    strategy: Strategy = field(default_factory=Strategy)
    layout: str = "NCHW"
    loss_scale: float = 0.0  # of FP16; 0: dynamic
    is_to_be_run: bool = True  # False: the program is only looked at, and the other ranks do not exist

    @property
    def knobs(self) -> Strategy:
        """The strategy with every knob decided.

        Raises ValueError if the user turned on a knob that this Paddle cannot build for this device and precision.
        """
        return resolve(self.strategy, dtype=self.precision.dtype, layout=self.layout, device=self.device)

    @property
    def fixed_scale(self) -> float:
        """The fixed loss scale, a factor of all gradients until the update; 0 if it is dynamic, 1 if there is none."""
        if self.strategy.auto or self.precision.dtype != "float16":
            return 1.0
        return self.loss_scale

    @property
    def start_of_gradients(self) -> float:
        """The value at which the gradient of the loss must start: the fixed loss scale, or 1 without one.

        It is 1 with a dynamic scale too, because Paddle's AMP multiplies the loss itself by that scale.
        """
        return 1.0 if self.has_dynamic_scale else self.fixed_scale

    @property
    def has_dynamic_scale(self) -> bool:
        """Whether Paddle's AMP scales the loss by a factor that changes from step to step."""
        return self.fixed_scale == 0.0

    def micro_batch(self, batch: int) -> int:
        """Return how many images a device computes at once.

        Args:
            batch: Images of the device that make one update. With gradient accumulation they are computed in several
                parts.
        """
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
    update: Update  # `main` alone, or micro-steps and `main`
    verified: tuple[str, ...]  # what was proved, or what Paddle's automatic mode made of it
    schedule: StepSchedule  # `.send()` gives the program the learning rate, `.step()` moves it to the next step

    @property
    def main(self) -> static.Program:
        """The last program of an update, which holds the optimizer."""
        return self.update[-1]


def minimize(loss: static.Variable, optimizer: OptimizerConfig, schedule: Schedule, *, plan: Plan) -> TrainingProgram:
    """Make a forward program a training program: add gradients, their sum over the ranks and the optimizer.

    The operators that were built are then proved to train as asked; only in Paddle's automatic mode (STRATEGY=auto),
    where Paddle chooses what to build, they are not. On GPUs the call waits until the processes of the other ranks
    listen on their ports, if the program is to be run.

    Args:
        loss: Loss of a forward program of Paddle, which is changed in place. So is Paddle's default start-up program.
        optimizer: Kind and settings of the optimizer.
        schedule: Learning rate by step.
        plan: Device, precision and options of the program.

    Returns:
        The training and start-up programs, what was proved in words, and the schedule in Paddle's form.

    Raises:
        ValueError: This Paddle cannot build what the plan asks for, or built something else.
    """
    main = loss.block.program
    startup = static.default_startup_program()
    named_loss = loss.block._rename_var(loss.name, LOSS_VALUE)  # the name by which the training loop finds it
    named_loss.persistable = True  # so that it can be read after a step

    if plan.knobs.resnet_unit:
        # Before fleet adds the gradients: Paddle knows the gradient of the fused operator.
        resnet_unit.initialize(startup, resnet_unit.fuse(main))

    network = as_written(named_loss)
    paddle_optimizer = _paddle_optimizer(optimizer, schedule, main, plan)
    # Fleet is Paddle's layer for several ranks. For NCCL it can wait until the other ranks listen on their ports. CPU
    # ranks have no NCCL and never listen.
    waits_for_ranks = plan.device == "gpu" and plan.is_to_be_run
    by_fleet.minimize(named_loss, startup, paddle_optimizer, plan.knobs, waits_for_ranks=waits_for_ranks)
    paddle_schedule = main.lr_scheduler  # a StepSchedule; taken now, because the programs lose it a few lines below

    # The programs whose runs make one update: `main` alone or, with gradient accumulation, others before it.
    update = _apply_passes(main, startup, plan)
    for program in _each_once(update):
        _keep_executor_from_copying_rate(program)  # removes `lr_scheduler`
    if plan.knobs.auto:
        verified = _describe_auto(main, optimizer, ranks=fleet.worker_num())
    else:
        verify.check_learning_rate(main, paddle_schedule._var_name)
        verified = _verify(update, startup, optimizer, plan, network)

    if plan.device == "cpu":
        _fit_to_cpu(update, startup)
    for program in _each_once(update):
        kernels.check(program, plan.device)
    return TrainingProgram(startup=startup, update=update, verified=tuple(verified), schedule=paddle_schedule)


def _each_once(update: Update) -> list[static.Program]:
    """Return the different programs of an update, in order.

    Args:
        update: Programs whose runs, in this order, make one update. The program of earlier micro-steps (parts of the
            batch) may be in it several times.
    """
    return list(dict.fromkeys(update))


def _keep_executor_from_copying_rate(program: static.Program) -> None:
    """Keep Paddle's executor from copying the learning rate to the device each time that it runs a program.

    The training loop copies it once for each update (`StepSchedule.send`).

    Args:
        program: Program that Paddle's optimizer gave a schedule; it loses the schedule.
    """
    vars(program).pop("lr_scheduler", None)  # where the executor would find the schedule


def _paddle_optimizer(config: OptimizerConfig, schedule: Schedule, main: static.Program, plan: Plan) -> Any:
    """Return Paddle's optimizer for a program, wrapped for the plan's mixed precision.

    In Paddle's automatic mode (STRATEGY=auto) it is not wrapped.

    Args:
        config: Kind and settings of the optimizer.
        schedule: Learning rate by step.
        main: Program whose parameters are to be trained.
        plan: Device, precision and options for which the program is built.
    """
    knobs = plan.knobs
    optimizer = KINDS[config.kind].build(config, StepSchedule(schedule), main, bool(knobs.merged_optimizer))
    if knobs.auto:
        return optimizer
    return precisions.decorate(optimizer, plan.precision, dynamic=plan.has_dynamic_scale)


def _apply_passes(main: static.Program, startup: static.Program, plan: Plan) -> Update:
    """Change the training program that Paddle's fleet built, by the passes of this project.

    Each pass changes `main`, except `cast_startup`, which changes `startup`. The split into micro-steps changes both.
    `share_buffers` changes each program that is returned.

    Args:
        main: Training program; changed in place.
        startup: Its start-up program; changed to match.
        plan: Device, precision and options. They decide which passes are applied.

    Returns:
        The programs whose runs, in this order, make one update of the weights: `main` alone or, with gradient
        accumulation, a program for each earlier part of the batch and then `main`.
    """
    knobs = plan.knobs
    precisions.make_input_float16(main, plan.precision)  # in FP32 this changes nothing
    if knobs.perturb_input:
        # Moves each value of the input by about one rounding error. After `make_input_float16`, so that the values are
        # moved in the type that is fed.
        precisions.perturb_input(main)

    if knobs.fuse_elewise_add_act_ops:
        # Needed with this option because the gradient of Paddle's fused add + relu writes one gradient twice.
        gradients.mend_fused_relus(main)
        gradients.simplify_sums(main)
    gradients.spread_mean_gradients(main)  # a cheaper operator for the gradient of a global average pooling

    if plan.start_of_gradients != 1.0:  # a fixed loss scale: the gradient of the loss starts at it
        # Before `merge_lars`, which copies the factor that `scale_loss` sets in the update of each parameter.
        updates.scale_loss(main, plan.start_of_gradients)
    if knobs.merged_lars:
        updates.merge_lars(main)

    # The programs of all parts of the batch before the last one; the last part is left to `main`. Empty for one part.
    earlier_micro_steps = _split_into_micro_steps(main, startup, knobs.gradient_merge)
    if fleet.worker_num() > 1 and not knobs.auto:
        # Sums gradients over the ranks in groups. After the split, because only the last micro-step, `main`,
        # communicates. In automatic mode Paddle chooses how to sum.
        buckets.bucket_all_reduces(main, limit_mib=knobs.fuse_grad_size_in_MB, one_stream=knobs.cuda_graph)
    if knobs.cuda_graph:
        capture.prepare(main, rate_name=main.lr_scheduler._var_name)
    precisions.cast_startup(main, startup)  # parameters get the types that they have in `main`

    update = (*earlier_micro_steps, main)
    if knobs.enable_inplace:
        # Last, because `share_buffers` decides by the last reader of each variable. All earlier micro-steps are one
        # program, which must be changed only once.
        for program in _each_once(update):
            of_paddle.share_buffers(program)
    return update


def _split_into_micro_steps(main: static.Program, startup: static.Program, count: int) -> tuple[static.Program, ...]:
    """Split a training program into micro-steps, each on a part of the batch, whose gradients are added up.

        before    main: gradients, sum over the ranks, update
        after     returned program, run `count` - 1 times: gradients, added to accumulators
                  main, run last: gradients, added to the accumulators' ones, sum over the ranks, update

    Args:
        main: Training program; changed in place.
        startup: Its start-up program; changed in place, to fill the accumulators with zeros.
        count: Number of micro-steps; with 1 nothing changes.

    Returns:
        A program for each micro-step before `main`: `count` - 1 times the same one; empty with a count of 1.
    """
    if count == 1:
        return ()
    earlier_micro_step = updates.merge_gradients(main, startup, steps=count)  # also makes `main` the last micro-step
    return (earlier_micro_step,) * (count - 1)


def _fit_to_cpu(update: Update, startup: static.Program) -> None:
    """Replace and remove operators of training programs that have no kernel on a CPU, are slow there or of no use.

    Args:
        update: Programs whose runs, in this order, make one update; changed in place.
        startup: Their start-up program; changed in place.
    """
    programs = _each_once(update)  # a program of several micro-steps is changed once
    for program in programs:
        gradients.convolve_gradients(program)  # Paddle's kernel for input gradients of 3x3 convolutions is slow
        sync_bn.replace_on_cpu(program, fleet.worker_num())  # `sync_batch_norm` has no kernel there
        buckets.remove_redundant_depends(program)  # saves memory of Paddle's executor
    for program in (*programs, startup):
        edit.remove(program, lambda op: op.type in NCCL_ONLY)  # gloo, which sums on CPUs, needs none of these


def keep_communicators(startup: static.Program) -> None:
    """Remove the operators that open communicators from a start-up program that has already run.

    The program can then be run again to set all state anew, and keeps the communicators of the first run. NCCL's guide
    warns that two communicators in use at once may deadlock.

    Args:
        startup: The start-up program; changed in place.
    """
    edit.remove(startup, lambda op: op.type in ("c_gen_nccl_id", "c_comm_init"))


def _verify(
    update: Update, startup: static.Program, optimizer: OptimizerConfig, plan: Plan, network: Network
) -> list[str]:
    """Prove that a built program is data-parallel training by the optimizer, precision and options of the plan.

    Not for Paddle's automatic mode (STRATEGY=auto), in which Paddle chooses what to build.

    Args:
        update: Programs whose runs, in this order, make one update. The last one has the optimizer.
        startup: Start-up program.
        optimizer: The optimizer asked for.
        plan: Device, precision and options asked for.
        network: The network as written.

    Returns:
        A phrase for each proof, such as "161 gradients summed over 8 ranks once, scaled by 1/8 once".

    Raises:
        ValueError: A proof fails; mostly as its subclass Refused.
    """
    main = update[-1]
    options_set_by_user = plan.strategy
    options_decided = plan.knobs  # those set by the user, and what was decided for the others
    ranks = fleet.worker_num()
    proved = _verify_training(update, optimizer, plan, network)
    if ranks > 1:  # a single rank has no communicator and sums nothing over ranks
        verify.check_communicator(startup, main, ranks=ranks)
        proved += _verify_normalizations(main, plan)
    if options_decided.cuda_graph:
        proved.append(capture.check(main))
    return proved + check_knobs(main, options_decided, asked=options_set_by_user, ranks=ranks)


def _verify_normalizations(main: static.Program, plan: Plan) -> list[str]:
    """Prove that Paddle will sum the statistics of `sync_batch_norm` operators over all ranks on GPUs.

    Args:
        main: Training program for several ranks.
        plan: Device of the program, and whether it is to be run.

    Returns:
        One phrase with the number of these operators; empty if there are none or nothing is proved.

    Raises:
        ValueError: A flag of Paddle would skip the sums.
    """
    if plan.device == "cpu":
        return []  # on a CPU `sync_bn.replace_on_cpu` replaces these operators later
    if not plan.is_to_be_run:
        return []  # the flags of this process say nothing of a run
    count = sync_bn.check_on_gpu(main)
    if count == 0:
        return []
    return [f"{count} normalizations summed over {fleet.worker_num()} ranks, forward and backward"]


def _verify_training(update: Update, optimizer: OptimizerConfig, plan: Plan, network: Network) -> list[str]:
    """Prove that gradients, optimizer and arithmetic types of an update are those of the job.

    Args:
        update: Programs whose runs, in this order, make one update, one for each part of the batch (micro-step). The
            last one has the optimizer.
        optimizer: The optimizer asked for.
        plan: Precision and options asked for.
        network: The network as written.

    Returns:
        Phrases for what was proved, such as "161 gradients summed over 8 ranks once, scaled by 1/8 once".

    Raises:
        Refused: A proof fails.
    """
    main = update[-1]
    micro_steps = len(update)
    ranks = fleet.worker_num()
    loss_scale = plan.start_of_gradients  # the fixed one; 1 without one
    for program in _each_once(update):
        check_values(program)
        verify.check_training_mode(program)
    verify.check_loss_scaling(main)
    of_network = check_network(update, network)
    # Each gradient is a mean over ranks and micro-steps.
    gradient_count = check_gradients(update, ranks=ranks, scale=loss_scale, of_network=of_network)
    parameters_by_operator = verify.check_optimizer(main, optimizer)  # {"momentum": 161}
    verify.check_compute_types(main, plan.precision.dtype)

    operators = [f"{kind} of {count}" for kind, count in parameters_by_operator.items()]
    proved = [
        _summed_in_words(gradient_count, ranks=ranks, micro_steps=micro_steps),
        f"{optimizer.kind} by {', '.join(operators)}",
    ]
    if loss_scale != 1.0:
        proved.append(f"a fixed loss scale of {six_digits(loss_scale)} taken off by the update")
    if micro_steps > 1:
        proved.append(f"{gradient_count} gradients of {micro_steps} micro-steps merged before their sum")
    return proved


def _summed_in_words(gradient_count: int, *, ranks: int, micro_steps: int) -> str:
    """Return a phrase for the log that says how the gradients become means.

        1 rank, 2 micro-steps     "161 gradients scaled by 1/2 once"
        8 ranks, 2 micro-steps    "161 gradients summed over 8 ranks once, scaled by 1/16 once"

    Args:
        gradient_count: Number of gradients, all of which are proved to become means.
        ranks: Number of data-parallel processes.
        micro_steps: Number of parts of the batch whose gradients one update adds up.
    """
    divisor = ranks * micro_steps
    if ranks == 1:
        return f"{gradient_count} gradients scaled by 1/{divisor} once"
    return f"{gradient_count} gradients summed over {ranks} ranks once, scaled by 1/{divisor} once"


def _describe_auto(main: static.Program, optimizer: OptimizerConfig, *, ranks: int) -> list[str]:
    """Describe what Paddle's automatic mode (STRATEGY=auto) made of the program.

    A difference from the recipe is described and not refused, because the user left the choice to this mode.

    Args:
        main: Training program that was built in this mode.
        optimizer: The recipe's optimizer.
        ranks: Number of data-parallel processes.

    Returns:
        One to three sentences: what was chosen and, if so, that gradients or the optimizer are not as asked for.
    """
    context = fleet.fleet._context  # private: Paddle does not publish what it applied
    chosen = [*context["applied_meta_list"], *context["applied_graph_list"]]
    sentences = [f"STRATEGY=auto chose {', '.join(chosen)}"]
    # The reason if the gradients are not summed as in data-parallel training:
    try:
        check_gradients([main], ranks=ranks)
    except Refused as reason:
        sentences.append(f"STRATEGY=auto is not the job asked for: {reason}")
    # The reason if the program does not train by the recipe's optimizer:
    try:
        verify.check_optimizer(main, optimizer)
    except Refused as reason:
        sentences.append(f"STRATEGY=auto is not the job asked for: {reason}")
    return sentences


def summary(training: TrainingProgram) -> dict[str, Any]:
    """Summarize a training program for a log's header.

    Args:
        training: The built program.

    Returns:
        Counts of operators by type, number and MiB of the all-reduces, counts of fused operators, and what was proved
        in words.
    """
    counts = counts_of(training.main)
    kept = {name: counts[name] for name in ("operators", "all_reduces", "all_reduce_mib", "fused")}
    return kept | {"verified": list(training.verified)}


def evaluation(append_step: Callable[[], None], training: TrainingProgram, plan: Plan) -> static.Program:
    """Build the evaluation program that goes with a training program, in the plan's precision.

    Its variables share the values of the training's by name.

    Args:
        append_step: Appends one evaluation step to Paddle's default program.
        training: The built training program.
        plan: The plan by which it was built.

    Returns:
        The evaluation program; it needs no start-up program.

    Raises:
        ValueError: A variable of both programs differs in shape or type, Paddle has no kernel for an operator, or a
            tensor has another type than its kernel needs or is too large for cuDNN.
    """
    main = static.Program()
    unused_startup = static.Program()  # nothing is initialized: variables share the training's values by name
    with static.program_guard(main, unused_startup), _without_initializers():
        append_step()
        if plan.knobs.resnet_unit:
            resnet_unit.fuse(main)  # before the cast: AMP decides by the operators that it finds
        precisions.cast_evaluation(main, plan.precision)
    if plan.knobs.enable_inplace:
        of_paddle.share_buffers(main)  # last, because it decides by the last reader of each variable
    kernels.check_evaluation(main, training.main, plan.device)
    check_values(main)
    return main


def _without_initializers() -> contextlib.AbstractContextManager[None]:
    """Have Paddle ignore the initializers of parameters that are created while the context lasts."""
    paddles_create_parameter = Block.create_parameter

    # An evaluation's parameters have the training's values. With an initializer for each, Paddle would search the whole
    # start-up program for every parameter.
    def create_without_initializer(block: Block, *args: Any, initializer: Any = None, **kwargs: Any) -> Any:
        return paddles_create_parameter(block, *args, **kwargs)

    return replaced(Block, "create_parameter", create_without_initializer)
