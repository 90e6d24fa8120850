"""Writes golden/programs.json: what `tools.inspect` counts in the programs of the published configurations.

python -m tests.tools.golden_programs [NAME...]   after a change of the program that is meant; look at the difference
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from harness import env
from program.count import counts_of
from scoring.published.table import read_published, select
from tools import inspect

GOLDEN = Path(__file__).with_name("golden") / "programs.json"
# Precision, images a device and ranks of each figure of Paddle's on one node that says its precision, where it says AMP
# and no level of both; PaddleSeg's recipe (batch 2), and O1 beside HRNet's O2. The system changes no program.
PUBLISHED = sorted(
    {"hrnet_fp32_b2_n1", "hrnet_amp_o1_b8_n8"}
    | {
        f"{'hrnet_' if 'hrnet' in row.model else ''}{precision}_b{row.batch_per_device}_n{row.devices}"
        for row in select(read_published(), metric="throughput")
        if row.framework.startswith("Paddle") and row.precision and row.devices and row.devices <= 8
        for precision in (("amp_o1", "amp_o2") if row.precision == "amp" else (row.precision,))
    }
)
KEPT = (
    "operators",
    "kernel_operators",
    "all_operators",
    "transposes",
    "casts",
    "all_reduces",
    "all_reduce_mib",
    "fused",
    "bytes_gb",
    "addto_reads_gb",
    "flops",
)


def count(name: str) -> dict[str, Any]:
    """The kept counts of one configuration."""
    hrnet, precision, batch, ranks = re.fullmatch(r"(hrnet_)?(\w+)_b(\d+)_n(\d+)", name).groups()
    recipe = "cityscapes_80k" if batch == "2" else "cityscapes_benchmark"
    workload = {"WORKLOAD": "hrnet", "RECIPE": recipe} if hrnet else {}
    sizes = {"PRECISION": precision, "BATCHSIZE": batch, "DGXNNODES": "1", "DGXNGPU": ranks}
    found = counts_of(inspect.build(env.of_system(DGXSYSTEM="DGXA100", **workload, **sizes)).main)
    kept = {key: found[key] for key in KEPT}
    for key in ("all_reduce_mib", "bytes_gb", "addto_reads_gb"):
        kept[key] = round(kept[key], 4)
    of_bucket = ("mib", "issued_after_operators", "bytes_left_to_hide_it")
    return kept | {"buckets": [{key: round(bucket[key], 4) for key in of_bucket} for bucket in found["buckets"]]}


def main() -> None:
    """Writes the file anew, or the named programs in it."""
    golden = json.loads(GOLDEN.read_text())
    for name in sys.argv[1:] or PUBLISHED:
        golden[name] = count(name)
        print(name, f"{golden[name]['kernel_operators']} kernel operators, {golden[name]['bytes_gb']} GB", flush=True)
    GOLDEN.write_text(json.dumps({name: golden[name] for name in golden if name in PUBLISHED}, indent=1) + "\n")


if __name__ == "__main__":
    main()
