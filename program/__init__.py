"""Building the training and evaluation programs, counting and proving them; no data set, no loop, no command line."""

import contextlib
import ctypes
import warnings

# Paddle's library has parts of a zlib of its own. Where it is the one to load the system's libz, those parts take the
# place of libz's, and MPI, Pillow and Python's zlib crash in them; so libz is here first, before any Paddle.
with contextlib.suppress(OSError):  # a machine that only checks and scores may have none
    ctypes.CDLL("libz.so.1")

# Paddle's build for GPUs warns on import where there is none: what wants one is refused by name.
warnings.filterwarnings("ignore", "You are using GPU version Paddle")
