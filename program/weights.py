"""Reads weights that somebody else made: Paddle's `.pdparams`, without running code of whoever wrote the file.

The format is a pickle, which may name any function to be called. This reader takes the few names that a dictionary of
arrays needs and refuses every other one (Python documentation, "Restricting Globals").
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

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
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no array needs")
        return super().find_class(module, name)


def read_pdparams(path: Path) -> dict[str, np.ndarray]:
    """Arrays of the file by name.

    Raises ValueError where the file cannot be read, is no dictionary of arrays, or asks for code to be run.
    """
    try:
        with path.open("rb") as file:
            loaded = _Reader(file).load()
        if not isinstance(loaded, dict):
            raise TypeError(f"a {type(loaded).__name__}")
        # paddle.save writes a tensor as (name, array), and a table of names under a key with two @.
        arrays = {
            name: value[1] if isinstance(value, tuple) and len(value) == 2 else value
            for name, value in loaded.items()
            if isinstance(name, str) and not name.endswith("@@")
        }
        for name, value in arrays.items():
            if not isinstance(value, np.ndarray) or value.dtype.hasobject:
                raise TypeError(f"{name} is no array")
    # What a pickle of anything may raise.
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"{path}: no weights of Paddle ({error}): set PRETRAINED to a .pdparams file") from error
    return arrays
