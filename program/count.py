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
from paddle.base.framework import Block, Operator, Variable

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

    input: str
    output: str
    layout: str


# Operators whose kernels compute in NCHW, except in FP16.
IMAGES = {
    "conv2d": _ImageSlots("Input", "Output", "data_format"),
    "depthwise_conv2d": _ImageSlots("Input", "Output", "data_format"),
    "batch_norm": _ImageSlots("X", "Y", "data_layout"),
}


class _Product(NamedTuple):
    """The arithmetic of an operator's convolutions and matrix products."""

    flops: int
    dtype: str  # empty if there are none


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
        self.transposed_bytes = self._transposed_bytes()  # inside the kernel; part of `moved_bytes`
        self.moved_bytes = 0
        if self.is_kernel:
            read_operand_bytes = self._operand_bytes() - self._unread_operand_bytes()
            self.moved_bytes = read_operand_bytes + self.transposed_bytes + self._bytes_between_kernels()
        # Bytes of each input that is read twice if the chip's cache cannot hold it.
        self.twice_read_sizes = self._sizes_of_twice_read_inputs()
        self.reread_bytes = self._reread_bytes()

    @property
    def kernel_class(self) -> str:
        """The class of kernels in which the operator is counted.

        - operator of the update: "optimizer".
        - operator of a type in CLASSES: that class. A gradient operator is in the class of its forward operator, but
          the gradients of convolutions and of batch norms have classes of their own, as "convolution gradient".
        - any other operator: "elementwise and others".
        """
        if self.role & ops.OPTIMIZE:
            return "optimizer"
        is_gradient = self.kind != self._forward
        for name, kinds in CLASSES.items():
            if self._forward in kinds:
                has_gradient_class = name in ("convolution", "batch norm")
                return f"{name} gradient" if is_gradient and has_gradient_class else name
        return "elementwise and others"

    def traffic_bytes(self, on_chip_bytes: int) -> int:
        """Return the bytes that the operator's kernels read from and write to memory.

        `on_chip_bytes` is the size of the chip's cache. Some inputs of a batch normalization are read twice. The second
        reading counts only if the cache cannot hold the input, or if a second kernel does it.
        """
        has_two_kernels = self._forward == "sync_batch_norm"  # one for the statistics, one for the output
        second_reading_bytes = sum(size for size in self.twice_read_sizes if has_two_kernels or size > on_chip_bytes)
        return self.moved_bytes + self.reread_bytes + second_reading_bytes

    def _bytes_in(self, *slots: str) -> list[int]:
        """Return the bytes of each variable in these slots; a slot that the operator does not have holds none."""
        return [self._sizes[name] for name in ops.operands(self._op, *slots)]

    def _operand_bytes(self) -> int:
        """Return the bytes of all inputs and all outputs of the operator.

        - A variable counts once as an input and once as an output, even if it is in several slots.
        - A variable that is both an input and an output therefore counts twice: it is read and written.
        - XShape and variables of unknown size count as 0. XShape only remembers a shape and holds no data.
        """
        total = 0
        for slots in (self._op.input_names, self._op.output_names):
            # XShape only remembers a shape.
            slots_with_data = [slot for slot in slots if slot != "XShape"]
            names = set(ops.operands(self._op, *slots_with_data))
            total += sum(self._sizes.get(name, 0) for name in names)
        return total

    def _bytes_between_kernels(self) -> int:
        """Return the bytes that kernels inside one `resnet_unit` pass to each other; 0 for any other operator.

        `resnet_unit` computes relu(bn(ConvX) + bn(ConvZ)). ConvX and ConvZ are the outputs of two convolutions. Without
        a shortcut convolution there is no ConvZ.

            operator            tensors passed on                   counted here
            `resnet_unit`       ConvX, ConvZ                        read
            `resnet_unit_grad`  gradients of ConvX and ConvZ        written and read
            `resnet_unit_grad`  gradient of the addend bn(ConvZ)    written and read

        Outputs of the operator are written to memory anyway, which `_operand_bytes` counts. ConvX and ConvZ are such
        outputs, so only their reading is counted here. If the addend is an image without a convolution, its gradient is
        such an output too, and nothing of it is counted here.
        """
        x_bytes = sum(self._bytes_in("ConvX"))
        z_bytes = sum(self._bytes_in("ConvZ"))  # 0 without a shortcut convolution
        if self.kind == "resnet_unit":
            return x_bytes + z_bytes  # the reading; `_operand_bytes` counts the writing
        if self.kind == "resnet_unit_grad":
            convolution_gradient_bytes = x_bytes + z_bytes
            # The gradient of bn(ConvZ) is as large as ConvZ. The gradient of any other addend is an output.
            addend_gradient_bytes = z_bytes
            return 2 * (convolution_gradient_bytes + addend_gradient_bytes)  # written and read
        return 0

    def _unread_operand_bytes(self) -> int:
        """Return the bytes of inputs that no kernel of a `resnet_unit_grad` reads; 0 for any other operator.

        - The output Y of the forward operator: the kernels read the relu's bit mask instead.
        - The addend Z if no convolution reads it.
        """
        if self.kind != "resnet_unit_grad":
            return 0
        unread_bytes = sum(self._bytes_in("Y"))
        has_shortcut_convolution = self._op.attr("has_shortcut")
        if not has_shortcut_convolution:
            unread_bytes += sum(self._bytes_in("Z"))
        return unread_bytes

    def _sizes_of_twice_read_inputs(self) -> list[int]:
        """Return the bytes of each input tensor that a batch normalization reads twice.

        The operator reads the whole tensor for sums over the batch, and then again to compute its output from the sums.

        - `resnet_unit_grad`: the outputs of the convolutions (ConvX, ConvZ) and the incoming gradient.
        - batch normalization in evaluation, where the statistics are given: none.
        - batch normalization in training: the input X.
        - gradient of a batch normalization: the input X and the incoming gradient.
        - any other operator: none. `resnet_unit` is one, because its convolutions sum up what they write.
        """
        if self.kind == "resnet_unit_grad":
            return self._bytes_in("ConvX", "ConvZ", "Y@GRAD")
        # An evaluation has its statistics given and reads once.
        is_evaluation = self._op.has_attr("is_test") and self._op.attr("is_test")
        # `resnet_unit` itself reads once too: its convolutions sum up what they write.
        if self._forward in ops.NORMALIZATIONS and not is_evaluation:
            return self._bytes_in("X", "Y@GRAD")  # a forward operator has no slot Y@GRAD
        return []

    def _transposed_bytes(self) -> int:
        """Return the bytes that this operator's kernel moves to transpose images between NHWC and NCHW.

        - any operator except convolutions and batch norms: 0.
        - layout NCHW: 0, because Paddle's kernels compute in NCHW.
        - layout NHWC in FP16: 0, because Paddle has kernels for it.
        - layout NHWC in another type: each image is read and written once more. The kernel transposes it on its way in
          and out (ConvCudnnKernel and BatchNormKernel in Paddle's sources).
        """
        slots = IMAGES.get(self._forward)
        if slots is None or self._op.attr(slots.layout) != "NHWC":
            return 0
        # A forward operator has only the input and the output, a gradient operator also their gradients. `operands`
        # skips slots that the operator does not have.
        images = ops.operands(self._op, slots.input, slots.output, f"{slots.input}@GRAD", f"{slots.output}@GRAD")
        if ops.type_in(self._op.block, images[0]) == "float16":
            return 0
        # transposed on the way in and out (ConvCudnnKernel and BatchNormKernel in Paddle's sources)
        return 2 * sum(self._sizes[name] for name in images)

    def _product(self) -> _Product:
        """Return the FLOPs of this operator's convolutions or matrix products, and the type that they compute in.

        - forward operator: the FLOPs of each convolution or matrix product (`_forward_flops`).
        - gradient operator: the same FLOPs once for the gradient of the input and once for the gradient of the weights,
          as far as it computes them.
        - operator without convolutions and matrix products: 0 FLOPs and an empty type.
        """
        flops = 0
        dtype = ""
        # The slots of the operands of each convolution or matrix product. A `resnet_unit` has two, any other one.
        products = ops.FACTORS.get(self._forward, ())
        for slots in products:
            weight_names = ops.operands(self._op, slots.weights)
            if not weight_names:
                continue  # a `resnet_unit` without a shortcut convolution
            weights = self._op.block.var(weight_names[0])
            times_computed = self._times_computed(slots)  # 1 forward, 0 to 2 for gradients
            flops += self._forward_flops(slots, weights) * times_computed
            dtype = ops.dtype_of(weights)
        return _Product(flops, dtype)

    def _forward_flops(self, slots: ops.Factors, weights: Variable) -> int:
        """Return the FLOPs of the forward pass of one convolution or matrix product, whose operands are in `slots`.

            FLOPs = 2 * output elements * weights / output channels

        Each output value takes one multiply-add, which counts as two, for each weight of its channel.
        """
        # A gradient operator may have only the gradient of the output, which has the output's shape.
        output_name = ops.operands(self._op, slots.output, f"{slots.output}@GRAD")[0]
        output_elements = math.prod(self._op.block.var(output_name).shape)
        # In the shape of the weights: the last axis for a matrix product, the first for a convolution.
        output_channel_axis = -1 if self._forward in ops.PRODUCTS else 0
        multiply_adds_per_element = math.prod(weights.shape) // weights.shape[output_channel_axis]
        return int(2 * output_elements * multiply_adds_per_element)

    def _times_computed(self, slots: ops.Factors) -> int:
        """Return how many times this operator spends the forward FLOPs of one product.

        - forward operator: 1.
        - gradient operator: the number of gradients that it computes, by the input and by the weights: 0, 1 or 2.
        """
        is_gradient = self.kind != self._forward
        if not is_gradient:
            return 1
        return len(ops.operands(self._op, f"{slots.input}@GRAD", f"{slots.weights}@GRAD"))

    def _reread_bytes(self) -> int:
        """Return the bytes that a gradient operator reads a second or third time, because it runs several kernels.

        These bytes always count as traffic, whatever the size of the chip's cache.

        - `conv2d_grad`: the incoming gradient, if the operator computes the gradients of the input and of the weights.
          Each has a kernel of its own, and both kernels read it. Also counted here, although it is read once: the
          gradient to which the operator adds its result (`enable_addto`).
        - `resnet_unit_grad`: the gradients of ConvX and ConvZ, the outputs of the convolutions. Two kernels read each.
        - `sync_batch_norm_grad`: the input and the incoming gradient. A third kernel reads them.
        - any other operator: 0.
        """
        if self.kind == "conv2d_grad":
            addto_bytes = sum(self._sizes[name] for name in ops.added_to(self._op))
            has_both_gradients = len(ops.operands(self._op, "Input@GRAD", "Filter@GRAD")) > 1
            if has_both_gradients:  # by two kernels, which both read the incoming gradient
                return addto_bytes + sum(self._bytes_in("Output@GRAD"))
            return addto_bytes
        if self.kind == "resnet_unit_grad":
            # The gradients are internal to the operator. Each has the size of its ConvX or ConvZ.
            return sum(self._bytes_in("ConvX", "ConvZ"))
        if self.kind == "sync_batch_norm_grad":
            return sum(self.twice_read_sizes)  # a third kernel reads the input and the incoming gradient
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
    """Describe each gradient all-reduce of a training program, in the order of the program.

    Each entry has the keys

    - `mib`, `dtype`: size and data type of the buffer that is summed.
    - `gradients`: the number of gradients in the buffer.
    - `operator`: the index of the all-reduce among the operators.
    - `issued_after_operators`: the share of backward kernels that come before the all-reduce, from 0 to 1.
    - `bytes_left_to_hide_it`: the share of the backward kernels' bytes that is moved after it, from 0 to 1. The larger
      this share, the more of the all-reduce can overlap with computation.
    - `ring`: the number of its communicator.
    - `on_computing_stream`: whether it runs on the stream that computes, so that nothing overlaps with it.
    """
    block = main.global_block()
    gradients_by_buffer = _gradients_by_buffer(block)
    sizes = _all_sizes(block)
    backward_kernels = [work for work in works(main) if _is_backward_kernel(work)]
    backward_bytes = _moved_bytes(backward_kernels)
    described = []
    for index, op in enumerate(block.ops):
        if op.type != "c_allreduce_sum":
            continue
        (buffer,) = op.input("X")
        gradients = gradients_by_buffer.get(buffer, [buffer])  # a gradient that travels alone is its own buffer
        kernels_before = [work for work in backward_kernels if work.index < index]
        described.append(
            {
                "mib": sizes[buffer] / ops.MIB,
                "dtype": ops.type_in(block, buffer),
                "gradients": len(gradients),
                "operator": index,  # of the all-reduce
                # share of the backward kernels that come before the all-reduce
                "issued_after_operators": len(kernels_before) / len(backward_kernels),
                # share of their bytes that is moved later: the larger, the more of the all-reduce can overlap
                "bytes_left_to_hide_it": 1 - _moved_bytes(kernels_before) / backward_bytes,
                "ring": op.attr("ring_id"),  # the number of its communicator
                "on_computing_stream": bool(op.attr("use_calc_stream")),  # then nothing overlaps with it
            }
        )
    return described


