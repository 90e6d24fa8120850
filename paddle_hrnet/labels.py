"""The numbers in label files: the classes that they are trained as, and what is said of those that are wrong."""

from collections.abc import Sequence

import numpy as np
from PIL import PngImagePlugin

from paddle_hrnet.config import IGNORED
from paddle_hrnet.pairs import PairList
from program.arrays import Array

# Cityscapes' label ids that are trained on, in order of their train ids (cityscapesScripts, labels.py): a pixel whose
# label id is LABEL_ID_BY_CLASS[n] is of class n.
LABEL_ID_BY_CLASS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
LABEL_IDS = 34
OUT_OF_RANGE = 254
# Tables from a pixel's number in the file to the one that is trained on, a row each: the number as it is; from a label
# id to its class; and, for a sample that only fills up a batch, IGNORED for every number.
RENUMBERED = np.array([np.arange(256), np.full(256, OUT_OF_RANGE), np.full(256, IGNORED)], dtype=np.uint8)
AS_IT_IS, FROM_LABEL_IDS, FILLED_UP = range(3)
RENUMBERED[FROM_LABEL_IDS, :LABEL_IDS] = RENUMBERED[FROM_LABEL_IDS, 255] = IGNORED
RENUMBERED[FROM_LABEL_IDS, list(LABEL_ID_BY_CLASS)] = np.arange(len(LABEL_ID_BY_CLASS))


def label_fault(pairs: PairList, number: int) -> str:
    """Return a message if a pair's label has a pixel value that is not a class, or cannot be read.

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.

    Returns:
        The message; an empty text if all pixels are of classes or ignored.
    """
    try:
        highest = int(_trained_values(pairs, number).max(initial=0))  # without ignored pixels; 0 if all are ignored
    except (OSError, SyntaxError, ValueError) as error:
        _, label_path = pairs.paths(number)
        reason = " ".join(str(error).split())
        return f"{label_path}: cannot be read ({reason}): replace the file or remove it from the list"
    return no_class(pairs, number, highest) if highest >= pairs.classes else ""


def label_doubt(pairs: PairList, numbers: Sequence[int]) -> str:
    """Return a message if the labels of some pairs together hold fewer than two classes.

    A training on such labels has nothing to tell apart.

    Args:
        pairs: Images with their labels.
        numbers: Which pairs to look at, counted from 0. Their labels must have passed `label_fault`.

    Returns:
        The message; an empty text if they hold two classes or more.
    """
    held: set[int] = set()
    for number in numbers:
        held.update(_trained_values(pairs, number).tolist())
    return few_classes(f"the labels of {pairs.part} that were looked at", sorted(held))


def few_classes(labels: str, classes: Sequence[int]) -> str:
    """Return a message if labels hold a single class or none, so that there is nothing to tell apart.

    For example, masks that have 0 for the ground and 255 for an object hold class 0 alone, because 255 marks pixels
    that are ignored.

    Args:
        labels: Words for the labels, with which the message begins, such as "the evaluation's labels".
        classes: The classes that the labels hold, each once, without the ignored 255.

    Returns:
        The message, such as "the evaluation's labels hold class 0 alone (255 is ignored): ..."; an empty
        text if there are two classes or more.
    """
    if len(classes) > 1:
        return ""
    held = f"class {classes[0]} alone" if classes else "no class"
    return (
        f"{labels} hold {held} ({IGNORED} is ignored): nothing is told apart; number the classes from 0 in "
        "the label files"
    )


def target_out_of_reach(present: int, *, of: int, target: float) -> str:
    """Return a message if the labels of an evaluation hold so few classes that no network reaches the target.

    The mean intersection over union is over all classes of the recipe, and a class without a pixel counts 0.

    Args:
        present: How many classes have a pixel in the labels.
        of: How many classes the recipe has.
        target: The mean intersection over union that ends the training.

    Returns:
        The message; an empty text if the target can be reached.
    """
    most = present / of
    if most >= target:
        return ""
    return (
        f"the evaluation's labels hold {present} of {of} classes, and one without a pixel counts 0: the mIoU is at "
        f"most {most:.4f}, so the target {target:.4f} cannot be reached; choose a RECIPE with the classes of the "
        "label files"
    )


def _trained_values(pairs: PairList, number: int) -> Array:
    """Return the pixel values that training sees in one label file: sorted, each once, without 255 (ignored).

    A file holds either classes, which training takes as they are, or Cityscapes' label ids, which training turns into
    classes. For example, a file with the label ids 3 (not trained), 26 (of class 13) and 40 (no label id) gives
    [13, 254], where 254 is OUT_OF_RANGE.

    Args:
        pairs: Images with their labels.
        number: Which pair's label file; counts from 0.

    Raises:
        OSError: Pillow cannot read or decode the label. It may raise SyntaxError or ValueError instead.
    """
    _, label_path = pairs.paths(number)
    # Not by Image.open, which refuses more than 179 million pixels: DALI takes them.
    with PngImagePlugin.PngImageFile(label_path) as label:
        present = np.unique(np.asarray(label))  # the pixel values in the file: [3, 26, 40] in the example
    # RENUMBERED has a table of 256 entries for either kind of file: the entry at index v is what training makes of a v
    # in the file. For label ids it has 255 at 3, 13 at 26 and 254 at 40; for classes it has v itself at each v.
    row = FROM_LABEL_IDS if pairs.has_label_ids(number) else AS_IT_IS
    value_in_training = RENUMBERED[row]
    trained = np.unique(value_in_training[present])  # [13, 254, 255] in the example
    not_ignored: Array = trained[trained != IGNORED]
    return not_ignored


def no_class(pairs: PairList, number: int, trained_as: int) -> str:
    """Return the error message for a label file with a pixel value that is neither a class nor 255 (ignored).

    The message names the file, and the value as the file has it: "train/a.png: holds the label 40, no class (19 of
    them) nor 255: ...".

    Args:
        pairs: Images with their labels.
        number: Which pair's label file; counts from 0.
        trained_as: The value as training sees it. In a file of classes it is the file's own value, such as 40. In a
            file of Cityscapes' label ids it is what training makes of that: class 13 of 26, and 254 of 40, for example.
    """
    _, label_path = pairs.paths(number)
    label = _label_in_file(pairs, number, trained_as)  # the file's value in words, such as "40" or "above 33"
    return (
        f"{label_path}: holds the label {label}, no class ({pairs.classes} of them) nor "
        f"{IGNORED}: correct the file, remove it from the list, or choose another RECIPE"
    )


def _label_in_file(pairs: PairList, number: int, trained_as: int) -> str:
    """Return words for a wrong pixel value as the label file has it, which need not be the value that training sees.

    - "40": a file of classes, which training takes as they are
    - "above 33": a file of Cityscapes' label ids, with a number that is not a label id
    - "26, which is class 13": a file of label ids, with one whose class the recipe does not have

    Args:
        pairs: Images with their labels.
        number: Which pair's label file; counts from 0.
        trained_as: The value as training sees it, never 255 (ignored): 40, 254 (OUT_OF_RANGE) or 13 in the examples.
    """
    has_classes = not pairs.has_label_ids(number)
    if has_classes:
        return f"{trained_as}"
    # Training makes 254 of each value above 33, except 255. So the value in the file is not known more exactly.
    is_no_label_id = trained_as == OUT_OF_RANGE
    if is_no_label_id:
        return f"above {LABEL_IDS - 1}"
    # Back from the class to its label id: 13 to 26. It is wrong, for instance, in a recipe of 11 classes.
    label_id = LABEL_ID_BY_CLASS[trained_as]
    return f"{label_id}, which is class {trained_as}"
