"""A rank of test_acceptance.py, with checks that fail: `python ranks_that_fail.py RESULT stuck|alike`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import env, ranks
from runlog.verdict import Verdict, judged
from tools.acceptance import machine as acceptance

job, _ = env.read()
root = ranks.start(job.cluster)
me = root
writer = acceptance.VerdictWriter(Path(sys.argv[1]), "fp32")


def passes() -> Verdict:
    return judged("passes", True, f"sum {me.comm.allreduce(1):g}")


def raises_on_rank_1() -> Verdict:
    found = me.comm.allgather(me.rank)
    if me.rank == 1:
        raise OSError("no kernel\nfor it")
    return judged("raises-on-1", True, f"{found}")


def raises_on_all() -> Any:
    me.comm.isend("unread", dest=1 - me.rank)
    raise RuntimeError("the same")


def lacks() -> Any:
    raise acceptance.NotPossible("no GPU")


def one_waits() -> Verdict:
    if me.rank == 1:
        raise OSError("alone")
    me.comm.Barrier()
    return judged("waits", True, "")


checks = {
    "passes": passes,
    "raises-on-1": raises_on_rank_1,
    "lacks": lacks,
    "raises": raises_on_all,
    "passes again": passes,
}
if sys.argv[2] == "stuck":
    acceptance.LEAVE_S = 1.0
    checks = {"waits": one_waits, "passes again": passes}
for name, check in checks.items():
    me = replace(root, comm=root.comm.Dup())
    try:
        writer.run_check(root, name, check)
    except Exception as error:  # noqa: BLE001 - as harness.__main__ does
        print(f"error: {error}", file=sys.stderr, flush=True)
        root.comm.Abort(1)
