"""Writes golden/programs.json: what `harness.inspect` counts in the programs of the published configurations.

python -m tests.harness.golden_programs      after a change of the program that is meant; look at the difference
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import env, inspect

GOLDEN = Path(__file__).with_name("golden") / "programs.json"
# PaddlePaddle/Perf (V100 and A100, batch 256 on 1 and 8), FleetX (AMP, batch 128 on 8), DLPerf (FP32, batch 128 on 1).
PUBLISHED = {
    "fp32_b256_n1": ("DGX1", "fp32", 256, 1),
    "fp32_b256_n8": ("DGX1", "fp32", 256, 8),
    "fp32_b128_n1": ("DGX1", "fp32", 128, 1),
    "amp_o1_b128_n8": ("DGX1", "amp_o1", 128, 8),
    "amp_o1_b256_n8": ("DGX1", "amp_o1", 256, 8),
    "amp_o2_b256_n1": ("DGX1", "amp_o2", 256, 1),
    "amp_o2_b256_n8": ("DGXA100", "amp_o2", 256, 8),
    "tf32_b256_n8": ("DGXA100", "tf32", 256, 8),
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


def count(system: str, precision: str, batch: int, ranks: int) -> dict[str, Any]:
    """The kept counts of one configuration."""
    variables = inspect.system_environment(system) | {"PRECISION": precision, "BATCHSIZE": str(batch)}
    job, _ = env.read(variables)
    main, _, _ = inspect.build(job, ranks=ranks)
    found = inspect.describe(main)
    kept = {key: found[key] for key in KEPT}
    buckets = [
        {k: round(b[k], 4) for k in ("mib", "issued_after_operators", "bytes_left_to_hide_it")}
        for b in found["buckets"]
    ]
    for key in ("all_reduce_mib", "bytes_gb", "addto_reads_gb"):
        kept[key] = round(kept[key], 4)
    return kept | {"buckets": buckets}


def main() -> None:
    """Writes the file anew."""
    golden = {name: count(*configuration) for name, configuration in PUBLISHED.items()}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
