"""`paddle-reference` where a wheel is installed: its packages lie below `paddle_reference`, apart from all others'."""

import importlib
import sys
from pathlib import Path


def main() -> int:
    """Run `paddle-reference` from an installed wheel, and return its exit status.

    The folder of the wheel's packages comes first on the import path: other installed packages may also be called
    `tools` or `runlog`.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    return int(importlib.import_module("tools.cli").main())
