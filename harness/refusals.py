"""Refusals of settings that are right one by one and wrong together.

Each function yields a sentence for each fault that it finds, which says what to set instead, and nothing for a job that
is in order. `raise_first` makes an error of the first.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.hosts import hosts_of_cluster, named_twice
from harness.job import LAST_SEED, ClusterSettings, CourseSettings, Job, ModelSettings
from harness.libraries import TF32_OVERRIDE
from harness.traits import Traits, traits_of
from program import strategy
from program.strategy import AUTO_RANKS, Strategy
from runlog import named_files
from runlog.digits import counted
from runlog.workloads import WORKLOADS, Workload

# Bounds of a fixed loss scale, as the twin shows them (tests/program/twin.md). At a scale of 1 and 224 px FP16 flushes
# less than 1 % of ResNet-50's gradients to 0; at 32 px 1.23 %. At 10 times the images the first step overflows, of four
# images alone; at 5 it does not. Baidu's runs have 1.
MIN_SCALE_PER_IMAGE = 1 / 16  # of the global batch
MAX_SCALE_PER_IMAGE = 4

FOLDERS = ("LOGDIR", "DATADIR", "DATA_CACHE", "CHECKPOINT_DIR")
NAMED_PATHS = (*FOLDERS, "JOB_KEY", "PRETRAINED", "FLEET_BASELINE", "TELEMETRY_PROMETHEUS")


def raise_first(refusals: Iterator[str]) -> None:
    """Raise an error with the first of some refusals; return if there is none.

    Args:
        refusals: Sentences that say what is wrong with a job. No further one is asked for after the first.

    Raises:
        ValueError: There is a refusal, which is its message.
    """
    first = next(refusals, None)
    if first is not None:
        raise ValueError(first)


# ---- what any host can tell


def of_settings(job: Job, tf32_override: str) -> Iterator[str]:
    """Yield a sentence for each fault in a job's settings that any host can find, for example two that do not fit.

    No package is needed, so the host of a launcher can call this, too.

    Args:
        job: The settings of the job.
        tf32_override: Text of the variable NVIDIA_TF32_OVERRIDE; empty if it is not set.
    """
    yield from _refusals_of_cluster(job)
    yield from _refusals_of_precision(job, tf32_override)
    yield from _refusals_of_loss_scale(job)
    yield from _refusals_of_course(job)


def _refusals_of_cluster(job: Job) -> Iterator[str]:
    """Yield a sentence for each fault in LOGDIR and in the settings that describe the nodes.

    Those are HOSTS, NODE_RANK (this node's number), SWITCH_GROUPS (the switch group of each node) and RANK_NUMA (the
    NUMA node of each rank on a node).

    Args:
        job: The settings of the job.

    Yields:
        What is wrong and what to set instead, for example "NODE_RANK=2: must be below DGXNNODES=2".
    """
    cluster = job.cluster
    if not job.trials.logdir:
        yield "LOGDIR is empty: set it to the folder of the results, or unset it"

    yield from _refusals_of_hosts(cluster)
    if cluster.node_rank >= cluster.dgxnnodes:
        yield f"NODE_RANK={cluster.node_rank}: must be below DGXNNODES={cluster.dgxnnodes}"

    groups = cluster.switch_groups.split(",")
    if cluster.switch_groups and len(groups) != cluster.dgxnnodes:
        yield (
            f"SWITCH_GROUPS={cluster.switch_groups}: names {counted(len(groups), 'group')}: give one for each of the "
            f"{cluster.dgxnnodes} HOSTS"
        )
    numa_nodes = cluster.rank_numa.split(",")
    if cluster.rank_numa and len(numa_nodes) < cluster.dgxngpu:
        yield (
            f"RANK_NUMA={cluster.rank_numa}: names {counted(len(numa_nodes), 'NUMA node')}: give one for each of the "
            f"DGXNGPU={cluster.dgxngpu} ranks of a node, or set it to nothing"
        )


def _refusals_of_hosts(cluster: ClusterSettings) -> Iterator[str]:
    """Yield a sentence if HOSTS, the list of nodes, names a node twice, and one if it does not name DGXNNODES nodes.

    Args:
        cluster: Settings of the nodes. An empty HOSTS is in order here.
    """
    if not cluster.hosts:
        return
    hosts = cluster.hosts.split(",")
    twice = named_twice(hosts)
    if twice:
        yield f"HOSTS {twice}"
    if len(hosts) != cluster.dgxnnodes:
        fix = f"set DGXNNODES={len(hosts)}, or unset HOSTS"
        yield f"HOSTS names {counted(len(hosts), 'node')}, but DGXNNODES is {cluster.dgxnnodes}: {fix}"


def _refusals_of_precision(job: Job, tf32_override: str) -> Iterator[str]:
    """Yield a sentence if the device cannot compute in PRECISION, or NVIDIA_TF32_OVERRIDE contradicts it on a GPU.

    Args:
        job: The settings of the job.
        tf32_override: Text of the variable NVIDIA_TF32_OVERRIDE; empty if it is not set. NVIDIA's libraries do not
            compute in TF32 if it is "0".
    """
    precision = job.model.precision
    if not job.cluster.on_gpu:
        if precision != "fp32":
            yield f"PRECISION={precision}: a CPU has no kernels for it: use fp32 or DEVICE=gpu"
        return

    forbids_tf32 = tf32_override == "0"
    allows_tf32 = tf32_override not in ("", "0")
    if precision == "fp32" and allows_tf32:
        yield f"PRECISION=fp32: {TF32_OVERRIDE}={tf32_override} allows TF32: unset it, or set PRECISION=tf32"
    if precision == "tf32" and forbids_tf32:
        yield f"PRECISION=tf32: {TF32_OVERRIDE}=0 has it computed in FP32: unset it, or set PRECISION=fp32"


def _refusals_of_loss_scale(job: Job) -> Iterator[str]:
    """Yield a sentence for each reason why this job cannot train at the fixed loss scale that the user set.

    A fixed scale is only for FP16, for networks that were shown to train at one, and within bounds that grow with the
    global batch.

    Args:
        job: The settings of the job. LOSS_SCALE=0, which leaves the scale to the program, is always in order.

    Yields:
        What is wrong and what to set instead.
    """
    scale = job.model.loss_scale
    if scale == 0:  # the user leaves it to the program
        return
    if not job.model.is_half:
        yield f"LOSS_SCALE={scale}: only FP16's loss is scaled: set 0, or PRECISION=amp_o1 or amp_o2"
    if not job.model.traits.holds_fixed_loss_scale:
        holds = " and ".join(_titles_that_hold_fixed_loss_scale())
        yield f"LOSS_SCALE={scale}: a fixed scale was shown to hold for {holds} alone: set 0"
    least, most = _bounds_of_loss_scale(job.global_batch)
    if scale < least or scale > most:
        yield (
            f"LOSS_SCALE={scale}: FP16 is shown to hold the gradients of a mean over {job.global_batch} images at "
            f"{least} to {most} alone: set one of these, or 0"
        )


def _bounds_of_loss_scale(global_batch: int) -> tuple[int, int]:
    """Return the least and the largest fixed loss scale with which FP16 was shown to train a global batch.

    A smaller scale lets small gradients become 0, and a larger one may let gradients overflow. Both bounds grow with
    the batch, because the loss is a mean over its images.

    Args:
        global_batch: Images of a step over all ranks.

    Returns:
        (least, most), each at least 2.
    """
    # At least 2, because a scale of 1 scales nothing.
    least = max(2, math.ceil(global_batch * MIN_SCALE_PER_IMAGE))
    most = max(2, global_batch * MAX_SCALE_PER_IMAGE)
    return least, most


def _refusals_of_course(job: Job) -> Iterator[str]:
    """Yield a sentence for each setting of a run's course that is wrong, or does not fit WORKLOAD or MODE.

    These settings are PRETRAINED, RECIPE, PROFILE and RESUME: what the run starts from, trains by and records. For
    example, a run that only measures throughput (MODE=throughput) has no checkpoints to resume from.

    Args:
        job: The settings of the job.

    Yields:
        What is wrong and what to set instead.
    """
    model = job.model
    course = job.course
    if model.pretrained and not model.traits.reads_pretrained:
        fitting_workloads = [workload.name for workload, traits in _workloads_with_traits() if traits.reads_pretrained]
        fitting = " or ".join(f"WORKLOAD={name}" for name in fitting_workloads)
        yield (
            f"PRETRAINED={model.pretrained}: {model.workload} starts from weights of its own: unset it, or {fitting}"
        )
    # Some recipes are good for measuring throughput only, as they train to no target. Each has one to train by instead.
    recipe_to_train_by = model.traits.only_measured.get(model.recipe)
    if course.trains and recipe_to_train_by is not None:
        yield f"RECIPE={model.recipe}: it is for the first steps of MODE=throughput: train by {recipe_to_train_by}"
    if course.profile:
        yield from _refusals_of_profile(course)
    if job.checkpoints.resume == "auto" and not course.trains:
        yield "RESUME=auto: a run of MODE=throughput has no checkpoints: set MODE=train"


def _refusals_of_profile(course: CourseSettings) -> Iterator[str]:
    """Yield a sentence if PROFILE, the steps to trace, is not a range of steps from 1 on, or goes beyond the run.

    How many steps a run has is known only in MODE=throughput.

    Args:
        course: Settings of the run's course, with a PROFILE that is not empty, such as "steps:20-25".
    """
    first_traced = course.traced.start
    last_traced = course.traced.stop - 1
    if first_traced < 1 or last_traced < first_traced:
        yield f"PROFILE={course.profile!r}: must be steps:a-b with 1 <= a <= b, as steps:20-25"
    measures_only = not course.trains  # MODE=throughput: the number of steps is known
    if measures_only and last_traced > course.throughput_steps:
        ends = f"the run ends with step {course.throughput_steps} (WARMUP_STEPS + MEASURED_STEPS)"
        yield f"PROFILE={course.profile}: {ends}: trace earlier ones, or set MEASURED_STEPS to more"


def _workloads_with_traits() -> list[tuple[Workload, Traits]]:
    """Return all workloads, each with the traits of its network."""
    return [(workload, traits_of(workload.name)) for workload in WORKLOADS]


def _titles_that_hold_fixed_loss_scale() -> list[str]:
    """List the workloads that were shown to train in FP16 with a fixed loss scale, as people call them."""
    return [workload.title for workload, traits in _workloads_with_traits() if traits.holds_fixed_loss_scale]


# ---- what only the user's command can tell


def of_seeds(job: Job) -> Iterator[str]:
    """Yield a sentence if the seed of a job's last trial is beyond the largest one.

    Args:
        job: The user's settings of the job, and not those of a rank, whose SEED is that of its own trial.
    """
    are_seeds_drawn = job.course.seed < 0  # SEED=-1: the system draws the seeds of all trials
    if are_seeds_drawn:
        return
    last_seed = job.course.seed + job.trials.nexp - 1  # the first trial has SEED, and each later one 1 more
    if last_seed > LAST_SEED:
        yield (
            f"SEED={job.course.seed}: the last of NEXP={job.trials.nexp} trials would have the seed {last_seed}: set "
            f"SEED to {LAST_SEED - job.trials.nexp + 1} at most"
        )


def of_paddle_flags(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each of two variables of Paddle with which the job would fail or train wrongly.

    They are FLAGS_selected_gpus on GPUs, and FLAGS_use_mkldnn on CPUs.

    Args:
        job: The settings of the job.
        environ: The user's environment, in which Paddle's own launcher may have left FLAGS_selected_gpus. Not a rank's
            environment: a rank sets this variable itself, to the number of its GPU.
    """
    cluster = job.cluster
    # Paddle would know only the GPUs of this list, and a rank on another GPU would end with an error.
    selected = environ.get("FLAGS_selected_gpus", "")
    is_what_job_sets = selected == "0" and cluster.dgxngpu == 1  # the node's only rank sets the same value
    if selected and cluster.on_gpu and not is_what_job_sets:
        yield (
            f"FLAGS_selected_gpus={selected}: each rank computes on the GPU of its own number: unset it, and name the "
            "job's GPUs in CUDA_VISIBLE_DEVICES"
        )
    onednn = environ.get("FLAGS_use_mkldnn", "")
    is_off = onednn.lower() in ("", "0", "f", "false", "n", "no")
    if not is_off and not cluster.on_gpu:
        yield f"FLAGS_use_mkldnn={onednn}: oneDNN, in this Paddle, trains wrongly on a CPU: unset it"


