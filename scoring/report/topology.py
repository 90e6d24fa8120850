"""How the GPUs of the runs' nodes are linked, as tables of the report's provenance."""

from collections.abc import Sequence
from typing import Any

from scoring.record import nodes_of
from scoring.report import blocks
from scoring.report.blocks import Block, Cell, Paragraph, Text
from scoring.report.content import NOT_MEASURED, ReportedRun
from scoring.report.text import counted

MOST_DEVICES = 64  # of a topology that is shown
NAMED_HOSTS = 4  # in the caption of a topology
LINKS = "NV: NVLinks; PIX, PXB: PCIe switches; PHB: host bridge; NODE: within a socket; SYS: between sockets."
KINDS_OF_LINK = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")  # page.css shades each

# A row of the table that `nvidia-smi topo` prints: a device's name, and then its link to each device.
_LinksOfDevice = tuple[str, ...]


def tables_of_gpu_links(run: ReportedRun) -> list[Block]:
    """Return tables of how the GPUs of a run's nodes are linked. Nodes with equal links share a table.

    A cell is the link between two devices, such as "NV12" or "SYS". If no links are known, a sentence says so.
    """
    hosts_by_links: dict[tuple[_LinksOfDevice, ...], list[str]] = {}
    for node in nodes_of(run.record):
        matrix = _link_matrix(node.get("topology"))
        if matrix:
            hosts_by_links.setdefault(matrix, []).append(str(node.get("host")))
    if not hosts_by_links:
        return [Paragraph(text=f"Topology of the GPUs: {NOT_MEASURED}.", absent=True)]
    parts: list[Block] = []
    for matrix, hosts in hosts_by_links.items():
        nodes = counted(len(hosts), "node")
        caption = f"Links between GPUs and network cards of {nodes}: {', '.join(hosts[:NAMED_HOSTS])}"
        devices = [row[0] for row in matrix]  # a row begins with the name of its device
        parts.append(blocks.table(caption, [_cells_of_links(row, devices) for row in matrix]))
    parts.append(Paragraph(text=f"As nvidia-smi names them. {LINKS}"))
    return parts


def _link_matrix(topology: Any) -> tuple[_LinksOfDevice, ...]:
    """Return a row for each device of a node: its name, then its link to each device.

    `topology` is what a log says of the node, and may be anything. Empty if that is not a square table, or has more
    than MOST_DEVICES devices.
    """
    rows = []
    try:
        for name, links in zip(topology["devices"], topology["links"], strict=True):
            rows.append((str(name), *map(str, links)))
    except (TypeError, KeyError, ValueError):
        return ()
    is_square = all(len(row) == 1 + len(rows) for row in rows)  # 1: the name
    return tuple(rows) if is_square and len(rows) <= MOST_DEVICES else ()


def _cells_of_links(row: _LinksOfDevice, devices: Sequence[str]) -> list[Cell]:
    """Return the table row of a device: its link to each of `devices`, styled by the kind of link."""
    device, *links = row
    cells = [Cell("", device)]
    for other, link in zip(devices, links, strict=True):
        kind = link.rstrip("0123456789")  # "NV12" -> "NV"
        look = f"link {kind}" if kind in KINDS_OF_LINK else "link"
        cells.append(Cell(other, Text(text=link, look=look)))
    return cells
