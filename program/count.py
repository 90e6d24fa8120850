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
    FACTORS,
    MIB,
    NORMALIZATIONS,
    OPTIMIZE,
    PRODUCTS,
    added_to,
    dtype_of,
    operands,
    size_bytes,
    type_in,
)

# Operators that move no data: views, and those that only order or name buffers.
NO_DATA = {
    *("depend", "share_buffer", "c_sync_calc_stream", "c_sync_comm_stream", "c_wait_comm", "c_wait_compute"),
    *("reshape2", "flatten2", "flatten_contiguous_range", "squeeze2", "unsqueeze2"),
}
NO_DATA |= {f"{name}_grad" for name in NO_DATA}
TRANSPOSES = {"transpose", "transpose2", "transpose_grad", "transpose2_grad", "transfer_layout"}
# Image tensors of operators that compute in NCHW but for FP16, and the attribute that says their layout.
IMAGES = dict.fromkeys(CONVOLUTIONS, ("Input", "Output", "data_format")) | {"batch_norm": ("X", "Y", "data_layout")}
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
    turned_bytes: int  # of transposes inside the kernel, which are in `moved_bytes` too
    extra_bytes: int  # read by a second kernel of the operator, or added to

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
    """Gradients in each buffer that is all-reduced."""
    return {op.output("FusedOutput")[0]: op.output("Output") for op in block.ops if op.type == "coalesce_tensor"}


def _all_sizes(block: Any) -> dict[str, int]:
    """Bytes of each variable that has a shape; a buffer that is all-reduced has none itself, but its gradients have."""
    found = {name: size_bytes(variable) for name, variable in block.vars.items() if variable.shape}
    return found | {buffer: sum(found[name] for name in names) for buffer, names in _members(block).items()}


def _sizes(op: Any, sizes: dict[str, int], *slots: str) -> tuple[int, ...]:
    """Bytes of each variable in these slots."""
    return tuple(sizes[name] for name in operands(op, *slots))


def _bytes(op: Any, sizes: dict[str, int]) -> int:
    """Inputs, each once, and outputs."""
    slots = ([slot for slot in named if slot != "XShape"] for named in (op.input_names, op.output_names))
    return sum(sizes.get(name, 0) for of in slots for name in set(operands(op, *of)))


def _inside(op: Any, sizes: dict[str, int]) -> int:
    """Bytes of images that pass between the kernels of one `resnet_unit`.

    Forward what a convolution wrote is read to be normalized. Backward the normalization's gradient is written and read
    by the convolution's; with a shortcut that of the sum too. Of its inputs it reads neither the output, but the mask,
    nor an addend that no convolution made.
    """
    if op.type == "resnet_unit":
        return sum(_sizes(op, sizes, "ConvX", "ConvZ"))
    if op.type != "resnet_unit_grad":
        return 0
    x, z, unread = (sum(_sizes(op, sizes, *slots)) for slots in (["ConvX"], ["ConvZ"], ["Y", "Z"]))
    return 2 * (x + 2 * z) - unread + (sum(_sizes(op, sizes, "Z")) if op.attr("has_shortcut") else 0)


def _again(op: Any, sizes: dict[str, int]) -> tuple[int, ...]:
    """Image tensors that a normalization by the batch's statistics reads before it can begin, and again for its output.

    Forward that is the image; backward the image and the gradient, whose sums over the batch are in each output value.
    """
    if op.type == "resnet_unit_grad":  # forward its convolution has the sums
        return _sizes(op, sizes, "ConvX", "ConvZ", "Y@GRAD")
    if op.type.removesuffix("_grad") not in NORMALIZATIONS or (op.has_attr("is_test") and op.attr("is_test")):
        return ()
    return _sizes(op, sizes, "X", "Y@GRAD")


def _turned(op: Any, sizes: dict[str, int]) -> int:
    """Bytes that a kernel moves to bring images from NHWC into NCHW or back.

    cuDNN's convolution and batch norm compute in NHWC for FP16 alone; for any other type Paddle's kernels transpose
    each image tensor on its way in and out (ConvCudnnKernel and BatchNormKernel of Paddle's sources).
    """
    kind = op.type.removesuffix("_grad")
    if kind not in IMAGES:
        return 0
    *images, layout = IMAGES[kind]
    names = operands(op, *images, *(f"{slot}@GRAD" for slot in images))
    if op.attr(layout) != "NHWC" or type_in(op.block, names[0]) == "float16":
        return 0
    return 2 * sum(sizes[name] for name in names)