def of_named_paths(job: Job) -> Iterator[str]:
    """Yield a sentence for each path in the job's settings that cannot be used on this machine.

    A path at which there is nothing, or that cannot be looked up, is accepted: the job makes the file or folder, or the
    code that opens it reports the error. Only HOSTFILE, the list of the nodes, must exist if it is set.

    Only the command that the user calls makes this check. The ranks do not, because a rank may run on another machine,
    without these files.

    Args:
        job: The settings of the job.

    Yields:
        The variable with its path, what is wrong, and what to do, such as "LOGDIR=...: ...".
    """
    yield from _refusals_of_tilde(job)  # of a path that begins with ~
    yield from _refusals_of_dash(job)  # of a path that begins with -
    yield from _refusals_of_hostfile(job.cluster)
    for variable in NAMED_PATHS:  # "LOGDIR", "DATADIR", "PRETRAINED" and others
        path = job.value(variable)
        if not path:
            continue
        try:
            if variable in FOLDERS:
                named_files.require_folder_if_present(Path(path))
            else:
                named_files.require_file_if_present(Path(path))
        except named_files.UnusableError as error:
            yield f"{variable}={error}"  # the message begins with the path


def _refusals_of_tilde(job: Job) -> Iterator[str]:
    """Yield a sentence for each path that begins with ~, which only a shell takes for the home folder.

    It would be a folder of that name in the checkout, which nobody finds, and which `rm -r ~` does not remove.

    Args:
        job: The settings of the job.
    """
    for variable in (*NAMED_PATHS, "HOSTFILE"):
        path = job.value(variable)
        if path == "~" or path.startswith("~/"):
            home = path.replace("~", "$HOME", 1)
            yield (
                f"{variable}={path}: this ~ is not a home folder, as the shell replaces none in quotes: "
                f'write {variable}="{home}"'
            )


