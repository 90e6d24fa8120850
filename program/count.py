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


GRADIENT_SUFFIX = "@GRAD"  # in the name of each variable that is a gradient


class _ImageSlots(NamedTuple):
    """The slots in which an operator reads and writes an image, and the attribute that says the image's layout."""

    input: str
    output: str
    layout_attribute: str


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
        self._forward_kind = op.type.removesuffix("_grad")  # "conv2d" for a conv2d and for a conv2d_grad
        self._is_gradient = op.type != self._forward_kind
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
        self.added_to_bytes = self._added_to_bytes()

    @property
    def kernel_class(self) -> str:
        """The class of kernels in which the operator is counted, such as "convolution gradient" or "optimizer"."""
        if self.role & ops.OPTIMIZE:
            return "optimizer"
        for name, kinds in CLASSES.items():
            if self._forward_kind in kinds:
                # Other gradients are counted with their forward operators.
                has_gradient_class = name in ("convolution", "batch norm")
                return f"{name} gradient" if self._is_gradient and has_gradient_class else name
        return "elementwise and others"

    def traffic_bytes(self, on_chip_bytes: int) -> int:
        """Return the bytes that the operator's kernels read from and write to memory.

        Args:
            on_chip_bytes: Size of the chip's cache. An input that one kernel reads twice counts once if the cache can
                hold it.
        """
        has_two_kernels = self._forward_kind == "sync_batch_norm"  # one for the statistics, one for the output
        second_reading_bytes = sum(size for size in self.twice_read_sizes if has_two_kernels or size > on_chip_bytes)
        return self.moved_bytes + self.reread_bytes + self.added_to_bytes + second_reading_bytes

    def _bytes_in(self, *slots: str) -> list[int]:
        """Return the bytes of each variable in these slots; a slot that the operator does not have holds none."""
        return [self._sizes[name] for name in ops.operands(self._op, *slots)]

    def _operand_bytes(self) -> int:
        """Return the bytes of all inputs and all outputs of the operator.

        A variable in several input slots counts once, and so does one in several output slots. A variable that is input
        and output counts twice, because it is read and written. One of unknown size counts 0.
        """
        total = 0
        for slots in (self._op.input_names, self._op.output_names):
            slots_with_data = [slot for slot in slots if slot != "XShape"]  # XShape holds no data
            names = set(ops.operands(self._op, *slots_with_data))
            total += sum(self._sizes.get(name, 0) for name in names)
        return total

    def _bytes_between_kernels(self) -> int:
        """Return the bytes that kernels inside one operator pass to each other, unless `_operand_bytes` counts them.

        Only a `resnet_unit` and its gradient have such kernels. Any other operator counts 0.
        """
        if self.kind == "resnet_unit":
            return self._bytes_between_unit_kernels()
        if self.kind == "resnet_unit_grad":
            return self._bytes_between_unit_gradient_kernels()
        return 0

    def _bytes_between_unit_kernels(self) -> int:
        """Return the bytes that the last kernel of a `resnet_unit` reads of what the first ones write.

        The operator computes relu(bn(ConvX) + bn(ConvZ)). Its first kernels, convolutions, write ConvX and ConvZ, which
        count as outputs of the operator too. There is no ConvZ without a shortcut convolution.
        """
        return sum(self._bytes_in("ConvX", "ConvZ"))

    def _bytes_between_unit_gradient_kernels(self) -> int:
        """Return the bytes of the tensors that one kernel of a `resnet_unit_grad` writes and another one reads.

        They are the gradients of ConvX and ConvZ and, with a shortcut convolution, the gradient of bn(ConvZ), which is
        as large as ConvZ.
        """
        bn_gradient_bytes = sum(self._bytes_in("ConvZ"))
        # Written and read. Without a shortcut convolution, the gradient of the image that is added is an output of the
        # operator, so `_operand_bytes` counts it.
        return 2 * (self._bytes_of_convolution_gradients() + bn_gradient_bytes)

    def _bytes_of_convolution_gradients(self) -> int:
        """Return the bytes of the gradients of ConvX and ConvZ, the outputs of the convolutions of a `resnet_unit`.

        These gradients exist only inside a `resnet_unit_grad`. They are as large as ConvX and ConvZ, its inputs.
        """
        return sum(self._bytes_in("ConvX", "ConvZ"))

    def _unread_operand_bytes(self) -> int:
        """Return the bytes of inputs that no kernel of a `resnet_unit_grad` reads; 0 for any other operator."""
        if self.kind != "resnet_unit_grad":
            return 0
        unread_bytes = sum(self._bytes_in("Y"))  # the forward output: the kernels read the relu's bit mask instead
        has_shortcut_convolution = self._op.attr("has_shortcut")
        if not has_shortcut_convolution:  # Z is only added, so no convolution reads it
            unread_bytes += sum(self._bytes_in("Z"))
        return unread_bytes

    def _sizes_of_twice_read_inputs(self) -> list[int]:
        """Return the bytes of each tensor that this operator reads twice for a batch normalization.

        A batch norm reads its input for sums over the batch, such as that of the mean, and again for the output.

        Returns:
            A size for each such tensor. Empty if nothing is read twice, as in most operators.
        """
        # With two convolutions, a `resnet_unit` computes relu(bn(ConvX) + bn(ConvZ)) of their outputs ConvX and ConvZ.
        if self.kind == "resnet_unit":
            return []  # its convolutions compute the sums while they write ConvX and ConvZ
        if self.kind == "resnet_unit_grad":
            return self._bytes_in("ConvX", "ConvZ", "Y@GRAD")  # the images, and the gradient of the output
        is_batch_norm = self._forward_kind in ops.NORMALIZATIONS  # or the gradient of one
        if not is_batch_norm:
            return []
        is_evaluation = self._op.has_attr("is_test") and self._op.attr("is_test")
        if is_evaluation:
            return []  # the statistics are known, so there are no sums over the batch
        if self._is_gradient:
            return self._bytes_in("X", "Y@GRAD")  # the image, and the gradient of the output
        return self._bytes_in("X")  # the image

    def _transposed_bytes(self) -> int:
        """Return the bytes that this operator's kernel moves to transpose NHWC images to NCHW and back.

        The kernels of convolutions, of `batch_norm` and of their gradients compute in NCHW, except in FP16
        (ConvCudnnKernel and BatchNormKernel in Paddle's sources). Each image is read and written once more for its
        transpose.

        Returns:
            The bytes; 0 if nothing is transposed.
        """
        image_slots = IMAGES.get(self._forward_kind)
        if image_slots is None:
            return 0  # an operator of another kind
        images = self._images(image_slots)  # all of one layout and type
        is_nhwc = self._op.attr(image_slots.layout_attribute) == "NHWC"
        is_fp16 = ops.type_in(self._op.block, images[0]) == "float16"
        if not is_nhwc or is_fp16:
            return 0
        image_bytes = sum(self._sizes[name] for name in images)
        return 2 * image_bytes

    def _images(self, slots: _ImageSlots) -> list[str]:
        """Return the images that an operator reads and writes; for a gradient operator also their gradients.

        Args:
            slots: The operator's input and output slots that hold images.
        """
        images = ops.operands(self._op, slots.input, slots.output)
        if self._is_gradient:
            images += ops.operands(self._op, f"{slots.input}@GRAD", f"{slots.output}@GRAD")
        return images

    def _product(self) -> _Product:
        """Return the FLOPs of this operator's convolutions or matrix products, and the type that they compute in.

        An operator without convolutions and matrix products has 0 FLOPs and an empty type. All products of an operator
        compute in one type.
        """
        products = self._products()
        if not products:
            return _Product(0, "")
        # A product of a gradient operator, such as dx = dy * w, takes as many FLOPs as the forward product y = x * w.
        flops = sum(self._forward_flops(slots) * self._products_computed(slots) for slots in products)
        return _Product(flops, ops.dtype_of(self._weights(products[0])))

    def _products(self) -> list[ops.Factors]:
        """Return the slots of each convolution or matrix product of this operator.

        A product without weights is left out: a `resnet_unit` has slots for a shortcut convolution even if there is
        none.
        """
        possible = ops.FACTORS.get(self._forward_kind, ())
        return [slots for slots in possible if ops.operands(self._op, slots.weights)]

    def _weights(self, slots: ops.Factors) -> Variable:
        """Return the weights of one convolution or matrix product."""
        (name,) = ops.operands(self._op, slots.weights)
        return self._op.block.var(name)

    def _forward_flops(self, slots: ops.Factors) -> int:
        """Return the FLOPs of a convolution or matrix product in the forward pass.

            FLOPs = 2 * output elements * weights per output channel

        An output element takes a multiply-add, which counts as two, for each weight of its channel. With weights [64,
        3, 7, 7] these are 2 * 3 * 7 * 7 = 294 FLOPs.

        Args:
            slots: Names of the slots for the input, the weights and the output of the product. This operator is the
                forward operator or its gradient operator.
        """
        weights = self._weights(slots)
        output_elements = math.prod(self._output_shape(slots))
        is_matrix_product = self._forward_kind in ops.PRODUCTS
        # Weights of a matrix product are [inputs, outputs], those of a convolution begin with the output channels.
        output_channels = weights.shape[-1] if is_matrix_product else weights.shape[0]
        weights_per_channel = math.prod(weights.shape) // output_channels
        return int(2 * output_elements * weights_per_channel)

    def _output_shape(self, slots: ops.Factors) -> tuple[int, ...]:
        """Return the shape of the output of a product; a gradient operator may have only the output's gradient."""
        output_or_gradient, *_ = ops.operands(self._op, slots.output, f"{slots.output}@GRAD")  # the first that is there
        return tuple(self._op.block.var(output_or_gradient).shape)

    def _products_computed(self, slots: ops.Factors) -> int:
        """Return how many products this operator computes, each with the FLOPs of the forward product: 0, 1 or 2.

        A forward operator computes one product. A gradient operator computes one for each of the two gradients that it
        has as an output: that of the input and that of the weights. For example, the gradient operator of a network's
        first convolution computes 1, because the image that is fed needs no gradient.

        Args:
            slots: Names of the operator's slots for the input, the weights and the output of the product.
        """
        if not self._is_gradient:
            return 1
        gradients = ops.operands(self._op, f"{slots.input}@GRAD", f"{slots.weights}@GRAD")  # an empty slot gives none
        return len(gradients)

    def _reread_bytes(self) -> int:
        """Return the bytes of the tensors that several kernels of this gradient operator read, each anew.

        One reading of a tensor is counted in `moved_bytes`, and for a batch norm a second one in `twice_read_sizes`.
        Here are the bytes of the one reading that is left.

        Returns:
            The bytes; 0 for all but three kinds of operators.
        """
        if self.kind == "conv2d_grad":
            return self._reread_bytes_of_convolution_gradient()
        if self.kind == "resnet_unit_grad":
            # Each convolution inside has two kernels that read the gradient of its output: for the gradient of its
            # input, and of its weights.
            return self._bytes_of_convolution_gradients()
        if self.kind == "sync_batch_norm_grad":
            return sum(self._bytes_in("X", "Y@GRAD"))  # the third reading
        return 0

    def _reread_bytes_of_convolution_gradient(self) -> int:
        """Return the bytes of the output's gradient if two kernels of a `conv2d_grad` read it, else 0.

        One kernel computes the gradient of the input, and one the gradient of the weights.
        """
        computed_gradients = ops.operands(self._op, "Input@GRAD", "Filter@GRAD")  # those that the program needs
        has_two_kernels = len(computed_gradients) == 2
        return sum(self._bytes_in("Output@GRAD")) if has_two_kernels else 0

    def _added_to_bytes(self) -> int:
        """Return the bytes of the gradient that a `conv2d_grad` reads to add its result to it (`enable_addto`)."""
        if self.kind != "conv2d_grad":
            return 0
        return sum(self._sizes[name] for name in ops.added_to(self._op))


