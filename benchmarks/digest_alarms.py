"""Measures how often the fleet's digests accuse a healthy rank: `python benchmarks/digest_alarms.py [--repetitions N]`.

Four CPU ranks repeat the same steps (tools/fleet/digests.py) on a ResNet of one block a stage, 32 x 32 pixels. An
alarm is a repetition whose digests are not those of the majority; a false verdict is a rank that is not ok. Where none
of n is one, the rule of three bounds the chance: below 3 / n with a confidence of 95 % (Hanley and Lippman-Hand, JAMA
249, 1983). The ranks are started anew every so many repetitions, as what one start does alike another may not.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ratios

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runlog.verdict import OK
from tests import jobs
from tools.fleet import arithmetic

RANKS = 4
STEPS = 2
REPETITIONS_OF_A_START = 100
SMALL = ((64, 1), (128, 1), (256, 1), (512, 1))  # widths and blocks of the stages: the same operators, a third the time


def measure_on_this_rank(repetitions: int, result: Path) -> None:
    """Take digests on one of the ranks; the first one writes those of all to `result`."""
    import paddle

    from harness import env, ranks
    from paddle_rn50 import model
    from tools.acceptance.machine import Machine
    from tools.fleet import digests, steps

    model.STAGES = SMALL
    job, origins = env.read()
    me = ranks.start(job.cluster)
    ranks.connect(job.cluster, me)
    paddle.enable_static()
    training = steps.programs(Machine(job, origins, me, short=True)).repeatable_training
    amount = digests.Amount(steps_per_repetition=STEPS, least_repetitions=repetitions, least_s=0.0)
    of_rank = digests.digest_repetitions(training, amount)
    device = digests.device_of(job.cluster, me.local_rank)
    of_all = digests.gather_digests(me, me.rank, device, of_rank, steps=STEPS)
    if me.is_first:
        hosts = [f"rank{rank}" for rank in range(me.size)]
        result.write_text(json.dumps({"hosts": hosts, "digests": of_all}))


def one_start(repetitions: int) -> dict[str, int]:
    """Start the ranks once; return how many repetitions each took, the alarms of all and the false verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "digests.json"
        command = (__file__, "--rank", str(repetitions), str(result))
        settings: dict[str, Any] = {"BATCHSIZE": 2, "IMAGE_SIZE": 32, "THREADS": 1, "HANG_TIMEOUT_S": 3600}
        done = jobs.on_ranks(RANKS, *command, timeout_s=7200, **settings)
        assert done.returncode == 0, done.stderr
        record = json.loads(result.read_text())
    repetitions_of_result: Counter[str] = Counter()
    ranks = arithmetic.ranks_of(record)
    for rank in ranks:
        repetitions_of_result.update(rank.count_by_result)
    return {
        "repetitions": repetitions,
        "alarms": repetitions * len(ranks)
        - max(repetitions_of_result.values(), default=0),  # one that is missing is one
        "false": sum(verdict.status != OK for verdict in arithmetic.judge(record)),
    }


def main() -> int:
    """Print after each start the alarms so far, with their bound; 1 where there was one."""
    parser = ratios.parser(__doc__)
    parser.add_argument("--repetitions", type=int, default=1000, help="of each of the four ranks")
    args = parser.parse_args()
    wanted = 2 if args.short else args.repetitions
    began = time.monotonic()
    starts = 0
    totals = {"repetitions": 0, "alarms": 0, "false": 0}
    while totals["repetitions"] < wanted:
        found = one_start(min(REPETITIONS_OF_A_START, wanted - totals["repetitions"]))
        starts += 1
        for name, count in found.items():
            totals[name] += count
        done = totals["repetitions"]
        bound = f"below {min(1.0, 3 / done):.2%} at 95 %" if not totals["alarms"] else "no bound: look at the alarms"
        print(
            f"{totals['alarms']} alarms in {done} repetitions of {RANKS} ranks ({bound}), {totals['false']} false "
            f"verdicts in {starts} starts, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return 1 if totals["alarms"] or totals["false"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        measure_on_this_rank(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main())
