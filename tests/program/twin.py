"""The arithmetic twin: what rounding to the types of a GPU program does to a step's gradients, on a CPU.

python -m tests.program.twin [WORD...]   computes the rows whose name has a WORD, without one all of them, prints them,
                                         and writes them to tests/program/twin.md (minutes to an hour on two cores)

Each program is that of the public door at the size and the number of classes of its data set. It is lowered to FP32
(lower.py) and computes one step on crops of two photographs, in which each image has the share in the mean that it has
in the global batch. Every value that the GPU program stores in half precision is rounded, forward and backward, and in
TF32 what a product reads. Compared, parameter by parameter, is the gradient as the optimizer reads it:

- `gradients`: the forward pass is FP32's, and every gradient is rounded where the GPU program stores it, or in TF32
  where a product reads it. This is what the loss scale decides.
- `values`: those of the forward pass too, parameters and images with them. Relus and the largest of a pool let
  gradients pass where they do in FP32.
- `relus too`: relus follow the rounded values, and turn over where FP32's input is a rounding away from 0, in any
  framework and in TF32 too. It is shown.

Weights are the first ones of the recipe, and those of a training on the same crops: where its loss without smoothing is
about that of published runs, below it, and where it knows the crops by heart.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from PIL import Image

from paddle_hrnet import config as hrnet_config
from paddle_hrnet import train as hrnet_train
from paddle_rn50 import config, data, model, train
from program import capture, count, precision
from program.optimizers import OptimizerConfig, Schedule
from program.passes import edit, resnet_unit
from tests.program import lower, programs

PAGE = Path(__file__).resolve().with_suffix(".md")
HEAD = """\
| rounded | weights | job | loss | its scale | least cosine | median | ratio of the norms | flushed to 0 | infinite |
|---|---|---|---|---|---|---|---|---|---|
"""
MARKS = "<!-- twin: {} -->\n"
MIN_COSINE, MIN_NORM, MAX_NORM, MAX_FLUSHED = 0.999, 0.99, 1.01, 0.01
# The rate falls where momentum would overshoot on so few images.
TRAINING = Schedule(kind="piecewise", base=0.002, warmup_steps=5, total_steps=17, boundaries=(5,), factors=(0.1,))
WEIGHTS = {"first": 0, "warm": 5, "late": 8, "by heart": 16}  # steps of this training
# The gradients alone are compared: no decay, and the velocities of a first step are the gradients.
PLAIN = OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job that the public door takes."""

    precision: str
    knobs: str = ""
    loss_scale: int = 0
    layout: str = ""
    recipe: str = "mlperf_lars"
    batch: int = 408  # of a device, of eight
    weights: str = "first"
    rounded: str = "gradients"  # or values, or relus too
    images: int = 4  # of the step

    @property
    def name(self) -> str:
        """As a user would write it."""
        more = [f"STRATEGY={self.knobs}" if self.knobs else "", f"LAYOUT={self.layout}" if self.layout else ""]
        more.append(f"LOSS_SCALE={self.loss_scale}" if self.loss_scale else "")
        return " ".join([self.recipe, f"8 x {self.batch}", self.precision, *filter(None, more)])

    @property
    def cells(self) -> str:
        """The row's first ones."""
        return f"| {self.rounded} | {self.weights} | `{self.name}` |"

    @property
    def scale(self) -> float:
        """Of its first step's loss."""
        if not self.precision.startswith("amp"):
            return 1.0
        return self.loss_scale or self.captured_scale or precision.FIRST_LOSS_SCALE

    @property
    def captured_scale(self) -> float:
        """As the door chooses it; 0 of a launched step."""
        return precision.captured_loss_scale(8 * self.batch) if "cuda_graph" in self.knobs else 0.0

    @property
    def is_hrnet(self) -> bool:
        """Whether its recipe is HRNet's."""
        return self.recipe in hrnet_config.RECIPES

    @property
    def ranks(self) -> int:
        """By which an image has the share in the mean that it has in the global batch."""
        return 8 * self.batch // self.images

    @property
    def plain(self) -> Case:
        """The same recipe in FP32 on a CPU."""
        return Case(recipe=self.recipe, batch=self.batch, weights=self.weights, images=self.images, precision="fp32")

    def built(self, *, device: str, schedule: Schedule = programs.SCHEDULE) -> programs.Built:
        """Its program for a GPU; for a CPU the plain one in FP32 of one rank."""
        recipe = (hrnet_config if self.is_hrnet else config).recipe(self.recipe, global_batch=8 * self.batch)
        shared: dict[str, Any] = {
            "batch": self.images,
            "recipe": replace(recipe, optimizer=PLAIN),
            "stages": model.STAGES,
            "schedule": schedule,
            "workload": (hrnet_train if self.is_hrnet else train).WORKLOAD,
        }
        if device == "cpu":
            return programs.fresh(knobs=self.knobs, layout=self.layout or "NCHW", **shared)
        return programs.fresh(
            name=self.precision,
            device="gpu",
            ranks=self.ranks,
            knobs=self.knobs,
            layout="NCHW" if self.is_hrnet else self.layout,
            loss_scale=self.loss_scale or self.captured_scale,
            **shared,
        )


