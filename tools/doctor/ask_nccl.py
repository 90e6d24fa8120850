"""Asks NCCL for the id of a communicator, which needs its network and no GPU: the doctor starts `ask_nccl.py`.

It prints a JSON line before and after the call, among NCCL's own messages, and imports nothing of the project.
"""

import ctypes
import json

ID_BYTES = 128  # nccl.h: NCCL_UNIQUE_ID_BYTES


def say(**answer: object) -> None:
    """Print a JSON line and flush it. A line feed before it ends what NCCL may have written to the same stream."""
    print("\n" + json.dumps(answer), flush=True)


def text_of(library: ctypes.CDLL, function: str, argument: int | None) -> str:
    """Return the text that a function of NCCL returns; empty if this NCCL has no such function."""
    if not hasattr(library, function):
        return ""
    call = getattr(library, function)
    call.restype = ctypes.c_char_p
    return (call(argument) or b"").decode(errors="replace")


def main() -> None:
    """Load NCCL and have it make the id of a communicator, by which ranks find each other.

    - Before the call: `{"begin": "ncclGetUniqueId"}` is printed.
    - During the call: NCCL prints messages. One of them names the network interface that it uses.
    - After the call: a JSON line with "end", the `code` of the result, and NCCL's own `message` about it.
    - The library cannot be loaded, or lacks the function: that line has the code null, and the message is the reason.
    """
    say(begin="ncclGetUniqueId")
    try:
        library = ctypes.CDLL("libnccl.so.2")
        code = library.ncclGetUniqueId(ctypes.create_string_buffer(ID_BYTES))
        message = text_of(library, "ncclGetLastError", None)  # an old NCCL does not have this function
        if not message:
            message = text_of(library, "ncclGetErrorString", code)
        say(end="ncclGetUniqueId", code=code, message=message)
    except (OSError, AttributeError) as error:
        say(end="ncclGetUniqueId", code=None, message=str(error))


if __name__ == "__main__":
    main()