def _refusals_of_dash(job: Job) -> Iterator[str]:
    """Yield a sentence for each path that begins with -, which a command takes for an option.

    Args:
        job: The settings of the job.
    """
    for variable in (*NAMED_PATHS, "HOSTFILE"):
        path = job.value(variable)
        if path.startswith("-"):
            yield f"{variable}={path}: a command takes what begins with - for an option: write {variable}=./{path}"


def _refusals_of_hostfile(cluster: ClusterSettings) -> Iterator[str]:
    """Yield a sentence if HOSTS and HOSTFILE are both set, and one if the list of nodes in HOSTFILE is wrong.

    It is wrong if it cannot be read, has a malformed name, names a node twice, or does not name DGXNNODES nodes.

    Args:
        cluster: Settings of the nodes. An empty HOSTFILE is in order.
    """
    if not cluster.hostfile:
        return
    if cluster.hosts:
        yield f"HOSTFILE={cluster.hostfile}: HOSTS={cluster.hosts} names the nodes too: unset one of them"
    try:
        hosts_of_cluster(cluster)  # only for its error
    except ValueError as error:
        yield str(error)


# ---- what the recipe and the program must be asked


def of_program(job: Job) -> Iterator[str]:
    """Yield a sentence for each reason why the training program cannot be built, or would not do what the job says.

    This needs installed packages such as NumPy, unlike the other checks here.

    Args:
        job: The settings of the job.

    Yields:
        What is wrong and what to set instead.

    Raises:
        ValueError: The recipe is unknown or there is none for the global batch, or STRATEGY has an unknown or refused
            option, or a wrong value.
    """
    model = job.model
    recipe = job.hyperparameters  # raises ValueError for an unknown recipe
    layouts = model.traits.layouts
    if model.layout and model.layout not in layouts:
        yield f"LAYOUT={model.layout}: {model.row.title} is built in {' and '.join(layouts)} only: leave LAYOUT empty"
    yield from _refusals_of_strategy(job, recipe)
    yield from _refusals_of_too_many_pixels(job)
    yield from _refusals_of_strategy_on_device(job)


