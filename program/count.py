"""Counts of a built program: what it runs, moves and computes.

Bytes are the inputs of an operator, each once, and its outputs (a variable that it changes in place is read and
written), and what passes between the kernels of one operator; views and operators without data count as none and are
no kernel operators; what a convolution reads of the gradient that it adds to (addto) is left out and shown by itself;
what a kernel transposes inside itself is counted. Traffic adds what the kernels read more than once; docs/program.md
has the source for each class. FLOPs are those of convolutions and matrix products, a multiply-add being two.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from program.ops import (
    BACKWARD,
    CONVOLUTIONS,
    MIB,
    NORMALIZATIONS,
    OPTIMIZE,
    PRODUCTS,
    adds,
    dtype_of,
    element_bytes,
    input_gradient,
    size_bytes,
)

GIB = 2**30

# Operators that move no data: views, and those that only order or name buffers.
NO_DATA = {
    "depend",
    "share_buffer",
    "c_sync_calc_stream",
    "c_sync_comm_stream",
    "c_wait_comm",
    "c_wait_compute",
    "reshape2",
    "flatten2",
    "flatten_contiguous_range",
    "squeeze2",
    "unsqueeze2",
}
NO_DATA |= {f"{name}_grad" for name in NO_DATA}
TRANSPOSES = {"transpose", "transpose2", "transpose_grad", "transpose2_grad", "transfer_layout"}
SYNCHRONIZED = {"sync_batch_norm", "sync_batch_norm_grad"}
CLASSES = {
    "convolution": CONVOLUTIONS,
    "batch norm": NORMALIZATIONS,
    "convolution with batch norm": {"resnet_unit"},
    "pooling": {"pool2d"},
    "transpose": {"transpose", "transpose2", "transfer_layout"},
    "cast": {"cast"},
    "all-reduce": {"c_allreduce_sum"},
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one operator moves and computes."""

    index: int
    kind: str
    role: int
    moved_bytes: int
    again_bytes: tuple[int, ...]  # inputs that it must read twice where the chip cannot hold them
    flops: int
    dtype: str  # of a product's arithmetic; empty for any other operator
    is_kernel: bool
    turned_bytes: int = 0  # of transposes inside the kernel, which are in `moved_bytes` too
    extra_bytes: int = 0  # read by a second kernel of the operator, or added to

    @property
    def kernel_class(self) -> str:
        """The class of kernels that docs/program.md counts it in."""
        kind = self.kind.removesuffix("_grad")
        if self.role & OPTIMIZE:
            return "optimizer"
        for name, kinds in CLASSES.items():
            if kind in kinds:
                return name + (" gradient" if kind != self.kind and name in ("convolution", "batch norm") else "")
        return "elementwise and others"

    def traffic_bytes(self, on_chip_bytes: int) -> int:
        """Bytes that its kernels read and write on a chip that holds as many itself."""
        again = self.again_bytes
        if self.kind not in SYNCHRONIZED:  # whose statistics and output are kernels apart
            again = tuple(size for size in again if size > on_chip_bytes)
        return self.moved_bytes + self.extra_bytes + sum(again)


def _members(block: Any) -> dict[str, list[str]]:
    """Gradients in each buffer that is all-reduced; a buffer has no shape itself."""
    return {op.output("FusedOutput")[0]: op.output("Output") for op in block.ops if op.type == "coalesce_tensor"}


def _bytes(op: Any, block: Any, members: dict[str, list[str]]) -> int:
    """Inputs, each once, and outputs."""
    moved = 0
    for slots, of in ((op.input_names, op.input), (op.output_names, op.output)):
        for name in {name for slot in slots if slot != "XShape" for name in of(slot)}:
            variable = block._find_var_recursive(name)
            if name in members:
                moved += _elements(block, members[name]) * element_bytes(variable)
            elif variable is not None and variable.shape:
                moved += size_bytes(variable)
    return moved


def _elements(block: Any, names: list[str]) -> int:
    return sum(math.prod(block.var(name).shape) for name in names)


