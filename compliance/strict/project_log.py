"""What a log that calls itself ours must hold: the sections, events and fields of runlog's schema, all in agreement."""

import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any

from compliance.first_values import FirstValues, is_number
from compliance.strict.machine import most_images_per_s
from compliance.strict.measured import TIME_TOLERANCE
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.reader import hints_of, settings_of, table_of
from runlog.text import printable

_OF_A_RUN = (
    *(schema.SEED, schema.GLOBAL_BATCH_SIZE, schema.GRADIENT_ACCUMULATION_STEPS, schema.MODEL_BN_SPAN),
    schema.RUN_SUMMARY,
)
_OURS = (  # only this project writes them
    *(schema.RUN_SUMMARY, schema.STEP_WINDOW, schema.RANK_TIMES, schema.EPOCH_THROUGHPUT, schema.TELEMETRY_SUMMARY),
    schema.CLOCK_SET,
)
_OF_TRAINING = (
    *(schema.BLOCK_START, schema.BLOCK_STOP, schema.EPOCH_START, schema.EPOCH_STOP, schema.EVAL_START),
    *(schema.EVAL_STOP, schema.EVAL_ACCURACY),
)
_WORKLOADS = {"rn50": ("resnet", "resnet50_v1.5"), "hrnet": ("hrnet", "fcn_hrnetw18")}  # benchmark and model
_OF_SUMMARY = {  # the setting that a field of it repeats
    **{"mode": "MODE", "data": "DATA", "precision": "PRECISION", "math_mode": "PRECISION"},
    **{"batch_per_device": "BATCHSIZE", "nodes": "DGXNNODES"},
}
_OF_SUBMISSION = (schema.SUBMISSION_ORG, schema.SUBMISSION_DIVISION, schema.SUBMISSION_STATUS)
_SETTINGS = {
    *("WORKLOAD", "MODE", "DATA", "PRECISION", "DEVICE", "BATCHSIZE", "DGXNNODES", "DGXNGPU", "DGXSYSTEM", "SEED"),
    *("STRATEGY", "PROFILE", "RESUME", "TELEMETRY_S", "PRINT_STEPS", "WARMUP_STEPS", "MEASURED_STEPS"),
    *("SUBMISSION_ORG", "SUBMISSION_DIVISION", "SUBMISSION_STATUS", "SUBMISSION_PLATFORM", "RECIPE.epochs"),
}
Fault = tuple[int | None, str]  # the line to blame, and what is wrong
_SOURCE = {"commit": "[0-9a-f]{40}", "lock_sha256": "[0-9a-f]{64}", "image_digest": "sha256:[0-9a-f]{64}"}


def is_project_log(headers: Mapping[str, Any], values: FirstValues) -> bool:
    """Whether a log has anything that only this project writes."""
    return not headers.keys().isdisjoint(schema.SECTIONS) or any(values.of(event).count for event in _OURS)


def recipe_target(headers: Mapping[str, Any]) -> float | None:
    """The target of the recipe that the header's `config` names; an open run may choose it."""
    configured = settings_of(headers.get(schema.CONFIG.name))
    named = (value for name, value in configured.items() if name.startswith("RECIPE.target_"))
    return next((float(value) for value in named if is_number(value)), None)


