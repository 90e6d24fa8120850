"""How a node's GPUs are linked to each other, to CPUs and to network cards, by `nvidia-smi topo -m`."""

import re
import subprocess

from runlog.digits import six_digits
from runlog.schema import Topology

SMI_S = 20.0  # for nvidia-smi, which loads the driver on each GPU where persistence is off
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # nvidia-smi underlines the heading
# A link in the matrix, such as NV12 or PXB; X stands where a device meets itself.
_LINK = r"(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB)(?!\S)"
# Cores, such as 0-23,48-71.
_CORES = r"[0-9,-]*\d[0-9,-]*(?!\S)"


def parse_topology(text: str) -> Topology:
    """Return the matrix of links between devices that `nvidia-smi topo -m` printed.

    Each device, a GPU or a network card, has a row with its link to every device, which is X for itself. The row of a
    GPU also has the CPU cores near to it:

              GPU0  GPU1  mlx5_0  CPU Affinity
        GPU0   X    NV12  PXB     0-23
        GPU1  NV12   X    SYS     24-47
        mlx5_0 PXB  SYS    X

    Some reports of machines have lost their line breaks. So the rows are not read line by line: each device's row is
    searched for in the whole text, by the device's name.

    Args:
        text: What nvidia-smi printed, with or without its line breaks.

    Returns:
        The names of the devices, a row of links for each, and the cores near to each GPU.

    Raises:
        ValueError: The heading has no device or no column "CPU Affinity", or a device in the heading has no whole row.
    """
    text_without_escapes = _ESCAPES.sub("", text)  # by which nvidia-smi underlines the heading
    # ["GPU0", "GPU1", "mlx5_0"] of the heading, and all text behind them. ValueError if there is no such heading.
    devices, text_with_rows = _split_behind_devices(text_without_escapes)
    links = []
    cores = {}
    for number, name in enumerate(devices):
        # The first place in the text with the name, then a link to each device and perhaps cores, as "GPU1 NV12 X SYS
        # 24-47". Its groups are `links`, "NV12 X SYS", and `cores`, "24-47". None if there is no such place.
        row = _row_pattern(name, len(devices)).search(text_with_rows)
        links_of_device = row["links"].split() if row else []  # as ["NV12", "X", "SYS"], in the order of `devices`
        # A device's link to itself is X, in another column for each device. So an X here shows that the row is its own.
        has_own_row = row is not None and links_of_device[number] == "X"
        if row is None or not has_own_row:
            raise ValueError(f"no matrix of nvidia-smi topo -m: {name} has a column and no whole row")
        links.append(links_of_device)
        if row["cores"]:  # a network card has none
            cores[name] = row["cores"]
    return Topology(devices=devices, links=links, cores=cores)


def _split_behind_devices(text: str) -> tuple[list[str], str]:
    """Return the names of the devices in the heading of a matrix, and the text behind them, which has the rows.

    The heading names each device, and then the column "CPU Affinity". It does not always end with its line: some
    reports of machines have lost their line breaks. So the word "CPU" is taken for its end.

    Args:
        text: What `nvidia-smi topo -m` printed.

    Raises:
        ValueError: The text has no "CPU", or nothing before it.
    """
    names_in_heading, cpu_column, text_behind = text.partition("CPU")
    if not cpu_column:
        raise ValueError("no matrix of nvidia-smi topo -m: there is no column 'CPU Affinity'")
    devices = names_in_heading.split()
    if not devices:
        raise ValueError("no matrix of nvidia-smi topo -m: no device has a column")
    return devices, text_behind


def _row_pattern(name: str, device_count: int) -> re.Pattern[str]:
    """Return the pattern of a device's row in the matrix: the name, a link to each device and, of a GPU, CPU cores.

    A row in a matrix of two devices is "GPU0  X  NV12  0-23".

    Args:
        name: Name of the device, such as "GPU0".
        device_count: Number of devices in the matrix.

    Returns:
        A pattern with two groups: `links`, such as "  X  NV12", and `cores`, the CPU cores near to the device, such as
        "0-23". `cores` is None for a row without cores, for example of a network card.
    """
    link = rf"\s+{_LINK}"  # as "  NV12"
    repetition = "{" + str(device_count) + "}"  # as "{2}"
    links = rf"(?P<links>(?:{link}){repetition})"
    cores = rf"\s+(?P<cores>{_CORES})"  # as "  0-23"
    return re.compile(rf"\s{re.escape(name)}{links}(?:{cores})?")


def topology() -> Topology | None:
    """Return how this node's GPUs are linked, by `nvidia-smi topo -m`; None on a node without nvidia-smi.

    Raises:
        ValueError: nvidia-smi does not answer within SMI_S seconds, fails, or prints something else than its matrix.
    """
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=SMI_S, check=False)
    except (FileNotFoundError, PermissionError):  # also if this user may not look into a folder of PATH
        return None
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"nvidia-smi topo -m: no answer in {six_digits(SMI_S)} s") from error
    if done.returncode != 0:
        words = " ".join((done.stdout + done.stderr).split())
        raise ValueError(f"nvidia-smi topo -m ended with status {done.returncode}: {words[:200] or 'no message'}")
    return parse_topology(done.stdout)


def cpu_list(text: str) -> set[int]:
    """Return the numbers of the cores in a list of ranges, as {0, 1, 2, 8} for "0-2,8".

    Args:
        text: Numbers and ranges, with commas between.
    """
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
