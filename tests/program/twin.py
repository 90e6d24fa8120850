"""The arithmetic twin: what rounding to the types of a GPU program does to ResNet-50's gradients, on a CPU.

python -m tests.program.twin [WORD...]   prints the rows whose name has a WORD; without one all of them, which it then
                                         writes to docs/program.md (half an hour on two cores)

Each program is that of the public door at 224 pixels and 1,000 classes. It is lowered to FP32 (lower.py) and computes
one step at the first weights of MLPerf's recipe on crops of two photographs, in which each image has the share in the
mean that it has in the global batch. Compared, parameter by parameter, is the gradient as the optimizer reads it:

- `gradients`: the forward pass is FP32's, and every gradient is rounded where the GPU program stores it (the loss scale
  decides what is left of it), or in TF32 where a product reads it.
- `all`: values of the forward pass too. Batch norm makes of their roundings a noise of its own, in any framework, the
  more the smaller the batch: it is shown, and bound to nothing.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import paddle
from paddle import static
from PIL import Image
from sklearn.datasets import load_sample_images

from harness import loop
from paddle_rn50 import config, data, model
from program import capture, count, precision
from program.optimizers import OptimizerConfig
from program.passes import resnet_unit
from tests.program import lower, programs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "program.md"
SIDE, CLASSES = 224, 1000
BATCH = {"gradients": 4, "all": 32}  # images of the step
GLOBAL = {"8 x 408": 3264, "8 x 256": 2048}
HEAD = """\
| rounded | job | loss scale | least cosine | median | ratio of the norms | flushed to 0 | infinite |
|---|---|---|---|---|---|---|---|
"""
MARKS = "<!-- twin: {} -->\n"
LEAST_COSINE, LEAST_NORM, MOST_NORM, MOST_FLUSHED = 0.999, 0.99, 1.01, 0.01
# The gradients alone: no decay, and of MLPerf's recipe, as with gammas of 0 most gradients of a first step are 0.
RECIPE = replace(config.mlperf_lars(3264), optimizer=OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.0))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job that the public door takes."""

    precision: str
    knobs: str = ""
    loss_scale: int = 0
    layout: str = ""
    batch: str = "8 x 408"

    @property
    def name(self) -> str:
        """As a user would write it."""
        more = [f"STRATEGY={self.knobs}" if self.knobs else "", f"LAYOUT={self.layout}" if self.layout else ""]
        more.append(f"LOSS_SCALE={self.loss_scale}" if self.loss_scale else "")
        return " ".join([self.precision, *filter(None, more), f"at {self.batch}"])

    @property
    def scale(self) -> float:
        """Of its first step's loss."""
        if not self.precision.startswith("amp"):
            return 1.0
        captured = precision.CAPTURED_LOSS_SCALE if "cuda_graph" in self.knobs else precision.FIRST_LOSS_SCALE
        return self.loss_scale or captured

    @property
    def parts(self) -> int:
        """Micro-steps of the update."""
        return 2 if "gradient_merge=2" in self.knobs else 1


CASES = (
    Case(precision="tf32"),
    Case(precision="tf32", knobs="gradient_merge=2"),
    *(
        Case(precision=precision, **way)
        for precision in ("amp_o2", "amp_o1")
        for way in (
            {},
            {"knobs": "cuda_graph=1"},
            {"knobs": "gradient_merge=2"},
            {"knobs": "resnet_unit=1"},
            {"layout": "NCHW"},
            {"loss_scale": 102},  # the least that is taken at this batch
        )
    ),
    Case(precision="amp_o2", knobs="fuse_bn_act_ops=0,fuse_bn_add_act_ops=0"),
    Case(precision="amp_o2", knobs="enable_addto=0"),
    Case(precision="amp_o2", batch="8 x 256"),
    Case(precision="amp_o2", knobs="cuda_graph=1", batch="8 x 256"),
    Case(precision="bf16"),
    Case(precision="bf16", knobs="gradient_merge=2"),
)


