"""Programs of public ResNet-50 code on this wheel beside ours, counted by tools.inspect: docs/program.md's table.

Batch 256 a GPU, Baidu's 408, rank 0 of 8. Their networks have the layers of ours; input, loss, metrics, optimizer,
mixed precision and fleet's strategy are set by the calls that NVIDIA's DeepLearningExamples
(PaddlePaddle/Classification/RN50v1.5, commit 38934f9), PaddleClas (ppcls, commit 1fccb35) and Baidu in MLPerf v1.1
(commit 38b9402) make; their code is not in here. Needs no GPU.
    python benchmarks/public_programs.py
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import env
from paddle_rn50.config import NVIDIA_COSINE
from paddle_rn50.model import resnet50
from program import count, in_temporary_folder, precision
from program.passes import resnet_unit, updates
from tools import inspect

# isort: split
# After the harness: harness/__init__.py says why.
import paddle
from paddle import static
from paddle.distributed import fleet
from paddle.nn import functional

BATCH, RANKS, SIDE, CLASSES = 256, 8, 224, 1000
BAIDU_BATCH = 408


def inputs(layout: str, channels: int, batch: int = BATCH) -> tuple[Any, Any]:
    """Images and labels of a batch."""
    shape = [batch, channels, SIDE, SIDE] if layout == "NCHW" else [batch, SIDE, SIDE, channels]
    return static.data("image", shape, "float32"), static.data("label", [batch, 1], "int64")


def logits(image: Any, layout: str) -> Any:
    """The network's output."""
    return resnet50(image, NVIDIA_COSINE, layout=layout, training=True)


def minimize(loss: Any, optimizer: Any, *, fused: bool, **knobs: Any) -> None:
    """By fleet as both set it: all-reduces fused to "16 MB", and with `fused` the four fusions of AMP."""
    strategy, build = fleet.DistributedStrategy(), static.BuildStrategy()
    for knob in ("fuse_bn_act_ops", "fuse_elewise_add_act_ops", "fuse_bn_add_act_ops", "enable_addto"):
        setattr(build, knob, fused)
    common = {"build_strategy": build, "fuse_all_reduce_ops": True, "fuse_grad_size_in_MB": 16, "nccl_comm_num": 1}
    for knob, value in (common | knobs).items():
        setattr(strategy, knob, value)
    fleet.init(is_collective=True, log_level="ERROR")
    fleet.distributed_optimizer(optimizer, strategy=strategy).minimize(loss)


def nvidia(*, amp: bool, pure: bool = False) -> None:
    """Label smoothing, no decay of BN, top-1 and top-5; AMP is fleet's."""
    layout = "NHWC" if amp else "NCHW"
    paddle.set_flags({"FLAGS_max_inplace_grad_add": 0})  # never set, so that the addto asked for does nothing
    image, label = inputs(layout, 4)
    with static.amp.fp16_guard() if pure else contextlib.nullcontext():
        out = logits(image, layout)
    target = paddle.reshape(label, [-1, 1])
    smooth = functional.label_smooth(functional.one_hot(target, CLASSES), epsilon=0.1)
    smooth = paddle.reshape(smooth, [-1, CLASSES])
    loss = paddle.sum(-functional.log_softmax(out, axis=-1) * smooth, axis=-1).mean()
    for k in (1, 5):
        paddle.metric.accuracy(out, target, k=k)
    for parameter in image.block.program.all_parameters():
        if ".bn." in parameter.name:
            parameter.regularizer = paddle.regularizer.L2Decay(0.0)
    optimizer = paddle.optimizer.Momentum(0.256, momentum=0.875, weight_decay=2**-15, multi_precision=amp)
    scaling = {"init_loss_scaling": 128.0, "use_dynamic_loss_scaling": True, "use_pure_fp16": pure}
    minimize(loss, optimizer, fused=amp, **({"amp": True, "amp_configs": scaling} if amp else {}))


def paddleclas(*, level: str = "") -> None:
    """Images are transposed in the program; no smoothing, top-1 and top-5, one update operator a type."""
    layout = "NHWC" if level else "NCHW"
    paddle.set_flags({"FLAGS_max_inplace_grad_add": 8 if level else 0})
    image, label = inputs("NCHW", 4 if level else 3)
    with static.amp.fp16_guard():
        if level:
            image = paddle.transpose(image, [0, 2, 3, 1])
            image.stop_gradient = True
        out = logits(image, layout)
    target = paddle.reshape(label, [-1, 1])
    loss = functional.cross_entropy(out, target).mean()
    for k in (1, 5):
        paddle.metric.accuracy(out, target, k=k)
    decay = paddle.regularizer.L2Decay(1e-4)
    optimizer = paddle.optimizer.Momentum(
        0.1, momentum=0.9, weight_decay=decay, multi_precision=bool(level), use_multi_tensor=True
    )
    if level:
        optimizer = static.amp.decorate(
            optimizer,
            init_loss_scaling=128.0,
            use_dynamic_loss_scaling=True,
            use_pure_fp16=level == "O2",
            use_fp16_guard=True,
        )
    minimize(loss, optimizer, fused=bool(level))
    if level == "O2":  # its pipeline emits FP16 (`output_fp16`)
        precision.make_input_float16(loss.block.program, precision.PRECISIONS["amp_o2"])


