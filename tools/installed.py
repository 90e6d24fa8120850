"""`paddle-reference` where a wheel is installed: its packages lie below `paddle_reference`, apart from all others'."""

import importlib
import sys
from pathlib import Path


def main() -> int:
    """Lets this process find them by the names that they have in the repository, before any of those names' owners."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    return int(importlib.import_module("tools.cli").main())