def _product(op: Any) -> tuple[int, str]:
    """FLOPs of convolutions and matrix products, and the type of their arithmetic."""
    kind = op.type.removesuffix("_grad")
    flops, dtype = 0, ""
    for into, by, out in FACTORS.get(kind, ()):
        for name in operands(op, by):
            weights, made = op.block.var(name), op.block.var(operands(op, out, f"{out}@GRAD")[0])
            # The gradients by the input and by the weights cost one forward pass each.
            passes = 1 if op.type == kind else len(operands(op, f"{into}@GRAD", f"{by}@GRAD"))
            of_an_output = math.prod(weights.shape) // weights.shape[-1 if kind in PRODUCTS else 0]
            flops += passes * 2 * math.prod(made.shape) * of_an_output
            dtype = dtype_of(weights)
    return flops, dtype


def _extra(op: Any, sizes: dict[str, int]) -> int:
    """Bytes read beside each input once, whatever the chip holds.

    cuDNN makes a convolution's two gradients in two calls, and both read the gradient that arrives, in `resnet_unit`
    that of the normalization; addto reads the gradient that it adds to. The gradient of Paddle's sync_batch_norm has a
    third kernel that reads both images.
    """
    if op.type == "conv2d_grad":
        is_twice = len(operands(op, "Input@GRAD", "Filter@GRAD")) > 1
        return is_twice * sum(_sizes(op, sizes, "Output@GRAD")) + sum(sizes[name] for name in added_to(op))
    if op.type == "resnet_unit_grad":
        return sum(_sizes(op, sizes, "ConvX", "ConvZ"))
    return sum(_again(op, sizes)) if op.type == "sync_batch_norm_grad" else 0


def works(main: Any) -> list[Work]:
    """Every operator of a program's main block, in order."""
    block = main.global_block()
    sizes = _all_sizes(block)
    found = []
    for index, op in enumerate(block.ops):
        is_kernel = op.type not in NO_DATA and not (op.type == "coalesce_tensor" and not op.attr("copy_data"))
        turned = _turned(op, sizes)
        flops, dtype = _product(op)
        found.append(
            Work(
                index=index,
                kind=op.type,
                role=op.attr("op_role"),
                moved_bytes=_bytes(op, sizes) + turned + _inside(op, sizes) if is_kernel else 0,
                again_bytes=_again(op, sizes),
                flops=flops,
                dtype=dtype,
                is_kernel=is_kernel,
                turned_bytes=turned,
                extra_bytes=_extra(op, sizes),
            )
        )
    return found


def buckets(main: Any) -> list[dict[str, Any]]:
    """Each gradient all-reduce: its size, and the share of the gradient operators that are done when it is issued."""
    block = main.global_block()
    members, sizes = _members(block), _all_sizes(block)
    backward = [w for w in works(main) if w.role & BACKWARD and w.is_kernel and w.kind.endswith("_grad")]
    moved = sum(w.moved_bytes for w in backward)
    found = []
    for index, op in enumerate(block.ops):
        if op.type != "c_allreduce_sum":
            continue
        (name,) = op.input("X")
        before = [w for w in backward if w.index < index]
        found.append(
            {
                "mib": sizes[name] / MIB,
                "dtype": type_in(block, name),
                "gradients": len(members.get(name, [name])),
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
    block, all_works, found = main.global_block(), works(main), buckets(main)
    kinds = Counter(w.kind for w in all_works)
    by_kind: Counter[str] = Counter()
    for work in all_works:
        by_kind[work.kind] += work.moved_bytes
    moved = by_kind.total()
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
        "bytes_gib": moved / 2**30,
        "bytes_gb": moved / 1e9,
        "addto_reads_gb": sum(size_bytes(block.var(name)) for op in block.ops for name in added_to(op)) / 1e9,
        "bytes_gb_by_operator": {k: n / 1e9 for k, n in by_kind.most_common() if n >= 5e6},
        "flops": sum(w.flops for w in all_works),
    }
