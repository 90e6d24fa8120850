"""A log of this project must hold the sections, events and fields of runlog's schema, all in agreement."""

import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, NamedTuple

from compliance.logged_run import COUNT, LoggedRun, has_type, is_number
from compliance.rules import Benchmark, most_images_per_s
from compliance.strict.accuracies import all_whole
from compliance.strict.measured import Fault
from compliance.strict.run_order import RunOrder
from runlog import schema, workloads
from runlog.reader import hints_of
from runlog.text import printable

_OF_A_RUN = (
    *(schema.SEED, schema.GLOBAL_BATCH_SIZE, schema.GRADIENT_ACCUMULATION_STEPS, schema.MODEL_BN_SPAN),
    schema.RUN_SUMMARY,
)
_OF_TRAINING = (
    *(schema.BLOCK_START, schema.BLOCK_STOP, schema.EPOCH_START, schema.EPOCH_STOP, schema.EVAL_START),
    *(schema.EVAL_STOP, schema.EVAL_ACCURACY),
)
# What the log says in two places: by its first name, which is `section.field` or an event, and as a setting.
_REPEATED = {
    **{"run_summary.mode": "MODE", "run_summary.data": "DATA", "run_summary.nodes": "DGXNNODES"},
    **{"run_summary.precision": "PRECISION", "run_summary.math_mode": "PRECISION"},
    **{"run_summary.batch_per_device": "BATCHSIZE", "hardware.math_mode": "PRECISION", "hardware.device": "DEVICE"},
    **{"submission_org": "SUBMISSION_ORG", "submission_division": "SUBMISSION_DIVISION"},
    **{"submission_status": "SUBMISSION_STATUS", "opt_name": "RECIPE.optimizer.kind"},
}
_REPEATED_OF_OPTIMIZER = {  # the hyperparameters, by the setting
    **{"end_learning_rate": "RECIPE.end_learning_rate", "momentum": "RECIPE.optimizer.momentum"},
    **{"weight_decay": "RECIPE.optimizer.weight_decay"},
}
_SETTINGS = {
    *("WORKLOAD", "MODE", "DATA", "PRECISION", "DEVICE", "BATCHSIZE", "DGXNNODES", "DGXNGPU", "DGXSYSTEM", "SEED"),
    *("STRATEGY", "PROFILE", "RESUME", "TELEMETRY_S", "PRINT_STEPS", "WARMUP_STEPS", "MEASURED_STEPS"),
    *("SUBMISSION_ORG", "SUBMISSION_DIVISION", "SUBMISSION_STATUS", "SUBMISSION_PLATFORM", "RECIPE.epochs"),
}
_OF_RECIPE = {  # settings beyond the optimizer's that the recipes of a workload have
    "rn50": ("RECIPE.base_learning_rate", "RECIPE.image_size", "RECIPE.target_top1"),
    "hrnet": ("RECIPE.base_learning_rate",),
}
_SOURCE = {"commit": "[0-9a-f]{40}", "lock_sha256": "[0-9a-f]{64}", "image_digest": "sha256:[0-9a-f]{64}"}
_ENERGY_TOLERANCE = 0.01
_FEWEST_SAMPLES, _MOST_SAMPLES, _MORE_SAMPLES = 0.5, 1.5, 10  # of telemetry: shares of those due, and some a node more
_UNFUSED_CONVOLUTIONS = 0.5  # of the model's, at least, are left as operators where passes fuse some


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
        """Yield what the log lacks, says twice and differently, or cannot be."""
        misfits = self._misfits()
        yield from misfits
        yield from self._events()
        summary = self.run.of(schema.RUN_SUMMARY)
        if summary.line and not fits(schema.RunSummary, summary.value):
            yield Fault(summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}")
        elif self.run.summary and not misfits:
            yield from self._contradictions(self.run.summary)
        yield from self._ending()
        yield from self.order.measured.faults
        yield from self._too_fast()
        yield from self._too_short()
        yield from self._telemetry()
        yield from self._accuracies()
        if not misfits:
            yield from self._program()

    # --- what must be there ---

    def _misfits(self) -> list[Fault]:
        """Sections of the header that are missing or not as the schema has them."""
        found = []
        for name, section in schema.SECTIONS.items():
            stated = self.run.headers.get(name)
            if name not in self.run.headers:
                found.append(Fault(None, f"no header section {name}"))
            elif not fits(section.value, stated):
                what = f"the header section {name} is not as the schema has it: {printable(stated)}"
                found.append(Fault(None, what))
        return found

    def _events(self) -> Iterator[Fault]:
        """Yield events that are missing, or there more often than a run writes them."""
        run = self.run
        for once in (schema.RUN_SUMMARY, schema.SEED):
            count = run.number(once)
            if count > 1:
                yield Fault(run.of(once).line, f"{count} {once.key}; a run writes one")
        epochs = run.number(schema.EPOCH_STOP)
        if run.number(schema.EPOCH_THROUGHPUT) != epochs:
            yield Fault(None, f"{run.number(schema.EPOCH_THROUGHPUT)} epoch_throughput of {epochs} epochs")
        due: list[schema.Point[Any] | schema.Mark] = list(_OF_A_RUN)
        if run.status == "success" and run.summary is not None and run.summary.mode == "train":
            due += _OF_TRAINING
        if run.settings.get("STRATEGY") != "auto":  # else the optimizer is Paddle's choice
            kind = run.text(schema.OPT_NAME)
            if kind in schema.OPTIMIZER:
                due += [schema.WARMUP_EPOCHS[kind], *schema.OPTIMIZER[kind].values()]
            else:
                yield Fault(run.of(schema.OPT_NAME).line or None, f"opt_name is {printable(kind) or 'absent'}")
        for event in due:
            if not run.number(event):
                yield Fault(None, f"no {event.key}")

    def _ending(self) -> Iterator[Fault]:
        """Yield what does not belong to the status of a run that ended."""
        run = self.run
        succeeded = run.status == "success"
        aborted = run.of(schema.ABORT_REASON)
        telemetry = run.of(schema.TELEMETRY_SUMMARY)
        if aborted.line and succeeded:
            yield Fault(aborted.line, "an abort_reason, and status success")
        count = run.number(schema.TELEMETRY_SUMMARY)
        wanted = 1 if self.run.settings.get("TELEMETRY_S") and succeeded else 0
        if count != wanted and run.stop:
            what = f"{count} telemetry_summary, {wanted} by TELEMETRY_S and the status"
            yield Fault(telemetry.line or None, what)
        elif not count:
            return
        elif not fits(schema.TelemetrySummary, telemetry.value):
            shown = printable(telemetry.value)
            yield Fault(telemetry.line, f"telemetry_summary is not as the schema has it: {shown}")
        elif run.stop and telemetry.line < run.stop.line:
            yield Fault(telemetry.line, "telemetry_summary before run_stop")
        else:
            energy_j = telemetry.value["energy_j"] or 0
            joules = (telemetry.value["joules_per_image"] or 0) * self.order.measured.all_images
            if not abs(joules - energy_j) <= _ENERGY_TOLERANCE * joules:
                yield Fault(telemetry.line, f"{energy_j:.6g} J; by joules_per_image it is {joules:.6g} J")

    # --- what cannot be ---

    def _nodes(self) -> list[dict[str, Any]]:
        hardware = self.run.section(schema.HARDWARE)
        return hardware["nodes"] if fits(schema.Hardware, hardware) else []

    def _too_fast(self) -> Iterator[Fault]:
        """Yield a rate over the peak of the header's cards, or of its cores where it has none."""
        nodes = self._nodes()
        pixels = self.run.settings.get("RECIPE.image_size")
        resnet = self.run.text(schema.SUBMISSION_BENCHMARK) == "resnet"
        if not nodes or not resnet:
            return
        if type(pixels) is not int or not has_type(pixels, COUNT):
            yield Fault(None, f"RECIPE.image_size is {printable(pixels)}, no number of pixels")
            return
        cores = sum(node["cores"] for node in nodes)
        cards: list[str] = []
        if self.run.section(schema.HARDWARE)["device"] == "gpu":
            for node in nodes:
                cards += [str(gpu["name"]) for gpu in node["gpus"]]
        most = most_images_per_s(cards, cores, pixels)
        rate, line = self.order.measured.fastest
        if most is not None and rate > most:
            devices = f"{len(cards)} cards" if cards else f"{cores} cores"
            bound = f"the peak of its {devices} is below {most:.6g}"
            yield Fault(line, f"a window of {rate:.6g} images/s; {bound} at {pixels} px")

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
        """Yield an end before the recipe's, without the target."""
        run = self.run
        settings = self.run.settings
        epochs = settings.get("RECIPE.epochs")
        target = run.recipe_target
        last = self.order.last_epoch
        reached = target is None or any(one.value >= target for one in run.evaluations)
        short = is_number(epochs) and (last or 0) < float(str(epochs)) and not settings.get("MAX_EPOCHS")
        if run.stop and run.status == "success" and short and not reached:
            yield Fault(run.stop.line, f"it ends in epoch {last} of {epochs}, and did not reach its target")

    def _telemetry(self) -> Iterator[Fault]:
        """Yield a number of telemetry samples that the run's time does not bear out."""
        run = self.run
        summary = run.of(schema.TELEMETRY_SUMMARY)
        every_s: Any = run.settings.get("TELEMETRY_S")
        samples: Any = summary.value.get("samples") if isinstance(summary.value, dict) else None
        if not is_number(samples) or not is_number(every_s) or every_s <= 0 or run.start_ms is None:
            return
        nodes = max(len(self._nodes()), 1)
        per_ms = nodes / 1000 / every_s
        due = ((run.stop_ms or run.start_ms) - run.start_ms) * per_ms
        began_ms = min(run.first.get(schema.INIT_START.key, summary).time_ms, run.start_ms)
        most = _MOST_SAMPLES * (summary.time_ms - began_ms) * per_ms + _MORE_SAMPLES * nodes
        if not _FEWEST_SAMPLES * due <= samples <= most:
            what = f"{samples} samples of telemetry; {due:.0f} were due by TELEMETRY_S and the run's time"
            yield Fault(summary.line, f"{what}, and there was time for {most:.0f}")

    def _program(self) -> Iterator[Fault]:
        """Yield a program that has not the convolutions of the benchmark's model."""
        wanted = self.benchmark.convolutions if self.benchmark else None
        if wanted is None or self.run.settings.get("STRATEGY") == "auto":
            return
        operators = self.run.section(schema.PROGRAM)["operators"]
        convolutions = 0
        for kind, count in operators.items():
            if not kind.endswith("_grad") and ("conv2d" in kind or kind == "resnet_unit"):
                convolutions += count
        if convolutions < _UNFUSED_CONVOLUTIONS * wanted:
            yield Fault(None, f"a program of {convolutions} convolutions; the model has {wanted}")

    # --- what is said twice ---

    def _contradictions(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield what the log says in two places, and differently."""
        settings = self.run.settings
        for name, form in _SOURCE.items():
            text = self.run.section(schema.SOURCE)[name]
            if text is not None and not re.fullmatch(form, text):
                yield Fault(None, f"source's {name} is {printable(text)}")
        needed = set(_SETTINGS)
        if settings.get("WORKLOAD") in _OF_RECIPE:
            needed |= {*_OF_RECIPE[settings["WORKLOAD"]], *self._hyperparameters().values()}
        missing = sorted(needed - settings.keys())
        if missing:
            yield Fault(None, f"the header section config lacks {', '.join(missing)}")
            return

        yield from self._machine(summary)
        for said in self._said_twice(summary):
            line, value = self._stated(said.name)
            if value != said.other_value:
                other = f"by {said.other_place} it is {printable(said.other_value)}"
                yield Fault(line, f"{said.name} is {printable(value)}; {other}")

    def _stated(self, name: str) -> tuple[int | None, Any]:
        """Line and value of a setting, `section.field`, `run_summary.field` or event; run_summary's for the header."""
        if name in self.run.settings:
            return self.run.of(schema.RUN_SUMMARY).line, self.run.settings[name]
        place, _, field = name.partition(".")
        if place in self.run.headers:
            return self.run.of(schema.RUN_SUMMARY).line, self.run.headers[place][field]
        event = self.run.first.get(place)
        if event is None:
            return None, None
        return event.line, event.value[field] if field else event.value

    def _machine(self, summary: schema.RunSummary) -> Iterator[Fault]:
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
        """List what settings, the header, run_summary and events repeat of each other."""
        settings = self.run.settings
        workload = workloads.find(str(settings["WORKLOAD"]))
        ranks = settings["DGXNGPU"]
        platform = settings["SUBMISSION_PLATFORM"] or settings["DGXSYSTEM"]
        repeated = _REPEATED | self._hyperparameters()
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
            _SaidTwice("global_batch_size", "run_summary", summary.devices * summary.batch_per_device),
        ]
        if settings["DEVICE"] == "cpu":
            rows.append(_SaidTwice("PRECISION", "DEVICE", "fp32"))
        if not summary.resumed and settings["SEED"] != -1:
            rows.append(_SaidTwice("seed", "SEED", settings["SEED"]))
        optimizer = schema.OPTIMIZER.get(self.run.text(schema.OPT_NAME))
        if optimizer is not None and "RECIPE.base_learning_rate" in settings:
            rate = self._base_rate(summary.devices * summary.batch_per_device)
            rows.append(_SaidTwice(optimizer["base_learning_rate"].key, "the recipe and the batch", rate))
        return rows

    def _hyperparameters(self) -> dict[str, str]:
        """The hyperparameters of the run's optimizer, each with the setting of the recipe that repeats it."""
        kind = self.run.text(schema.OPT_NAME)
        if kind not in schema.OPTIMIZER:
            return {}
        of_optimizer = {schema.OPTIMIZER[kind][name].key: other for name, other in _REPEATED_OF_OPTIMIZER.items()}
        return of_optimizer | {schema.WARMUP_EPOCHS[kind].key: "RECIPE.warmup_epochs"}

    def _base_rate(self, batch: int) -> float | None:
        """The base learning rate that the recipe has for this global batch; None where it states no numbers."""
        rate: Any = self.run.settings["RECIPE.base_learning_rate"]
        of_batch: Any = self.run.settings.get("RECIPE.base_batch") or batch  # null: it is not scaled
        if not is_number(rate) or not is_number(of_batch):
            return None
        return float(rate) * (batch / of_batch) if of_batch > 0 else None


def fits(kind: Any, value: Any) -> bool:
    """Whether `value` is of the schema's type `kind`, as JSON writes it."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, UnionType):
        return any(fits(one, value) for one in arguments)
    if origin in (list, dict):
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, origin) and all(fits(arguments[-1], item) for item in items)
    if is_dataclass(kind):
        return isinstance(value, dict) and _has_fields(kind, value)
    if type(value) is int:  # JSON's has no bound
        return kind in (int, float) and abs(value) < 2**63
    return type(value) is kind


def _has_fields(kind: Any, value: dict[str, Any]) -> bool:
    """Whether a table has the fields of the dataclass `kind`; those with a default may be missing."""
    hints = hints_of(kind)
    for field in fields(kind):
        if field.name in value and not fits(hints[field.name], value[field.name]):
            return False
        if field.name not in value and field.default is MISSING:
            return False
    return True