BATCHES = {"mlperf_lars": 408, "nvidia_cosine": 256, "paddleclas_piecewise": 256}  # of a device, of published runs
TRAINED = [  # captured, so at the least scale that the door chooses
    Case(weights=weights, rounded="values", precision="amp_o2", knobs="cuda_graph=1", recipe=recipe, batch=batch)
    for recipe, batch in BATCHES.items()
    for weights in ("first", "warm", "late")
]
NARROW = replace(TRAINED[0], weights="late")  # one norm is short, in TF32 too, by the 11 bits that both have
TRAINED.remove(NARROW)
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"knobs": "cuda_graph=1"},
    {"knobs": "gradient_merge=2"},
    {"knobs": "resnet_unit=1"},
    {"layout": "NCHW"},
)
CASES = (
    *(Case(precision="tf32", knobs=knobs) for knobs in ("", "gradient_merge=2")),
    *(Case(precision=precision, **way) for precision in ("amp_o2", "amp_o1") for way in WAYS),
    Case(precision="amp_o2", loss_scale=204),  # the least that is taken at this batch
    Case(precision="amp_o2", knobs="fuse_bn_act_ops=0,fuse_bn_add_act_ops=0"),
    Case(precision="amp_o2", knobs="enable_addto=0"),
    Case(rounded="values", precision="tf32"),
    *TRAINED,
    Case(rounded="values", precision="amp_o2", knobs="resnet_unit=1"),
    Case(rounded="values", precision="amp_o2", knobs="resnet_unit=1,cuda_graph=1"),  # config_DGXA100_mlperf.sh
    Case(rounded="values", weights="late", precision="amp_o1", recipe="nvidia_cosine", batch=256),
    *(Case(weights=w, precision="amp_o2", recipe="cityscapes_benchmark", batch=8, images=1) for w in ("first", "warm")),
)
SHOWN = (  # and bound to nothing
    NARROW,
    replace(NARROW, precision="tf32", knobs=""),
    replace(TRAINED[-1], weights="by heart"),
    *(Case(rounded="relus too", precision=p, images=32) for p in ("tf32", "amp_o2", "amp_o1")),
)


