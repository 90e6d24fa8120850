"""Asks NCCL for the id of a communicator, which needs its network and no GPU: the doctor starts `ask_nccl.py`.

It prints a JSON line before and after the call, among NCCL's own messages, and imports nothing of the project.
"""

import ctypes
import json
from typing import Any

ID_BYTES = 128  # nccl.h: NCCL_UNIQUE_ID_BYTES


def say(**answer: object) -> None:
    """Print a JSON line and flush it. A line feed before it ends what NCCL may have written to the same stream."""
    print("\n" + json.dumps(answer), flush=True)


def message_of(library: ctypes.CDLL, code: int) -> str:
    """Return NCCL's message on the result of its last call; empty if this NCCL has none.

    Args:
        library: NCCL, the loaded libnccl.so.2.
        code: The result of the call (nccl.h: ncclResult_t).
    """
    message = ""
    if hasattr(library, "ncclGetLastError"):
        communicator = None  # of any communicator
        message = text_of(library.ncclGetLastError, communicator)
    if not message and hasattr(library, "ncclGetErrorString"):
        message = text_of(library.ncclGetErrorString, code)
    return message


def text_of(function: Any, argument: int | None) -> str:
    """Call a function of NCCL that returns a text, and return the text; empty if it returns a null pointer.

    Args:
        function: The function of the loaded library.
        argument: Its only argument; None: a null pointer.
    """
    function.restype = ctypes.c_char_p
    return (function(argument) or b"").decode(errors="replace")


def main() -> None:
    """Load NCCL and have it make the id of a communicator, by which ranks find each other.

    A JSON line is printed before the call and one after it:

        {"begin": "ncclGetUniqueId"}
        {"end": "ncclGetUniqueId", "code": 0, "message": "no error"}

    If NCCL could not be called, the code is null, and the message says why.
    """
    say(begin="ncclGetUniqueId")
    try:
        library = ctypes.CDLL("libnccl.so.2")
        make_id = library.ncclGetUniqueId
    except (OSError, AttributeError) as error:
        say(end="ncclGetUniqueId", code=None, message=str(error))
        return
    communicator_id = ctypes.create_string_buffer(ID_BYTES)  # filled by the call, and not used
    code = make_id(communicator_id)
    say(end="ncclGetUniqueId", code=code, message=message_of(library, code))


if __name__ == "__main__":
    main()
