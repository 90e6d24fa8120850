"""Starts NCCL as a rank will, without a GPU, and tells which interfaces and InfiniBand ports its settings take."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.doctor.child import Talk, talk

SILENT_S = 20.0
ETHERNET = ", Ethernet"  # ends the words on a port of RoCE
# NCCL must say where it meets, on its standard output, whatever the job asks of its messages.
MESSAGES = {"NCCL_DEBUG": "INFO"}
OTHER_MESSAGES = ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")


@dataclass(frozen=True, kw_only=True)
class NcclStart:
    """The result of ncclGetUniqueId."""

    code: int | None  # nccl.h: ncclResult_t; None: it could not be called, or did not end
    message: str  # NCCL's, or why it could not be called
    ended: str = ""  # how the process ended within the call
    interface: str = ""  # on which NCCL meets
    address: str = ""


def start(environ: Mapping[str, str]) -> NcclStart:
    """Makes the id of a communicator in the environment of a rank."""
    kept = {name: value for name, value in environ.items() if name not in OTHER_MESSAGES}
    return _read(talk("ask_nccl.py", environ=kept | MESSAGES, silent_s=SILENT_S))


def _read(said: Talk) -> NcclStart:
    """The child's answer, and from NCCL's messages where it meets: `Bootstrap : Using eth0:10.0.0.1<0>`."""
    ends = [answer for answer in said.answers() if "end" in answer]
    meets = re.search(r"Bootstrap ?: Using (?:\[\d+\])?([^\s:]+):(\S+?)<\d+>", "\n".join(said.lines))
    return NcclStart(
        code=ends[-1]["code"] if ends else None,
        message=ends[-1]["message"] if ends else "",
        ended=said.ended,
        interface=meets[1] if meets else "",
        address=meets[2] if meets else "",
    )


# ---- what a setting takes


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A value of NCCL_IB_HCA or NCCL_SOCKET_IFNAME."""

    entries: tuple[str, ...]  # "name" or "name:port"
    leaves_out: bool  # begins with ^: all others are taken
    is_exact: bool  # then with =: names must be equal, where they else need begin alike only


def choice_of(value: str) -> Choice:
    """A setting as NCCL reads it: `^` first, then `=`, then names with commas between."""
    leaves_out = value.startswith("^")
    rest = value.removeprefix("^") if leaves_out else value
    is_exact = rest.startswith("=")
    entries = rest.removeprefix("=").split(",") if is_exact else rest.split(",")
    return Choice(entries=tuple(entry for entry in entries if entry), leaves_out=leaves_out, is_exact=is_exact)


def takes(value: str, names: Sequence[str]) -> list[str]:
    """Select from `names` ("eth0", or "mlx5_0:1" of a port) what a setting lets NCCL use.

    NCCL's socket.cc and net_ib.cc: an empty list matches all; a port counts where both have one.
    """
    choice = choice_of(value)
    taken = []
    for name in names:
        matches = not choice.entries or any(_matches(entry, name, choice) for entry in choice.entries)
        if matches != choice.leaves_out:
            taken.append(name)
    return taken


def _matches(entry: str, name: str, choice: Choice) -> bool:
    """Whether an entry of a setting means an interface or a port."""
    wanted, _, wanted_port = entry.partition(":")
    device, _, port = name.partition(":")
    same_port = not wanted_port or not port or wanted_port == port
    same_device = device == wanted if choice.is_exact else device.startswith(wanted)
    return same_port and same_device


def matched_by_prefix(value: str, names: Sequence[str]) -> list[str]:
    """Devices that a setting means because their names begin as one that it names: mlx5_10, where it says mlx5_1.

    It takes them, or leaves them out where it begins with ^.
    """
    choice = choice_of(value)
    if choice.is_exact:
        return []
    named = {entry.partition(":")[0] for entry in choice.entries}
    there = {name.partition(":")[0] for name in names}
    matched = {name.partition(":")[0] for name in takes(value.removeprefix("^"), names)}
    by_prefix = []
    for device in sorted(matched - named):
        if any(device.startswith(entry) and entry in there for entry in named):
            by_prefix.append(device)
    return by_prefix
