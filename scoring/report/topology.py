"""How the GPUs of the runs' nodes are linked, as tables of the report's provenance."""

from collections.abc import Sequence
from typing import Any

from runlog.digits import counted
from scoring.record import nodes_of
from scoring.report import blocks
from scoring.report.blocks import Block, Cell, Paragraph, Text
from scoring.report.content import NOT_MEASURED, ReportedRun

MAX_DEVICES = 64  # of a topology that is shown
NAMED_HOSTS = 4  # in the caption of a topology
LINKS = "NV: NVLinks; PIX, PXB: PCIe switches; PHB: host bridge; NODE: within a socket; SYS: between sockets."
KINDS_OF_LINK = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")  # page.css shades each

# A row of the table that `nvidia-smi topo` prints: a device's name, and then its link to each device.
_LinksOfDevice = tuple[str, ...]
_LinkMatrix = tuple[_LinksOfDevice, ...]  # a row for each device of a node


def tables_of_gpu_links(run: ReportedRun) -> list[Block]:
    """Return tables of how the GPUs of a run's nodes are linked. Nodes with equal links share a table.

    A cell is the link between two devices, as nvidia-smi names it: "NV12" for NVLinks, "SYS" for a link between
    sockets.

    Args:
        run: A run of the report.

    Returns:
        The tables. If no links are known, a sentence that says so.
    """
    hosts_by_matrix = _hosts_by_link_matrix(run)
    if not hosts_by_matrix:
        return [Paragraph(text=f"Topology of the GPUs: {NOT_MEASURED}.", absent=True)]
    parts: list[Block] = []
    for matrix, hosts in hosts_by_matrix.items():
        nodes = counted(len(hosts), "node")
        caption = f"Links between GPUs and network cards of {nodes}: {', '.join(hosts[:NAMED_HOSTS])}"
        devices = [row[0] for row in matrix]  # a row begins with the name of its device
        parts.append(blocks.table(caption, [_cells_of_links(row, devices) for row in matrix]))
    parts.append(Paragraph(text=f"As nvidia-smi names them. {LINKS}"))
    return parts


def _hosts_by_link_matrix(run: ReportedRun) -> dict[_LinkMatrix, list[str]]:
    """Return the names of the nodes that have the same links between their devices, by the matrix of these links.

    Args:
        run: A run of the report.

    Returns:
        The names by the matrix, which has a row for each device. Nodes whose links the log does not say are left out.
    """
    hosts_by_matrix: dict[_LinkMatrix, list[str]] = {}
    for node in nodes_of(run.record):
        matrix = _link_matrix(node.get("topology"))
        if matrix:
            hosts_by_matrix.setdefault(matrix, []).append(str(node.get("host")))
    return hosts_by_matrix


def _link_matrix(topology: Any) -> _LinkMatrix:
    """Return how the devices of a node are linked, with a row for each device.

    {"devices": ["GPU0", "GPU1"], "links": [["X", "NV12"], ["NV12", "X"]]} gives (("GPU0", "X", "NV12"), ("GPU1",
    "NV12", "X")).

    Args:
        topology: What a log says of the node, which may be anything.

    Returns:
        The rows. Empty if `topology` has another form, if a row does not have one link to each device, or if there are
        more than MAX_DEVICES devices.
    """
    matrix: list[_LinksOfDevice] = []
    try:
        for device, links in zip(topology["devices"], topology["links"], strict=True):
            matrix.append((str(device), *map(str, links)))  # TypeError if `links` has no items
    except (TypeError, KeyError, ValueError):  # a log may hold anything
        return ()
    device_count = len(matrix)
    is_square = all(len(row) == 1 + device_count for row in matrix)  # 1: the name of the device
    if is_square and device_count <= MAX_DEVICES:
        return tuple(matrix)
    return ()


def _cells_of_links(row: _LinksOfDevice, devices: Sequence[str]) -> list[Cell]:
    """Return the row of a device in the table of links between devices, styled by the kind of link.

    Args:
        row: Name of the device, and then its link to each device, such as ("GPU0", "X", "NV12").
        devices: Names of all devices, which are the heads of the columns.
    """
    device, *links = row
    cells = [Cell("", device)]
    for other, link in zip(devices, links, strict=True):
        kind = link.rstrip("0123456789")  # "NV12" -> "NV"
        look = f"link {kind}" if kind in KINDS_OF_LINK else "link"
        cells.append(Cell(other, Text(text=link, look=look)))
    return cells
