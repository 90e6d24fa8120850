"""Measurement protocols: data rows of `protocols.yaml`, or of a user's own file."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_type_hints

import yaml

from runlog.digits import counted
from runlog.json_types import JsonObject
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
RUNS_BEFORE_LOGS = 5  # of a protocol by_benchmark, until the logs say the benchmark; it is the number of ResNet
NEEDED_FIELDS = {"source", "skip", "over_steps", "runs", "over_runs"}
OPTIONAL_FIELDS = {"figure", "take"}
_AMOUNT = re.compile(r"(\d{1,9}) (window|step|epoch)s?")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How runs become one figure; `protocols.yaml` says what each value means."""

    name: str
    source: str
    figure: Literal["throughput", "run_time"] = "throughput"
    skip: int  # warm-up to drop from each run, in `skip_unit`
    skip_unit: Literal["window", "step", "epoch"]
    take_steps: int | None = None  # after the warm-up; None takes all
    over_steps: OverSteps  # how the steps of one run become its figure
    runs: int  # of a protocol by_benchmark a stand-in until the benchmark is known
    over_runs: Literal["mean", "median", "olympic_mean"]  # how the figures of the runs become one
    dropped_runs: int = 1  # at each end of an olympic mean
    by_benchmark: bool = False  # the benchmark, which is not known yet, decides `runs` and `dropped_runs`
    runs_given: bool = False  # `runs` is the user's --runs, so that a benchmark decides only `dropped_runs`

    @property
    def unit(self) -> str:
        """Return the unit of the figure."""
        return "minutes" if self.figure == "run_time" else "images/s"

    @property
    def scores_one_set(self) -> bool:
        """Whether only one set of consecutive runs is scored if there are more than the protocol asks for.

        MLPerf does so. A protocol does not say whether it is one of MLPerf. It counts as such if it measures training
        times and asks for 3 runs or more.
        """
        return self.figure == "run_time" and self.runs >= 3

    def skipping(self, skip: int) -> "Protocol":
        """Return the protocol with another warm-up, as the option --skip asks for.

        Args:
            skip: The number of windows (printed rows) to drop, or of epochs if the protocol skips epochs.
        """
        return dataclasses.replace(self, skip=skip, skip_unit="epoch" if self.skip_unit == "epoch" else "window")

    def asking(self, runs: int) -> "Protocol":
        """Return the protocol with another number of runs, as the option --runs asks for.

        Args:
            runs: How many runs a figure is made of at least.
        """
        return dataclasses.replace(self, runs=runs, runs_given=True)

    def with_numbers_of_benchmark(self, runs: int, dropped_runs: int) -> "Protocol":
        """Return the protocol with the numbers of runs that a benchmark of MLPerf has settled.

        Args:
            runs: How many runs a result takes.
            dropped_runs: How many of them are dropped at each end of the olympic mean.
        """
        return dataclasses.replace(self, runs=runs, dropped_runs=dropped_runs, by_benchmark=False)

    def describe(self, counts: Sequence[int] = ()) -> str:
        """Return the rule in words: how a run is measured, then how the runs are averaged.

        For example "skip 1 windows, mean of rates; mean of 1 run".

        Args:
            counts: The numbers of runs of the systems that are shown. If empty, the protocol's own number is said.
        """
        return f"{self._steps_in_words()}; {self._mean_in_words()} of {self._runs_in_words(counts)}"

    def _mean_in_words(self) -> str:
        """Return how the figures of runs become one: `median`, or `olympic mean without 4 at each end`.

        The number of runs dropped at each end is not said if it is 1, or if an unknown benchmark decides it.
        """
        mean = self.over_runs.replace("_", " ")
        drops_several = self.over_runs == "olympic_mean" and self.dropped_runs > 1
        if drops_several and not self._number_of_runs_is_open():
            return f"{mean} without {self.dropped_runs} at each end"
        return mean

    def _number_of_runs_is_open(self) -> bool:
        """Return whether the number of runs depends on a benchmark that is not known yet."""
        return self.by_benchmark and not self.runs_given

    def _steps_in_words(self) -> str:
        """Return how a single run is measured: `skip 20 steps or a marked warm-up, take 100 steps, mean of rates`."""
        if self.over_steps == "run_time":
            return "run_start to run_stop"
        if self.over_steps == "own_summary":
            return "the figure that the log itself closes with"
        take = f", take {self.take_steps} steps" if self.take_steps else ""
        skipped = f"skip {self.skip} {self.skip_unit}s"
        if self.skip_unit == "step" and self.over_steps != "between_stamps":  # see `selection.select`
            skipped += " or a marked warm-up"
        return f"{skipped}{take}, {self.over_steps.replace('_', ' ')}"

    def _runs_in_words(self, counts: Sequence[int]) -> str:
        """Return in words how many runs a figure takes by the protocol: "1 run", "5 runs" or "5 to 7 runs".

        The protocol asks for at least `runs` runs of each system. For example, if it asks for 5 runs:

            systems with 5 and 7 runs   "5 to 7 runs"
            a system with 7 runs        "7 runs"
            a system with 3 runs        "5 runs", because the text says what the protocol asks for
            no systems                  "5 runs"

        Args:
            counts: The number of runs of each system; may be empty.
        """
        if self._number_of_runs_is_open():  # MLPerf sets the number by the benchmark, which is not known yet
            return "as many runs as MLPerf asks for of the benchmark"
        run_counts = [self.runs]
        if counts:
            run_counts = [max(count, self.runs) for count in counts]  # a number below the protocol's is raised to it
        fewest = min(run_counts)
        most = max(run_counts)
        if fewest < most:
            return f"{fewest} to {most} runs"
        return counted(most, "run")


