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
from paddle_rn50 import config, model, train
from program import build as building
from program import precision, strategy
from program.optimizers import OptimizerConfig, Schedule
from program.passes import resnet_unit
from program.proof import knobs as proof

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
    otherwise: frozenset[str] = frozenset()  # what lies otherwise in memory than in the plain network

    def copy(self) -> Built:
        """Programs of its own, to be changed and run."""
        programs = {id(program): program.clone() for program in self.update}
        main = programs[id(self.main)]
        return replace(
            self,
            main=main,
            startup=self.startup.clone(),
            loss=main.global_block().var(self.loss.name),
            update=tuple(programs[id(program)] for program in self.update),
            schedule=copy.copy(self.schedule),
        )

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
        ranks_listen=False,
    )
    env.export_trainer(0, [f"127.0.0.1:{6170 + rank}" for rank in range(ranks)])
    with mock.patch.object(model, "STAGES", stages), paddle.utils.unique_name.guard():
        built = workload(recipe, plan, batch=batch).training_program(schedule, seed=1)
    return Built(**vars(built), otherwise=frozenset(resnet_unit.stored_otherwise(built.main)))


_kept = functools.cache(fresh)


def proved(main: Any, text: str, *, name: str = "amp_o2", ranks: int = 8) -> list[str]:
    """What is proved of a GPU's program where STRATEGY was `text`."""
    asked, chosen = strategy.parse(text), precision.PRECISIONS[name]
    on = strategy.resolve(asked, dtype=chosen.dtype, layout=chosen.layout, device="gpu")
    return proof.check(main, on, asked=asked, ranks=ranks)


def images(step: int, *, layout: str, channels: int, batch: int = BATCH) -> dict[str, Any]:
    """The same images in every layout; a fourth channel is zero."""
    rng = np.random.default_rng(step)
    image = rng.standard_normal((batch, SIDE, SIDE, 3)).astype(np.float32)
    label = rng.integers(0, CLASSES, (batch, 1))
    image = np.pad(image, ((0, 0), (0, 0), (0, 0), (0, channels - 3)))
    if layout == "NCHW":
        image = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
    return {"image": image, "label": label}


def set_weights(built: Built, scope: Any) -> None:
    """Weights from a fixed seed by name, and the FP32 masters alike: programs of different operators start equal."""
    for parameter in sorted(built.main.all_parameters(), key=lambda p: p.name):
        if not parameter.trainable:
            continue  # BN statistics start at 0 and 1
        rng = np.random.default_rng(sum(map(ord, parameter.name)))
        otherwise = parameter.name in built.otherwise
        shape = list(resnet_unit.plain(np.empty(parameter.shape)).shape if otherwise else parameter.shape)
        if parameter.name == "stem.conv.w":
            value = rng.standard_normal((shape[0], 4, *shape[2:]))[:, : shape[1]] * 0.15
        elif len(shape) > 1:
            value = rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:] if len(shape) == 4 else shape[:1]))
        else:
            value = (parameter.name.endswith("w")) + 0.1 * rng.standard_normal(shape)
        value = resnet_unit.stored(value) if otherwise else value
        for name in built.main.global_block().vars:
            if re.fullmatch(re.escape(parameter.name) + r"(_fp32_master_\d+)?", name):
                scope.find_var(name).get_tensor().set(value.astype(np.float32), paddle.CPUPlace())


def losses(
    built: Built,
    steps: int,
    *,
    feed: Callable[[int], dict[str, Any]] | None = None,
    layout: str = "NCHW",
    channels: int = 3,
    fetch: list[str] | None = None,
) -> Any:
    """Loss of each step; with `fetch` also these variables after the last one."""
    feed = feed or (lambda step: images(step, layout=layout, channels=channels))
    scope = static.Scope()
    executor = static.Executor(paddle.CPUPlace())
    found = []
    with static.scope_guard(scope):
        executor.run(built.startup)
        set_weights(built, scope)
        for step in range(steps):
            built.schedule.send(executor.place)
            out = [
                executor.run(main, feed=part, fetch_list=[built.loss.name])
                for main, part in zip(built.update, loop.parts(feed(step), len(built.update)), strict=True)
            ]
            found.append(float(np.mean(out)))
            built.schedule.step()
        last = {name: np.array(scope.find_var(name).get_tensor()) for name in fetch or []}
    return (found, last) if fetch else found
