"""Counts of a built program: what it runs, moves and computes.

Bytes are the inputs of an operator, each once, and its outputs (a variable that it changes in place is read and
written), and what passes between the kernels of one operator; views and operators without data count as none and are
no kernel operators; what a convolution reads of the gradient that it adds to (addto) is left out and shown by itself;
what a kernel transposes inside itself is counted. FLOPs are those of convolutions and matrix products, a multiply-add
being two.

Traffic adds what the kernels of one operator read again; the methods of Work say what. Their sources: cuDNN's
cudnnConvolutionBackwardData and cudnnConvolutionBackwardFilter, which both take `dy`; Paddle's
sync_batch_norm_kernel.cu and resnet_unit_op.cu, and for transposes its ConvCudnnKernel and BatchNormKernel; for a ring
all-reduce, which sends 2 (n-1)/n of its buffer over the link, nccl-tests' PERFORMANCE.md.
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
    """The slots in which an operator reads and writes an image, and the attribute that says the image's layout."""

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
        # Of transposes inside the kernel; `moved_bytes` has them too.
        self.transposed_bytes = self._transposed_bytes()
        self.moved_bytes = 0
        if self.is_kernel:
            self.moved_bytes = self._operand_bytes() + self.transposed_bytes + self._bytes_between_kernels()
        # Bytes of each input that it must read twice where the chip's cache cannot hold it.
        self.twice_read_sizes = self._sizes_read_twice()
        self.reread_bytes = self._reread_bytes()  # read by a second kernel of the operator, or added to

    @property
    def kernel_class(self) -> str:
        """The class of kernels that it is counted in."""
        if self.role & ops.OPTIMIZE:
            return "optimizer"
        is_gradient = self.kind != self._forward
        for name, kinds in CLASSES.items():
            if self._forward in kinds:
                return f"{name} gradient" if is_gradient and name in ("convolution", "batch norm") else name
        return "elementwise and others"

    def traffic_bytes(self, on_chip_bytes: int) -> int:
        """Return the bytes that its kernels read and write on a chip whose cache holds `on_chip_bytes`.

        An input that must be read twice is counted twice where the cache cannot hold it for the second time, or where a
        second kernel reads it.
        """
        is_two_kernels = self._forward == "sync_batch_norm"  # its statistics and its output
        again = sum(size for size in self.twice_read_sizes if is_two_kernels or size > on_chip_bytes)
        return self.moved_bytes + self.reread_bytes + again

    def _bytes_in(self, *slots: str) -> list[int]:
        """Return the bytes of each variable in these slots; a slot that the operator does not have holds none."""
        return [self._sizes[name] for name in ops.operands(self._op, *slots)]

    def _operand_bytes(self) -> int:
        """Return the bytes of the inputs, each variable once, and the outputs, each once; one in both counts twice.

        XShape counts as nothing: it remembers a shape and has no data.
        """
        total = 0
        for slots in (self._op.input_names, self._op.output_names):
            with_data = [slot for slot in slots if slot != "XShape"]
            names = set(ops.operands(self._op, *with_data))
            total += sum(self._sizes.get(name, 0) for name in names)
        return total

    def _bytes_between_kernels(self) -> int:
        """Return the bytes of images that the kernels inside one `resnet_unit` pass to each other.

        A `resnet_unit` is relu(bn(conv X) + bn(conv Z)) or relu(bn(conv X) + Z), as several kernels.

        - Forward, the normalization reads what each convolution has written: those bytes once more.
        - Backward, the gradient of each normalization is written, and then read to compute that of its convolution:
          twice ConvX, twice ConvZ. With a shortcut convolution Z so is the gradient of the sum: twice ConvZ again.
          Inputs that `_operand_bytes` counts and no kernel reads are subtracted: the output Y, as the relu's mask
          replaces it, and an addend Z that no convolution made.

        For any other operator 0 is returned.
        """
        x_bytes = sum(self._bytes_in("ConvX"))
        z_bytes = sum(self._bytes_in("ConvZ"))  # 0 without a shortcut convolution
        if self.kind == "resnet_unit":
            return x_bytes + z_bytes
        if self.kind == "resnet_unit_grad":
            normalization_gradients = 2 * x_bytes + 2 * z_bytes
            sum_gradient = 2 * z_bytes
            has_shortcut_convolution = self._op.attr("has_shortcut")
            unread_slots = ["Y"] if has_shortcut_convolution else ["Y", "Z"]
            return normalization_gradients + sum_gradient - sum(self._bytes_in(*unread_slots))
        return 0

    def _sizes_read_twice(self) -> list[int]:
        """Return the bytes of each image that a batch normalization must read twice; empty for any other operator.

        In training the whole batch is read for the sums behind the statistics, and again to normalize it. Forward that
        is the image. Backward it is the image and the incoming gradient, as each output value depends on sums over
        both. In evaluation nothing is read twice: the statistics are given.

        A `resnet_unit` reads nothing twice, as its convolutions compute the sums; its gradient operator does, backward.
        """
        if self.kind == "resnet_unit_grad":
            return self._bytes_in("ConvX", "ConvZ", "Y@GRAD")
        is_test = self._op.has_attr("is_test") and self._op.attr("is_test")
        if self._forward not in ops.NORMALIZATIONS or is_test:
            return []
        return self._bytes_in("X", "Y@GRAD")  # a forward operator has no slot Y@GRAD

    def _transposed_bytes(self) -> int:
        """Return the bytes that this operator's kernel moves to transpose images between NHWC and NCHW.

        Paddle's convolution and batch norm compute in NHWC for FP16 alone. For any other type their kernels transpose
        each image tensor on its way in and out (ConvCudnnKernel and BatchNormKernel of Paddle's sources), which reads
        and writes it once. Returns 0 where the program's layout is NCHW, and for any other operator.
        """
        slots = IMAGES.get(self._forward)
        if slots is None or self._op.attr(slots.layout) != "NHWC":
            return 0
        # Of these slots a forward operator has the first two; `operands` leaves out those that an operator has not.
        images = ops.operands(self._op, slots.read, slots.written, f"{slots.read}@GRAD", f"{slots.written}@GRAD")
        if ops.type_in(self._op.block, images[0]) == "float16":
            return 0
        return 2 * sum(self._sizes[name] for name in images)

    def _product(self) -> _Product:
        """Return the FLOPs of this operator's convolutions or matrix products, and the type that they compute in.

        Forward, each output value is a sum over its input channels and, in a convolution, its kernel's pixels: as many
        multiply-adds, of two FLOPs each, as the weights have elements for one output channel. A gradient operator
        computes the gradient by the input, that by the weights, or both, and each costs as much as the forward pass.
        Any other operator has 0 FLOPs and an empty type.
        """
        block = self._op.block
        flops = 0
        dtype = ""
        for slots in ops.FACTORS.get(self._forward, ()):  # a `resnet_unit` has two convolutions, or one
            for name in ops.operands(self._op, slots.weights):
                weights = block.var(name)
                output = block.var(ops.operands(self._op, slots.output, f"{slots.output}@GRAD")[0])
                output_channel_axis = -1 if self._forward in ops.PRODUCTS else 0  # in the shape of the weights
                multiply_adds = math.prod(weights.shape) // weights.shape[output_channel_axis]  # of one output value
                forward_flops = 2 * math.prod(output.shape) * multiply_adds
                flops += forward_flops * self._times_computed(slots)
                dtype = ops.dtype_of(weights)
        return _Product(flops, dtype)

    def _times_computed(self, slots: ops.Factors) -> int:
        """Return how many times the forward pass's arithmetic this operator does for the product in these slots.

        A forward operator does it once; a gradient operator once for each of the gradients by input and by weights that
        it computes.
        """
        is_gradient = self.kind != self._forward
        if not is_gradient:
            return 1
        return len(ops.operands(self._op, f"{slots.input}@GRAD", f"{slots.weights}@GRAD"))

    def _reread_bytes(self) -> int:
        """Return the bytes that a gradient operator reads again in a second kernel, or that it reads to add to them.

        These are read from memory however large the chip's cache is.

        - A convolution's gradients by its input and by its weights are two calls of cuDNN that read the same incoming
          gradient. With the knob `enable_addto` it also reads the gradient that it adds its result to.
        - In `resnet_unit` that incoming gradient is the normalization's, as large as the convolution's output.
        - Paddle's `sync_batch_norm_grad` has a third kernel, which reads the image and the incoming gradient: the same
          inputs that `_sizes_read_twice` returns.

        Any other operator reads nothing again: 0.
        """
        if self.kind == "conv2d_grad":
            addto_bytes = sum(self._sizes[name] for name in ops.added_to(self._op))
            has_both_gradients = len(ops.operands(self._op, "Input@GRAD", "Filter@GRAD")) > 1
            if has_both_gradients:
                return addto_bytes + sum(self._bytes_in("Output@GRAD"))
            return addto_bytes
        if self.kind == "resnet_unit_grad":
            return sum(self._bytes_in("ConvX", "ConvZ"))
        if self.kind == "sync_batch_norm_grad":
            return sum(self.twice_read_sizes)
        return 0


