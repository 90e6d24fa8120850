"""FCN with an HRNet-W18 backbone as a static-graph program.

HRNet keeps branches of 1/4, 1/8, 1/16 and 1/32 of the image's size side by side and exchanges them after each module
(Wang et al. 2019, arXiv:1908.07919); the head is a 1x1 convolution over the four, the classes, and a bilinear
enlargement (Sun et al. 2019, arXiv:1904.04514). As PaddleSeg builds it: convolutions pad "SAME", which at a stride of
2 pads on the right and below only; in its benchmark they pad on all sides.

At 19 classes and with the head's biases it has 9,641,119 trainable parameters, and 9,675,595 with BN statistics.

Shapes: N batch, C channels, H, W image, K classes; every tensor is NCHW. NHWC is not built: tensor cores take channels
in eights and cuDNN's fused normalizations in fours, but the two largest branches have 18 and 36 channels, and
normalizations over ranks have no fused form. The bytes that it would save and cost are in docs/lab-notes.md.
"""

import pickle  # noqa: TID251  the one reader of a pickle, which takes arrays only
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import static
from paddle.nn import functional

from paddle_hrnet.config import Recipe
from program.arrays import Array
from program.layers import Layers
from runlog import named_files
from runlog.digits import counted

WIDTHS = (18, 36, 72, 144)  # channels of the branches, from 1/4 to 1/32 of the image
STEM = 64
BOTTLENECKS = 4  # of stage 1
BOTTLENECK = ("conv1", "conv2", "conv3", "conv_down")  # names of its layers
MODULES = {2: 1, 3: 4, 4: 3}  # stage: how often its branches are exchanged
BLOCKS = 4  # residual blocks of a branch in a module
NAMED = 5  # layers that an error names before it only counts


def _block(x: static.Variable, name: str, layers: Layers) -> static.Variable:
    """Append two 3x3 convolutions, added to their input, and a ReLU.

    Args:
        x: Image [N, C, H, W].
        name: Beginning of the names of its layers.
        layers: Settings of the network's convolutions and normalizations.
    """
    y = layers.conv_bn(x, f"{name}.conv1", x.shape[1], 3)
    y = layers.conv_bn(y, f"{name}.conv2", x.shape[1], 3, relu=False, ends_block=True)
    return functional.relu(paddle.add(y, x))


def _transition(branches: list[static.Variable], name: str, layers: Layers, *, count: int) -> list[static.Variable]:
    """Append the convolutions between two stages, which give each branch its number of channels in the next stage.

    A branch that has that number already is left as it is. A new branch is made of the last one, at half its size.
    For example stage 2 has branches of 18 and 36 channels, at 1/4 and 1/8 of the image's size. Stage 3 has these two
    unchanged, and one of 72 channels at 1/16, made of the second.

    Args:
        branches: Images of the stage before, the largest first; each has half the size of the one before it.
        name: Name of the transition, such as "backbone.tr2"; part of the layers' names.
        layers: Settings of the network's convolutions and normalizations.
        count: Number of branches of the next stage.
    """
    branches_of_next_stage = []
    last_part_of_name = name.rpartition(".")[2]  # as "tr2"
    for i, width in enumerate(WIDTHS[:count]):
        is_new = i == len(branches)  # a stage has at most one branch more than the stage before
        x = branches[-1] if is_new else branches[i]
        has_width = x.shape[1] == width
        if is_new or not has_width:
            layer = f"{name}.transition_{last_part_of_name}_layer_{i + 1}"
            stride = 2 if is_new else 1  # halves the size
            x = layers.conv_bn(x, layer, width, 3, stride=stride)
        branches_of_next_stage.append(x)
    return branches_of_next_stage


def _exchange(branches: list[static.Variable], name: str, prefix: str, layers: Layers) -> list[static.Variable]:
    """Append an exchange between the branches of HRNet, which compute at different sizes; return the new branches.

    A new branch is the ReLU of a sum: the branch itself, and all others brought to its size and number of channels.
    Layers are named as in PaddleSeg.

    Args:
        branches: Images of one stage, each of half the height and width of the one before.
        name: Name of the module, such as "st2_1"; part of the layers' names.
        prefix: Beginning of the layers' names.
        layers: Settings of the network's convolutions and normalizations.

    Returns:
        As many branches, of the same sizes and widths.
    """
    exchanged = []
    for target, target_branch in enumerate(branches):
        total = target_branch
        for source, source_branch in enumerate(branches):
            layer = f"{prefix}.residual_{name}_layer_{target + 1}_{source + 1}"
            source_is_larger = source < target  # each branch has half the height and width of the one before
            source_is_smaller = source > target
            if source_is_larger:
                addend = _to_smaller(source_branch, source, target, layer, layers)
                total = paddle.add(total, addend)
            elif source_is_smaller:
                addend = _to_larger(source_branch, target_branch, layer, layers)
                # At AMP O1 an enlarged addend is FP32 (`enlarge`), and the total FP16. Paddle adds in the type of the
                # second operand: the total stands second here, so that the sum stays in FP16.
                total = paddle.add(addend, total)
        exchanged.append(functional.relu(total))
    return exchanged


