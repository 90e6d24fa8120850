"""Whether the files that a log says it read have as many bytes as those of the benchmark's data set."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from runlog import schema
from runlog.reader import from_json

_TRAINING = "training"
_EVALUATION = "evaluation"
# The fields of the header's `dataset` that hold a passport, the sizes of some files, and the part of the data set that
# each describes. Packed records and the files that they were made of are both looked at: either may have been shrunk.
_PART_OF_FIELD = {"train": _TRAINING, "train_source": _TRAINING, "eval": _EVALUATION, "eval_source": _EVALUATION}


class PartBytes(NamedTuple):
    """The sum of the sizes of the files of the training or evaluation data, as a log states it."""

    part: str
    total_bytes: int
    is_exact: bool  # False: the files are records, which hold more than the encoded images


class PublishedSizes(NamedTuple):
    """A data set as its publisher distributes it: the least and the most bytes that the files of a part have in all."""

    name: str
    train_least_bytes: int
    train_most_bytes: int
    eval_least_bytes: int
    eval_most_bytes: int


def bytes_of_parts(dataset: Mapping[str, object]) -> tuple[PartBytes, ...]:
    """Return how many bytes the data files of a run have, as the header of its log states.

    The header may have a passport for each group of files: their number, the sum of their bytes, and a digest.

    Args:
        dataset: The section `dataset` of the header, which may have these groups: `train`, the files for training;
            `train_source`, the files that they were packed from; and the same for evaluation.

    Returns:
        An entry for each group whose passport fits the schema, in this order.
    """
    parts = []
    for field, part in _PART_OF_FIELD.items():  # such as "train_source" and "training"
        passport = from_json(schema.Passport, dataset.get(field))  # None if it is missing or does not fit the schema
        if passport is not None:
            parts.append(PartBytes(part=part, total_bytes=passport.bytes, is_exact=passport.is_exact))
    return tuple(parts)


def differences(parts: tuple[PartBytes, ...], published: PublishedSizes) -> Iterator[str]:
    """Yield a sentence for each part of a data set whose bytes in the log do not fit the published images.

    - Bytes of images alone (`is_exact`) fit from the published least to the published most.
    - Bytes of records fit from the published least on, without an upper end, because a record holds more than an image.

    Args:
        parts: The parts, with the bytes that the log states.
        published: The least and the most bytes of the data set's images as its publisher distributes them.
    """
    for stated in parts:
        size = stated.total_bytes
        least, most = _published_bytes(published, stated.part)
        is_too_small = size < least
        is_too_large = size > most and stated.is_exact
        if is_too_small or is_too_large:
            yield (
                f"not {published.name} as distributed: {size:,} bytes of {stated.part} data, "
                f"its files have {least:,} to {most:,}"
            )


def _published_bytes(published: PublishedSizes, part: str) -> tuple[int, int]:
    """Return the least and the most bytes that the published files of a part have in all.

    Args:
        published: The data set as its publisher distributes it.
        part: "training" or "evaluation".
    """
    if part == _EVALUATION:
        return published.eval_least_bytes, published.eval_most_bytes
    return published.train_least_bytes, published.train_most_bytes