@functools.cache
def photographs(batch: int, width: int, height: int) -> np.ndarray:
    """Crops of scikit-learn's two photographs as the recipe draws them, normalized, NHWC."""
    from sklearn.datasets import load_sample_images  # here: to load it takes 0.7 s, and few ask for photographs

    rng, images = np.random.default_rng(0), []
    for _ in range(batch):
        photograph = Image.fromarray(load_sample_images().images[rng.integers(2)])
        share, aspect = rng.uniform(0.05, 1.0), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3))) * width / height
        area = share * photograph.width * photograph.height
        sides = [
            min(side, most)
            for side, most in zip((np.sqrt(area * aspect), np.sqrt(area / aspect)), photograph.size, strict=True)
        ]
        left, top = (rng.uniform(0, most - side) for side, most in zip(sides, photograph.size, strict=True))
        box = (left, top, left + sides[0], top + sides[1])
        crop = photograph.resize((width, height), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(crop, dtype=np.float32)[:, :: rng.choice([-1, 1])]
        images.append((pixels - np.array(data.MEAN, np.float32)) / np.array(data.STD, np.float32))
    return np.stack(images)


def feed(case: Case, built: programs.Built) -> dict[str, np.ndarray]:
    """What the program takes: photographs and a class each, or for HRNet one by the brightness of each pixel."""
    shape = built.main.global_block().var("image").shape
    height, width = shape[1:3] if shape[3] in (3, 4) else shape[2:]
    image = photographs(case.images, width, height)
    if case.is_hrnet:
        levels = image.mean(axis=3)
        classes = np.argsort(np.argsort(levels, axis=None)).reshape(levels.shape) * 19 // levels.size
    else:
        classes = np.random.default_rng(1).integers(0, 1000, (case.images, 1))
    label = classes.astype("uint8" if case.is_hrnet else "int64")
    return {"image": programs.taken(built, image), "label": label}


@functools.cache
def weights_of(case: Case) -> tuple[dict[str, np.ndarray], str]:
    """{parameter: its value} after WEIGHTS' steps of the plain program, and the loss with them."""
    paddle.set_flags({"FLAGS_new_executor_serial_run": True})
    built, values, loss = case.built(device="cpu", schedule=TRAINING), {}, 0.0
    run, fed = programs.Run(built), feed(case, built)
    for _ in range(WEIGHTS[case.weights] + 1):
        values = {p.name: run[p.name] for p in built.main.all_parameters() if p.trainable}
        loss = run.step(fed)
    return values, f"{loss:.3g}"


def _step(
    built: programs.Built,
    fed: dict[str, np.ndarray],
    weights: dict[str, np.ndarray],
    *,
    loss_scale: float = 0.0,
    kept: dict[str, np.ndarray] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Of a step that begins with these weights, and with the gradients' ways that were `kept`: the gradients as the
    optimizer reads them, its velocities, which begin at zero; and where they pass (lower.choices).
    """
    # In the order of the program: no other shows that a bucket and the gradients that lie in it are one memory.
    paddle.set_flags({"FLAGS_new_executor_serial_run": True})
    run, found, block = programs.Run(built), {}, built.main.global_block()
    programs.set_weights(built, run.scope, weights)
    if loss_scale:  # a dynamic one goes where the program keeps it
        for name in (n for op in block.ops if op.type == "update_loss_scaling" for n in op.input("PrevLossScaling")):
            run[name] = np.full(run[name].shape, loss_scale, np.float32)
    if block.has_var(capture.STEP):
        run[capture.RATES] = built.schedule.ahead(capture.RATES_AT_ONCE)
        run[capture.STEP] = np.zeros((), np.int64)
    for name, value in (kept or {}).items():
        run[name] = value
    run.step(fed)
    ways = {name: run[name] for main in built.update for name in main.global_block().vars if lower.KEPT in name}
    for op in block.ops:
        for name in op.input("Velocity") if op.type in ("momentum", "merged_momentum") else ():
            of = name.partition("_fp32_master")[0].partition("_velocity")[0]
            value = resnet_unit.to_plain_layout(run[name]) if of in built.otherwise else run[name]
            found[of] = value[:, :3] if of == "stem.conv.w" else value
    return found, ways


@functools.cache
def _exact(plain: Case) -> dict[str, np.ndarray]:
    """Gradients of the plain program in the same layout: in another one relus whose input is a rounding away from 0
    would turn over.
    """
    built = plain.built(device="cpu")
    return _step(built, feed(plain, built), weights_of(replace(plain, knobs="", layout=""))[0])[0]


@dataclass(frozen=True, kw_only=True)
class Row:
    """All parameters' gradients beside FP32's."""

    cosines: dict[str, float]  # by parameter
    norms: list[float]  # over FP32's
    loss: str  # with these weights
    scale: float  # of the loss
    stored: float  # share of the values of all gradients that are stored in half precision, which becomes 0
    flushed: float  # most of a parameter's elements that are 0, and not in FP32
    over: float  # most that are infinite or no number

    @property
    def is_sound(self) -> bool:
        """Whether it keeps every bound."""
        within = min(self.norms) >= MIN_NORM and max(self.norms) <= MAX_NORM
        flushed = max(self.stored, self.flushed)
        return min(self.cosines.values()) >= MIN_COSINE and within and flushed <= MAX_FLUSHED and not self.over

    def __str__(self) -> str:
        of = min(self.cosines, key=self.cosines.__getitem__)
        cosines = f"{self.cosines[of]:.5f} (`{of}`) | {np.median(list(self.cosines.values())):.5f}"
        norms = f"{min(self.norms):.4f} to {max(self.norms):.4f}"
        shares = f"{100 * self.stored:.2f} %, {100 * self.flushed:.2f} % | {100 * self.over:.0f} %"
        return f"{self.loss} | {self.scale:g} | {cosines} | {norms} | {shares}"


def row(case: Case) -> Row:
    """The twin of a case beside FP32."""
    built, counts, kept = case.built(device="gpu"), np.zeros(2), None
    fed = feed(case, built)
    weights, loss = weights_of(case.plain)
    merged = "gradient_merge=2" if len(built.update) == 2 else ""
    exact = _exact(replace(case.plain, knobs=merged, layout=count.layout(built.main)))
    if case.rounded == "values":
        _, kept = _step(_lowered(case, built.copy(), rounded=""), fed, weights, loss_scale=case.scale)
    _lowered(case, built, rounded=case.rounded, counts=counts)
    scale, found = 2 * case.scale, dict[str, np.ndarray]()
    while not any(value.any() for value in found.values()):  # a step that is left out, after which the scale falls
        scale, counts[:] = scale / 2, 0
        found, _ = _step(built, fed, weights, loss_scale=scale, kept=kept)
    assert found.keys() == exact.keys()
    return _compared(found, exact, loss=loss, scale=scale, stored=counts[1] / max(1, counts[0]))


def _lowered(case: Case, built: programs.Built, *, rounded: str, counts: Any = None) -> programs.Built:
    """The programs of its update, in place."""
    for part, main in enumerate(dict.fromkeys(built.update)):
        edit.remove(main, lambda op: op.type == "depend")  # they order, and the executor's memory grows by their square
        mode, tf32 = rounded.replace("relus too", "values"), case.precision == "tf32"
        lower.lower(main, built.startup, ranks=case.ranks, rounded=mode, tf32=tf32, counts=counts)
        if case.rounded == "values":
            lower.choices(main, part, kept=bool(rounded))
    return built


def _compared(found: dict[str, np.ndarray], exact: dict[str, np.ndarray], **more: Any) -> Row:
    cosines, norms, flushed, over = {}, [], [], []
    for name, true in exact.items():
        a, b = found[name].ravel().astype(np.float64), true.ravel().astype(np.float64)
        over.append(1.0 - np.isfinite(a).mean())
        flushed.append(float(((a == 0) & (b != 0)).mean()))
        norms.append(float(np.linalg.norm(a) / np.linalg.norm(b)))
        cosines[name] = float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-300))
    return Row(cosines=cosines, norms=norms, flushed=max(flushed), over=max(over), **more)


def main() -> None:
    """Prints the rows that are asked for, and puts them on the page beside those that are there."""
    words = sys.argv[1:]
    begin, end = (MARKS.format(word) for word in ("begin", "end"))
    for case in (*CASES, *SHOWN):
        if words and not any(word in case.cells for word in words):
            continue
        line = f"{case.cells} {row(case)} |\n"
        print(line, end="", flush=True)
        before, _, rest = PAGE.read_text().partition(begin)
        there, _, after = rest.partition(end)
        lines = [*there.splitlines(keepends=True)[2:], line]
        known = {c.cells: text for c in (*CASES, *SHOWN) for text in lines if text.startswith(c.cells)}
        PAGE.write_text(before + begin + HEAD + "".join(known.values()) + end + after)


if __name__ == "__main__":
    main()
