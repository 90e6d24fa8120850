"""The scaling model and its baselines on systems that it has not seen: of MLPerf, submitted at several sizes.

    python benchmarks/scaling_baselines.py [--corpus ../shared/corpus/mlperf_resnet.tar.xz]

The loss is learned of the published tables alone. Judged are all pairs of sizes of one system whose batch a device
differs by a quarter at most: `scale` predicts no other. The rate of a size is the median of its runs, samples of all
epochs over run_start to run_stop, which asks nothing of how a log's windows are cut.
"""

import argparse
import itertools
import math
import re
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scoring.importers import read_record  # noqa: E402
from scoring.predict.loss import PublishedTable, fit_scaling_loss, published_tables  # noqa: E402
from scoring.published.table import read_published  # noqa: E402
from scoring.record import InputError  # noqa: E402

IMAGENET = 1_281_167
# (round/submitter, system with its node count as {n}, devices a node)
SYSTEMS = [
    ("v2.1/Dell", r"(\d*)x?XE8545x4A100-SXM-40GB", 4),
    ("v2.1/Dell", r"(\d*)x?XE8545x4A100-SXM-80GB", 4),
    ("v3.0/Dell", r"(\d*)x?R750xax4A100-PCIE-80GB", 4),
    ("v3.0/Dell", r"(\d*)x?R750xax4A100-PCIE-80GB-1opa", 4),
    ("v3.0/Dell", r"(\d*)x?R750xax4A100-PCIE-80GB-2opa", 4),
    ("v3.0/Dell", r"(\d*)x?XE9680x8A100-SXM-80GB", 8),
    ("v3.0/Dell", r"(\d*)x?XE9680x8H100-SXM-80GB", 8),
    ("v2.1/HPE", r"HPE-ProLiant-XL675d-Gen10-Plus_A100-SXM-80GB_?(\d*)N?_mxnet", 8),
    ("v2.1/NVIDIA", r"dgxa100_?n?(\d*)_ngc22.04_mxnet", 8),
    ("v2.1/NVIDIA", r"dgxh100_?n?(\d*)_preview", 8),
    ("v3.0/NVIDIA", r"dgxh100_?n?(\d*)_ngc23.04_mxnet", 8),
    ("v4.0/NVIDIA", r"eos_?n?(\d*)_ngc24.04_mxnet", 8),
    ("v4.0/NVIDIA", r"l40s_n(\d+)_ngc24.04_mxnet", 8),
    ("v2.1/Azure", r"ND96amsr_A100_v4_n(\d+)_mxnet", 8),
    ("v4.0/HPE", r"HPE-Cray-XD670-Gen11-H100-SXM5-80GB_n(\d+)_mxnet_24.04", 8),
    ("v4.0/Oracle", r"(\d+)xBM.GPU.H100.8", 8),
    ("v4.0/smc", r"(\d+)xSMC-H100-SXM-80GB", 8),
]


def sizes(corpus: Path) -> dict[tuple[str, str], dict[int, tuple[float, float]]]:
    """{system: {nodes: (images/s, batch a device)}}"""
    runs: dict[tuple[str, str, int, float], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, tarfile.open(corpus) as archive:
        for member in archive:
            place, _, system = member.name.partition("/results/")
            system = system.partition("/")[0]
            for submitter, pattern, devices in SYSTEMS:
                match = re.fullmatch(pattern, system)
                if not member.isfile() or place != submitter or not match:
                    continue
                archive.extract(member, folder, filter="data")
                try:
                    record = read_record(Path(folder) / member.name)
                except InputError:  # one log has no training row
                    continue
                if (
                    record.status == "success"
                    and record.run_time_s
                    and record.global_batch
                    and record.windows[-1].epoch
                ):
                    nodes = int(match[1] or 1)
                    key = (submitter, pattern, nodes, record.global_batch / nodes / devices)
                    runs.setdefault(key, []).append(record.windows[-1].epoch * IMAGENET / record.run_time_s)
    found: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for (submitter, pattern, nodes, batch), rates in sorted(runs.items()):
        found.setdefault((submitter, pattern), {})[nodes] = (statistics.median(rates), batch)
    return found


def _power(tables: Sequence[PublishedTable]) -> float:
    """The power of the nodes that the published figures grow by, on average."""
    found = []
    for table in tables:
        (base, base_rate), *more = table.images_per_s.items()
        found += [math.log(rate / base_rate) / math.log(nodes / base) for nodes, rate in more]
    return statistics.fmean(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=ROOT / "../shared/corpus/mlperf_resnet.tar.xz")
    args = parser.parse_args()
    loss = fit_scaling_loss(published_tables(read_published()))
    same: list[tuple[float, int, int]] = []
    other: list[tuple[float, int, int]] = []
    held = 0
    for (submitter, pattern), by_nodes in sizes(args.corpus).items():
        for (a, (rate_a, batch_a)), (b, (rate_b, batch_b)) in itertools.combinations(sorted(by_nodes.items()), 2):
            measured, more = rate_b / rate_a, b / a
            if max(batch_a, batch_b) > 1.26 * min(batch_a, batch_b):
                other.append((measured, a, b))
                continue
            same.append((measured, a, b))
            low, high = (bound * loss.throughput_ratio(a, b) for bound in loss.relative_interval_95(a, b))
            held += low <= measured <= high
            share = loss.throughput_ratio(a, b) / measured - 1
            inside = "" if low <= measured <= high else "  outside its interval"
            print(f"{submitter} {pattern} {a} to {b} nodes: {measured / more:.1%} of linear, {share:+.1%}{inside}")
    power = _power(published_tables(read_published()))
    ways: dict[str, Callable[[int, int], float]] = {
        "loss over (M-1)/M": loss.throughput_ratio,
        "0.95 x linear": lambda a, b: 0.95 * b / a,
        "a power of the nodes": lambda a, b: (b / a) ** power,
        "linear": lambda a, b: b / a,
    }
    print(f"{len(same)} pairs of like batch, {held} within their interval; {len(other)} of another batch")
    for name, way in ways.items():
        for kind, pairs in (("like batch", same), ("another batch", other)):
            errors = [abs(math.log(way(a, b) / measured)) for measured, a, b in pairs]
            print(
                f"  {name:20} {kind:13} median {statistics.median(errors):.2%} mean {statistics.fmean(errors):.2%} "
                f"largest {max(errors):.1%} (of logarithms)"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
