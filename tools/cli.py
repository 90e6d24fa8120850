"""`paddle-reference COMMAND`: the project's commands under one name.

Those of the first list need what `pip install .` brings. Those of the second train, or look at what trains: they need a
checkout and the packages of [train]. Each is also to be had as `python -m MODULE`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

# {command: (module with `main() -> int`, whether the module has commands of its own, of which this is one)}
CHECKER, SCORER = ("compliance.__main__", True), ("scoring.__main__", True)
PUBLISHING = {
    **dict.fromkeys(("check", "system", "package", "verify"), CHECKER),
    **dict.fromkeys(("score", "compare", "report", "reproduce", "scale", "import"), SCORER),
    "watch": ("tools.watch", False),
}
TRAINING = {name: (f"tools.{name}", False) for name in ("doctor", "inspect", "tune", "acceptance", "fleet", "pack")}


def main() -> int:
    """Runs a command; its exit status, or 2 for wrong use or where its packages are missing."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    known = PUBLISHING | TRAINING
    usage = (
        f"usage: paddle-reference {{{','.join(PUBLISHING)}}} ...\n"
        f"       paddle-reference {{{','.join(TRAINING)}}} ...    with the packages of [train]"
    )
    if name in ("-h", "--help"):
        print(usage)
        return 0
    if name not in known:
        print(f"error: {name}: no such command: use one of {', '.join(known)}", file=sys.stderr)
        return 2
    module, has_commands = known[name]
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
