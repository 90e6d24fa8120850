"""Starts NCCL as a rank will, without a GPU, and tells which interfaces and InfiniBand ports its settings take."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.child import Talk, talk

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
    """Make the id of a communicator in the environment of a rank, by a process of its own; return what came of it."""
    kept = {name: value for name, value in environ.items() if name not in OTHER_MESSAGES}
    return _read(talk(Path(__file__).with_name("ask_nccl.py"), environ=kept | MESSAGES, silent_s=SILENT_S))


def _read(said: Talk) -> NcclStart:
    """Return the child's answer, and where NCCL meets by its message `Bootstrap : Using eth0:10.0.0.1<0>`."""
    ends = [answer for answer in said.answers() if "end" in answer]
    meets = re.search(r"Bootstrap ?: Using (?:\[\d+\])?([^\s:]+):(\S+?)<\d+>", "\n".join(said.lines))
    return NcclStart(
        code=ends[-1]["code"] if ends else None,
        message=ends[-1]["message"] if ends else "",
        ended=said.failure,
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
    """Return a setting as NCCL reads it: `^` first, then `=`, then names with commas between: "^=mlx5_0,mlx5_1"."""
    leaves_out = value.startswith("^")
    rest = value.removeprefix("^")
    is_exact = rest.startswith("=")
    entries = rest.removeprefix("=").split(",")
    return Choice(entries=tuple(entry for entry in entries if entry), leaves_out=leaves_out, is_exact=is_exact)


def names_taken(setting: str, names: Sequence[str]) -> list[str]:
    """Return those of `names` that NCCL uses by a setting, the value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA.

    `names` are interfaces ("eth0") or InfiniBand ports ("mlx5_0:1"). The setting "mlx5,ib" takes every name that begins
    with mlx5 or ib, "=mlx5_0" that device alone, and "^mlx5" all names that do not begin so. A setting that lists
    nothing means every name: "" takes all, and "^" none. NCCL has these rules in socket.cc and net_ib.cc.
    """
    choice = choice_of(setting)
    taken = []
    for name in names:
        is_listed = not choice.entries or any(_matches(entry, name, choice) for entry in choice.entries)
        if is_listed != choice.leaves_out:  # a setting with ^ lists what is left out
            taken.append(name)
    return taken


def _matches(entry: str, name: str, choice: Choice) -> bool:
    """Return whether an entry of a setting means an interface or a port; ports count only if both name one."""
    wanted_device, _, wanted_port = entry.partition(":")
    device, _, port = name.partition(":")
    same_port = not wanted_port or not port or wanted_port == port
    same_device = device == wanted_device if choice.is_exact else device.startswith(wanted_device)
    return same_port and same_device


def matched_by_prefix(setting: str, names: Sequence[str]) -> list[str]:
    """Return the devices that a setting matches by accident, as their names begin with the name of another device.

    NCCL compares beginnings: NCCL_IB_HCA=mlx5_1 is meant for the device mlx5_1, and matches mlx5_10, too. For it and
    the ports mlx5_1:1 and mlx5_10:1 (`names`) this returns ["mlx5_10"]. A setting that is no device's full name, such
    as "mlx5", is taken to mean all that begin so. The list is empty for a setting that compares full names, such as
    "=mlx5_1". A setting with ^ in front, which leaves devices out, matches the same ones as without it.
    """
    choice = choice_of(setting)
    if choice.is_exact:
        return []
    devices = {_device(name) for name in names}
    named_devices = {_device(entry) for entry in choice.entries} & devices
    matched_devices = {_device(name) for name in names_taken(setting.removeprefix("^"), names)}
    by_accident = []
    for device in sorted(matched_devices - named_devices):
        if device.startswith(tuple(named_devices)):
            by_accident.append(device)
    return by_accident


def _device(name: str) -> str:
    """Return the device of a port, "mlx5_0" of "mlx5_0:1"."""
    return name.partition(":")[0]
