"""Counts of a built program: what it runs, moves and computes.

Bytes are the inputs of an operator, each once, and its outputs (a variable that it changes in place is read and
written), and what passes between the kernels of one operator; views and operators without data count as none and are
no kernel operators; what a convolution reads of the gradient that it adds to (addto) is left out and shown by itself;
what a kernel transposes inside itself is counted. Traffic adds what the kernels read more than once; docs/program.md
has the source for each class. FLOPs are those of convolutions and matrix products, a multiply-add being two.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from paddle import static
from paddle.base.framework import Block, Operator

from program import ops

# Operators that move no data: views, and those that only order or name buffers.
NO_DATA = {
    *("depend", "share_buffer", "c_sync_calc_stream", "c_sync_comm_stream", "c_wait_comm", "c_wait_compute"),
    *("reshape2", "flatten2", "flatten_contiguous_range", "squeeze2", "unsqueeze2"),
}
NO_DATA |= {f"{name}_grad" for name in NO_DATA}
CLASSES = {
    "convolution": ops.CONVOLUTIONS,
    "batch norm": ops.NORMALIZATIONS,
    "convolution with batch norm": {"resnet_unit"},
    "pooling": {"pool2d"},
    "transpose": {"transpose", "transpose2", "transfer_layout"},
    "cast": {"cast"},
    "all-reduce": {"c_allreduce_sum"},
}


class _ImageSlots(NamedTuple):
    """Where an operator that works on images has them, and the attribute that says their layout."""

    read: str
    written: str
    layout: str


# Operators that compute in NCHW but for FP16.
IMAGES = {
    "conv2d": _ImageSlots("Input", "Output", "data_format"),
    "depthwise_conv2d": _ImageSlots("Input", "Output", "data_format"),
    "batch_norm": _ImageSlots("X", "Y", "data_layout"),
}


class _Product(NamedTuple):
    """The arithmetic of an operator's convolutions and matrix products."""

    flops: int
    dtype: str  # empty where there are none


