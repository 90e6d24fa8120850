"""Training programs small enough for a CPU: two stages of ResNet-50's bottlenecks at 32 pixels."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import paddle
from paddle import static

from harness import env, loop
from harness.workload import Workload
from paddle_rn50 import config, model, train
from program import build as building
from program import precision, strategy
from program.optimizers import OptimizerConfig, Schedule
from program.passes import resnet_unit
from program.proof.knobs import check_knobs

STAGES = ((8, 2), (16, 2))  # a projection and an identity shortcut in each
BATCH, SIDE, CLASSES = 4, 32, 10
SGD = OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=1e-4)
LARS = OptimizerConfig(kind="lars", momentum=0.9, weight_decay=1e-2)
RECIPE = replace(
    config.DIGITS_SMALL, image_size=SIDE, label_smoothing=0.1, zero_gamma=False, optimizer=SGD, classes=CLASSES
)
SCHEDULE = Schedule(kind="cosine", base=0.01, warmup_steps=2, total_steps=20)


@dataclass(frozen=True, kw_only=True)
class Built(building.TrainingProgram):
    model: Workload  # that built it
    otherwise: frozenset[str]  # what lies otherwise in memory than in the plain network

    def copy(self) -> Built:
        """Programs of its own, to be changed and run."""
        programs = {id(program): program.clone() for program in self.update}
        update = tuple(programs[id(program)] for program in self.update)
        return replace(self, startup=self.startup.clone(), update=update, schedule=copy.copy(self.schedule))

    def evaluation(self, image: Any = None, batch: int = BATCH) -> static.Program:
        """The evaluation program on its state, of training images if none are given."""
        totals = functools.partial(self.model.evaluation_totals, image or self.model.image, batch)
        return building.evaluation(totals, self, self.model.plan)

    def kinds(self, *wanted: str) -> list[int]:
        return [sum(op.type == kind for op in self.main.global_block().ops) for kind in wanted]


def build(**wanted: Any) -> Built:
    """A copy of what `fresh` builds of the same arguments, which is built once in a session."""
    paddle.enable_static()
    return _kept(**wanted).copy()


def fresh(
    *,
    ranks: int = 1,
    name: str = "fp32",
    device: str = "cpu",
    knobs: str = "",
    layout: str = "",
    batch: int = BATCH,
    recipe: Any = RECIPE,
    stages: Any = STAGES,
    loss_scale: float = 0.0,
    schedule: Schedule = SCHEDULE,
    workload: Any = train.ResNet50,
) -> Built:
    """The training program of rank 0 of `ranks`, as train.py builds it."""
    paddle.enable_static()
    chosen = precision.PRECISIONS[name]
    plan = building.Plan(
        device=device,
        precision=chosen,
        strategy=strategy.parse(knobs),
        layout=layout or chosen.layout,
        loss_scale=loss_scale or (precision.captured_loss_scale(ranks * batch) if "cuda_graph=1" in knobs else 0.0),
        is_to_be_run=False,
    )
    env.export_trainer(0, [f"127.0.0.1:{6170 + rank}" for rank in range(ranks)])
    with mock.patch.object(model, "STAGES", stages), paddle.utils.unique_name.guard():
        network = workload(recipe, plan, batch=batch)
        built = network.training_program(schedule, seed=1)
    return Built(**vars(built), model=network, otherwise=frozenset(resnet_unit.names_in_unit_layout(built.main)))


_kept = functools.cache(fresh)


def proved(main: Any, text: str, *, name: str = "amp_o2", ranks: int = 8) -> list[str]:
    """What is proved of a GPU's program where STRATEGY was `text`."""
    asked, chosen = strategy.parse(text), precision.PRECISIONS[name]
    on = strategy.resolve(asked, dtype=chosen.dtype, layout=chosen.layout, device="gpu")
    return check_knobs(main, on, asked=asked, ranks=ranks)


def taken(built: Built, image: np.ndarray) -> np.ndarray:
    """Images [N, H, W, 3] in the layout that a program takes; a fourth channel is zero."""
    shape = built.main.global_block().var("image").shape
    is_last = shape[3] in (3, 4)
    image = np.pad(image, ((0, 0), (0, 0), (0, 0), (0, shape[3 if is_last else 1] - 3)))
    return image if is_last else np.ascontiguousarray(image.transpose(0, 3, 1, 2))


def images(step: int, built: Built) -> dict[str, Any]:
    """The same images for every program."""
    rng = np.random.default_rng(step)
    image = rng.standard_normal((BATCH, SIDE, SIDE, 3)).astype(np.float32)
    return {"image": taken(built, image), "label": rng.integers(0, CLASSES, (BATCH, 1))}


def drawn(built: Built) -> dict[str, np.ndarray]:
    """First weights from a fixed seed by name, as the plain network on three channels has them."""
    found = {}
    for parameter in built.main.all_parameters():
        if not parameter.trainable:
            continue  # BN statistics start at 0 and 1
        name, shape, rng = parameter.name, parameter.shape, np.random.default_rng(sum(map(ord, parameter.name)))
        shape = resnet_unit.to_plain_layout(np.empty(shape)).shape if name in built.otherwise else shape
        if name == "stem.conv.w":
            value = rng.standard_normal((shape[0], 4, *shape[2:]))[:, :3] * 0.15
        elif len(shape) > 1:
            value = rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:] if len(shape) == 4 else shape[:1]))
        else:
            value = name.endswith("w") + 0.1 * rng.standard_normal(shape)
        found[name] = value.astype(np.float32)
    return found


def set_weights(built: Built, scope: Any, weights: dict[str, np.ndarray] | None = None) -> None:
    """The plain network's, drawn if none are given, and FP32 masters alike: programs of other operators start equal."""
    weights = weights or drawn(built)
    for name in built.main.global_block().vars:
        of = re.sub(r"_fp32_master_\d+$", "", name)
        if of not in weights:
            continue
        tensor, value = scope.find_var(name).get_tensor(), weights[of]
        if value.ndim == 4 and tensor.shape()[1] == 4:
            value = np.pad(value, ((0, 0), (0, 4 - value.shape[1]), (0, 0), (0, 0)))
        tensor.set(resnet_unit.to_unit_layout(value) if of in built.otherwise else value, paddle.CPUPlace())


class Run:
    """A training on a CPU, in a scope of its own."""

    def __init__(self, built: building.TrainingProgram) -> None:
        self.built, self.scope, self.executor = built, static.Scope(), static.Executor(paddle.CPUPlace())
        self.executor.run(built.startup, scope=self.scope)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array(self.scope.find_var(name).get_tensor())

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        self.scope.var(name).get_tensor().set(value, self.executor.place)

    def step(self, feed: dict[str, Any]) -> float:
        """Mean loss of an update."""
        update, out = self.built.update, []
        with static.scope_guard(self.scope):
            self.built.schedule.send(self.executor.place)
            for main, part in zip(update, loop.parts(feed, len(update)), strict=True):
                out += self.executor.run(main, feed=part, fetch_list=["train.loss"])
        self.built.schedule.step()
        return float(np.mean(out))


def losses(
    built: Built, steps: int, *, feed: Callable[[int], dict[str, Any]] | None = None, fetch: list[str] | None = None
) -> Any:
    """Loss of each step; with `fetch` also these variables after the last one."""
    run = Run(built)
    set_weights(built, run.scope)
    found = [run.step(feed(step) if feed else images(step, built)) for step in range(steps)]
    return (found, {name: run[name] for name in fetch}) if fetch else found