def _to_larger(branch: static.Variable, larger: static.Variable, layer: str, layers: Layers) -> static.Variable:
    """Append a 1x1 convolution and an enlargement that bring a branch to the channels and the size of a larger one.

    Args:
        branch: Image of the smaller branch [N, C, H, W].
        larger: Image of the larger branch.
        layer: Name of the layer.
        layers: Settings of the network's convolutions and normalizations.
    """
    channels = larger.shape[1]
    height_and_width = larger.shape[2:]
    y = layers.conv_bn(branch, layer, channels, 1, relu=False)
    return enlarge(y, height_and_width)


def _to_smaller(branch: static.Variable, source: int, target: int, layer: str, layers: Layers) -> static.Variable:
    """Append 3x3 convolutions of stride 2 that bring a branch to the size and the channels of a smaller one.

    Each halves the size. The last one changes the number of channels; those before it keep it and end in a ReLU.

    Args:
        branch: Image of the branch [N, C, H, W].
        source: Its number, from 0 for the largest.
        target: Number of the smaller branch.
        layer: Beginning of the layers' names, which end in _1, _2 and so on.
        layers: Settings of the network's convolutions and normalizations.
    """
    halvings = target - source
    y = branch
    for number in range(1, halvings):
        y = layers.conv_bn(y, f"{layer}_{number}", WIDTHS[source], 3, stride=2)
    return layers.conv_bn(y, f"{layer}_{halvings}", WIDTHS[target], 3, stride=2, relu=False)


def enlarge(x: static.Variable, size: Sequence[int]) -> static.Variable:
    """Resize images bilinearly to a height and width, which may also be smaller.

    Mixed precision leaves the result in FP32, which is as it should be: Paddle's FP16 kernel of the gradient computes
    positions in FP16, in steps of an eighth of a pixel from column 128 on.

    Args:
        x: Images [N, C, H, W].
        size: New height and width in pixels.
    """
    return functional.interpolate(x, list(size), mode="bilinear", align_corners=False)


def fcn_hrnet_w18(image: static.Variable, recipe: Recipe, *, training: bool) -> static.Variable:
    """Append the segmentation network FCN-HRNetW18 to Paddle's default program and return its logits.

    Layers are named as in PaddleSeg, so that its weights can be loaded.

    Args:
        image: Images [N, 3, H, W].
        recipe: Hyperparameters. Used here are the number of classes K, the momentum of batch normalization, padding,
            biases of the head, and initial weights.
        training: Whether batch normalization uses the statistics of the batch and updates the running ones. If False,
            it uses the running ones.

    Returns:
        Logits [N, K, H, W].
    """
    layers = Layers(
        training=training,
        bn_momentum=recipe.bn_momentum,
        weight_std=recipe.weight_std,
        zero_gamma=recipe.zero_gamma,
        padding_same=recipe.padding_same,
    )
    branches = _backbone(image, layers)
    return _head(branches, image, recipe, layers)


def _backbone(image: static.Variable, layers: Layers) -> list[static.Variable]:
    """Append HRNet-W18 without its head and return its four branches, from 1/4 to 1/32 of the image's size.

    Args:
        image: Images [N, 3, H, W].
        layers: Settings of the network's convolutions and normalizations.

    Returns:
        Images of 18, 36, 72 and 144 channels, the largest first.
    """
    # The stem, which makes the image's sides a quarter as long.
    x = layers.conv_bn(image, "backbone.conv_layer1_1", STEM, 3, stride=2)
    x = layers.conv_bn(x, "backbone.conv_layer1_2", STEM, 3, stride=2)
    # Stage 1 has one branch.
    for number in range(1, BOTTLENECKS + 1):
        x = layers.bottleneck(x, f"backbone.la1.bb_layer2_{number}", STEM, parts=BOTTLENECK)

    # Each of the stages 2 to 4 has a branch more, of half the size of the last one.
    branches = [x]
    for stage, modules in MODULES.items():
        branches = _transition(branches, f"backbone.tr{stage - 1}", layers, count=stage)
        for number in range(1, modules + 1):
            branches = _module(branches, stage, number, layers)
    return branches