def _refusals_of_strategy(job: Job, recipe: Any) -> Iterator[str]:
    """Yield a sentence for each option in STRATEGY that does not fit the recipe or the job's other settings.

    STRATEGY lists optimizations of the training program, such as "gradient_merge=2,cuda_graph=1".

    Args:
        job: The settings of the job.
        recipe: The hyperparameters by which the job trains; its optimizer counts here.

    Yields:
        What is wrong and what to set instead.

    Raises:
        ValueError: STRATEGY has an unknown or refused option, or a wrong value.
    """
    model = job.model
    knobs = model.knobs  # parses STRATEGY, which raises the ValueError
    if model.batchsize % knobs.gradient_merge != 0:
        yield f"STRATEGY: gradient_merge={knobs.gradient_merge}: must divide BATCHSIZE={model.batchsize}"
    if knobs.auto:
        yield from of_automatic_mode(job)
    if knobs.cuda_graph:
        yield from _refusals_of_captured_step(model)
    sets_size_of_all_reduce = knobs.fuse_grad_size_in_MB != Strategy.fuse_grad_size_in_MB  # other than the default
    if sets_size_of_all_reduce and job.cluster.world_size == 1:
        fix = "leave it out, or set DGXNGPU or DGXNNODES above 1"
        yield f"STRATEGY: fuse_grad_size_in_MB: one rank has no all-reduce: {fix}"
    if knobs.merged_lars and recipe.optimizer.kind != "lars":
        yield f"STRATEGY: merged_lars=1: the recipe {recipe.name} does not train by LARS: leave it out"
    if knobs.perturb_input and job.course.trains:
        yield "STRATEGY: perturb_input=1 is a control of tools.tune: set MODE=throughput"