def _all_sizes(block: Block) -> dict[str, int]:
    """Return the bytes of the variables of a block, by name.

    Args:
        block: Block of a built program.

    Returns:
        The bytes of each variable that has a shape, and of each buffer in which gradients lie side by side for their
        all-reduce: the sum of the bytes of these gradients.
    """
    sizes = {name: ops.size_bytes(variable) for name, variable in block.vars.items() if variable.shape}
    # A buffer is declared without a shape, so the loop adds the buffer's entry. The gradients have shapes.
    for buffer, gradients in ops.gradients_by_buffer(block).items():
        sizes[buffer] = sum(sizes[name] for name in gradients)
    return sizes


def works(main: static.Program) -> list[Work]:
    """Return what every operator of a program's main block moves and computes, in order.

    Args:
        main: Training or evaluation program.
    """
    block = main.global_block()
    sizes = _all_sizes(block)
    return [Work(index, op, sizes) for index, op in enumerate(block.ops)]


def buckets(main: static.Program) -> list[dict[str, Any]]:
    """Describe each all-reduce of gradients in a training program, in the order of the program.

    On CPUs a batch norm over all ranks sums its statistics by all-reduces too; these are left out.

    Args:
        main: Training program.

    Returns:
        One dictionary for each all-reduce:

            "mib", "dtype"            size and data type of what it sums, as 16.0 and "float32"
            "gradients"               number of gradients, such as 9
            "operator"                its index in the program
            "issued_after_operators"  share (0 to 1) of the backward pass's kernels that come before it
            "bytes_left_to_hide_it"   share (0 to 1) of the backward pass's bytes that are moved after it
            "ring"                    number of its communicator
            "on_computing_stream"     whether it runs on the stream of the computation
    """
    block = main.global_block()
    gradients_by_buffer = ops.gradients_by_buffer(block)
    sizes = _all_sizes(block)
    backward_kernels = [work for work in works(main) if _is_backward_kernel(work)]
    backward_bytes = _moved_bytes(backward_kernels)
    described = []
    for index, op in enumerate(block.ops):
        if op.type != "c_allreduce_sum":
            continue
        (summed,) = op.input("X")
        if summed in gradients_by_buffer:
            gradients = gradients_by_buffer[summed]  # side by side in one buffer
        elif GRADIENT_SUFFIX in summed:
            gradients = [summed]  # one by itself
        else:
            continue  # statistics of a batch norm
        kernels_before = [work for work in backward_kernels if work.index < index]
        share_of_bytes_before = _moved_bytes(kernels_before) / backward_bytes
        described.append(
            {
                "mib": sizes[summed] / ops.MIB,
                "dtype": ops.type_in(block, summed),
                "gradients": len(gradients),
                "operator": index,
                "issued_after_operators": len(kernels_before) / len(backward_kernels),
                "bytes_left_to_hide_it": 1 - share_of_bytes_before,
                "ring": op.attr("ring_id"),  # the number of its communicator
                "on_computing_stream": bool(op.attr("use_calc_stream")),
            }
        )
    return described