@functools.cache
def photographs(batch: int) -> dict[str, np.ndarray]:
    """Crops of scikit-learn's two photographs as the recipe draws them, normalized, NHWC, with a channel of zeros."""
    rng, images = np.random.default_rng(0), []
    for _ in range(batch):
        photograph = Image.fromarray(load_sample_images().images[rng.integers(2)])
        share, aspect = rng.uniform(0.05, 1.0), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        area = share * photograph.width * photograph.height
        width, height = (
            min(side, most)
            for side, most in zip((np.sqrt(area * aspect), np.sqrt(area / aspect)), photograph.size, strict=True)
        )
        left, top = rng.uniform(0, photograph.width - width), rng.uniform(0, photograph.height - height)
        crop = photograph.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        pixels = np.asarray(crop, dtype=np.float32)[:, :: rng.choice([-1, 1])]
        images.append((pixels - np.float32(data.MEAN)) / np.float32(data.STD))
    image = np.pad(np.stack(images), ((0, 0), (0, 0), (0, 0), (0, 1)))
    return {"image": image, "label": rng.integers(0, CLASSES, (batch, 1))}


def _built(case: Case, batch: int, *, device: str) -> programs.Built:
    return programs.fresh(
        name=case.precision,
        device=device,
        ranks=GLOBAL[case.batch] // batch,
        knobs=case.knobs,
        layout=case.layout,
        batch=batch,
        recipe=RECIPE,
        stages=model.STAGES,
        loss_scale=float(case.loss_scale),
    )


def _step(
    built: programs.Built, batch: int, weights: dict[str, np.ndarray], *, loss_scale: float = 0.0
) -> dict[str, np.ndarray]:
    """{parameter: its gradient} of one step: the optimizer's velocities, which begin at zero.

    It begins with these weights; of those that are not there with the first ones, which it leaves there. `loss_scale`
    is where the dynamic one stands.
    """
    fed, image = photographs(batch), built.main.global_block().var("image")
    channels = 4 if 4 in (image.shape[1], image.shape[3]) else 3
    pixels = fed["image"][..., :channels]
    pixels = pixels if image.shape[3] == channels else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    feed = {"image": pixels, "label": fed["label"]}
    # In the order of the program: no other shows that a bucket and the gradients that lie in it are one memory.
    paddle.set_flags({"FLAGS_new_executor_serial_run": True})
    executor, scope, found = static.Executor(paddle.CPUPlace()), static.Scope(), {}
    parameters = {p.name: p.name in built.otherwise for p in built.main.all_parameters() if p.trainable}
    with static.scope_guard(scope):
        executor.run(built.startup)
        for name in built.main.global_block().vars:
            of = re.sub(r"_fp32_master_\d+$", "", name)
            if of not in parameters:
                continue
            tensor = scope.find_var(name).get_tensor()
            value = weights.setdefault(of, np.array(tensor))
            if tensor.shape()[1:2] == [4] and value.ndim == 4:
                value = np.pad(value, ((0, 0), (0, 1), (0, 0), (0, 0)))
            tensor.set(resnet_unit.stored(value) if parameters[of] else value, paddle.CPUPlace())
        built.schedule.send(executor.place)
        for op in built.main.global_block().ops if loss_scale else ():
            if op.type == "update_loss_scaling":
                tensor = scope.find_var(op.input("PrevLossScaling")[0]).get_tensor()
                tensor.set(np.full(tensor.shape(), loss_scale, np.float32), executor.place)
        if built.main.global_block().has_var(capture.STEP):
            scope.var(capture.RATES).get_tensor().set(built.schedule.ahead(capture.RATES_AT_ONCE), executor.place)
            scope.var(capture.STEP).get_tensor().set(np.zeros((), np.int64), executor.place)
        for main, part in zip(built.update, loop.parts(feed, len(built.update)), strict=True):
            executor.run(main, feed=part, fetch_list=[])
        for op in built.main.global_block().ops:
            for name in op.input("Velocity") if op.type in ("momentum", "merged_momentum") else ():
                of = name.partition("_fp32_master")[0].partition("_velocity")[0]
                value = np.array(scope.find_var(name).get_tensor())
                value = resnet_unit.plain(value) if parameters[of] else value
                found[of] = value[:, :3] if of == "stem.conv.w" else value
    return found