def _refusals_of_strategy_on_device(job: Job) -> Iterator[str]:
    """Yield a sentence about the first option of STRATEGY that cannot work in this job, if there is one.

    It may be unable to work on the job's device, in its precision or image layout, or with another option, as
    `cuda_graph` with `gradient_merge`.

    Args:
        job: The settings of the job.
    """
    model = job.model
    dtype = "float16" if model.is_half else "float32"
    try:
        strategy.resolve(model.knobs, dtype=dtype, layout=layout_of(model), device=job.cluster.device)
    except ValueError as error:
        yield str(error)


def layout_of(model: ModelSettings) -> str:
    """Return the image layout of the training program, "NCHW" or "NHWC".

    Args:
        model: Settings of the model. If its LAYOUT is empty, NHWC is taken in half precision if the network has it,
            else the network's usual layout.
    """
    if model.layout:
        return model.layout
    if model.is_half and "NHWC" in model.traits.layouts:
        return "NHWC"
    return model.traits.layouts[0]


def _refusals_of_captured_step(model: ModelSettings) -> Iterator[str]:
    """Yield a sentence if a training step of this model cannot be captured as a CUDA graph (STRATEGY=cuda_graph=1).

    The network must be one whose captured step was shown to be safe. In FP16 it must also have been shown to train at
    a fixed loss scale.

    Args:
        model: Settings of the model.

    Yields:
        What is wrong and what to set instead.
    """
    if not model.traits.captures_steps:
        capturing = [workload.title for workload, traits in _workloads_with_traits() if traits.captures_steps]
        yield (
            f"STRATEGY: cuda_graph=1: the step of {model.row.title} was not shown to be safe: leave it out, or train "
            f"{' or '.join(capturing)}"
        )
    elif model.is_half and not model.traits.holds_fixed_loss_scale:
        holds = " and ".join(_titles_that_hold_fixed_loss_scale())
        yield (
            "STRATEGY: cuda_graph=1: a captured step has a fixed loss scale in FP16, which was shown to hold for "
            f"{holds} alone: leave it out, or set PRECISION=fp32 or tf32"
        )


def of_automatic_mode(job: Job) -> Iterator[str]:
    """Yield a sentence for each reason why Paddle's automatic mode (STRATEGY=auto) cannot do the job.

    The mode divides the training state over AUTO_RANKS GPUs, and has an optimizer and a loss scale of its own.

    Args:
        job: The settings of the job.

    Yields:
        What is wrong and what to set instead.
    """
    auto = "STRATEGY=auto: Paddle's automatic mode"
    if not job.cluster.on_gpu:
        yield f"{auto} divides the state over {AUTO_RANKS} GPUs, and a CPU cannot: set DEVICE=gpu, or leave it out"
    if job.cluster.world_size != AUTO_RANKS:
        yield f"{auto} divides the state over {AUTO_RANKS} GPUs: set DGXNNODES and DGXNGPU to so many"
    if job.model.loss_scale:
        yield f"{auto} scales its loss by itself: set LOSS_SCALE=0"
    if job.model.precision != "amp_o1":
        yield f"{auto} trains in mixed precision: set PRECISION=amp_o1"
    if job.course.trains:
        why_not = "no rank has the whole state to evaluate or save"
        yield f"{auto} trains by LARS, not by the recipe, and {why_not}: set MODE=throughput"


def _refusals_of_too_many_pixels(job: Job) -> Iterator[str]:
    """Yield a sentence if a job trains in FP16 on so many pixels a step that their gradients vanish.

    The loss of a segmentation is a mean over all pixels of the global batch: the more pixels, the smaller the gradient
    of each.

    Args:
        job: The settings of the job. One that only measures throughput is always in order.

    Yields:
        What is wrong and what to set instead.
    """
    most_pixels = job.model.traits.most_half_pixels
    only_measures_speed = not job.course.trains
    if only_measures_speed or not job.model.is_half or most_pixels is None:  # None: the network has no such limit
        return
    recipe = job.hyperparameters
    pixels_of_image = recipe.image_width * recipe.image_height
    most_images = most_pixels // pixels_of_image
    if job.global_batch > most_images:
        yield (
            f"BATCHSIZE={job.model.batchsize}: at no loss scale does FP16 hold gradients of {job.global_batch} such "
            f"crops: train {most_images} at most over all ranks, or set PRECISION=fp32 or tf32"
        )
