"""The interface of a model's folder to a run: a data set, the heads of its programs, and the quality by their totals.

`paddle_<workload>/train.py` has one subclass of `Workload`, called WORKLOAD; all else of a run is the harness's.
"""

import importlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import paddle
from paddle import static

from harness import refusals
from harness.job import Job
from harness.loader import Batch, Loader, ReaderConfig
from harness.sampling import Plan as SamplePlan
from program import build
from program.arrays import Array
from program.optimizers import Schedule
from program.precision import PRECISIONS, captured_loss_scale

DYNAMIC_LOSS_SCALE = 0.0  # how a `build.Plan` says it


class Workload(ABC):
    """A model as a run trains it, by a recipe and a plan."""

    EMBEDDED: ClassVar[Any]  # module of the data set that is made where none is given: `NAME` and `write(folder)`
    # Module that reads a data set: `find(root, part, classes)`, `Loader` and `synthetic`; where labels are files also
    # `label_fault(samples, number)` and `label_doubt(samples, numbers)`.
    DATA: ClassVar[Any]
    QUALITY: ClassVar[str]  # name of the evaluation program's total that its quality is computed from

    def __init__(self, recipe: Any, plan: build.Plan, *, batch: int, ranks: int = 1) -> None:
        """Keep what the programs and loaders of this model are made by; nothing is built yet.

        Args:
            recipe: The hyperparameters, a frozen dataclass of the workload.
            plan: How the training program is built: device, precision, layout and more.
            batch: Images a step on one device.
            ranks: Number of ranks of the job.
        """
        self.recipe, self.plan, self.batch, self.ranks = recipe, plan, batch, ranks

    @property
    def bn_span(self) -> int:
        """Images over which a normalization takes its statistics."""
        return self.plan.micro_batch(self.batch)

    @property
    @abstractmethod
    def image(self) -> Any:
        """Format in which the training program is fed images."""

    def eval_input(self, samples: Any) -> tuple[Any, int]:
        """Return the format of an evaluation's images, and how many a rank evaluates at once.

        These are the training's. A workload that evaluates images of another size overrides this, as HRNet does: it
        takes whole images, whose size it finds in the samples.

        Args:
            samples: The evaluation samples; of no effect if this is not overridden.

        Returns:
            (image format, images).

        Raises:
            ValueError: The samples do not say their size. Only a method that overrides this raises it.
        """
        return self.image, self.batch

    def synthetic(self, image: Any, *, batch: int, seed: int) -> Batch:
        """Return a batch of noise, to warm up on and to measure the program without its input.

        Args:
            image: Format of the images: the training's or the evaluation's.
            batch: Number of images.
            seed: Seed of the noise.
        """
        made: Batch = self.DATA.synthetic(image, batch=batch, classes=self.recipe.classes, seed=seed)
        return made

    def batches(self, samples: Any, plan: SamplePlan, reader: ReaderConfig) -> Loader:
        """Return a loader of training batches, with images augmented as the recipe says.

        Args:
            samples: The training samples.
            plan: Yields which samples each batch of this rank has.
            reader: How this rank reads: batch size, image format, threads and device.

        Raises:
            RunError: The input pipeline cannot be built.
            MemoryError: There is too little memory for it.
        """
        loader: Loader = self.DATA.Loader(samples, plan, reader, augment=self.recipe.augmentation)
        return loader

    def eval_batches(self, samples: Any, plan: SamplePlan, reader: ReaderConfig) -> Loader:
        """Return a loader of evaluation batches, without augmentation.

        Args:
            samples: The evaluation samples.
            plan: Yields which samples each batch of this rank has.
            reader: How this rank reads: batch size, image format, threads and device.

        Raises:
            RunError: The input pipeline cannot be built.
            MemoryError: There is too little memory for it.
        """
        loader: Loader = self.DATA.Loader(samples, plan, reader)
        return loader

    @abstractmethod
    def training_loss(self, batch: int) -> static.Variable:
        """Append the network and its loss to Paddle's default program; return the mean loss of a batch, a scalar.

        Args:
            batch: Images that the program computes at once.
        """

    @abstractmethod
    def evaluation_totals(self, image: Any, batch: int) -> None:
        """Append operators to Paddle's default program that add a batch's results to the totals QUALITY and COUNTED.

        Args:
            image: Format of the images.
            batch: Images that a rank evaluates at once.
        """

    @abstractmethod
    def quality(self, totals: dict[str, Any]) -> float:
        """Return the quality of the model, between 0 and 1, from the totals of an evaluation.

        Args:
            totals: The totals QUALITY and COUNTED, summed over the ranks, by name.
        """

    def doubt(self, totals: dict[str, Any]) -> str:
        """Return why an evaluation shows nothing; an empty text if it shows something.

        Args:
            totals: The totals QUALITY and COUNTED of the evaluation, summed over the ranks, by name.
        """
        return ""

    def require_pretrained(self, path: str) -> None:  # noqa: B027 - a network need not read such a file
        """Make sure that a file holds pretrained first weights that fit the network.

        This is asked before a log is begun: `pretrained` needs the training program, which is built later.

        Args:
            path: The file that PRETRAINED names; empty: none.

        Raises:
            ValueError: It cannot be read, holds no weights, or those of another network.
        """

    def pretrained(self, path: str, program: static.Program) -> dict[str, Array]:
        """Return pretrained first weights for a training program; a workload that can read such a file overrides this.

        Args:
            path: The file that PRETRAINED names; empty: none.
            program: The training program, which has the parameters.

        Returns:
            {name of a parameter: its value}. It is empty if no file is named, and always if this is not overridden.

        Raises:
            ValueError: The file does not have the weights. Only a method that overrides this raises it.
        """
        return {}

    def training_program(self, schedule: Schedule, *, seed: int) -> build.TrainingProgram:
        """Build this rank's training program, and the start-up program that gives the parameters their first values.

        Before this call, `env.export_trainer` must have told Paddle the addresses of all ranks.

        Args:
            schedule: The learning rate by step.
            seed: Seed of the parameters' first values.

        Returns:
            The start-up program, the programs of a training step, the schedule in Paddle's form, and texts on what was
            proved of the programs.

        Raises:
            ValueError: Paddle cannot build a training program by the plan, or the program fails a proof that it trains
                as the plan and the recipe's optimizer ask.
        """
        training, startup = static.Program(), static.Program()
        startup.random_seed = seed
        # In this block the two are Paddle's default programs, to which `training_loss` and `minimize` append.
        with static.program_guard(training, startup):
            loss = self.training_loss(self.plan.micro_batch(self.batch))  # appends the network and its loss
            # Appends gradients, their sum over the ranks and the optimizer. Then proves what was built, except with
            # STRATEGY=auto.
            return build.minimize(loss, self.recipe.optimizer, schedule, plan=self.plan)


