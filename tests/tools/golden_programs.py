"""Writes golden/programs.json: what `tools.inspect` counts in the programs of the published configurations.

python -m tests.tools.golden_programs [NAME...]   after a change of the program that is meant; look at the difference
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness import env
from program.count import counts_of
from tools import inspect

GOLDEN = Path(__file__).with_name("golden") / "programs.json"
# System, precision, images a device, ranks and, for FCN-HRNetW18, the recipe: of each figure of Paddle's on one node in
# published.csv that says its precision, and of PaddleSeg's recipe (batch 2). The system changes no program.
PUBLISHED: dict[str, tuple[Any, ...]] = {
    "fp32_b32_n8": ("DGX1", "fp32", 32, 8),
    "fp32_b64_n8": ("DGX1", "fp32", 64, 8),
    "fp32_b128_n1": ("DGX1", "fp32", 128, 1),
    "fp32_b128_n2": ("DGX1", "fp32", 128, 2),
    "fp32_b128_n4": ("DGX1", "fp32", 128, 4),
    "fp32_b128_n8": ("DGX1", "fp32", 128, 8),
    "fp32_b256_n1": ("DGX1", "fp32", 256, 1),
    "fp32_b256_n8": ("DGX1", "fp32", 256, 8),
    "tf32_b256_n1": ("DGXA100", "tf32", 256, 1),
    "tf32_b256_n8": ("DGXA100", "tf32", 256, 8),
    "amp_o1_b32_n8": ("DGX1", "amp_o1", 32, 8),
    "amp_o1_b64_n8": ("DGX1", "amp_o1", 64, 8),
    "amp_o1_b128_n8": ("DGX1", "amp_o1", 128, 8),
    "amp_o1_b256_n1": ("DGXA100", "amp_o1", 256, 1),
    "amp_o1_b256_n8": ("DGX1", "amp_o1", 256, 8),
    "amp_o2_b256_n1": ("DGX1", "amp_o2", 256, 1),
    "amp_o2_b256_n8": ("DGXA100", "amp_o2", 256, 8),
    "hrnet_fp32_b2_n1": ("DGX1", "fp32", 2, 1, "cityscapes_80k"),
    "hrnet_fp32_b8_n1": ("DGX1", "fp32", 8, 1, "cityscapes_benchmark"),
    "hrnet_fp32_b8_n8": ("DGX1", "fp32", 8, 8, "cityscapes_benchmark"),
    "hrnet_amp_o1_b8_n8": ("DGX1", "amp_o1", 8, 8, "cityscapes_benchmark"),
    "hrnet_amp_o2_b8_n1": ("DGX1", "amp_o2", 8, 1, "cityscapes_benchmark"),
    "hrnet_amp_o2_b8_n8": ("DGX1", "amp_o2", 8, 8, "cityscapes_benchmark"),
}
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


def count(system: str, precision: str, batch: int, ranks: int, hrnet: str = "") -> dict[str, Any]:
    """The kept counts of one configuration: of ResNet-50, or of FCN-HRNetW18 by the recipe `hrnet`."""
    workload = {"WORKLOAD": "hrnet", "RECIPE": hrnet} if hrnet else {}
    sizes = {"PRECISION": precision, "BATCHSIZE": str(batch), "DGXNNODES": "1", "DGXNGPU": str(ranks)}
    job = env.of_system(DGXSYSTEM=system, **workload, **sizes)
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
        golden[name] = count(*PUBLISHED[name])
        print(name, f"{golden[name]['kernel_operators']} kernel operators, {golden[name]['bytes_gb']} GB", flush=True)
    GOLDEN.write_text(json.dumps({name: golden[name] for name in PUBLISHED}, indent=1) + "\n")


if __name__ == "__main__":
    main()
