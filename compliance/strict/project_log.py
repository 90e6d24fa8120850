"""A log of this project must hold the sections, events and fields of runlog's schema, all in agreement."""

import functools
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, NamedTuple

from compliance.logged_run import COUNT, LoggedRun, has_type, is_number
from compliance.rules import Benchmark, most_images_per_s, read_rules
from compliance.strict.accuracies import all_whole, place_of_target
from compliance.strict.measured import Fault
from compliance.strict.run_order import RunOrder
from runlog import schema, workloads
from runlog.json_types import JsonObject
from runlog.reader import Event, hints_of
from runlog.text import printable

_ENERGY_TOLERANCE = 0.01
_FEWEST_SAMPLES = 0.5  # of telemetry, of those that are due
_MOST_SAMPLES = 1.5  # of those that there is time for
_MORE_SAMPLES = 10  # and so many more a node
_UNFUSED_CONVOLUTIONS = 0.5  # of the model's, at least, are left as operators where passes fuse some


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of own_log.yaml, which explains them."""

    events_of_a_run: Sequence[str]
    events_of_a_training: Sequence[str]
    settings: Sequence[str]
    recipe_settings: Mapping[str, Sequence[str]]
    repeated: Mapping[str, str]
    repeated_of_optimizer: Mapping[str, str]
    source_forms: Mapping[str, str]


@functools.cache
def _rows() -> _Rows:
    return _Rows(**read_rules("own_log.yaml"))


class _InLog(NamedTuple):
    """A value that the log states, and its line; None where there is none to blame."""

    line: int | None
    value: Any


class _SaidTwice(NamedTuple):
    """A value that the log says in two places: the name of one, and of the other with what it says."""

    name: str
    other_place: str
    other_value: Any


@dataclass(frozen=True, kw_only=True)
class ProjectLog:
    """A log of this project that has ended. `benchmark` is None where no row knows it."""

    run: LoggedRun
    order: RunOrder
    benchmark: Benchmark | None

    def faults(self) -> Iterator[Fault]:
        """Yield what the log lacks, says twice and differently, or cannot be, each with the line to blame.

        What stands in two places, and the program, can be compared only where each section of the header is as the
        schema has it.
        """
        misfits = self._misfits()
        yield from misfits
        yield from self._missing_events()
        summary = self.run.of(schema.RUN_SUMMARY)
        if summary.line and not fits(schema.RunSummary, summary.value):
            yield Fault(summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}")
        elif self.run.summary and not misfits:
            yield from self._contradictions(self.run.summary)
        yield from self._wrong_ending()
        yield from self.order.measured.faults
        yield from self._too_fast()
        yield from self._too_short()
        yield from self._telemetry_samples()
        yield from self._accuracies()
        if not misfits:
            yield from self._missing_convolutions()

    # --- what must be there ---

    def _misfits(self) -> list[Fault]:
        """Return the sections of the header that are missing, or not as the schema has them."""
        misfits = []
        for name, section in schema.SECTIONS.items():
            stated = self.run.headers.get(name)
            if name not in self.run.headers:
                misfits.append(Fault(None, f"no header section {name}"))
            elif not fits(section.value, stated):
                what = f"the header section {name} is not as the schema has it: {printable(stated)}"
                misfits.append(Fault(None, what))
        return misfits

    def _missing_events(self) -> Iterator[Fault]:
        """Yield a fault for each event that the log lacks, or has more often than a run of this project writes it."""
        run = self.run
        for written_once in (schema.RUN_SUMMARY, schema.SEED):
            count = run.number(written_once)
            if count > 1:
                yield Fault(run.of(written_once).line, f"{count} {written_once.key}; a run writes one")
        epochs = run.number(schema.EPOCH_STOP)
        if run.number(schema.EPOCH_THROUGHPUT) != epochs:
            yield Fault(None, f"{run.number(schema.EPOCH_THROUGHPUT)} epoch_throughput of {epochs} epochs")

        needed = list(_rows().events_of_a_run)
        is_training = run.summary is not None and run.summary.mode == "train"
        if run.status == "success" and is_training:
            needed += _rows().events_of_a_training
        optimizer_is_paddles = run.settings.get("STRATEGY") == "auto"  # which logs no opt_name
        optimizer = run.text(schema.OPT_NAME)
        if optimizer in schema.OPTIMIZER and not optimizer_is_paddles:
            needed.append(schema.WARMUP_EPOCHS[optimizer].key)
            needed += [event.key for event in schema.OPTIMIZER[optimizer].values()]
        elif not optimizer_is_paddles:
            yield Fault(run.of(schema.OPT_NAME).line or None, f"opt_name is {printable(optimizer) or 'absent'}")
        for key in needed:
            if not run.counts[key]:
                yield Fault(None, f"no {key}")

    def _wrong_ending(self) -> Iterator[Fault]:
        """Yield an abort_reason or a telemetry_summary that does not belong to the status with which the run ended.

        A run that succeeded has no reason to abort. It sums up its telemetry once, after run_stop, if TELEMETRY_S asked
        for any; other runs do not.
        """
        run = self.run
        succeeded = run.status == "success"
        aborted = run.of(schema.ABORT_REASON)
        if aborted.line and succeeded:
            yield Fault(aborted.line, "an abort_reason, and status success")

        telemetry = run.of(schema.TELEMETRY_SUMMARY)
        count = run.number(schema.TELEMETRY_SUMMARY)
        wanted = 1 if run.settings.get("TELEMETRY_S") and succeeded else 0
        if count != wanted and run.stop:
            what = f"{count} telemetry_summary, {wanted} by TELEMETRY_S and the status"
            yield Fault(telemetry.line or None, what)
        elif count and not fits(schema.TelemetrySummary, telemetry.value):
            shown = printable(telemetry.value)
            yield Fault(telemetry.line, f"telemetry_summary is not as the schema has it: {shown}")
        elif count and run.stop and telemetry.line < run.stop.line:
            yield Fault(telemetry.line, "telemetry_summary before run_stop")
        elif count:
            yield from self._energy(telemetry)

    def _energy(self, telemetry: Event) -> Iterator[Fault]:
        """Yield an energy that is not what the energy of an image, and all images, make."""
        energy_j = telemetry.value["energy_j"] or 0
        joules = (telemetry.value["joules_per_image"] or 0) * self.order.measured.all_images
        if not abs(joules - energy_j) <= _ENERGY_TOLERANCE * joules:
            yield Fault(telemetry.line, f"{energy_j:.6g} J; by joules_per_image it is {joules:.6g} J")

    # --- what cannot be ---

    def _nodes(self) -> list[JsonObject]:
        """Return the nodes of the header's `hardware`; none where it is not as the schema has it."""
        hardware = self.run.section(schema.HARDWARE)
        return hardware["nodes"] if fits(schema.Hardware, hardware) else []

    def _too_fast(self) -> Iterator[Fault]:
        """Yield a window of ResNet that beats the peak of the header's cards, or of its cores where it has none.

        The work of an image grows with its pixels, so the setting RECIPE.image_size must be a number.
        """
        nodes = self._nodes()
        if not nodes or self.run.text(schema.SUBMISSION_BENCHMARK) != "resnet":
            return
        pixels = self.run.settings.get("RECIPE.image_size")
        if type(pixels) is not int or not has_type(pixels, COUNT):
            yield Fault(None, f"RECIPE.image_size is {printable(pixels)}, no number of pixels")
            return
        cores = sum(node["cores"] for node in nodes)
        cards: list[str] = []
        if self.run.section(schema.HARDWARE)["device"] == "gpu":
            for node in nodes:
                cards += [str(gpu["name"]) for gpu in node["gpus"]]
        most = most_images_per_s(cards, cores, pixels)
        fastest = self.order.measured.fastest
        if most is not None and fastest.images_per_s > most:
            devices = f"{len(cards)} cards" if cards else f"{cores} cores"
            bound = f"the peak of its {devices} is below {most:.6g}"
            yield Fault(fastest.line, f"a window of {fastest.images_per_s:.6g} images/s; {bound} at {pixels} px")

    def _accuracies(self) -> Iterator[Fault]:
        """Yield an accuracy of ResNet that is no whole number of the evaluation set's samples."""
        samples = self.run.count(schema.EVAL_SAMPLES)
        if self.benchmark is None or self.benchmark.name != "resnet" or not samples:
            return
        for evaluation in self.run.evaluations:
            if not all_whole([evaluation.value], samples):
                count = evaluation.value * samples
                yield Fault(evaluation.line, f"{evaluation.value!r} is {count:.3f} of {samples} samples")

    def _too_short(self) -> Iterator[Fault]:
        """Yield an end with success before the recipe's last epoch, without the target."""
        run = self.run
        epochs: Any = run.settings.get("RECIPE.epochs")
        if run.stop is None or run.status != "success" or not is_number(epochs) or run.settings.get("MAX_EPOCHS"):
            return
        target = run.recipe_target
        reached = target is None or place_of_target(run.evaluations, target) is not None
        last = self.order.last_epoch
        if (last or 0) < epochs and not reached:
            yield Fault(run.stop.line, f"it ends in epoch {last} of {epochs}, and did not reach its target")

    def _telemetry_samples(self) -> Iterator[Fault]:
        """Yield a number of telemetry samples that the run's time does not bear out.

        Each node takes a sample every TELEMETRY_S seconds. Half of those that are due from run_start to run_stop may be
        lost. From init_start to the summary there is time for more; half as many again are allowed, and ten a node.
        """
        run = self.run
        summary = run.of(schema.TELEMETRY_SUMMARY)
        every_s: Any = run.settings.get("TELEMETRY_S")
        samples: Any = summary.value.get("samples") if isinstance(summary.value, dict) else None
        if not is_number(samples) or not is_number(every_s) or every_s <= 0 or run.start_ms is None:
            return
        nodes = max(len(self._nodes()), 1)
        samples_per_ms = nodes / 1000 / every_s
        stop_ms = run.stop_ms or run.start_ms
        due = (stop_ms - run.start_ms) * samples_per_ms
        began_ms = min(run.first.get(schema.INIT_START.key, summary).time_ms, run.start_ms)
        most = _MOST_SAMPLES * (summary.time_ms - began_ms) * samples_per_ms + _MORE_SAMPLES * nodes
        if not _FEWEST_SAMPLES * due <= samples <= most:
            what = f"{samples} samples of telemetry; {due:.0f} were due by TELEMETRY_S and the run's time"
            yield Fault(summary.line, f"{what}, and there was time for {most:.0f}")

    def _missing_convolutions(self) -> Iterator[Fault]:
        """Yield a program that lacks convolutions of the benchmark's model.

        Those of the backward pass do not count. Passes may fuse half of the others with what follows them.
        """
        wanted = self.benchmark.convolutions if self.benchmark else None
        if wanted is None or self.run.settings.get("STRATEGY") == "auto":
            return
        convolutions = 0
        for kind, count in self.run.section(schema.PROGRAM)["operators"].items():
            is_forward = not kind.endswith("_grad")
            if is_forward and ("conv2d" in kind or kind == "resnet_unit"):
                convolutions += count
        if convolutions < _UNFUSED_CONVOLUTIONS * wanted:
            yield Fault(None, f"a program of {convolutions} convolutions; the model has {wanted}")

    # --- what is said twice ---

    def _contradictions(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield what the log says in two places, and differently: in events, in the header and in its settings.

        Where a setting is missing, only that is yielded, as there is nothing to compare with.
        """
        for name, form in _rows().source_forms.items():
            text = self.run.section(schema.SOURCE)[name]
            if text is not None and not re.fullmatch(form, text):
                yield Fault(None, f"source's {name} is {printable(text)}")
        missing = self._missing_settings()
        if missing:
            yield Fault(None, f"the header section config lacks {', '.join(missing)}")
            return

        yield from self._impossible_sizes(summary)
        for said in self._said_twice(summary):
            in_log = self._value_in_log(said.name)
            if in_log.value != said.other_value:
                other = f"by {said.other_place} it is {printable(said.other_value)}"
                yield Fault(in_log.line, f"{said.name} is {printable(in_log.value)}; {other}")

    def _missing_settings(self) -> list[str]:
        """Return the settings that the header lacks of those that each run, its recipe and its optimizer have."""
        settings = self.run.settings
        needed = set(_rows().settings)
        of_recipe = _rows().recipe_settings.get(str(settings.get("WORKLOAD")))
        if of_recipe is not None:
            needed |= {*of_recipe, *self._hyperparameters().values()}
        return sorted(needed - settings.keys())

    def _value_in_log(self, name: str) -> _InLog:
        """Return a value that the log states, and its line.

        `name` is a setting ("BATCHSIZE"), a field of a section of the header ("dataset.samples"), an event ("seed") or
        a field of an event's value ("run_summary.devices"). Settings and the header have the line of run_summary. Of
        an event that is not there both are None.
        """
        line_of_summary = self.run.of(schema.RUN_SUMMARY).line
        if name in self.run.settings:
            return _InLog(line_of_summary, self.run.settings[name])
        place, _, field = name.partition(".")
        if place in self.run.headers:
            return _InLog(line_of_summary, self.run.headers[place][field])
        event = self.run.first.get(place)
        if event is None:
            return _InLog(None, None)
        if field:
            return _InLog(event.line, event.value[field])
        return _InLog(event.line, event.value)

    def _impossible_sizes(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield numbers of nodes, devices and GPUs that cannot be those of one run."""
        nodes = self._nodes()
        devices = summary.devices
        if min(devices, summary.batch_per_device, len(nodes)) < 1 or len(nodes) > summary.nodes:
            ranks = f"{devices} devices of {summary.batch_per_device} images"
            what = f"{ranks}, {summary.nodes} nodes, {len(nodes)} hosts"
            yield Fault(self.run.of(schema.RUN_SUMMARY).line, what)
        if self.run.settings["DEVICE"] != "gpu":
            return
        for node in nodes:
            gpus = len(node["gpus"])
            if gpus * summary.nodes < devices:
                yield Fault(None, f"{devices} ranks on {summary.nodes} nodes, and {gpus} GPUs in one of them")

    def _said_twice(self, summary: schema.RunSummary) -> list[_SaidTwice]:
        """Return what settings, the header, run_summary and events repeat of each other.

        Rows of own_log.yaml say which setting repeats a value as it is. The others follow by a rule: the global batch
        is the devices times the images of one, for instance.
        """
        settings = self.run.settings
        workload = workloads.find(str(settings["WORKLOAD"]))
        ranks = settings["DGXNGPU"]
        platform = settings["SUBMISSION_PLATFORM"] or settings["DGXSYSTEM"]
        batch = summary.devices * summary.batch_per_device
        repeated = {**_rows().repeated, **self._hyperparameters()}
        rows = [_SaidTwice(name, other, settings[other]) for name, other in repeated.items() if other in settings]
        rows += [
            _SaidTwice("run_summary.model", "WORKLOAD", workload and workload.model),
            _SaidTwice("submission_benchmark", "WORKLOAD", workload and workload.benchmark),
            _SaidTwice("run_summary.devices", "DGXNGPU", ranks * summary.nodes if type(ranks) is int else None),
            _SaidTwice("run_summary.profiled", "PROFILE", settings["PROFILE"] != ""),
            _SaidTwice("run_summary.resumed", "RESUME", settings["RESUME"] == "auto" and summary.resumed),
            _SaidTwice("dataset.synthetic", "DATA", settings["DATA"] == "synthetic"),
            _SaidTwice("submission_platform", "SUBMISSION_PLATFORM", platform),
            _SaidTwice("train_samples", "dataset", self.run.section(schema.DATASET)["train_samples"]),
            _SaidTwice("eval_samples", "dataset", self.run.section(schema.DATASET)["eval_samples"]),
            _SaidTwice("global_batch_size", "run_summary", batch),
        ]
        if settings["DEVICE"] == "cpu":
            rows.append(_SaidTwice("PRECISION", "DEVICE", "fp32"))
        if not summary.resumed and settings["SEED"] != -1:
            rows.append(_SaidTwice("seed", "SEED", settings["SEED"]))
        optimizer = schema.OPTIMIZER.get(self.run.text(schema.OPT_NAME))
        if optimizer is not None and "RECIPE.base_learning_rate" in settings:
            rate = self._base_rate(batch)
            rows.append(_SaidTwice(optimizer["base_learning_rate"].key, "the recipe and the batch", rate))
        return rows

    def _hyperparameters(self) -> dict[str, str]:
        """Return the hyperparameters of the run's optimizer, each with the setting of the recipe that repeats it."""
        kind = self.run.text(schema.OPT_NAME)
        if kind not in schema.OPTIMIZER:
            return {}
        settings = {}
        for name, setting in _rows().repeated_of_optimizer.items():
            settings[schema.OPTIMIZER[kind][name].key] = setting
        settings[schema.WARMUP_EPOCHS[kind].key] = "RECIPE.warmup_epochs"
        return settings

    def _base_rate(self, batch: int) -> float | None:
        """Return the base learning rate of the recipe at this global batch; None where it states no numbers."""
        rate: Any = self.run.settings["RECIPE.base_learning_rate"]
        of_batch: Any = self.run.settings.get("RECIPE.base_batch") or batch  # null: it is not scaled
        if not is_number(rate) or not is_number(of_batch):
            return None
        return float(rate) * (batch / of_batch) if of_batch > 0 else None


def fits(kind: Any, value: Any) -> bool:
    """Return whether `value`, as JSON has it, is of `kind`, a type of runlog/schema.py.

    For `list[int]` each item must be an int, for a dataclass the value is a table with its fields, and an int may stand
    where a float is meant, as long as it has 63 bits at most. A bool is no int.
    """
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, UnionType):
        return any(fits(alternative, value) for alternative in arguments)
    if origin in (list, dict):
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, origin) and all(fits(arguments[-1], item) for item in items)
    if is_dataclass(kind):
        return isinstance(value, dict) and _has_fields(kind, value)
    if type(value) is int:  # JSON's has no bound
        return kind in (int, float) and abs(value) < 2**63
    return type(value) is kind


def _has_fields(kind: Any, value: JsonObject) -> bool:
    """Return whether a table has the fields of the dataclass `kind`; those with a default may be missing."""
    hints = hints_of(kind)
    for field in fields(kind):
        if field.name in value and not fits(hints[field.name], value[field.name]):
            return False
        if field.name not in value and field.default is MISSING:
            return False
    return True