def baidu() -> None:
    """A unit for each convolution but the stem's, merged LARS on a loss summed over batch and ranks; label smoothing.

    That sum is a loss scale of 3,264, which `rescale_grad` takes off. 32 MB or their script's 0 give one set of
    all-reduces here; their `enable_auto_fusion` is left out.
    """
    paddle.set_flags({"FLAGS_max_inplace_grad_add": 8})
    image, label = inputs("NHWC", 4, BAIDU_BATCH)
    with static.amp.fp16_guard():
        out = logits(image, "NHWC")
    main = image.block.program
    resnet_unit.initialize(static.default_startup_program(), resnet_unit.fuse(main))
    smooth = functional.label_smooth(functional.one_hot(paddle.squeeze(label, 1), CLASSES), epsilon=0.1)
    loss = paddle.sum(-(smooth * functional.log_softmax(out)))
    optimizer = paddle.incubate.optimizer.LarsMomentumOptimizer(
        10.5,
        momentum=0.9,
        lars_weight_decay=5e-5,
        exclude_from_weight_decay=[".bn.", "fc.b"],
        epsilon=0,
        multi_precision=True,
        rescale_grad=1 / (BAIDU_BATCH * RANKS),
    )
    scaling = {"init_loss_scaling": 1.0, "use_dynamic_loss_scaling": False, "use_pure_fp16": True}
    sums = {"gradient_scale_configs": {"scale_strategy": "sum"}, "fuse_grad_size_in_MB": 32}
    minimize(loss, optimizer, fused=True, amp=True, amp_configs=scaling | {"use_fp16_guard": True}, **sums)
    updates.merge_lars(main)
    precision.make_input_float16(main, precision.PRECISIONS["amp_o2"])  # its pipeline emits FP16


def row(name: str, main: Any) -> str:
    """A line of the table."""
    found = count.counts_of(main)
    operators = f"{found['kernel_operators']} ({found['all_operators']})"
    counts = [found[key] for key in ("casts", "transposes", "all_reduces")]
    return f"| {' | '.join(map(str, [name, operators, *counts, format(found['bytes_gb'], '.1f')]))} |"


def main() -> None:
    """Prints a row a program."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    env.export_trainer(0, [f"127.0.0.1:{6170 + rank}" for rank in range(RANKS)])
    paddle.enable_static()
    public = {
        "NVIDIA, AMP NHWC": lambda: nvidia(amp=True),
        "NVIDIA, pure FP16 NHWC": lambda: nvidia(amp=True, pure=True),
        "NVIDIA, TF32 NCHW": lambda: nvidia(amp=False),
        "PaddleClas, AMP O2 NHWC": lambda: paddleclas(level="O2"),
        "PaddleClas, AMP O1 NHWC": lambda: paddleclas(level="O1"),
        "PaddleClas, FP32 NCHW": lambda: paddleclas(),
        "Baidu v1.1, pure FP16 NHWC, batch 408": baidu,
    }
    rows = []
    # Fleet prints what it found, and would wait for the other ranks.
    waiting = mock.patch("paddle.distributed.fleet.meta_optimizers.common.wait_server_ready", lambda endpoints: None)
    with waiting, contextlib.redirect_stdout(sys.stderr), in_temporary_folder():
        for name, build in public.items():
            main = static.Program()
            with static.program_guard(main, static.Program()), paddle.utils.unique_name.guard():
                build()
            rows.append(row(name, main))
    for ours in ("amp_o2", "amp_o1", "fp32"):
        job = env.of_system(DGXSYSTEM="DGXA100", PRECISION=ours, BATCHSIZE=str(BATCH))
        rows.append(row(f"**this, {ours}**", inspect.build(job).main))
    like_baidu = {"RECIPE": "mlperf_lars", "STRATEGY": "resnet_unit=1,merged_lars=1", "BATCHSIZE": str(BAIDU_BATCH)}
    for scale, name in (("4096", "fixed loss scale"), ("0", "dynamic")):
        job = env.of_system(DGXSYSTEM="DGXA100", PRECISION="amp_o2", LOSS_SCALE=scale, **like_baidu)
        rows.append(row(f"**this, amp_o2, both knobs, batch 408, {name}**", inspect.build(job).main))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