def _gradients_by_buffer(block: Block) -> dict[str, list[str]]:
    """Map each buffer that several gradients share, for their all-reduce, to the gradients that lie in it."""
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
    """Describe each gradient all-reduce of a training program, in the order in which they are issued.

    Each entry has its size in MiB, its type, the number of gradients in it, its index among the operators, its
    communicator (`ring`), and whether it is summed on the stream that computes.

    Two shares from 0 to 1 say how well it can overlap with the backward pass: `issued_after_operators`, of the backward
    kernels, how many come before it; and `bytes_left_to_hide_it`, of the bytes that all of these move, how many are
    moved by those that come after it.
    """
    block = main.global_block()
    gradients_by_buffer = _gradients_by_buffer(block)
    sizes = _all_sizes(block)
    backward = [work for work in works(main) if _is_backward_kernel(work)]
    backward_bytes = _moved_bytes(backward)
    described = []
    for index, op in enumerate(block.ops):
        if op.type != "c_allreduce_sum":
            continue
        (buffer,) = op.input("X")
        before = [work for work in backward if work.index < index]
        gradients = gradients_by_buffer.get(buffer, [buffer])  # a gradient that travels alone is its own buffer
        described.append(
            {
                "mib": sizes[buffer] / ops.MIB,
                "dtype": ops.type_in(block, buffer),
                "gradients": len(gradients),
                "operator": index,
                "issued_after_operators": len(before) / len(backward),
                "bytes_left_to_hide_it": 1 - _moved_bytes(before) / backward_bytes,
                "ring": op.attr("ring_id"),
                "on_computing_stream": bool(op.attr("use_calc_stream")),
            }
        )
    return described


