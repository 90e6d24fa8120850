"""The embedded data sets, made where they are first needed: scikit-learn's handwritten digits, laid out by a workload.

1,797 scans of 8 x 8 pixels with 17 grey levels, ten classes (E. Alpaydin, C. Kaynak, 1998). The split of 1,437 for
training and 360 for evaluation is stratified and fixed.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAIN_DIGITS, EVAL_DIGITS = 1437, 360


def make(folder: Path, write: Callable[[Path], None]) -> Path:
    """Has `write` fill `folder` unless it is there, and returns it; processes of any host may do so at once.

    Raises ValueError where the folder cannot be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.partial-", dir=folder.parent) as temporary:
            partial = Path(temporary) / folder.name
            partial.mkdir()
            write(partial)
            try:
                partial.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was first, with the same files
                    raise
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot write the embedded data set ({error}): free the disk or set DATADIR"
        ) from error
    return folder


def digits() -> tuple[Any, list[int], list[int]]:
    """scikit-learn's digits, `images` [1797, 8, 8] from 0 to 16 and `target` [1797]; ids of training and evaluation."""
    # Imported here: it takes a second, and only the first start needs it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    loaded = load_digits()
    train, evaluation = train_test_split(
        range(len(loaded.target)),
        train_size=TRAIN_DIGITS,
        test_size=EVAL_DIGITS,
        stratify=loaded.target,
        random_state=0,
    )
    return loaded, train, evaluation
