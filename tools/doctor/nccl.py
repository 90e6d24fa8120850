"""Starts NCCL as a rank will, without a GPU, and tells which interfaces and InfiniBand ports its settings take."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.child import Talk, talk
from runlog.json_types import JsonObject

SILENT_S = 20.0
ETHERNET = ", Ethernet"  # ends the words on a port of RoCE
# With these NCCL prints on its standard output which interface it uses, whatever the job's own settings are.
MESSAGES = {"NCCL_DEBUG": "INFO"}
REDIRECTIONS = ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")  # with these NCCL would print elsewhere, or less


@dataclass(frozen=True, kw_only=True)
class NcclStart:
    """The result of ncclGetUniqueId."""

    code: int | None  # nccl.h: ncclResult_t; None: it could not be called, or did not end
    message: str  # NCCL's, or why it could not be called
    hang_or_death: str = ""  # how the process hung or died within the call: "no answer in 20 s"; empty: it did not
    interface: str = ""  # the network interface that NCCL chose; empty: it named none
    address: str = ""  # of that interface


def try_start(environ: Mapping[str, str]) -> NcclStart:
    """Try whether NCCL starts with the environment variables of a rank.

    NCCL is asked for the id of a new communicator, with which its start begins. That needs the network, and no GPU. A
    child process makes the call, because the call may hang or kill its process.

    Args:
        environ: Environment variables of a rank. Those that would redirect or filter NCCL's messages are left out,
            because the messages say which interface NCCL uses.
    """
    kept = {name: value for name, value in environ.items() if name not in REDIRECTIONS}
    ask_nccl = Path(__file__).with_name("ask_nccl.py")
    child = talk(ask_nccl, environ=kept | MESSAGES, silent_s=SILENT_S)  # MESSAGES has NCCL print its interface
    return _read_answer(child)


def _read_answer(child: Talk) -> NcclStart:
    """Return the result of NCCL's start, from the lines that a child process, ask_nccl.py, printed.

    The child prints a line when its call of NCCL has ended or was not possible:

        {"end": "ncclGetUniqueId", "code": 0, "message": "no error"}

    NCCL itself prints which network interface it uses.

    Args:
        child: The lines that the child and NCCL printed, and how the child hung or died.
    """
    result: JsonObject = {"code": None, "message": ""}  # if the call did not return
    for answer in child.answers():
        if "end" in answer:
            result = answer
    # NCCL's own message is "Bootstrap : Using eth0:10.0.0.1<0>", maybe with a number before the interface: "[0]eth0".
    bootstrap = re.search(
        r"Bootstrap ?: Using (?:\[\d+\])?(?P<interface>[^\s:]+):(?P<address>\S+?)<\d+>", "\n".join(child.lines)
    )
    return NcclStart(
        code=result["code"],
        message=result["message"],
        hang_or_death=child.hang_or_death,
        interface=bootstrap["interface"] if bootstrap else "",
        address=bootstrap["address"] if bootstrap else "",
    )


# ---- what a setting takes


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A value of NCCL_IB_HCA or NCCL_SOCKET_IFNAME."""

    entries: tuple[str, ...]  # "name" or "name:port"
    leaves_out: bool  # it begins with ^: the names that match are left out, and all others are used
    is_exact: bool  # then comes =: a name must equal an entry; without = it must only begin with one


def choice_of(value: str) -> Choice:
    """Parse a setting as NCCL does: an optional `^`, an optional `=`, then names, as in "^=mlx5_0,mlx5_1:1".

    Args:
        value: A value of NCCL_IB_HCA or NCCL_SOCKET_IFNAME; may be empty.
    """
    leaves_out = value.startswith("^")
    rest = value.removeprefix("^")
    is_exact = rest.startswith("=")
    entries = rest.removeprefix("=").split(",")
    return Choice(entries=tuple(entry for entry in entries if entry), leaves_out=leaves_out, is_exact=is_exact)


def names_taken(setting: str, names: Sequence[str]) -> list[str]:
    """Return those of some interfaces or InfiniBand ports that NCCL uses by a setting.

    These are the rules in NCCL's files socket.cc and net_ib.cc:

        "mlx5,ib" -> every name that begins with mlx5 or ib
        "=mlx5_0" -> only the device mlx5_0
        "^mlx5"   -> every name that does not begin with mlx5
        ""        -> all names

    Args:
        setting: A value of NCCL_IB_HCA or NCCL_SOCKET_IFNAME.
        names: Names of interfaces ("eth0") or InfiniBand ports ("mlx5_0:1").
    """
    choice = choice_of(setting)
    matched_names = _names_matched(choice, names)
    if choice.leaves_out:
        return [name for name in names if name not in matched_names]
    return matched_names


