"""Says what a wheel holds, and which extras it has.

[plots] draws the report's plots; [train] is every package of locks/run.lock, and [official] what mlperf-logging's own
checkers import on top of it.

The commands that need no Paddle lie below `paddle_reference`, so that no package of another project has their names;
tools/installed.py lets them find each other there.
"""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

NAME = "paddle_reference"
HERE = Path(__file__).parent
lock = (HERE / "locks" / "run.lock").read_text()
setup(
    package_dir={NAME: "."},
    packages=[
        f"{NAME}.{name}" for name in find_namespace_packages(HERE, include=["compliance*", "runlog*", "scoring*"])
    ],
    py_modules=[f"{NAME}.tools.{name}" for name in ("cli", "installed", "watch")],
    extras_require={
        "plots": ["matplotlib"],
        "official": ["pandas<3", "scipy"],
        "export": ["mlflow-skinny", "pyarrow", "tensorboardX"],
        "train": re.findall(r"^([\w.-]+==[^\\\n]*?) *\\?$", lock, re.M),
    },
)
