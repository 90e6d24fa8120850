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
    """Return a message if a pair's label holds a number that is no class.

    The label is read by Pillow, without DALI. There is also a message for a label that Pillow cannot read.

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.

    Returns:
        The message; an empty text if all pixels are of classes or ignored.
    """
    try:
        highest = int(_trained_numbers(pairs, number).max(initial=0))
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
        held.update(_trained_numbers(pairs, number).tolist())
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


def _trained_numbers(pairs: PairList, number: int) -> Array:
    """Return the classes that the pixels of a pair's label are trained as, and wrong numbers in the label.

    A row of the table RENUMBERED has at n what the number n of the file is trained as:

        the file holds           row               of a class    if it is ignored    if it is wrong
        classes                  AS_IT_IS          n             n, which is 255     n
        Cityscapes' label ids    FROM_LABEL_IDS    the class     255                 254 (OUT_OF_RANGE)

    So a wrong number stays above all classes, by which `label_fault` finds it.

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.

    Returns:
        The numbers, sorted, each once, without the 255 of ignored pixels.

    Raises:
        OSError: Pillow cannot read or decode the label. It may raise SyntaxError or ValueError instead.
    """
    _, label_path = pairs.paths(number)
    # Not by Image.open, which refuses more than 179 million pixels: DALI takes them.
    with PngImagePlugin.PngImageFile(label_path) as label:
        present = np.unique(np.asarray(label))
    row = FROM_LABEL_IDS if pairs.has_label_ids(number) else AS_IT_IS
    trained = np.unique(RENUMBERED[row, present])
    not_ignored: Array = trained[trained != IGNORED]
    return not_ignored


def no_class(pairs: PairList, number: int, trained_as: int) -> str:
    """Return the message that a pair's label file holds a label that is no class.

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.
        trained_as: What the table RENUMBERED makes of the label, as callers know no other number. For the message
            `_label_in_file` turns it back into the number in the file.
    """
    _, label_path = pairs.paths(number)
    label = _label_in_file(pairs, number, trained_as)
    return (
        f"{label_path}: holds the label {label}, no class ({pairs.classes} of them) nor "
        f"{IGNORED}: correct the file, remove it from the list, or choose another RECIPE"
    )


def _label_in_file(pairs: PairList, number: int, trained_as: int) -> str:
    """Say which number stands in a pair's label file, given the number that it is trained as.

    It inverts RENUMBERED:

        trained_as            the file holds                    words
        40                    classes, trained as they are      "40"
        254 (OUT_OF_RANGE)    Cityscapes' label ids, 0 to 33    "above 33", as 34 to 254 become 254
        13                    Cityscapes' label ids, 0 to 33    "26, which is class 13"

    Args:
        pairs: Images with their labels.
        number: Which pair; counts from 0.
        trained_as: Number that RENUMBERED has for the one in the file.
    """
    has_classes = not pairs.has_label_ids(number)
    if has_classes:
        return f"{trained_as}"
    if trained_as == OUT_OF_RANGE:
        return f"above {LABEL_IDS - 1}"
    label_id = LABEL_ID_BY_CLASS[trained_as]  # it lists the label ids by the class that they are trained as
    return f"{label_id}, which is class {trained_as}"