def _is_backward_kernel(work: Work) -> bool:
    """Tell whether an operator computes gradients in the backward pass, and moves data."""
    return bool(work.role & ops.BACKWARD) and work.is_kernel and work.kind.endswith("_grad")


def _moved_bytes(some_works: Iterable[Work]) -> int:
    return sum(work.moved_bytes for work in some_works)


def layout(main: static.Program) -> str:
    """Return the image layout of the convolutions, NCHW or NHWC; empty if there are none."""
    for op in main.global_block().ops:
        if op.type == "conv2d":
            return str(op.attr("data_format"))
    return ""


def _addto_bytes(block: Block) -> int:
    """Return the bytes of gradients that convolutions' gradient operators read and add to (`enable_addto`)."""
    total = 0
    for op in block.ops:
        total += sum(ops.size_bytes(block.var(name)) for name in ops.added_to(op))
    return total


def counts_of(main: static.Program) -> dict[str, Any]:
    """Count what one run of a built program executes, moves and computes.

    The keys are those that `tools.inspect --json` prints. Everything is read off the program: no device is needed and
    nothing is measured. Keys that do not say all:

    - `operators`: numbers of operators by type. `fused`: those whose type starts with `fused_` or `merged_`.
    - `products`: numbers of operators that convolve or multiply matrices, by data type.
    - `casts`, `transposes`, `all_reduces`: numbers of these operators.
    - `bytes_gb_by_operator`: the moved bytes by type, for types that move at least 5 MB.
    """
    all_works = works(main)  # what each operator moves and computes
    all_buckets = buckets(main)  # a dict for each all-reduce

    count_by_kind = Counter(work.kind for work in all_works)
    fused = {kind: count for kind, count in count_by_kind.items() if kind.startswith(("fused_", "merged_"))}
    transposes = sum(count for kind, count in count_by_kind.items() if _is_transpose(kind))
    # Operators with FLOPs are those that convolve or multiply matrices.
    product_operators_by_dtype = Counter(work.dtype for work in all_works if work.flops)

    bytes_by_kind: Counter[str] = Counter()
    for work in all_works:
        bytes_by_kind[work.kind] += work.moved_bytes
    moved_bytes = bytes_by_kind.total()
    transposed_bytes = sum(work.transposed_bytes for work in all_works)
    # Types that move less than 5 MB would only lengthen the list.
    listed_gb_by_kind = {kind: size / 1e9 for kind, size in bytes_by_kind.most_common() if size >= 5e6}

    return {
        "operators": dict(count_by_kind.most_common()),
        "kernel_operators": sum(work.is_kernel for work in all_works),  # those that move data
        "all_operators": len(all_works),
        "transposes": transposes,
        "hidden_transposes_gb": transposed_bytes / 1e9,  # inside the kernels of other operators
        "casts": count_by_kind["cast"],
        "products": dict(product_operators_by_dtype),
        "all_reduces": count_by_kind["c_allreduce_sum"],
        "all_reduce_mib": sum(bucket["mib"] for bucket in all_buckets),
        "buckets": all_buckets,
        "fused": fused,
        "bytes_gib": moved_bytes / 2**30,
        "bytes_gb": moved_bytes / 1e9,  # the same bytes in decimal units
        "addto_reads_gb": _addto_bytes(main.global_block()) / 1e9,  # not part of bytes_gb
        "bytes_gb_by_operator": listed_gb_by_kind,
        "flops": sum(work.flops for work in all_works),
    }


def _is_transpose(kind: str) -> bool:
    """Tell whether operators of this type only transpose, as a forward or a gradient operator."""
    return kind.removesuffix("_grad") in CLASSES["transpose"]
