"""Building the training and evaluation programs, counting and proving them; no data set, no loop, no command line.

Here is what Paddle needs of the process before it is loaded, and two conditions under which it is called.
"""

import contextlib
import ctypes
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Paddle's library contains parts of a zlib. If it loads before the system's libz, its parts replace those of libz, and
# MPI, Pillow and Python's zlib crash. So libz is loaded here, before Paddle.
with contextlib.suppress(OSError):  # a machine that only checks and scores may have none
    ctypes.CDLL("libz.so.1")

# Paddle's build for GPUs warns on import if there is no GPU. Whatever needs a GPU is refused by name elsewhere.
warnings.filterwarnings("ignore", "You are using GPU version Paddle")


@contextlib.contextmanager
def in_temporary_folder() -> Iterator[None]:
    """Make a temporary folder the working directory while the context lasts.

    Paddle writes files into the working directory, and hangs if it cannot. At the end the former working directory is
    restored, and the temporary folder is deleted with all in it.
    """
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of a module or class another value while the context lasts.

    Args:
        owner: The module or class.
        name: Name of the attribute, which must exist.
        value: The other value.
    """
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
