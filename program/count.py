"""Counts of a built program: what it runs, moves and computes.

Bytes are the inputs of an operator, each once, and its outputs (a variable that it changes in place is read and
written), and what passes between the kernels of one operator; views and operators without data count as none and are
no kernel operators; what a convolution reads of the gradient that it adds to (addto) is left out and shown by itself;
what a kernel transposes inside itself is counted. Traffic adds what the kernels read more than once; docs/program.md
has the source for each class. FLOPs are those of convolutions and matrix products, a multiply-add being two.
"""

import math
from collections import Counter
from typing import Any

from program import ops

# Operators that move no data: views, and those that only order or name buffers.
NO_DATA = {
    *("depend", "share_buffer", "c_sync_calc_stream", "c_sync_comm_stream", "c_wait_comm", "c_wait_compute"),
    *("reshape2", "flatten2", "flatten_contiguous_range", "squeeze2", "unsqueeze2"),
}
NO_DATA |= {f"{name}_grad" for name in NO_DATA}
# Image tensors of operators that compute in NCHW but for FP16, and the attribute that says their layout.
IMAGES = dict.fromkeys(ops.CONVOLUTIONS, ("Input", "Output", "data_format")) | {"batch_norm": ("X", "Y", "data_layout")}
CLASSES = {
    "convolution": ops.CONVOLUTIONS,
    "batch norm": ops.NORMALIZATIONS,
    "convolution with batch norm": {"resnet_unit"},
    "pooling": {"pool2d"},
    "transpose": {"transpose", "transpose2", "transfer_layout"},
    "cast": {"cast"},
    "all-reduce": {"c_allreduce_sum"},
}


class Work:
    """What one operator moves and computes; `sizes` are the bytes of each variable."""

    def __init__(self, index: int, op: Any, sizes: dict[str, int]) -> None:
        self.index, self.kind, self.role = index, op.type, op.attr("op_role")
        self._op, self._sizes, self._forward = op, sizes, op.type.removesuffix("_grad")
        self.is_kernel = op.type not in NO_DATA and not (op.type == "coalesce_tensor" and not op.attr("copy_data"))
        self.flops, self.dtype = self._product()  # type of a product's arithmetic; empty for any other operator
        self.turned_bytes = self._turned()  # of transposes inside the kernel, which are in `moved_bytes` too
        self.moved_bytes = self._passed() + self.turned_bytes + self._inside() if self.is_kernel else 0
        self.again_bytes = self._again()  # of inputs that it must read twice where the chip cannot hold them
        self.extra_bytes = self._extra()  # read by a second kernel of the operator, or added to

    @property
    def kernel_class(self) -> str:
        """The class of kernels that docs/program.md counts it in."""
        if self.role & ops.OPTIMIZE:
            return "optimizer"
        name = next((name for name, kinds in CLASSES.items() if self._forward in kinds), "elementwise and others")
        is_apart = self.kind != self._forward and name in ("convolution", "batch norm")
        return f"{name} gradient" if is_apart else name

    def traffic_bytes(self, on_chip_bytes: int) -> int:
        """Bytes that its kernels read and write on a chip that holds as many itself."""
        is_apart = self._forward == "sync_batch_norm"  # its statistics and output are kernels apart
        again = sum(size for size in self.again_bytes if is_apart or size > on_chip_bytes)
        return self.moved_bytes + self.extra_bytes + again

    def _in(self, *slots: str) -> tuple[int, ...]:
        """Bytes of each variable in these slots."""
        return tuple(self._sizes[name] for name in ops.operands(self._op, *slots))

    def _passed(self) -> int:
        """Inputs, each once, and outputs."""
        slots = ([slot for slot in of if slot != "XShape"] for of in (self._op.input_names, self._op.output_names))
        return sum(self._sizes.get(name, 0) for of in slots for name in set(ops.operands(self._op, *of)))

    def _inside(self) -> int:
        """Bytes of images that pass between the kernels of one `resnet_unit`.

        Forward what a convolution wrote is read to be normalized. Backward the normalization's gradient is written and
        read by the convolution's; with a shortcut that of the sum too. Of its inputs it reads neither the output, but
        the mask, nor an addend that no convolution made.
        """
        x, z = sum(self._in("ConvX")), sum(self._in("ConvZ"))
        if self.kind == "resnet_unit":
            return x + z
        if self.kind != "resnet_unit_grad":
            return 0
        has_shortcut = self._op.attr("has_shortcut")
        return 2 * (x + 2 * z) - sum(self._in("Y") if has_shortcut else self._in("Y", "Z"))

    def _again(self) -> tuple[int, ...]:
        """Images that a normalization by the batch's statistics reads before it can begin, and again for its output.

        Forward that is the image; backward the image and the gradient, whose sums over the batch are in each output
        value.
        """
        if self.kind == "resnet_unit_grad":  # forward its convolution has the sums
            return self._in("ConvX", "ConvZ", "Y@GRAD")
        is_test = self._op.has_attr("is_test") and self._op.attr("is_test")
        return self._in("X", "Y@GRAD") if self._forward in ops.NORMALIZATIONS and not is_test else ()

    def _turned(self) -> int:
        """Bytes that a kernel moves to bring images from NHWC into NCHW or back.

        cuDNN's convolution and batch norm compute in NHWC for FP16 alone; for any other type Paddle's kernels transpose
        each image tensor on its way in and out (ConvCudnnKernel and BatchNormKernel of Paddle's sources).
        """
        if self._forward not in IMAGES:
            return 0
        *images, layout = IMAGES[self._forward]
        names = ops.operands(self._op, *images, *(f"{slot}@GRAD" for slot in images))
        if self._op.attr(layout) != "NHWC" or ops.type_in(self._op.block, names[0]) == "float16":
            return 0
        return 2 * sum(self._sizes[name] for name in names)

    def _product(self) -> tuple[int, str]:
        """FLOPs of convolutions and matrix products, and the type of their arithmetic."""
        op, block, flops, dtype = self._op, self._op.block, 0, ""
        for into, by, out in ops.FACTORS.get(self._forward, ()):
            for name in ops.operands(op, by):
                weights, made = block.var(name), block.var(ops.operands(op, out, f"{out}@GRAD")[0])
                # The gradients by the input and by the weights cost one forward pass each.
                passes = 1 if self.kind == self._forward else len(ops.operands(op, f"{into}@GRAD", f"{by}@GRAD"))
                of_an_output = math.prod(weights.shape) // weights.shape[-1 if self._forward in ops.PRODUCTS else 0]
                flops += passes * 2 * math.prod(made.shape) * of_an_output
                dtype = ops.dtype_of(weights)
        return flops, dtype

    def _extra(self) -> int:
        """Bytes read beside each input once, whatever the chip holds.

        cuDNN makes a convolution's two gradients in two calls, and both read the gradient that arrives, in
        `resnet_unit` that of the normalization; addto reads the gradient that it adds to. The gradient of Paddle's
        sync_batch_norm has a third kernel that reads both images.
        """
        if self.kind == "conv2d_grad":
            is_twice = len(ops.operands(self._op, "Input@GRAD", "Filter@GRAD")) > 1
            added = sum(self._sizes[name] for name in ops.added_to(self._op))
            return is_twice * sum(self._in("Output@GRAD")) + added
        if self.kind == "resnet_unit_grad":
            return sum(self._in("ConvX", "ConvZ"))
        return sum(self.again_bytes) if self.kind == "sync_batch_norm_grad" else 0


