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
from tools import inspect

GOLDEN = Path(__file__).with_name("golden") / "programs.json"
# Precision, images a device and ranks: of each figure of Paddle's on one node in published.csv that says its precision,
# and of PaddleSeg's recipe (batch 2). The system changes no program.
PUBLISHED = (
    *(f"fp32_b{size}" for size in ("32_n8", "64_n8", "128_n1", "128_n2", "128_n4", "128_n8", "256_n1", "256_n8")),
    *("tf32_b256_n1", "tf32_b256_n8"),
    *(f"amp_o1_b{size}" for size in ("32_n8", "64_n8", "128_n8", "256_n1", "256_n8")),
    *("amp_o2_b256_n1", "amp_o2_b256_n8"),
    *(f"hrnet_fp32_b{size}" for size in ("2_n1", "8_n1", "8_n8")),
    *("hrnet_amp_o1_b8_n8", "hrnet_amp_o2_b8_n1", "hrnet_amp_o2_b8_n8"),
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


def parts(name: str) -> tuple[bool, str, int, int]:
    """Whether it is FCN-HRNetW18's, else ResNet-50's; precision, images a device, ranks."""
    found = re.fullmatch(r"(hrnet_)?(\w+)_b(\d+)_n(\d+)", name)
    assert found
    return bool(found[1]), found[2], int(found[3]), int(found[4])


def count(name: str) -> dict[str, Any]:
    """The kept counts of one configuration."""
    hrnet, precision, batch, ranks = parts(name)
    recipe = "cityscapes_80k" if batch == 2 else "cityscapes_benchmark"
    workload = {"WORKLOAD": "hrnet", "RECIPE": recipe} if hrnet else {}
    sizes = {"PRECISION": precision, "BATCHSIZE": str(batch), "DGXNNODES": "1", "DGXNGPU": str(ranks)}
    job = env.of_system(DGXSYSTEM="DGXA100", **workload, **sizes)
    main = inspect.build(job).main
    found = counts_of(main)
    kept = {key: found[key] for key in KEPT}
    buckets = [
        {k: round(b[k], 4) for k in ("mib", "issued_after_operators", "bytes_left_to_hide_it")}
        for b in found["buckets"]
    ]
    for key in ("all_reduce_mib", "bytes_gb", "addto_reads_gb"):
        kept[key] = round(kept[key], 4)
    return kept | {"buckets": buckets}


def main() -> None:
    """Writes the file anew, or the named programs in it."""
    golden = json.loads(GOLDEN.read_text())
    for name in sys.argv[1:] or PUBLISHED:
        golden[name] = count(name)
        print(name, f"{golden[name]['kernel_operators']} kernel operators, {golden[name]['bytes_gb']} GB", flush=True)
    GOLDEN.write_text(json.dumps({name: golden[name] for name in PUBLISHED}, indent=1) + "\n")


if __name__ == "__main__":
    main()