@functools.cache
def load(path: Path = BUILT_IN) -> dict[str, Protocol]:
    """Return the measurement protocols of a YAML file by their names.

    A protocol is a rule by which runs become one figure: which warm-up to drop, and how to average.

    Args:
        path: The file. The default holds the protocols that come with this project.

    Raises:
        InputError: The file or one of its protocols is invalid. The message says where.
        OSError: The file cannot be read.
    """
    try:
        table = yaml.load(path.read_bytes().decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or an impossible date or number
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(table, dict) or not table:
        raise InputError(f"{path}: want `name: {{source: .., skip: 10 windows, ..}}`, see {BUILT_IN.name}")
    return {str(name): _protocol(path, str(name), entry) for name, entry in table.items()}


def find(name: str) -> Protocol:
    """Return the measurement protocol that the option --protocol names.

    A protocol is a rule by which runs become one figure: which warm-up to drop, and how to average.

    Args:
        name: Name of a built-in protocol such as "window", or of one in a user's file, as in "own.yaml:fast". The part
            after the colon may be left out if the file has only one.

    Raises:
        InputError: There is no protocol of that name, or the file is invalid.
        OSError: The file cannot be read.
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


class Amount(NamedTuple):
    """A number of windows, steps or epochs, such as `10 windows` in a file."""

    number: int
    unit: Literal["window", "step", "epoch"]


def _protocol(path: Path, name: str, entry: object) -> Protocol:
    """Return the measurement protocol that one entry of a YAML file describes, with all its fields checked.

    Args:
        path: The file, for errors.
        name: Name of the protocol, which is the key of the entry.
        entry: The value of the entry, as YAML has it: a table of fields such as {"skip": "10 windows", "runs": 1}.

    Raises:
        InputError: A field is unknown, missing or invalid, or two fields exclude each other.
    """
    where = f"{path}: protocol {name}"
    fields: JsonObject = {"figure": "throughput", "take": None} | _checked_fields(where, entry)  # with the defaults
    skip = _amount(where, "skip", fields["skip"])
    take_steps = _steps_to_take(where, fields["take"])
    _refuse_unknown_words(where, fields)
    by_benchmark = fields["runs"] == BY_BENCHMARK
    # The number that MLPerf sets is not known before a log names its benchmark. Until then, another stands in.
    runs = RUNS_BEFORE_LOGS if by_benchmark else _number_of_runs(where, fields["runs"])

    protocol = Protocol(
        name=name,
        source=fields["source"],
        figure=fields["figure"],
        skip=skip.number,
        skip_unit=skip.unit,
        take_steps=take_steps,
        over_steps=fields["over_steps"],
        runs=runs,
        over_runs=fields["over_runs"],
        by_benchmark=by_benchmark,
    )
    conflict = _first_conflict(protocol)
    if conflict:
        raise InputError(f"{where}: {conflict}")
    return protocol


def _refuse_unknown_words(where: str, fields: JsonObject) -> None:
    """Raise an error if a field of a protocol that allows only some words has another value.

    Args:
        where: File and name of the protocol, with which an error begins.
        fields: The fields of the protocol, as YAML has them.

    Raises:
        InputError: A field has a word that is not allowed. The message lists those that are.
    """
    types = get_type_hints(Protocol)
    for field in ("figure", "over_steps", "over_runs"):
        allowed_values = get_args(types[field])  # the field is a Literal
        if fields[field] not in allowed_values:
            raise InputError(f"{where}: {field} is {fields[field]!r}; want one of {', '.join(allowed_values)}")


def _number_of_runs(where: str, value: object) -> int:
    """Return the number in the field `runs` of a protocol.

    Args:
        where: File and name of the protocol, with which an error begins.
        value: The value of the field, as YAML has it.

    Raises:
        InputError: The value is not a whole number above 0.
    """
    if type(value) is not int or value <= 0:  # `isinstance` would take YAML's `yes`, which is True, for a number
        raise InputError(f"{where}: runs is {value!r}; want a whole number over 0, or {BY_BENCHMARK}")
    return value


def _steps_to_take(where: str, value: object) -> int | None:
    """Return the number in the field `take` of a protocol: "100 steps" -> 100.

    Args:
        where: File and name of the protocol, with which an error begins.
        value: The value of the field; None if it is left out.

    Returns:
        The number of steps; None takes all steps.

    Raises:
        InputError: The value is 0 steps, an amount of anything else, or no amount.
    """
    if value is None:
        return None
    take = _amount(where, "take", value)
    if take.unit != "step" or take.number == 0:
        raise InputError(f"{where}: take counts steps, as in `take: 100 steps`")
    return take.number


def _checked_fields(where: str, entry: object) -> JsonObject:
    """Return the fields of a protocol by their names, after a check that none is unknown or missing.

    Args:
        where: File and name of the protocol, with which an error begins.
        entry: The protocol as YAML has it.

    Returns:
        The fields. Their values are not checked here.

    Raises:
        InputError: The entry is not a table, or a field is unknown or missing.
    """
    if not isinstance(entry, dict):
        raise InputError(f"{where}: want a table of its fields")
    fields = {str(key): value for key, value in entry.items()}
    unknown = sorted(fields.keys() - NEEDED_FIELDS - OPTIONAL_FIELDS)
    if unknown:
        known = ", ".join(sorted(NEEDED_FIELDS | OPTIONAL_FIELDS))
        raise InputError(f"{where}: no field {', '.join(unknown)}; known are {known}")
    missing = sorted(NEEDED_FIELDS - fields.keys())
    if missing:
        raise InputError(f"{where}: the field {', '.join(missing)} is missing")
    return fields


def _first_conflict(protocol: Protocol) -> str:
    """Return a message about the first settings of a measurement protocol that exclude each other; "" if none do.

    Args:
        protocol: The protocol, each of whose settings is valid by itself. `over_runs` says how the figures of several
            runs become one, and `over_steps` how the steps of one run become its figure.
    """
    is_olympic = protocol.over_runs == "olympic_mean"
    is_run_time = protocol.figure == "run_time"  # the figure is a number of minutes, not of images/s
    # `by_benchmark`: MLPerf decides the number of runs. Its results are olympic means of training times.
    if protocol.by_benchmark and not (is_olympic and is_run_time):
        return f"`runs: {BY_BENCHMARK}` goes with `over_runs: olympic_mean` and `figure: run_time`"
    # An olympic mean leaves out the best run and the worst run.
    if is_olympic and protocol.runs <= 2:
        return "an olympic mean drops two runs; runs must be 3 or more"
    # `over_steps: run_time` measures from the start to the stop of a run. Nothing else gives minutes.
    measures_whole_runs = protocol.over_steps == "run_time"
    only_one_is_of_whole_runs = is_run_time != measures_whole_runs
    if only_one_is_of_whole_runs:
        return "`figure: run_time` goes with `over_steps: run_time`, and only with it"
    # A whole run, or the figure that the log itself closes with, has no steps to leave out.
    has_no_steps = protocol.over_steps in ("run_time", "own_summary")
    skips_or_takes = protocol.skip != 0 or protocol.take_steps is not None
    if has_no_steps and skips_or_takes:
        return f"`over_steps: {protocol.over_steps}` leaves no steps out; want `skip: 0 windows` and no take"
    # The images between two time stamps are counted by the steps between them.
    if protocol.over_steps == "between_stamps" and protocol.skip_unit != "step":
        return "between_stamps counts from a step; want `skip: N steps`"
    # Only the mean of the rates that the log prints after each epoch leaves out epochs as warm-up.
    averages_epochs = protocol.over_steps == "epoch_rates"
    skips_epochs = protocol.skip_unit == "epoch"
    only_one_is_of_epochs = averages_epochs != skips_epochs
    if only_one_is_of_epochs:
        return "`skip: N epochs` goes with `over_steps: epoch_rates`, and only with it"
    if averages_epochs and protocol.take_steps is not None:
        return "`over_steps: epoch_rates` takes whole epochs; leave `take` out"
    return ""


def _amount(where: str, field: str, value: object) -> Amount:
    """Return the amount in a field of a protocol: "10 windows" -> Amount(10, "window").

    Args:
        where: File and name of the protocol, with which an error begins.
        field: Name of the field, for the error.
        value: The value of the field, as YAML has it.

    Raises:
        InputError: The value is not an amount of windows, steps or epochs.
    """
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(f"{where}: {field} is {value!r}; want an amount such as `10 windows` or `20 steps`")
    return Amount(int(match[1]), match[2])  # type: ignore[arg-type]
