"""`config_<SYSTEM>.sh`, the file of a system: bash evaluates it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_THE_SHELL = ("_", "PWD", "OLDPWD", "SHLVL")  # what bash sets by itself


def evaluated(system: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment as the system's file leaves it.

    Raises ValueError where there is no such file, or bash refuses it.
    """
    config = ROOT / f"config_{system}.sh"
    if not config.is_file():
        there = ", ".join(sorted(path.stem.removeprefix("config_") for path in ROOT.glob("config_*.sh")))
        raise ValueError(f"DGXSYSTEM={system}: there is no config_{system}.sh; there are: {there}")
    command = ["bash", "-euc", 'source "$1" >/dev/null; env -0', "_", str(config)]
    done = subprocess.run(command, env=dict(environ), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{config.name}: {done.stderr.strip() or 'bash refuses it'}: correct the file")
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs if name not in OF_THE_SHELL}