def _head(branches: list[static.Variable], image: static.Variable, recipe: Recipe, layers: Layers) -> static.Variable:
    """Append the classifier of pixels, and return its logits [N, K, H, W] at the size of the image.

    Args:
        branches: Outputs of the backbone, from 1/4 to 1/32 of the image's size.
        image: The network's input [N, 3, H, W].
        recipe: Hyperparameters, of which the number of classes K and the biases of the head are used.
        layers: Settings of the network's convolutions and normalizations.
    """
    largest = branches[0]
    enlarged = [enlarge(branch, largest.shape[2:]) for branch in branches[1:]]
    x = paddle.concat([largest, *enlarged], axis=1)  # [N, 270, H/4, W/4]
    x = layers.conv_bn(x, "head.conv_1", sum(WIDTHS), 1, bias=recipe.head_bias)
    x = layers.conv(x, "head.cls", recipe.classes, 1, bias=recipe.head_bias)  # [N, K, H/4, W/4]
    return enlarge(x, image.shape[2:])


def _module(branches: list[static.Variable], stage: int, number: int, layers: Layers) -> list[static.Variable]:
    """Append one module of HRNet: residual blocks in each branch, then an exchange between the branches.

    Layers are named as in PaddleSeg, by stage and module.

    Args:
        branches: Images of the stage, each of half the height and width of the one before.
        stage: 2, 3 or 4, which is also the number of branches.
        number: Which module of the stage; counts from 1.
        layers: Settings of the network's convolutions and normalizations.

    Returns:
        The new branches, of the same sizes and widths.
    """
    module_name = f"st{stage}_{number}"
    prefix = f"backbone.st{stage}.stage_{module_name}"
    deepened = []
    for branch_number, branch in enumerate(branches, start=1):
        x = branch
        for block in range(1, BLOCKS + 1):
            layer = f"{prefix}.branches_func.bb_{module_name}_branch_layer_{branch_number}_{block}"
            x = _block(x, layer, layers)
        deepened.append(x)
    return _exchange(deepened, module_name, f"{prefix}.fuse_func", layers)


ERRORS_OF_PICKLE = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError)
BACKBONE = "backbone."  # begins the names of all layers but the head's
CLASSIFIER_WEIGHT = "head.cls.weight"  # [classes, channels, 1, 1]
# The last two parts of a variable's name, our layer and value, and those that PaddleSeg has in their place. What stands
# before them is the same.
PADDLESEG_LAYERS = {"conv": "_conv", "bn": "_batch_norm", "cls": "cls"}
PADDLESEG_VALUES = {"w": "weight", "b": "bias", "mean": "_mean", "variance": "_variance"}


def paddleseg_name(name: str) -> str:
    """Return the name that PaddleSeg has for a variable of this network.

    Args:
        name: Name here, such as "head.conv_1.bn.mean".

    Returns:
        PaddleSeg's name, such as "head.conv_1._batch_norm._mean"; empty if the variable is none of the model's layers.
    """
    if name.count(".") < 2:
        return ""
    path, layer, value = name.rsplit(".", 2)
    if layer not in PADDLESEG_LAYERS or value not in PADDLESEG_VALUES:
        return ""
    return f"{path}.{PADDLESEG_LAYERS[layer]}.{PADDLESEG_VALUES[value]}"


# Of a pickle, which may name any function to be called: the names that a dictionary of arrays needs (Python
# documentation, "Restricting Globals").
ALLOWED = {
    ("builtins", "tuple"),
    ("__builtin__", "tuple"),  # as protocol 2 names it
    ("collections", "OrderedDict"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),  # written by numpy 2
    ("_codecs", "encode"),  # bytes, as protocol 2 writes them
}