@functools.cache
def _exact(parts: int, batch: int, layout: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Gradients in FP32 and the first weights, in the same layout: in another one relus whose input is a rounding away
    from 0 would turn over.
    """
    weights: dict[str, np.ndarray] = {}
    knobs = "gradient_merge=2" if parts == 2 else ""
    built = programs.fresh(knobs=knobs, batch=batch, layout=layout, recipe=RECIPE, stages=model.STAGES)
    return _step(built, batch, weights), weights


@dataclass(frozen=True, kw_only=True)
class Row:
    """The worst of all parameters, and the median."""

    cosine: float
    of: str  # whose cosine it is
    median: float  # of the cosines
    scale: float  # of the loss
    least_norm: float  # over FP32's
    most_norm: float
    flushed: float  # share of elements that are 0, and not in FP32
    over: float  # share that is infinite or no number

    @property
    def is_sound(self) -> bool:
        """Whether it keeps every bound."""
        within = self.least_norm >= LEAST_NORM and self.most_norm <= MOST_NORM
        return self.cosine >= LEAST_COSINE and within and self.flushed <= MOST_FLUSHED and not self.over

    def __str__(self) -> str:
        norms = f"{self.least_norm:.4f} to {self.most_norm:.4f}"
        shares = f"{100 * self.flushed:.2f} % | {100 * self.over:.0f} %"
        return f"{self.scale:g} | {self.cosine:.5f} (`{self.of}`) | {self.median:.5f} | {norms} | {shares}"


def row(case: Case, *, rounded: str = "gradients", batch: int = 0) -> Row:
    """The twin of a case beside FP32."""
    batch = batch or BATCH[rounded]
    ranks = GLOBAL[case.batch] // batch
    built = _built(case, batch, device="gpu")
    exact, weights = _exact(case.parts, batch, count.layout(built.main))
    for main in set(built.update):
        lower.lower(main, built.startup, ranks=ranks, rounded=rounded, tf32=case.precision == "tf32")
    scale = case.scale
    found = _step(built, batch, weights, loss_scale=scale)
    while not any(value.any() for value in found.values()):  # a step that is left out, after which the scale falls
        scale /= 2
        found = _step(built, batch, weights, loss_scale=scale)
    assert found.keys() == exact.keys()
    cosines, norms, flushed, over = {}, [], [], []
    for name, true in exact.items():
        a, b = found[name].ravel().astype(np.float64), true.ravel().astype(np.float64)
        over.append(1.0 - np.isfinite(a).mean())
        flushed.append(float(((a == 0) & (b != 0)).mean()))
        norms.append(float(np.linalg.norm(a) / np.linalg.norm(b)))
        cosines[name] = float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-300))
    return Row(
        cosine=min(cosines.values()),
        of=min(cosines, key=cosines.__getitem__),
        median=float(np.median(list(cosines.values()))),
        scale=scale,
        least_norm=min(norms),
        most_norm=max(norms),
        flushed=max(flushed),
        over=max(over),
    )


def main() -> None:
    """Prints the rows, and writes them where all were asked for."""
    words, lines = sys.argv[1:], []
    cases = [("gradients", case) for case in CASES]
    cases += [("all", Case(precision=precision)) for precision in ("tf32", "amp_o2", "amp_o1", "bf16")]
    for rounded, case in cases:
        if not words or any(word in f"{rounded} {case.name}" for word in words):
            lines.append(f"| {rounded} | `{case.name}` | {row(case, rounded=rounded)} |\n")
            print(lines[-1], end="", flush=True)
    if not words:
        begin, end = (MARKS.format(word) for word in ("begin", "end"))
        before, _, rest = PAGE.read_text().partition(begin)
        PAGE.write_text(before + begin + HEAD + "".join(lines) + end + rest.partition(end)[2])


if __name__ == "__main__":
    main()
