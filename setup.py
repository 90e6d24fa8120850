"""The extras of pyproject.toml: [plots] draws the report's plots; [train] is every package of locks/run.lock."""

import re
from pathlib import Path

from setuptools import setup

lock = (Path(__file__).parent / "locks" / "run.lock").read_text()
setup(extras_require={"plots": ["matplotlib"], "train": re.findall(r"^([\w.-]+==[^\\\n]*?) *\\?$", lock, re.M)})