def _is_backward_kernel(work: Work) -> bool:
    """Tell whether an operator computes gradients in the backward pass, and moves data."""
    return bool(work.role & ops.BACKWARD) and work.is_kernel and work.kind.endswith("_grad")


def _moved_bytes(some_works: Iterable[Work]) -> int:
    return sum(work.moved_bytes for work in some_works)


def layout(main: static.Program) -> str:
    """Return the image layout of the convolutions, NCHW or NHWC; empty where there are none."""
    for op in main.global_block().ops:
        if op.type == "conv2d":
            return str(op.attr("data_format"))
    return ""


def _addto_bytes(block: Block) -> int:
    """Return the bytes of the gradients that convolutions' gradients read to add to them (`enable_addto`)."""
    total = 0
    for op in block.ops:
        total += sum(ops.size_bytes(block.var(name)) for name in ops.added_to(op))
    return total


def counts_of(main: static.Program) -> dict[str, Any]:
    """Return what one run of a built program runs, moves and computes, by the names that `tools.inspect --json` prints.

    These are the numbers of operators by type, the bytes moved by type, the all-reduces and the FLOPs. All is read off
    the program: it needs no device, and nothing is measured. Of the bytes by type, those below 5 MB are left out.
    """
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
    return {
        "operators": dict(kinds.most_common()),
        "kernel_operators": sum(work.is_kernel for work in all_works),
        "all_operators": len(all_works),
        "transposes": transposes,
        "hidden_transposes_gb": sum(work.transposed_bytes for work in all_works) / 1e9,
        "casts": kinds["cast"],
        "products": dict(Counter(work.dtype for work in all_works if work.flops)),
        "all_reduces": kinds["c_allreduce_sum"],
        "all_reduce_mib": sum(bucket["mib"] for bucket in all_buckets),
        "buckets": all_buckets,
        "fused": {kind: number for kind, number in kinds.items() if kind.startswith(("fused_", "merged_"))},
        "bytes_gib": moved_bytes / 2**30,
        "bytes_gb": moved_bytes / 1e9,
        "addto_reads_gb": _addto_bytes(main.global_block()) / 1e9,
        "bytes_gb_by_operator": {kind: size / 1e9 for kind, size in bytes_by_kind.most_common() if size >= 5e6},
        "flops": sum(work.flops for work in all_works),
    }
