"""Measurement protocols: data rows of `protocols.yaml`, or of a user's own file."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import yaml

from scoring.record import InputError

BUILT_IN = Path(__file__).with_name("protocols.yaml")
OverSteps = Literal[
    "mean_of_printed_rates",
    "mean_of_rates",
    "mean_step_time",
    "images_over_time",
    "between_stamps",
    "epoch_rates",
    "own_summary",
    "run_time",
]
BY_BENCHMARK = "by_benchmark"  # in the place of a number of runs
RUNS_OF_RESNET = 5  # stands in a protocol until a log has said which benchmark it is
_AMOUNT = re.compile(r"(\d{1,9}) (window|step|epoch)s?")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How runs become one figure; `protocols.yaml` says what each value means."""

    name: str
    source: str
    figure: Literal["throughput", "run_time"] = "throughput"
    skip: int
    skip_unit: Literal["window", "step", "epoch"]
    take_steps: int | None = None
    over_steps: OverSteps
    runs: int  # of a protocol by_benchmark a stand-in until the benchmark is known
    over_runs: Literal["mean", "median", "olympic_mean"]
    dropped_runs: int = 1  # at each end of an olympic mean
    by_benchmark: bool = False  # whether the benchmark decides how many runs there are, and how many are dropped
    runs_given: bool = False  # whether `runs` was asked for: of a benchmark, it decides only how many are dropped then

    @property
    def unit(self) -> str:
        return "minutes" if self.figure == "run_time" else "images/s"

    def skipping(self, skip: int) -> "Protocol":
        """Return the protocol with another number of windows (or epochs) dropped, as `--skip` asks for."""
        return dataclasses.replace(self, skip=skip, skip_unit="epoch" if self.skip_unit == "epoch" else "window")

    def asking(self, runs: int) -> "Protocol":
        """Return the protocol with another number of runs, as `--runs` asks for."""
        return dataclasses.replace(self, runs=runs, runs_given=True)

    def describe(self, counts: Sequence[int] = ()) -> str:
        """Return the rule in words; `counts` are the runs of each system, which may be more than it asks for."""
        if self.over_steps == "run_time":
            steps = "run_start to run_stop"
        elif self.over_steps == "own_summary":
            steps = "the figure that the log itself closes with"
        else:
            take = f", take {self.take_steps} steps" if self.take_steps else ""
            steps = f"skip {self.skip} {self.skip_unit}s{take}, {self.over_steps.replace('_', ' ')}"
        mean = self.over_runs.replace("_", " ")
        if self.by_benchmark and not self.runs_given:
            return f"{steps}; {mean} of as many runs as MLPerf asks for of the benchmark"
        if self.over_runs == "olympic_mean" and self.dropped_runs > 1:
            mean += f" without {self.dropped_runs} at each end"
        fewest = max(self.runs, min(counts, default=self.runs))
        most = max([self.runs, *counts])
        runs = f"{fewest} to {most} runs"
        if fewest == most:
            runs = "1 run" if most == 1 else f"{most} runs"
        return f"{steps}; {mean} of {runs}"


@functools.cache
def load(path: Path = BUILT_IN) -> dict[str, Protocol]:
    """Return the protocols of a YAML file by their names. Raises InputError for what is no protocol, saying where."""
    try:
        rows = yaml.load(path.read_bytes().decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, a date or a number that cannot be
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(rows, dict) or not rows:
        raise InputError(f"{path}: want `name: {{source: .., skip: 10 windows, ..}}`, see {BUILT_IN.name}")
    return {str(name): _protocol(path, str(name), row) for name, row in rows.items()}


def find(name: str) -> Protocol:
    """Return the protocol that `--protocol` names: a built-in one, or one of a user's YAML file.

    `window` is a built-in one, `own.yaml:fast` the protocol `fast` of own.yaml. `own.yaml` alone is enough where the
    file holds a single one. Raises InputError where there is no such protocol, with the names of those there are.
    """
    file, _, name_in_file = name.partition(":")
    if not file.endswith((".yaml", ".yml")):
        built_in = load()
        if name not in built_in:
            raise InputError(f"no protocol {name!r}; known are {', '.join(built_in)}, or give a YAML file")
        return built_in[name]

    protocols = load(Path(file))
    if not name_in_file and len(protocols) == 1:
        [only_one] = protocols.values()
        return only_one
    if name_in_file not in protocols:
        raise InputError(f"{file}: holds the protocols {', '.join(protocols)}; choose with {file}:NAME")
    return protocols[name_in_file]


def _protocol(path: Path, name: str, row: Any) -> Protocol:
    where = f"{path}: protocol {name}"

    def want(good: bool, says: str) -> None:
        if not good:
            raise InputError(f"{where}: {says}")

    want(isinstance(row, dict), "want a table of its fields")
    values = {str(key): value for key, value in row.items()}
    fields = {"source", "figure", "skip", "take", "over_steps", "runs", "over_runs"}
    unknown, missing = sorted(values.keys() - fields), sorted(fields - {"take", "figure"} - values.keys())
    want(not unknown, f"no field {', '.join(unknown)}; known are {', '.join(sorted(fields))}")
    want(not missing, f"the field {', '.join(missing)} is missing")
    by_benchmark = values["runs"] == BY_BENCHMARK
    if by_benchmark:
        values["runs"] = RUNS_OF_RESNET
    runs, steps = values["runs"], values["over_steps"]
    skip, unit = _amount(where, "skip", values.pop("skip"))
    take = values.pop("take", None)
    take_steps, take_unit = (None, "step") if take is None else _amount(where, "take", take)
    want(take_unit == "step" and take_steps != 0, "take counts steps, as in `take: 100 steps`")
    hints = get_type_hints(Protocol)
    for field in ("figure", "over_steps", "over_runs"):
        allowed, value = get_args(hints[field]), values.get(field, "throughput")
        want(value in allowed, f"{field} is {value!r}; want one of {', '.join(allowed)}")
    want(type(runs) is int and runs > 0, f"runs is {runs!r}; want a whole number over 0, or {BY_BENCHMARK}")
    by_rules = not by_benchmark or (values["over_runs"], values.get("figure")) == ("olympic_mean", "run_time")
    want(by_rules, f"`runs: {BY_BENCHMARK}` goes with `over_runs: olympic_mean` and `figure: run_time`")
    olympic, run_time = values["over_runs"] == "olympic_mean", values.get("figure") == "run_time"
    want(not olympic or runs > 2, "an olympic mean drops two runs; runs must be 3 or more")
    want((steps == "run_time") == run_time, "`figure: run_time` goes with `over_steps: run_time`, and only with it")
    whole = steps != "own_summary" or (skip, take) == (0, None)
    want(whole, "own_summary reads one line; want `skip: 0 windows` and no take")
    want(steps != "between_stamps" or unit == "step", "between_stamps counts from a step; want `skip: N steps`")
    of_epochs = (steps == "epoch_rates") == (unit == "epoch")
    want(of_epochs, "`skip: N epochs` goes with `over_steps: epoch_rates`, and only with it")
    return Protocol(
        name=name,
        skip=skip,
        skip_unit=unit,  # type: ignore[arg-type]
        take_steps=take_steps,
        by_benchmark=by_benchmark,
        **values,
    )


def _amount(where: str, field: str, value: Any) -> tuple[int, str]:
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(f"{where}: {field} is {value!r}; want an amount such as `10 windows` or `20 steps`")
    return int(match[1]), match[2]