class _Reader(pickle.Unpickler):
    """Reads a pickle of arrays, and refuses one that would run code of whoever wrote it."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no array needs")
        return super().find_class(module, name)


def read_pdparams(path: Path) -> dict[str, Array]:
    """Return the arrays of a `.pdparams` file, a pickled dictionary that Paddle saved, by their names in it.

    A pickle may run code when it is loaded; one that would is refused.

    Args:
        path: The file.

    Raises:
        ValueError: The file cannot be read, is not a dictionary of arrays, or would run code.
    """
    try:
        named_files.refuse_unusable(path)
        with path.open("rb") as file:
            loaded = _Reader(file).load()
        return _arrays_in(loaded)
    except (OSError, *ERRORS_OF_PICKLE) as error:
        raise ValueError(f"{path}: no weights of Paddle ({error}): set PRETRAINED to a .pdparams file") from error


def _arrays_in(loaded: Any) -> dict[str, Array]:
    """Return the arrays of a dictionary that Paddle saved, by name.

    Two kinds of entries are left out: those whose key is not text, and `paddle.save`'s own table of names, whose key
    ends with "@@".

    Args:
        loaded: Content of the file.

    Raises:
        TypeError: It is not a dictionary, or an entry that is not left out is not an array, or an array of Python
            objects.
    """
    if not isinstance(loaded, dict):
        raise TypeError(f"a {type(loaded).__name__}")
    arrays = {}
    for name, value in loaded.items():
        is_left_out = not isinstance(name, str) or name.endswith("@@")
        if is_left_out:
            continue
        is_saved_tensor = isinstance(value, tuple) and len(value) == 2  # (name, array), as paddle.save writes it
        array = value[1] if is_saved_tensor else value
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"{name} is not an array")
        arrays[name] = array
    return arrays


def pretrained_weights(path: Path, program: static.Program) -> dict[str, Array]:
    """Return the values that a weights file of PaddleSeg has for a program's variables.

    The same value has different names in the program and in the two kinds of files. For example:

        in the program                  in a file of the whole model           in a file of the backbone alone
        backbone.conv_layer1_1.conv.w   backbone.conv_layer1_1._conv.weight    conv_layer1_1._conv.weight
        head.cls.w                      head.cls.weight                        absent

    With a file of the backbone alone, the head's variables get no values.

    Args:
        path: A .pdparams file, of the whole model or of the backbone alone.
        program: Program with the network of `fcn_hrnet_w18`.

    Returns:
        Arrays by the variables' names in the program.

    Raises:
        ValueError: The file cannot be read, or values are absent or of another shape.
    """
    loaded = read_pdparams(path)
    is_whole_model = any(name.startswith(BACKBONE) for name in loaded)
    values = {}
    misfits = {}  # by the name in the file
    for variable in program.list_vars():
        if not variable.persistable:  # an image or activation, which no weights file has
            continue
        name_in_model = paddleseg_name(variable.name)  # empty if the variable is none of the network's layers
        # `_name_in_backbone` takes off "backbone."; it gives an empty text for a name that does not begin so.
        name_in_file = name_in_model if is_whole_model else _name_in_backbone(name_in_model)
        if name_in_file == "":  # no file of this kind has the variable
            continue
        # Why the value does not fit: it is absent or of another shape. Empty if it fits.
        misfit = _misfit(name_in_file, loaded.get(name_in_file), variable)
        if misfit:
            misfits[name_in_file] = misfit
        else:
            values[variable.name] = loaded[name_in_file]
    if misfits:
        found = _first_of(list(misfits.values()))
        fix = _fix_of_misfits(misfits, loaded)
        raise ValueError(f"{path}: does not fit in {counted(len(misfits), 'layer')}: {found}: {fix}")
    return values


def _fix_of_misfits(misfits: Mapping[str, str], loaded: Mapping[str, Array]) -> str:
    """Return what to do about a weights file that does not fit the network.

    If only the classifier does not fit, and the file has its weight, the file is likely for another number of classes,
    which the text then tells.

    Args:
        misfits: Why layers do not fit, by their names in the file; at least one.
        loaded: The arrays of the file by name.
    """
    classifier = loaded.get(CLASSIFIER_WEIGHT)
    only_classifier = CLASSIFIER_WEIGHT in misfits and all(name.startswith("head.cls.") for name in misfits)
    if only_classifier and classifier is not None and classifier.ndim > 0:
        return f"it is for {len(classifier)} classes: set PRETRAINED to weights of the backbone alone"
    return "set PRETRAINED to weights of HRNet-W18"


def _name_in_backbone(name: str) -> str:
    """Return the name that a layer of the whole model has in a weights file of the backbone alone.

    Args:
        name: PaddleSeg's name in the whole model, such as "backbone.conv_layer1_1._conv.weight".

    Returns:
        The name in the file, such as "conv_layer1_1._conv.weight"; empty for a layer of the head.
    """
    if not name.startswith(BACKBONE):
        return ""
    return name.removeprefix(BACKBONE)


def _misfit(name_in_file: str, value: Array | None, variable: static.Variable) -> str:
    """Return why the value of a weights file does not fit a variable.

    Args:
        name_in_file: Name of the value in the file, for the message.
        value: The value; None if the file has none.
        variable: Variable of the program.

    Returns:
        The reason; an empty text if it fits.
    """
    if value is None:
        return f"{name_in_file} is absent"
    if tuple(value.shape) != tuple(variable.shape):
        return f"{name_in_file} is {list(value.shape)} there and {list(variable.shape)} here"
    return ""


def _first_of(misfits: list[str]) -> str:
    """Return the first NAMED of the misfits in alphabetic order, such as "a is absent; b is absent, and 3 more"."""
    named = "; ".join(sorted(misfits)[:NAMED])
    if len(misfits) > NAMED:
        named += f", and {len(misfits) - NAMED} more"
    return named