def _inside(op: Any, block: Any) -> int:
    """Bytes of images that pass between the kernels of one `resnet_unit`.

    Forward what a convolution wrote is read to be normalized. Backward the normalization's gradient is written and read
    by the convolution's; with a shortcut that of the sum too. Instead of the output, its input, it reads the mask.
    """
    if op.type.removesuffix("_grad") != "resnet_unit":
        return 0
    of = op.output if op.type == "resnet_unit" else op.input
    x, z = (sum(size_bytes(block.var(name)) for name in of(slot)) for slot in ("ConvX", "ConvZ"))
    return x + z if op.type == "resnet_unit" else 2 * (x + 2 * z) - size_bytes(block.var(op.input("Y")[0]))


def _again(op: Any, block: Any) -> tuple[int, ...]:
    """Image tensors that a normalization by the batch's statistics reads before it can begin, and again for its output.

    Forward that is the image; backward the image and the gradient, whose sums over the batch are in each output value.
    """
    if op.type == "resnet_unit_grad":  # forward its convolution has the sums
        return tuple(size_bytes(block.var(n)) for slot in ("ConvX", "ConvZ", "Y@GRAD") for n in op.input(slot))
    if op.type.removesuffix("_grad") not in NORMALIZATIONS or (op.has_attr("is_test") and op.attr("is_test")):
        return ()
    slots = [slot for slot in ("X", "Y@GRAD") if slot in op.input_names and op.input(slot)]
    return tuple(size_bytes(block.var(op.input(slot)[0])) for slot in slots)


def _turned(op: Any, block: Any) -> list[str]:
    """Images that a kernel brings from NHWC into NCHW or back.

    cuDNN's convolution and batch norm compute in NHWC for FP16 alone; for any other type Paddle's kernels transpose
    each image tensor on its way in and out (ConvCudnnKernel and BatchNormKernel of Paddle's sources).
    """
    kind = op.type.removesuffix("_grad")
    attribute = "data_format" if kind in CONVOLUTIONS else "data_layout"
    if kind not in CONVOLUTIONS | {"batch_norm"} or op.attr(attribute) != "NHWC":
        return []
    slots = ("Input", "Output@GRAD", "X", "Y@GRAD"), ("Output", "Input@GRAD", "Y", "X@GRAD")
    read = [n for slot in slots[0] if slot in op.input_names for n in op.input(slot)]
    written = [n for slot in slots[1] if slot in op.output_names for n in op.output(slot)]
    return [] if dtype_of(block.var(read[0])) == "float16" else read + written


def _product(op: Any, block: Any) -> tuple[int, str]:
    """FLOPs of a convolution or matrix product and the type of its arithmetic."""
    kind = op.type.removesuffix("_grad")
    if kind == "resnet_unit":
        return _unit_flops(op, block), dtype_of(block.var(op.input("FilterX")[0]))
    if kind in CONVOLUTIONS:
        out = block.var(op.input("Output@GRAD")[0] if op.type != kind else op.output("Output")[0])
        weights = block.var(op.input("Filter")[0])  # [out, in / groups, height, width]
        layout = op.attr("data_format")
        channels = out.shape[3] if layout == "NHWC" else out.shape[1]
        once = 2 * math.prod(out.shape) // channels * math.prod(weights.shape)
    elif kind in PRODUCTS:
        out = block.var(op.input("Out@GRAD")[0] if op.type != kind else op.output("Out")[0])
        weights = block.var(op.input("Y")[0])
        once = 2 * math.prod(out.shape) * weights.shape[0]
    else:
        return 0, ""
    # The gradients by the input and by the weights cost one forward pass each.
    passes = sum(1 for slot in op.output_names if op.output(slot)) if op.type != kind else 1
    return once * passes, dtype_of(weights)


def _extra(op: Any, block: Any) -> int:
    """Bytes read beside each input once, whatever the chip holds.

    cuDNN makes a convolution's two gradients in two calls, and both read the gradient that arrives; addto reads the
    gradient that it adds to. The gradient of Paddle's sync_batch_norm has a third kernel that reads both images.
    """
    if op.type == "conv2d_grad":
        made = [slot for slot in op.output_names if op.output(slot)]
        twice = size_bytes(block.var(op.input("Output@GRAD")[0])) if len(made) > 1 else 0
        return twice + (size_bytes(block.var(op.output("Input@GRAD")[0])) if adds(op) else 0)
    return sum(_again(op, block)) if op.type == "sync_batch_norm_grad" else 0


