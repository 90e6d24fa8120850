"""The numbers in label files: the classes that they are trained as, and what is said of those that are wrong."""

from collections.abc import Sequence

import numpy as np
from PIL import PngImagePlugin

from paddle_hrnet.config import IGNORED
from paddle_hrnet.pairs import PairList
from program.arrays import Array

# Cityscapes' label ids that are trained on, in order of their train ids (cityscapesScripts, labels.py): a pixel whose
# label id is TRAINED_IDS[n] is of class n.
TRAINED_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
LABEL_IDS = 34
OUT_OF_RANGE = 254
# Tables from a pixel's number in the file to the one that is trained on, a row each: the number as it is; from a label
# id to its class; and, for a sample that only fills up a batch, IGNORED for every number.
RENUMBERED = np.array([np.arange(256), np.full(256, OUT_OF_RANGE), np.full(256, IGNORED)], dtype=np.uint8)
AS_IT_IS, FROM_LABEL_IDS, FILLED_UP = range(3)
RENUMBERED[FROM_LABEL_IDS, :LABEL_IDS] = RENUMBERED[FROM_LABEL_IDS, 255] = IGNORED
RENUMBERED[FROM_LABEL_IDS, list(TRAINED_IDS)] = np.arange(len(TRAINED_IDS))


def label_fault(pairs: PairList, number: int) -> str:
    """Return a message if a pair's label holds a number that is no class.

    The label is read by Pillow, without DALI. There is also a message for a label that Pillow cannot read.

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.

    Returns:
        The message; an empty text if all pixels are of classes or ignored.
    """
    try:
        highest = int(_classes_in(pairs, number).max(initial=0))
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
        held.update(_classes_in(pairs, number).tolist())
    return few_classes(f"the labels of {pairs.part} that were looked at", sorted(held))


def few_classes(labels: str, classes: Sequence[int]) -> str:
    """Return a message if labels hold fewer than two classes, as masks of 0 and 255 do.

    Args:
        labels: Words for the labels, as "the evaluation's labels".
        classes: The classes that they hold, each once, the ignored 255 left out.

    Returns:
        The message; an empty text if there are two classes or more.
    """
    if len(classes) > 1:
        return ""
    held = f"class {classes[0]} alone" if classes else "no class"
    return (
        f"{labels} hold {held} beside {IGNORED}, which is ignored: nothing is told apart; number the classes from 0 in "
        "the label files"
    )


def _classes_in(pairs: PairList, number: int) -> Array:
    """Return the classes that the pixels of a pair's label are trained as, each once, without ignored pixels.

    A label file holds either classes or Cityscapes' label ids. The table RENUMBERED has a row for each of the two,
    which tells what each number in the file, 0 to 255, is trained as.

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.

    Returns:
        The classes, sorted. Numbers that are no class are among them. In a file of classes such a number stays as it
        is. In a file of label ids it is 254 (OUT_OF_RANGE).

    Raises:
        OSError: Pillow cannot read or decode the label. It may raise SyntaxError or ValueError instead.
    """
    _, label_path = pairs.paths(number)
    # Not by Image.open, which refuses more than 179 million pixels: DALI takes them.
    with PngImagePlugin.PngImageFile(label_path) as label:
        present = np.unique(np.asarray(label))
    row = FROM_LABEL_IDS if pairs.has_label_ids(number) else AS_IT_IS
    trained = np.unique(RENUMBERED[row, present])
    classes: Array = trained[trained != IGNORED]
    return classes


def no_class(pairs: PairList, number: int, value: int) -> str:
    """Return the message that a pair's label holds a number that is no class.

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.
        value: What the number is trained as, by the table RENUMBERED. The message has the number in the file.
    """
    _, label_path = pairs.paths(number)
    return (
        f"{label_path}: holds the label {_shown(pairs, number, value)}, no class ({pairs.classes} of them) nor "
        f"{IGNORED}: correct the file, remove it from the list, or choose another RECIPE"
    )


def _shown(pairs: PairList, number: int, value: int) -> str:
    """Return words for the number that stands in a pair's label file, as read back from what it is trained as.

        "40":                     the file has classes, which are trained as they are
        "above 33":               the file has Cityscapes' label ids, and the number is none
        "26, which is class 13":  the file has Cityscapes' label ids

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.
        value: What the number is trained as, by the table RENUMBERED.
    """
    has_classes = not pairs.has_label_ids(number)
    if has_classes:
        return f"{value}"
    if value == OUT_OF_RANGE:
        return f"above {LABEL_IDS - 1}"
    return f"{TRAINED_IDS[value]}, which is class {value}"
