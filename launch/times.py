"""The table of times of launch/common.sh."""

import re
from pathlib import Path

TIMES = {
    name: int(value)
    for name, value in re.findall(r"\b([A-Z_]+_(?:S|COUNT))=(\d+)", Path(__file__).with_name("common.sh").read_text())
}
