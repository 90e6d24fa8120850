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

# Paddle's library has parts of a zlib of its own. Where it is the one to load the system's libz, those parts take the
# place of libz's, and MPI, Pillow and Python's zlib crash in them; so libz is here first, before any Paddle.
with contextlib.suppress(OSError):  # a machine that only checks and scores may have none
    ctypes.CDLL("libz.so.1")

# Paddle's build for GPUs warns on import where there is none: what wants one is refused by name.
warnings.filterwarnings("ignore", "You are using GPU version Paddle")


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Makes a temporary folder the working directory: Paddle leaves files there, and hangs where it cannot."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives the attribute `name` of a module or class another value while it lasts."""
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)