class Work:
    """The bytes that one operator moves and the FLOPs that it computes.

    `sizes` maps each variable to its bytes.
    """

    def __init__(self, index: int, op: Operator, sizes: dict[str, int]) -> None:
        self.index = index
        self.kind = op.type
        self.role = op.attr("op_role")
        self._op = op
        self._sizes = sizes
        self._forward = op.type.removesuffix("_grad")
        only_names_a_buffer = op.type == "coalesce_tensor" and not op.attr("copy_data")
        self.is_kernel = op.type not in NO_DATA and not only_names_a_buffer
        product = self._product()
        self.flops = product.flops
        self.dtype = product.dtype  # of a product's arithmetic; empty for any other operator
        self.turned_bytes = self._turned()  # of transposes inside the kernel, which are in `moved_bytes` too
        self.moved_bytes = 0
        if self.is_kernel:
            self.moved_bytes = self._passed() + self.turned_bytes + self._inside()
        self.again_bytes = self._again()  # of inputs that it must read twice where the chip cannot hold them
        self.extra_bytes = self._extra()  # read by a second kernel of the operator, or added to

    @property
    def kernel_class(self) -> str:
        """The class of kernels that docs/program.md counts it in."""
        if self.role & ops.OPTIMIZE:
            return "optimizer"
        is_gradient = self.kind != self._forward
        for name, kinds in CLASSES.items():
            if self._forward in kinds:
                return f"{name} gradient" if is_gradient and name in ("convolution", "batch norm") else name
        return "elementwise and others"

    def traffic_bytes(self, on_chip_bytes: int) -> int:
        """Return the bytes that its kernels read and write on a chip that itself holds `on_chip_bytes`."""
        is_two_kernels = self._forward == "sync_batch_norm"  # its statistics and its output
        again = sum(size for size in self.again_bytes if is_two_kernels or size > on_chip_bytes)
        return self.moved_bytes + self.extra_bytes + again

    def _bytes_in(self, *slots: str) -> list[int]:
        """Return the bytes of each variable in these slots."""
        return [self._sizes[name] for name in ops.operands(self._op, *slots)]

    def _passed(self) -> int:
        """Return the bytes of the inputs, each once, and the outputs, each once."""
        total = 0
        for slots in (self._op.input_names, self._op.output_names):
            with_data = [slot for slot in slots if slot != "XShape"]
            names = set(ops.operands(self._op, *with_data))
            total += sum(self._sizes.get(name, 0) for name in names)
        return total

    def _inside(self) -> int:
        """Return the bytes of images that pass between the kernels of one `resnet_unit`; 0 of any other operator.

        Forward what a convolution wrote is read to be normalized. Backward the normalization's gradient is written and
        read by the convolution's; with a shortcut that of the sum too. Of its inputs it reads neither the output, but
        the mask, nor an addend that no convolution made.
        """
        x = sum(self._bytes_in("ConvX"))
        z = sum(self._bytes_in("ConvZ"))
        if self.kind == "resnet_unit":
            return x + z
        if self.kind != "resnet_unit_grad":
            return 0
        unread_slots = ["Y"] if self._op.attr("has_shortcut") else ["Y", "Z"]
        return 2 * (x + 2 * z) - sum(self._bytes_in(*unread_slots))

    def _again(self) -> list[int]:
        """Return the bytes of each image that a normalization reads before it can begin, and again for its output.

        It normalizes by the batch's statistics. Forward that is the image; backward the image and the gradient, whose
        sums over the batch are in each output value.
        """
        if self.kind == "resnet_unit_grad":  # forward its convolution has the sums
            return self._bytes_in("ConvX", "ConvZ", "Y@GRAD")
        is_test = self._op.has_attr("is_test") and self._op.attr("is_test")
        if self._forward not in ops.NORMALIZATIONS or is_test:
            return []
        return self._bytes_in("X", "Y@GRAD")

    def _turned(self) -> int:
        """Return the bytes that a kernel moves to bring images from NHWC into NCHW or back.

        cuDNN's convolution and batch norm compute in NHWC for FP16 alone; for any other type Paddle's kernels transpose
        each image tensor on its way in and out (ConvCudnnKernel and BatchNormKernel of Paddle's sources).
        """
        slots = IMAGES.get(self._forward)
        if slots is None or self._op.attr(slots.layout) != "NHWC":
            return 0
        images = ops.operands(self._op, slots.read, slots.written, f"{slots.read}@GRAD", f"{slots.written}@GRAD")
        if ops.type_in(self._op.block, images[0]) == "float16":
            return 0
        return 2 * sum(self._sizes[name] for name in images)

    def _product(self) -> _Product:
        """Count the FLOPs of convolutions and matrix products, and name the type of their arithmetic."""
        block = self._op.block
        flops = 0
        dtype = ""
        for factors in ops.FACTORS.get(self._forward, ()):
            for name in ops.operands(self._op, factors.weights):
                weights = block.var(name)
                output = block.var(ops.operands(self._op, factors.output, f"{factors.output}@GRAD")[0])
                passes = 1
                if self.kind != self._forward:
                    # The gradients by the input and by the weights cost one forward pass each.
                    made = ops.operands(self._op, f"{factors.input}@GRAD", f"{factors.weights}@GRAD")
                    passes = len(made)
                output_axis = -1 if self._forward in ops.PRODUCTS else 0
                multiply_adds = math.prod(weights.shape) // weights.shape[output_axis]  # of one output value
                flops += passes * 2 * math.prod(output.shape) * multiply_adds
                dtype = ops.dtype_of(weights)
        return _Product(flops, dtype)

    def _extra(self) -> int:
        """Return the bytes that are read more than once, whatever the chip holds.

        cuDNN makes a convolution's two gradients in two calls, and both read the gradient that arrives, in
        `resnet_unit` that of the normalization; addto reads the gradient that it adds to. The gradient of Paddle's
        sync_batch_norm has a third kernel that reads both images.
        """
        if self.kind == "conv2d_grad":
            total = sum(self._sizes[name] for name in ops.added_to(self._op))
            if len(ops.operands(self._op, "Input@GRAD", "Filter@GRAD")) > 1:
                total += sum(self._bytes_in("Output@GRAD"))
            return total
        if self.kind == "resnet_unit_grad":
            return sum(self._bytes_in("ConvX", "ConvZ"))
        if self.kind == "sync_batch_norm_grad":
            return sum(self.again_bytes)
        return 0


