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
from compliance.strict.accuracies import are_shares_of_samples, index_of_target
from compliance.strict.measured import Fault
from compliance.strict.run_order import RunOrder
from runlog import schema, workloads
from runlog.digits import six_digits
from runlog.json_types import JsonObject
from runlog.reader import Event, hints_of
from runlog.text import printable

_ENERGY_TOLERANCE = 0.01
_FEWEST_SAMPLES = 0.5  # of telemetry, of those that are due
_MOST_SAMPLES = 1.5  # of those that there is time for
_MORE_SAMPLES = 10  # and so many more a node
_UNFUSED_CONVOLUTIONS = 0.5  # of the model's, at least, are left as operators where passes fuse some


@dataclass(frozen=True, kw_only=True)
class _OwnLogRules:
    """The rows of compliance/rules/own_log.yaml, which explains them: what a log of this project must hold."""

    events_of_a_run: Sequence[str]
    events_of_a_training: Sequence[str]
    settings: Sequence[str]
    recipe_settings: Mapping[str, Sequence[str]]
    repeated: Mapping[str, str]
    repeated_of_optimizer: Mapping[str, str]
    source_forms: Mapping[str, str]


@functools.cache
def _own_log_rules() -> _OwnLogRules:
    return _OwnLogRules(**read_rules("own_log.yaml"))


class _InLog(NamedTuple):
    """A value that the log states, and its line; None where there is none to blame."""

    line: int | None
    value: Any


