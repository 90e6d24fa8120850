"""`paddle-reference COMMAND`: the project's commands under one name.

Those of the first list need what `pip install .` brings. Those of the second train, or look at what trains: they need a
checkout and the packages of [train]. Each is also to be had as `python -m MODULE`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys

# {command: (what it does, module with `main() -> int`, whether that has commands of its own, of which this is one)}
CHECKER, SCORER = ("compliance.__main__", True), ("scoring.__main__", True)
PUBLISHING = {
    "check": ("may these logs be published", *CHECKER),
    "system": ("write the system description", *CHECKER),
    "package": ("build the submission package", *CHECKER),
    "verify": ("re-check a published package", *CHECKER),
    "audit": ("check a whole results repository", *CHECKER),
    "score": ("the figure of one system's runs under a protocol", *SCORER),
    "compare": ("two or more systems: ratio, and whether they really differ", *SCORER),
    "report": ("one self-contained page from runs", *SCORER),
    "reproduce": ("recompute published figures from published logs", *SCORER),
    "history": ("runs kept in a file: their trend, and whether a new one is lower", *SCORER),
    "scale": ("throughput and time to train at node counts not at hand", *SCORER),
    "time-to-train": ("minutes to the target on nodes of A100", *SCORER),
    "import": ("what a log says, as a record", *SCORER),
    "watch": ("follow a run that goes on", "tools.watch", False),
}
TRAINING = {
    "doctor": ("is the machine fit for the job", "tools.doctor", False),
    "inspect": ("the training program without a GPU", "tools.inspect", False),
    "tune": ("the fastest strategy and batch size of this machine", "tools.tune", False),
    "acceptance": ("does the machine compute right, and how fast", "tools.acceptance", False),
    "fleet": ("which node, or rank of one node, is slow", "tools.fleet", False),
    "pack": ("an image folder as RecordIO", "tools.pack", False),
}


def usage() -> str:
    """Every command with what it does."""
    lines = ["usage: paddle-reference COMMAND ...    (COMMAND --help; --version)"]
    for title, commands in (("from a log:", PUBLISHING), ("in a checkout, with the packages of [train]:", TRAINING)):
        lines += ["", title, *(f"  {name:13}  {says}" for name, (says, *_) in commands.items())]
    return "\n".join(lines)


def main() -> int:
    """Runs a command; its exit status, or 2 for wrong use or where its packages are missing."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    known = PUBLISHING | TRAINING
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(importlib.metadata.version("paddle-reference-submission"))
        return 0
    if name not in known:
        print(f"error: {name}: no such command: use one of {', '.join(known)}", file=sys.stderr)
        return 2
    _, module, has_commands = known[name]
    if not has_commands:
        del sys.argv[1]
    try:
        if name in TRAINING and importlib.util.find_spec("paddle") is None:
            raise ModuleNotFoundError(name="paddle")
        return int(importlib.import_module(module).main())
    except ModuleNotFoundError as missing:
        where = "in a checkout pip install -e '.[train]' brings it, or launch/setup.sh"
        print(f"error: {name} needs the package {missing.name}: {where}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
