"""Building the training and evaluation programs, counting and proving them; no data set, no loop, no command line."""

import contextlib
import ctypes

# Paddle's library has parts of a zlib of its own. Where it is the one to load the system's libz, those parts take the
# place of libz's, and MPI, Pillow and Python's zlib crash in them; so libz is here first, before any Paddle.
with contextlib.suppress(OSError):  # a machine that only checks and scores may have none
    ctypes.CDLL("libz.so.1")