@dataclass(frozen=True, kw_only=True)
class ProjectLog:
    """A log of ours that has ended."""

    headers: Mapping[str, Any]
    values: FirstValues
    order: RunOrder

    def faults(self) -> Iterator[Fault]:
        """What it lacks, says twice and differently, or cannot be."""
        values, headers, order = self.values, self.headers, self.order
        whole = {name: name in headers and fits(s.value, headers[name]) for name, s in schema.SECTIONS.items()}
        for name in (name for name, good in whole.items() if not good):
            form = f"is not as the schema has it: {printable(headers[name])}" if name in headers else ""
            yield None, f"the header section {name} {form}" if form else f"no header section {name}"
        for once in (schema.RUN_SUMMARY, schema.SEED):
            if (state := values.of(once)).count > 1:
                yield state.line, f"{state.count} {once.key}; a run writes one"
        configured, summary = settings_of(headers.get(schema.CONFIG.name)), values.of(schema.RUN_SUMMARY)
        trained = order.status == "success" and isinstance(summary.value, dict) and summary.value.get("mode") == "train"
        for event in (*_OF_A_RUN, *(_OF_TRAINING if trained else ())):
            if not values.of(event).count:
                yield None, f"no {event.key}"
        if summary.count and not fits(schema.RunSummary, summary.value):
            yield summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}"
        elif (said := table_of(schema.RunSummary, summary.value)) and all(whole.values()):
            yield from self._contradictions(configured, said)
        if configured.get("STRATEGY") != "auto":  # else the optimizer is Paddle's choice
            yield from self._optimizer()
        yield from self._ending(configured.get("TELEMETRY_S"))
        yield from order.measured.faults
        yield from self._too_fast(configured)
        yield from self._too_short(configured)

    def _optimizer(self) -> Iterator[Fault]:
        kind = self.values.text(schema.OPT_NAME)
        if kind not in schema.OPTIMIZER:
            yield self.values.of(schema.OPT_NAME).line or None, f"opt_name is {printable(kind) or 'absent'}"
            return
        points = [schema.WARMUP_EPOCHS[kind], *schema.OPTIMIZER[kind].values()]
        if missing := [point.key for point in points if not self.values.of(point).count]:
            yield None, f"no {', '.join(missing)} beside the rest of the recipe"

    def _ending(self, telemetry_s: Any) -> Iterator[Fault]:
        """What belongs to the status of a run that ended."""
        of, order = self.values.of, self.order
        aborted, telemetry = of(schema.ABORT_REASON), of(schema.TELEMETRY_SUMMARY)
        if aborted.count and order.status == "success":
            yield aborted.line, "an abort_reason, and status success"
        wanted = 1 if telemetry_s and order.status == "success" else 0
        if telemetry.count != wanted and order.stop_line:
            yield telemetry.line or None, f"{telemetry.count} telemetry_summary, {wanted} by TELEMETRY_S and the status"
        elif telemetry.count and not fits(schema.TelemetrySummary, telemetry.value):
            yield telemetry.line, f"telemetry_summary is not as the schema has it: {printable(telemetry.value)}"
        elif telemetry.count and telemetry.line < (order.stop_line or 0):
            yield telemetry.line, "telemetry_summary before run_stop"
        elif telemetry.count:
            energy_j = telemetry.value["energy_j"] or 0
            joules = (telemetry.value["joules_per_image"] or 0) * order.measured.all_images
            if not abs(joules - energy_j) <= TIME_TOLERANCE * joules:
                yield telemetry.line, f"{energy_j:.6g} J; by joules_per_image it is {joules:.6g} J"

    def _nodes(self) -> list[dict[str, Any]]:
        hardware = self.headers.get(schema.HARDWARE.name)
        return hardware["nodes"] if isinstance(hardware, dict) and fits(schema.Hardware, hardware) else []

    def _too_fast(self, configured: Mapping[str, Any]) -> Iterator[Fault]:
        """A rate over the peak of the header's cards, or of its cores where it has none."""
        rate, line = self.order.measured.fastest
        nodes, pixels = self._nodes(), configured.get("RECIPE.image_size")
        if self.values.text(schema.SUBMISSION_BENCHMARK) == "resnet" and type(pixels) is int and pixels > 0 and nodes:
            on_gpus = self.headers[schema.HARDWARE.name]["device"] == "gpu"
            cards = [str(gpu["name"]) for node in nodes for gpu in node["gpus"]] if on_gpus else []
            cores = sum(node["cores"] for node in nodes)
            most = most_images_per_s(cards, cores, pixels)
            if most is not None and rate > most:
                what = f"{len(cards)} cards" if cards else f"{cores} cores"
                bound = f"the peak of its {what} is below {most:.6g} at {pixels} px"
                yield line, f"a window of {rate:.6g} images/s; {bound}"

    def _too_short(self, configured: Mapping[str, Any]) -> Iterator[Fault]:
        """An end before the recipe's, or fewer samples of telemetry than half of those due."""
        order, epochs, target = self.order, configured.get("RECIPE.epochs"), recipe_target(self.headers)
        reached = target is None or any(one.value >= target for one in order.evaluations)
        short = is_number(epochs) and (order.last_epoch or 0) < float(str(epochs)) and not configured.get("MAX_EPOCHS")
        if order.status == "success" and short and not reached:
            yield order.stop_line, f"it ends in epoch {order.last_epoch} of {epochs}, and did not reach its target"
        summary, every_s = self.values.of(schema.TELEMETRY_SUMMARY), configured.get("TELEMETRY_S")
        if not summary.count or not isinstance(every_s, int | float) or every_s <= 0:
            return
        if order.start_ms is not None and order.stop_ms is not None:
            due = (order.stop_ms - order.start_ms) / 1000 / every_s * max(len(self._nodes()), 1)
            samples: Any = summary.value.get("samples") if isinstance(summary.value, dict) else None
            if is_number(samples) and samples < due / 2:
                what = f"{samples} samples of telemetry; {due:.0f} were due"
                yield summary.line, f"{what}, by TELEMETRY_S and the run's time"

    def _contradictions(self, configured: Mapping[str, Any], summary: schema.RunSummary) -> Iterator[Fault]:
        """What the log says in two places, and differently."""
        for name, form in _SOURCE.items():
            if (text := self.headers[schema.SOURCE.name][name]) is not None and not re.fullmatch(form, text):
                yield None, f"source's {name} is {printable(text)}"
        at_line = self.values.of(schema.RUN_SUMMARY).line
        needed = _SETTINGS | ({"RECIPE.image_size"} if configured.get("WORKLOAD") == "rn50" else set())
        if missing := sorted(needed - configured.keys()):
            yield None, f"the header section config lacks {', '.join(missing)}"
            return
        nodes, devices = self._nodes(), summary.devices
        if min(devices, summary.batch_per_device, len(nodes)) < 1 or len(nodes) > summary.nodes:
            ranks = f"{devices} devices of {summary.batch_per_device} images"
            yield at_line, f"{ranks}, {summary.nodes} nodes, {len(nodes)} hosts"
        for node in nodes if configured["DEVICE"] == "gpu" else []:
            if len(node["gpus"]) < devices / summary.nodes:
                yield None, f"{devices} ranks on {summary.nodes} nodes, and {len(node['gpus'])} GPUs in one of them"
        for name, found, by, wanted in self._of_header(configured, summary):
            if found != wanted:
                yield at_line, f"{name} is {printable(found)}; by {by} it is {printable(wanted)}"
        for point, by, wanted in self._of_events(configured, summary):
            if (state := self.values.of(point)).value != wanted:
                yield state.line, f"{point.key} is {printable(state.value)}; by {by} it is {printable(wanted)}"

    def _of_header(
        self, configured: Mapping[str, Any], summary: schema.RunSummary
    ) -> Iterator[tuple[str, Any, str, Any]]:
        """Name and value of what a setting says, too: which one, and what."""
        hardware, dataset = self.headers[schema.HARDWARE.name], self.headers[schema.DATASET.name]
        for name, by in _OF_SUMMARY.items():
            yield f"run_summary's {name}", getattr(summary, name), by, configured[by]
        _, model = _WORKLOADS.get(str(configured["WORKLOAD"]), (None, None))
        ranks, resumes = configured["DGXNGPU"], configured["RESUME"] == "auto"
        yield "run_summary's model", summary.model, "WORKLOAD", model
        yield "run_summary's devices", summary.devices, "DGXNGPU", type(ranks) is int and ranks * summary.nodes
        yield "run_summary's profiled", summary.profiled, "PROFILE", configured["PROFILE"] != ""
        yield "run_summary's resumed", summary.resumed, "RESUME", resumes and summary.resumed
        yield "hardware's math_mode", hardware["math_mode"], "PRECISION", configured["PRECISION"]
        if configured["DEVICE"] == "cpu":
            yield "PRECISION", configured["PRECISION"], "DEVICE", "fp32"
        yield "hardware's device", hardware["device"], "DEVICE", configured["DEVICE"]
        yield "dataset's synthetic", dataset["synthetic"], "DATA", configured["DATA"] == "synthetic"

    def _of_events(
        self, configured: Mapping[str, Any], summary: schema.RunSummary
    ) -> Iterator[tuple[schema.Point[Any], str, Any]]:
        """Events whose value the header or the summary says, too: which part of them, and what."""
        dataset, batch = self.headers[schema.DATASET.name], summary.devices * summary.batch_per_device
        benchmark, _ = _WORKLOADS.get(str(configured["WORKLOAD"]), (None, None))
        for point in _OF_SUBMISSION:
            yield point, point.key.upper(), configured[point.key.upper()]
        yield schema.SUBMISSION_BENCHMARK, "WORKLOAD", benchmark
        platform = configured["SUBMISSION_PLATFORM"] or configured["DGXSYSTEM"]
        yield schema.SUBMISSION_PLATFORM, "SUBMISSION_PLATFORM", platform
        yield schema.GLOBAL_BATCH_SIZE, "run_summary", batch
        yield schema.TRAIN_SAMPLES, "dataset", dataset["train_samples"]
        yield schema.EVAL_SAMPLES, "dataset", dataset["eval_samples"]
        kind = self.values.text(schema.OPT_NAME)
        if optimizer := schema.OPTIMIZER.get(kind):
            repeated: dict[str, schema.Point[Any]] = {
                "RECIPE.optimizer.kind": schema.OPT_NAME,
                "RECIPE.warmup_epochs": schema.WARMUP_EPOCHS[kind],
                "RECIPE.end_learning_rate": optimizer["end_learning_rate"],
                "RECIPE.optimizer.momentum": optimizer["momentum"],
                "RECIPE.optimizer.weight_decay": optimizer["weight_decay"],
            }
            yield from ((repeated[name], name, configured[name]) for name in repeated if name in configured)
            rate: Any = configured.get("RECIPE.base_learning_rate")
            of_batch: Any = configured.get("RECIPE.base_batch")
            if is_number(rate) and (of_batch is None or (is_number(of_batch) and of_batch > 0)):
                rate = float(rate) * (batch / of_batch if of_batch else 1.0)
                yield optimizer["base_learning_rate"], "the recipe and the batch", rate
        if not summary.resumed and configured["SEED"] != -1:
            yield schema.SEED, "SEED", configured["SEED"]


def fits(kind: Any, value: Any) -> bool:
    """Whether `value` is what the schema's type `kind` is in JSON."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, UnionType):
        return any(fits(one, value) for one in arguments)
    if kind is type(None):
        return value is None
    if origin is list:
        return isinstance(value, list) and all(fits(arguments[0], item) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(arguments[1], item) for item in value.values())
    if is_dataclass(kind):
        hints = hints_of(kind)  # type: ignore[arg-type]
        return isinstance(value, dict) and all(
            fits(hints[field.name], value[field.name]) if field.name in value else field.default is not MISSING
            for field in fields(kind)
        )
    return type(value) is kind or (kind is float and type(value) is int)
