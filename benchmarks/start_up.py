"""Measures what stands before and after training: the set-up check of a second start, and the check of a small log.

    python benchmarks/start_up.py LOG [--repeats N] [--short]

LOG is the result of a default run. Rates are calls a second; the set-up's limit is 1 s.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ratios

REPOSITORY = Path(__file__).parents[1]


def main() -> None:
    """Times the set-up check, then takes turns between the checkers."""
    parser = ratios.parser(__doc__)
    parser.add_argument("log", type=Path)
    args = parser.parse_args()
    repeats = 1 if args.short else max(args.repeats, 10)

    def call(*command: str) -> float:
        # with the bytecode that a second start finds, as pip has compiled the official checker's
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        start = time.perf_counter()
        subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, check=True)
        return 1.0 / (time.perf_counter() - start)

    command = "launch/setup.sh run && .venv/bin/python -m harness.describe --shell"
    setup = [1.0 / call("bash", "-c", command) for _ in range(repeats)]
    print(
        f"set-up of a second start: {statistics.median(setup):.3f} s ({min(setup):.3f} to {max(setup):.3f}), target 1 s"
    )

    with tempfile.TemporaryDirectory() as folder:
        official = ["-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0"]
        rates = ratios.take_turns(
            {
                "compliance check": lambda: call(sys.executable, "-m", "compliance", "check", str(args.log)),
                "official checker": lambda: call(
                    sys.executable, *official, "--log_output", f"{folder}/out", str(args.log)
                ),
            },
            repeats,
        )
    ratios.report(rates, "compliance check", {"official checker": 1 / 1.5}, "calls/s")


if __name__ == "__main__":
    main()