def add_to_total(name: str, value: static.Variable) -> None:
    """Append operators to Paddle's default program that add a batch's value to a total.

    The total is a variable that keeps its value in Paddle's scope from run to run. Nothing here sets it to 0: for that
    the `Evaluator` of harness/loop.py sets it in the scope before each evaluation.

    Args:
        name: Name of the variable, which is created.
        value: The value of each batch, a variable of the program.
    """
    block = static.default_main_program().global_block()
    total = block.create_var(name=name, shape=value.shape or [1], dtype=value.dtype, persistable=True)
    paddle.assign(total + value, output=total)


def of_job(job: Job) -> Workload:
    """Return the model that a job trains, with its recipe and its plan for the training program.

    Args:
        job: The settings of the job.

    Raises:
        ValueError: What the job asks for cannot be built.
    """
    workload: type[Workload] = importlib.import_module(f"{job.model.package}.train").WORKLOAD
    return workload(job.hyperparameters, plan_of(job), batch=job.model.batchsize, ranks=job.cluster.world_size)


def plan_of(job: Job) -> build.Plan:
    """Return the plan by which the job's training program is built: device, precision, layout, loss scale and more.

    The package `program` builds by it and knows no jobs.

    Args:
        job: The settings of the job.

    Raises:
        ValueError: The program cannot be built by these settings, as for an unknown option of STRATEGY.
    """
    refusals.raise_first(refusals.of_program(job))
    return build.Plan(
        device=job.cluster.device,
        precision=PRECISIONS[job.model.precision],
        strategy=job.model.knobs,
        layout=refusals.layout_of(job.model),
        loss_scale=_loss_scale_of(job),
    )


def _loss_scale_of(job: Job) -> float:
    """Return the fixed loss scale of the job's program, or DYNAMIC_LOSS_SCALE.

    A step that is captured as a CUDA graph cannot look for infinities, by which a dynamic scale is adjusted. It gets a
    fixed scale that fits the global batch.

    Args:
        job: The settings of the job. LOSS_SCALE, if it is not 0, is the result.
    """
    if job.model.loss_scale != 0:  # LOSS_SCALE is set
        return float(job.model.loss_scale)
    if job.model.knobs.cuda_graph:
        return captured_loss_scale(job.global_batch)
    return DYNAMIC_LOSS_SCALE