def _is_backward_kernel(work: Work) -> bool:
    """Return whether an operator computes gradients in the backward pass, and moves data."""
    return bool(work.role & ops.BACKWARD) and work.is_kernel and work.kind.endswith("_grad")


def _moved_bytes(some_works: Iterable[Work]) -> int:
    return sum(work.moved_bytes for work in some_works)


def layout(main: static.Program) -> str:
    """Return the image layout of a program's convolutions.

    Args:
        main: Training or evaluation program.

    Returns:
        "NCHW" or "NHWC"; an empty text if there are no convolutions.
    """
    for op in main.global_block().ops:
        if op.type == "conv2d":
            return str(op.attr("data_format"))
    return ""


def _addto_bytes(block: Block) -> int:
    """Return the bytes of gradients that convolutions' gradient operators read and add to (the knob `enable_addto`).

    Args:
        block: Main block of a built program.
    """
    total = 0
    for op in block.ops:
        total += sum(ops.size_bytes(block.var(name)) for name in ops.added_to(op))
    return total


def counts_of(main: static.Program) -> dict[str, Any]:
    """Count what one run of a built program executes, moves and computes.

    Everything is read off the program: no device is needed and nothing is measured.

    Args:
        main: Training or evaluation program.

    Returns:
        The values that `tools.inspect --json` prints, such as "operators" (count by type), "flops", "bytes_gib" (what
        the operators move), "all_reduces" and "buckets" (one entry for each all-reduce of gradients).
    """
    all_works = works(main)
    all_buckets = buckets(main)

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
        "products": dict(product_operators_by_dtype),  # by data type
        "all_reduces": len(all_buckets),
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
    """Return whether operators of this type only transpose, as a forward or a gradient operator."""
    return kind.removesuffix("_grad") in CLASSES["transpose"]
