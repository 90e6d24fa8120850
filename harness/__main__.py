"""One rank of a job: `python -m harness`, started by mpirun on every rank (see launch/trials.sh)."""

from __future__ import annotations

import importlib
import sys
import time
import traceback

from harness import env
from harness.errors import RunError

LOG_CLOSES_S = 1.0  # an error of all ranks is rank 0's to end with: it closes the log first


def main() -> int:
    """Runs the workload; an error ends all ranks, with a line `error: ...` on stderr."""
    try:
        job, origins = env.read()
        env.export(env.runtime(job))
        # Imported now: Paddle takes its settings from the environment when it is loaded.
        importlib.import_module(f"{job.package}.train").main(job, origins)
    except ValueError as error:
        return _abort(error, 2)
    except RunError as error:
        return _abort(error, 1)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: reported whole, then ended
        traceback.print_exc()
        return _abort(error, 1)
    return 0


def _abort(error: Exception, code: int) -> int:
    from mpi4py import MPI

    text = " ".join(str(error).split()) or type(error).__name__
    print(f"error: {text}", file=sys.stderr, flush=True)
    if MPI.COMM_WORLD.Get_rank() > 0:
        time.sleep(LOG_CLOSES_S)
    if MPI.COMM_WORLD.Get_size() > 1:
        MPI.COMM_WORLD.Abort(code)  # the others may wait for this rank in a collective
    return code


if __name__ == "__main__":
    sys.exit(main())