def _gradients_by_buffer(block: Block) -> dict[str, list[str]]:
    """Map each buffer that is all-reduced to the gradients that lie in it."""
    return {op.output("FusedOutput")[0]: op.output("Output") for op in block.ops if op.type == "coalesce_tensor"}


def _all_sizes(block: Block) -> dict[str, int]:
    """Map each variable that has a shape to its bytes, and each all-reduced buffer to those of its gradients."""
    sizes = {name: ops.size_bytes(variable) for name, variable in block.vars.items() if variable.shape}
    for buffer, gradients in _gradients_by_buffer(block).items():
        sizes[buffer] = sum(sizes[name] for name in gradients)
    return sizes


def works(main: static.Program) -> list[Work]:
    """Return what every operator of a program's main block moves and computes, in order."""
    block = main.global_block()
    sizes = _all_sizes(block)
    return [Work(index, op, sizes) for index, op in enumerate(block.ops)]


def buckets(main: static.Program) -> list[dict[str, Any]]:
    """Describe each gradient all-reduce: its size, and how much of the backward pass is done when it is issued."""
    block = main.global_block()
    gradients = _gradients_by_buffer(block)
    sizes = _all_sizes(block)
    backward = [work for work in works(main) if _is_backward_kernel(work)]
    moved_bytes = _moved_bytes(backward)
    described = []
    for index, op in enumerate(block.ops):
        if op.type != "c_allreduce_sum":
            continue
        (name,) = op.input("X")
        before = [work for work in backward if work.index < index]
        described.append(
            {
                "mib": sizes[name] / ops.MIB,
                "dtype": ops.type_in(block, name),
                "gradients": len(gradients.get(name, [name])),
                "operator": index,
                "issued_after_operators": len(before) / len(backward),
                "bytes_left_to_hide_it": 1 - _moved_bytes(before) / moved_bytes,
                "ring": op.attr("ring_id"),
                "on_computing_stream": bool(op.attr("use_calc_stream")),
            }
        )
    return described


def _is_backward_kernel(work: Work) -> bool:
    return bool(work.role & ops.BACKWARD) and work.is_kernel and work.kind.endswith("_grad")


def _moved_bytes(some_works: Iterable[Work]) -> int:
    return sum(work.moved_bytes for work in some_works)


def layout(main: static.Program) -> str:
    """Return the image layout of the convolutions, NCHW or NHWC; empty where there are none."""
    for op in main.global_block().ops:
        if op.type == "conv2d":
            return str(op.attr("data_format"))
    return ""


def counts_of(main: static.Program) -> dict[str, Any]:
    """Count a program: the keys of `--json` that need no device."""
    block = main.global_block()
    all_works = works(main)
    all_buckets = buckets(main)
    kinds = Counter(work.kind for work in all_works)
    bytes_by_kind: Counter[str] = Counter()
    for work in all_works:
        bytes_by_kind[work.kind] += work.moved_bytes
    moved_bytes = bytes_by_kind.total()

    transposes = 0
    for kind, number in kinds.items():
        if kind.removesuffix("_grad") in CLASSES["transpose"]:
            transposes += number
    addto_bytes = 0
    for op in block.ops:
        addto_bytes += sum(ops.size_bytes(block.var(name)) for name in ops.added_to(op))

    return {
        "operators": dict(kinds.most_common()),
        "kernel_operators": sum(work.is_kernel for work in all_works),
        "all_operators": len(all_works),
        "transposes": transposes,
        "hidden_transposes_gb": sum(work.turned_bytes for work in all_works) / 1e9,
        "casts": kinds["cast"],
        "products": dict(Counter(work.dtype for work in all_works if work.flops)),
        "all_reduces": kinds["c_allreduce_sum"],
        "all_reduce_mib": sum(bucket["mib"] for bucket in all_buckets),
        "buckets": all_buckets,
        "fused": {kind: number for kind, number in kinds.items() if kind.startswith(("fused_", "merged_"))},
        "bytes_gib": moved_bytes / 2**30,
        "bytes_gb": moved_bytes / 1e9,
        "addto_reads_gb": addto_bytes / 1e9,
        "bytes_gb_by_operator": {kind: size / 1e9 for kind, size in bytes_by_kind.most_common() if size >= 5e6},
        "flops": sum(work.flops for work in all_works),
    }
