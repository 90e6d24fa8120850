"""The type of a NumPy array in annotations; the comment next to a name says its shape and the type of its elements."""

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