class _Repetition(NamedTuple):
    """A value that the log states a second time: the name of the first place, and the second one with its value."""

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
        """Yield what shows that this is not the whole log of a run of this project, each with the line to blame.

        The log may lack something, state something twice and differently, or state what cannot be. Values in two
        places, and the program's operators, are compared only where each section of the header is as the schema has it.
        """
        misfits = self._sections_unlike_schema()
        yield from misfits
        yield from self._wrong_numbers_of_events()
        summary = self.run.first_event(schema.RUN_SUMMARY)
        if summary.line and not fits(schema.RunSummary, summary.value):
            yield Fault(summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}")
        elif self.run.summary and not misfits:
            yield from self._contradictions(self.run.summary)
        yield from self._wrong_ending()
        yield from self.order.measured.faults
        yield from self._window_beyond_peak()
        yield from self._early_end()
        yield from self._wrong_number_of_telemetry_samples()
        yield from self._impossible_accuracies()
        if not misfits:
            yield from self._missing_convolutions()

    # --- what must be there ---

    def _sections_unlike_schema(self) -> list[Fault]:
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

    def _wrong_numbers_of_events(self) -> Iterator[Fault]:
        """Yield a fault for each kind of event that the log lacks, or has more often than a run of this project.

        Which events it needs depends on whether it is a training that succeeded, and on the optimizer: without the
        events of its hyperparameters, or with an optimizer that is not known, it is no log of this project. With
        STRATEGY=auto Paddle chooses the optimizer, and the run logs none of these.
        """
        run = self.run
        for written_once in (schema.RUN_SUMMARY, schema.SEED):
            count = run.number_of_events(written_once)
            if count > 1:
                yield Fault(run.first_event(written_once).line, f"{count} {written_once.key}; a run writes one")
        epochs = run.number_of_events(schema.EPOCH_STOP)
        throughputs = run.number_of_events(schema.EPOCH_THROUGHPUT)
        if throughputs != epochs:
            yield Fault(None, f"{throughputs} epoch_throughput of {epochs} epochs")

        needed_keys = list(_own_log_rules().events_of_a_run)
        is_training = run.summary is not None and run.summary.mode == "train"
        if run.status == "success" and is_training:
            needed_keys += _own_log_rules().events_of_a_training
        logs_optimizer = run.settings.get("STRATEGY") != "auto"
        optimizer = run.stated_text(schema.OPT_NAME)
        if logs_optimizer and optimizer in schema.OPTIMIZER:
            needed_keys.append(schema.WARMUP_EPOCHS[optimizer].key)
            needed_keys += [event.key for event in schema.OPTIMIZER[optimizer].values()]
        elif logs_optimizer:
            line = run.first_event(schema.OPT_NAME).line or None
            yield Fault(line, f"opt_name is {printable(optimizer) or 'absent'}")
        for key in needed_keys:
            if not run.event_counts[key]:
                yield Fault(None, f"no {key}")

    def _wrong_ending(self) -> Iterator[Fault]:
        """Yield what is wrong with the events abort_reason and telemetry_summary at the end of the log.

        A run that succeeded has no reason to abort. It sums up its telemetry once, after run_stop, if the setting
        TELEMETRY_S asked for any; other runs do not. The summary must be as the schema has it, and its energy must
        agree with that of an image. Of the summary the first fault alone is yielded.
        """
        run = self.run
        succeeded = run.status == "success"
        abort_reason = run.first_event(schema.ABORT_REASON)
        if abort_reason.line and succeeded:
            yield Fault(abort_reason.line, "an abort_reason, and status success")

        telemetry = run.first_event(schema.TELEMETRY_SUMMARY)
        count = run.number_of_events(schema.TELEMETRY_SUMMARY)
        wanted_count = 1 if run.settings.get("TELEMETRY_S") and succeeded else 0
        if count != wanted_count and run.stop:
            what = f"{count} telemetry_summary, {wanted_count} by TELEMETRY_S and the status"
            yield Fault(telemetry.line or None, what)
        elif count and not fits(schema.TelemetrySummary, telemetry.value):
            shown = printable(telemetry.value)
            yield Fault(telemetry.line, f"telemetry_summary is not as the schema has it: {shown}")
        elif count and run.stop and telemetry.line < run.stop.line:
            yield Fault(telemetry.line, "telemetry_summary before run_stop")
        elif count:
            yield from self._contradictory_energy(telemetry)

    def _contradictory_energy(self, telemetry: Event) -> Iterator[Fault]:
        """Yield an energy that is not the energy of an image times the number of images, within 1 %."""
        energy_j = telemetry.value["energy_j"] or 0
        joules = (telemetry.value["joules_per_image"] or 0) * self.order.measured.all_images
        if not abs(joules - energy_j) <= _ENERGY_TOLERANCE * joules:
            yield Fault(telemetry.line, f"{six_digits(energy_j)} J; by joules_per_image it is {six_digits(joules)} J")

    # --- what cannot be ---

    def _described_nodes(self) -> list[JsonObject]:
        """Return the nodes of the header's `hardware`; none where it is not as the schema has it."""
        hardware = self.run.header_section(schema.HARDWARE)
        return hardware["nodes"] if fits(schema.Hardware, hardware) else []

    def _window_beyond_peak(self) -> Iterator[Fault]:
        """Yield the fastest window of a ResNet run if its images/s exceed what the machines can do at their peak.

        This is the peak of the GPUs that the header describes, or of the CPU cores in a run without GPUs. It depends on
        the height of an image, so a setting RECIPE.image_size that is no number is a fault itself. Nothing is yielded
        for a header that describes no nodes, or GPUs whose peak is not known.
        """
        nodes = self._described_nodes()
        if not nodes or self.run.stated_text(schema.SUBMISSION_BENCHMARK) != "resnet":
            return
        pixels = self.run.settings.get("RECIPE.image_size")
        if type(pixels) is not int or not has_type(pixels, COUNT):
            yield Fault(None, f"RECIPE.image_size is {printable(pixels)}, no number of pixels")
            return
        cores = sum(node["cores"] for node in nodes)
        cards: list[str] = []
        if self.run.header_section(schema.HARDWARE)["device"] == "gpu":
            for node in nodes:
                cards += [str(gpu["name"]) for gpu in node["gpus"]]
        most = most_images_per_s(cards, cores, pixels)
        fastest = self.order.measured.fastest
        if most is not None and fastest.images_per_s > most:
            devices = f"{len(cards)} cards" if cards else f"{cores} cores"
            bound = f"the peak of its {devices} is below {six_digits(most)}"
            yield Fault(fastest.line, f"a window of {fastest.images_per_s:.6g} images/s; {bound} at {pixels} px")

    def _impossible_accuracies(self) -> Iterator[Fault]:
        """Yield an accuracy of ResNet that is no whole number of the evaluation set's samples."""
        samples = self.run.stated_count(schema.EVAL_SAMPLES)
        if self.benchmark is None or self.benchmark.name != "resnet" or not samples:
            return
        for evaluation in self.run.evaluations:
            if not are_shares_of_samples([evaluation.value], samples):
                count = evaluation.value * samples
                yield Fault(evaluation.line, f"{evaluation.value!r} is {count:.3f} of {samples} samples")

    def _early_end(self) -> Iterator[Fault]:
        """Yield that a run ended with success before its recipe's last epoch, and did not reach the target.

        Nothing is yielded where the setting MAX_EPOCHS ended the run, or the log states no epochs or no target.
        """
        run = self.run
        epochs: Any = run.settings.get("RECIPE.epochs")
        target = run.recipe_target
        if run.stop is None or run.status != "success" or run.settings.get("MAX_EPOCHS"):
            return
        if not is_number(epochs) or target is None:
            return
        last_epoch = self.order.last_epoch
        is_target_reached = index_of_target(run.evaluations, target) is not None
        if (last_epoch or 0) < epochs and not is_target_reached:
            yield Fault(run.stop.line, f"it ends in epoch {last_epoch} of {epochs}, and did not reach its target")

    def _wrong_number_of_telemetry_samples(self) -> Iterator[Fault]:
        """Yield a number of telemetry samples that is too small or too large for the time of the run.

        Each node takes a sample every TELEMETRY_S seconds. It may be no less than half of the samples that are due from
        run_start to run_stop. It may be no more than one and a half times those that are due from init_start to the
        summary, and ten more for each node. Nothing is yielded where the log does not state these numbers.
        """
        run = self.run
        summary = run.first_event(schema.TELEMETRY_SUMMARY)
        interval_s: Any = run.settings.get("TELEMETRY_S")
        samples: Any = summary.value.get("samples") if isinstance(summary.value, dict) else None
        if not is_number(samples) or not is_number(interval_s) or interval_s <= 0 or run.start_ms is None:
            return
        nodes = max(len(self._described_nodes()), 1)
        samples_per_ms = nodes / 1000 / interval_s
        stop_ms = run.stop_ms or run.start_ms
        due = (stop_ms - run.start_ms) * samples_per_ms
        init_start = run.first_events.get(schema.INIT_START.key, summary)
        began_ms = min(init_start.time_ms, run.start_ms)  # without init_start, run_start: the summary is later
        due_in_all = (summary.time_ms - began_ms) * samples_per_ms
        most = _MOST_SAMPLES * due_in_all + _MORE_SAMPLES * nodes
        if not _FEWEST_SAMPLES * due <= samples <= most:
            what = f"{samples} samples of telemetry; {due:.0f} were due by TELEMETRY_S and the run's time"
            yield Fault(summary.line, f"{what}, and there was time for {most:.0f}")

    def _missing_convolutions(self) -> Iterator[Fault]:
        """Yield that the program has fewer convolutions than the benchmark's model needs.

        The header's section `program` counts its operators by their kind. Convolutions of the backward pass
        (`..._grad`) do not count. Half of the model's must be left as operators, as passes may fuse the others with
        what follows them; a `resnet_unit` is such an operator and counts. Nothing is yielded for a benchmark without a
        known number, and for STRATEGY=auto, with which Paddle makes the program.
        """
        wanted = self.benchmark.convolutions if self.benchmark else None
        if wanted is None or self.run.settings.get("STRATEGY") == "auto":
            return
        convolutions = 0
        for kind, count in self.run.header_section(schema.PROGRAM)["operators"].items():
            is_forward = not kind.endswith("_grad")
            if is_forward and ("conv2d" in kind or kind == "resnet_unit"):
                convolutions += count
        if convolutions < _UNFUSED_CONVOLUTIONS * wanted:
            yield Fault(None, f"a program of {convolutions} convolutions; the model has {wanted}")

    # --- what is said twice ---

    def _contradictions(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield what the log states in two places, and differently: in events, in the header and in its settings.

        Before these come hashes in the header's `source` that are none, such as a commit that is no hexadecimal number,
        and numbers of nodes and devices that cannot be. Where a setting is missing, this is yielded in place of what
        would be compared with the settings.
        """
        for name, form in _own_log_rules().source_forms.items():
            text = self.run.header_section(schema.SOURCE)[name]
            if text is not None and not re.fullmatch(form, text):
                yield Fault(None, f"source's {name} is {printable(text)}")
        missing = self._missing_settings()
        if missing:
            yield Fault(None, f"the header section config lacks {', '.join(missing)}")
            return

        yield from self._impossible_sizes(summary)
        for repetition in self._repetitions(summary):
            in_log = self._value_in_log(repetition.name)
            if in_log.value != repetition.other_value:
                other = f"by {repetition.other_place} it is {printable(repetition.other_value)}"
                yield Fault(in_log.line, f"{repetition.name} is {printable(in_log.value)}; {other}")

    def _missing_settings(self) -> list[str]:
        """Return the settings that the header lacks of those that each run, its recipe and its optimizer have."""
        settings = self.run.settings
        needed = set(_own_log_rules().settings)
        of_recipe = _own_log_rules().recipe_settings.get(str(settings.get("WORKLOAD")))
        if of_recipe is not None:
            needed |= {*of_recipe, *self._hyperparameters().values()}
        return sorted(needed - settings.keys())

    def _value_in_log(self, name: str) -> _InLog:
        """Return a value that the log states, and its line. `name` is that of one of

            a setting                           BATCHSIZE
            a field of a section of the header  dataset.train_samples
            an event                            seed
            a field of an event's value         run_summary.devices

        Settings and the header have no line of their own; they get that of run_summary. Of an event that is not there
        both value and line are None. Header and run_summary are as the schema has them: `faults` has looked at that.
        """
        line_of_summary = self.run.first_event(schema.RUN_SUMMARY).line
        if name in self.run.settings:
            return _InLog(line_of_summary, self.run.settings[name])
        section_or_key, _, field = name.partition(".")
        if section_or_key in self.run.headers:
            return _InLog(line_of_summary, self.run.headers[section_or_key][field])
        event = self.run.first_events.get(section_or_key)
        if event is None:
            return _InLog(None, None)
        if field:
            return _InLog(event.line, event.value[field])
        return _InLog(event.line, event.value)

    def _impossible_sizes(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield numbers of nodes, devices and GPUs that cannot be those of one run.

        There must be one device, image and node at least. The header may describe fewer nodes than the run has, but not
        more. In a run on GPUs each node that it describes must have enough GPUs for its share of the devices.
        """
        nodes = self._described_nodes()
        devices = summary.devices
        if min(devices, summary.batch_per_device, len(nodes)) < 1 or len(nodes) > summary.nodes:
            ranks = f"{devices} devices of {summary.batch_per_device} images"
            what = f"{ranks}, {summary.nodes} nodes, {len(nodes)} hosts"
            yield Fault(self.run.first_event(schema.RUN_SUMMARY).line, what)
        if self.run.settings["DEVICE"] != "gpu":
            return
        for node in nodes:
            gpus = len(node["gpus"])
            if gpus * summary.nodes < devices:
                yield Fault(None, f"{devices} ranks on {summary.nodes} nodes, and {gpus} GPUs in one of them")

    def _repetitions(self, summary: schema.RunSummary) -> list[_Repetition]:
        """Return the values that the log states in two places: among its settings, its header and its events.

        own_log.yaml lists settings that must be equal to another value. Other values follow from each other by a rule:
        the global batch is the number of devices times the images of one, for instance. Where a rule gives no value,
        because its setting is invalid, the second value is None. The caller has seen to it that no setting is missing
        which each run has.
        """
        settings = self.run.settings
        dataset = self.run.header_section(schema.DATASET)
        workload = workloads.find(str(settings["WORKLOAD"]))
        ranks_of_node = settings["DGXNGPU"]
        devices = ranks_of_node * summary.nodes if type(ranks_of_node) is int else None
        platform = settings["SUBMISSION_PLATFORM"] or settings["DGXSYSTEM"]
        batch = summary.devices * summary.batch_per_device
        repetitions = []
        for name, setting in {**_own_log_rules().repeated, **self._hyperparameters()}.items():
            if setting in settings:
                repetitions.append(_Repetition(name, setting, settings[setting]))
        repetitions += [
            _Repetition("run_summary.model", "WORKLOAD", workload and workload.model),
            _Repetition("submission_benchmark", "WORKLOAD", workload and workload.benchmark),
            _Repetition("run_summary.devices", "DGXNGPU", devices),
            _Repetition("run_summary.profiled", "PROFILE", settings["PROFILE"] != ""),
            # RESUME=auto allows a run to be resumed, and does not demand it.
            _Repetition("run_summary.resumed", "RESUME", settings["RESUME"] == "auto" and summary.resumed),
            _Repetition("dataset.synthetic", "DATA", settings["DATA"] == "synthetic"),
            _Repetition("submission_platform", "SUBMISSION_PLATFORM", platform),
            _Repetition("train_samples", "dataset", dataset["train_samples"]),
            _Repetition("eval_samples", "dataset", dataset["eval_samples"]),
            _Repetition("global_batch_size", "run_summary", batch),
        ]
        if settings["DEVICE"] == "cpu":
            repetitions.append(_Repetition("PRECISION", "DEVICE", "fp32"))
        if not summary.resumed and settings["SEED"] != -1:  # a resumed run keeps its seed; -1 asks for any
            repetitions.append(_Repetition("seed", "SEED", settings["SEED"]))
        optimizer = schema.OPTIMIZER.get(self.run.stated_text(schema.OPT_NAME))
        if optimizer is not None and "RECIPE.base_learning_rate" in settings:
            rate = self._base_rate(batch)
            repetitions.append(_Repetition(optimizer["base_learning_rate"].key, "the recipe and the batch", rate))
        return repetitions

    def _hyperparameters(self) -> dict[str, str]:
        """Return the hyperparameters of the run's optimizer, each with the setting of the recipe that repeats it."""
        kind = self.run.stated_text(schema.OPT_NAME)
        if kind not in schema.OPTIMIZER:
            return {}
        settings = {}
        for name, setting in _own_log_rules().repeated_of_optimizer.items():
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
    """Return whether a value that was read from JSON is of the type `kind`.

    `kind` is a type of runlog/schema.py: Any, a union, a list, a dict, a dataclass or a simple type. For `list[int]`
    each item must be an int, and for `dict[str, int]` each value. For a dataclass the value must be a table with its
    fields. An int may stand for a float; in either place it must have 63 bits at most. A bool is no int.
    """
    outer_type = typing.get_origin(kind)  # list, of list[int]
    inner_types = typing.get_args(kind)
    if kind is Any:
        return True
    if outer_type in (typing.Union, UnionType):
        return any(fits(alternative, value) for alternative in inner_types)
    if outer_type in (list, dict):
        if not isinstance(value, outer_type):
            return False
        items = value.values() if isinstance(value, dict) else value
        return all(fits(inner_types[-1], item) for item in items)  # the last type: that of a dict's values
    if is_dataclass(kind):
        return isinstance(value, dict) and _has_fields(kind, value)
    if type(value) is int:  # JSON's integers have no bound
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