def _members(block: Any) -> dict[str, list[str]]:
    """Gradients in each buffer that is all-reduced."""
    return {op.output("FusedOutput")[0]: op.output("Output") for op in block.ops if op.type == "coalesce_tensor"}


def _all_sizes(block: Any) -> dict[str, int]:
    """Bytes of each variable that has a shape; a buffer that is all-reduced has none itself, but its gradients have."""
    found = {name: ops.size_bytes(variable) for name, variable in block.vars.items() if variable.shape}
    return found | {buffer: sum(found[name] for name in names) for buffer, names in _members(block).items()}


def works(main: Any) -> list[Work]:
    """Every operator of a program's main block, in order."""
    block = main.global_block()
    sizes = _all_sizes(block)
    return [Work(index, op, sizes) for index, op in enumerate(block.ops)]


def buckets(main: Any) -> list[dict[str, Any]]:
    """Each gradient all-reduce: its size, and the share of the gradient operators that are done when it is issued."""
    block = main.global_block()
    members, sizes = _members(block), _all_sizes(block)
    backward = [w for w in works(main) if w.role & ops.BACKWARD and w.is_kernel and w.kind.endswith("_grad")]
    moved = sum(w.moved_bytes for w in backward)
    found = []
    for index, op in enumerate(block.ops):
        if op.type != "c_allreduce_sum":
            continue
        (name,) = op.input("X")
        before = [w for w in backward if w.index < index]
        found.append(
            {
                "mib": sizes[name] / ops.MIB,
                "dtype": ops.type_in(block, name),
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
        "transposes": sum(n for kind, n in kinds.items() if kind.removesuffix("_grad") in CLASSES["transpose"]),
        "hidden_transposes_gb": sum(w.turned_bytes for w in all_works) / 1e9,
        "casts": kinds["cast"],
        "products": dict(Counter(w.dtype for w in all_works if w.flops)),
        "all_reduces": kinds["c_allreduce_sum"],
        "all_reduce_mib": sum(b["mib"] for b in found),
        "buckets": found,
        "fused": {kind: n for kind, n in kinds.items() if kind.startswith(("fused_", "merged_"))},
        "bytes_gib": moved / 2**30,
        "bytes_gb": moved / 1e9,
        "addto_reads_gb": sum(ops.size_bytes(block.var(name)) for op in block.ops for name in ops.added_to(op)) / 1e9,
        "bytes_gb_by_operator": {k: n / 1e9 for k, n in by_kind.most_common() if n >= 5e6},
        "flops": sum(w.flops for w in all_works),
    }