def _unit_flops(op: Any, block: Any) -> int:
    flops, backward = 0, op.type != "resnet_unit"
    for side in "XZ":
        for name in op.input(f"Filter{side}"):
            out = block.var((op.input if backward else op.output)(f"Conv{side}")[0])
            once = 2 * math.prod(out.shape[:3]) * math.prod(block.var(name).shape)
            slots = [f"{slot}@GRAD" for slot in (side, f"Filter{side}")]
            flops += once * (sum(bool(op.output(slot)) for slot in slots if slot in op.output_names) if backward else 1)
    return flops


def works(main: Any) -> list[Work]:
    """Every operator of a program's main block, in order."""
    block = main.global_block()
    members = _members(block)
    found = []
    for index, op in enumerate(block.ops):
        is_kernel = op.type not in NO_DATA and not (op.type == "coalesce_tensor" and not op.attr("copy_data"))
        turned = 2 * sum(size_bytes(block.var(name)) for name in _turned(op, block)) if is_kernel else 0
        moved = _bytes(op, block, members) + turned + _inside(op, block) if is_kernel else 0
        flops, dtype = _product(op, block)
        found.append(
            Work(
                index=index,
                kind=op.type,
                role=op.attr("op_role"),
                moved_bytes=moved,
                again_bytes=_again(op, block) if is_kernel else (),
                flops=flops,
                dtype=dtype,
                is_kernel=is_kernel,
                turned_bytes=turned,
                extra_bytes=_extra(op, block) if is_kernel else 0,
            )
        )
    return found


def buckets(main: Any) -> list[dict[str, Any]]:
    """Each gradient all-reduce: its size, and the share of the gradient operators that are done when it is issued."""
    block = main.global_block()
    in_buffer = _members(block)
    found = []
    backward = [w for w in works(main) if w.role & BACKWARD and w.is_kernel and w.kind.endswith("_grad")]
    moved = sum(w.moved_bytes for w in backward)
    for index, op in enumerate(block.ops):
        if op.type != "c_allreduce_sum":
            continue
        name = op.input("X")[0]
        members = in_buffer.get(name, [name])
        before = [w for w in backward if w.index < index]
        found.append(
            {
                "mib": _elements(block, members) * element_bytes(block.var(name)) / MIB,
                "dtype": dtype_of(block.var(name)),
                "gradients": len(members),
                "operator": index,
                "issued_after_operators": len(before) / len(backward),
                "bytes_left_to_hide_it": 1 - sum(w.moved_bytes for w in before) / moved,
                "ring": op.attr("ring_id"),
            }
        )
    return found


def layout(main: Any) -> str:
    """Image layout of the convolutions."""
    return str(next(op.attr("data_format") for op in main.global_block().ops if op.type == "conv2d"))


def counts_of(main: Any) -> dict[str, Any]:
    """Counts of a program, the keys of `--json` that need no device."""
    all_works = works(main)
    kinds = Counter(w.kind for w in all_works)
    found = buckets(main)
    moved, addto = sum(w.moved_bytes for w in all_works), _addto_bytes(main)
    by_kind: Counter[str] = Counter()
    for work in all_works:
        by_kind[work.kind] += work.moved_bytes
    return {
        "operators": dict(kinds.most_common()),
        "kernel_operators": sum(w.is_kernel for w in all_works),
        "all_operators": len(all_works),
        "transposes": sum(n for kind, n in kinds.items() if kind in TRANSPOSES),
        "hidden_transposes_gb": sum(w.turned_bytes for w in all_works) / 1e9,
        "casts": kinds["cast"],
        "products": dict(Counter(w.dtype for w in all_works if w.flops)),
        "all_reduces": kinds["c_allreduce_sum"],
        "all_reduce_mib": sum(b["mib"] for b in found),
        "buckets": found,
        "fused": {kind: n for kind, n in kinds.items() if kind.startswith(("fused_", "merged_"))},
        "bytes_gib": moved / GIB,
        "bytes_gb": moved / 1e9,
        "addto_reads_gb": addto / 1e9,
        "bytes_gb_by_operator": {k: n / 1e9 for k, n in by_kind.most_common() if n >= 5e6},
        "flops": sum(w.flops for w in all_works),
    }


def _addto_bytes(main: Any) -> int:
    """What convolutions read of the gradients that they add to."""
    block = main.global_block()
    return sum(size_bytes(block.var(op.output(input_gradient(op))[0])) for op in block.ops if adds(op))