def _names_matched(choice: Choice, names: Sequence[str]) -> list[str]:
    """Return the names that an entry of a setting matches; all names if the setting has no entries.

    Args:
        choice: The parsed setting. Whether it begins with ^ makes no difference here.
        names: Names of interfaces ("eth0") or InfiniBand ports ("mlx5_0:1").
    """
    if not choice.entries:
        return list(names)
    matched_names = []
    for name in names:
        if _matches_any(choice.entries, name, choice):
            matched_names.append(name)
    return matched_names


def _matches_any(entries: Iterable[str], name: str, choice: Choice) -> bool:
    """Return whether one of some entries of a setting matches the name of an interface or a port.

    Args:
        entries: Devices with or without a port, such as "mlx5_0" or "mlx5_0:1".
        name: Name of an interface ("eth0") or an InfiniBand port ("mlx5_0:1").
        choice: The parsed setting, which says whether a device must equal the entry's or only begin with it.
    """
    return any(_matches(entry, name, choice) for entry in entries)


def _matches(entry: str, name: str, choice: Choice) -> bool:
    """Return whether an entry of a setting matches the name of an interface or a port.

    The numbers of ports are compared only if both have one.

    Args:
        entry: A device with or without a port, such as "mlx5_0" or "mlx5_0:1".
        name: Name of an interface ("eth0") or an InfiniBand port ("mlx5_0:1").
        choice: The parsed setting, which says whether a device must equal the entry's or only begin with it.
    """
    wanted_device, _, wanted_port = entry.partition(":")
    device, _, port = name.partition(":")
    both_have_port = wanted_port != "" and port != ""
    if both_have_port and port != wanted_port:
        return False
    if choice.is_exact:
        return device == wanted_device
    return device.startswith(wanted_device)


def devices_matched_by_accident(setting: str, ports: Sequence[str]) -> list[str]:
    """Return the InfiniBand devices that a value of NCCL_IB_HCA matches although the user did not mean them, sorted.

    NCCL matches each device whose name begins with an entry of the value. On a node with the devices mlx4_0, mlx5_1 and
    mlx5_10, the value "mlx5_1,mlx4" gives ["mlx5_10"]:

        mlx5_1   the full name of a device, so the user means this device alone, but NCCL matches mlx5_10, too
        mlx4     no device's full name, so the user means all devices that begin with it: mlx4_0

    "mlx5_1,mlx5_10" gives [], because the user names both. "=mlx5_1" gives [], because = makes NCCL compare full names.

    Args:
        setting: The value of NCCL_IB_HCA. A sign ^ before the entries, with which NCCL leaves out what they match, does
            not change the result.
        ports: Names of all InfiniBand ports of the node, such as "mlx5_0:1".
    """
    choice = choice_of(setting)
    if choice.is_exact:  # the value has the sign =
        return []
    # `_device` cuts off the port's number, and `_devices` does so for several: "mlx5_1:1" -> "mlx5_1".
    fully_named = _devices(choice.entries) & _devices(ports)  # {"mlx5_1"} in the example
    beginnings = [entry for entry in choice.entries if _device(entry) not in fully_named]  # ["mlx4"]
    matched_by_accident = set()
    for port in ports:  # "mlx4_0:1", "mlx5_1:1" and "mlx5_10:1"
        # `_matches_any` says whether the port's device begins with one of the entries, and has the entry's port if any.
        is_meant = _device(port) in fully_named or _matches_any(beginnings, port, choice)  # not mlx5_10
        is_matched = _matches_any(choice.entries, port, choice)  # all three, as by NCCL
        if is_matched and not is_meant:
            matched_by_accident.add(_device(port))
    return sorted(matched_by_accident)


def _devices(names: Iterable[str]) -> set[str]:
    """Return the devices of some ports, each once: "mlx5_0:1" and "mlx5_0:2" -> "mlx5_0".

    Args:
        names: Names of ports, or of devices without a port.
    """
    return {_device(name) for name in names}


def _device(name: str) -> str:
    """Return the device of a port, such as "mlx5_0" for "mlx5_0:1"; a device without a port is returned as it is."""
    return name.partition(":")[0]
