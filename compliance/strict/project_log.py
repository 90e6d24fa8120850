"""What a log that calls itself ours must hold: the sections, events and fields of runlog's schema, all in agreement."""

import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any

from compliance.logged_run import COUNT, LoggedRun, has_type, is_number
from compliance.rules import most_images_per_s
from compliance.strict.measured import TIME_TOLERANCE
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


@dataclass(frozen=True, kw_only=True)
class ProjectLog:
    """A log of ours that has ended."""

    run: LoggedRun
    order: RunOrder

    def faults(self) -> Iterator[Fault]:
        """What it lacks, says twice and differently, or cannot be."""
        run, headers, configured = self.run, self.run.headers, self.run.settings
        whole = {name: name in headers and fits(s.value, headers[name]) for name, s in schema.SECTIONS.items()}
        for name in (name for name, good in whole.items() if not good):
            form = f"is not as the schema has it: {printable(headers[name])}" if name in headers else ""
            yield None, f"the header section {name} {form}" if form else f"no header section {name}"
        for once in (schema.RUN_SUMMARY, schema.SEED):
            if (count := run.number(once)) > 1:
                yield run.of(once).line, f"{count} {once.key}; a run writes one"
        summary = run.of(schema.RUN_SUMMARY)
        trained = run.status == "success" and isinstance(summary.value, dict) and summary.value.get("mode") == "train"
        for event in (*_OF_A_RUN, *(_OF_TRAINING if trained else ())):
            if not run.number(event):
                yield None, f"no {event.key}"
        if summary.line and not fits(schema.RunSummary, summary.value):
            yield summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}"
        elif run.summary and all(whole.values()):
            yield from self._contradictions(run.summary)
        if configured.get("STRATEGY") != "auto":  # else the optimizer is Paddle's choice
            yield from self._optimizer()
        yield from self._ending(configured.get("TELEMETRY_S"))
        yield from self.order.measured.faults
        yield from self._too_fast(configured.get("RECIPE.image_size"))
        yield from self._too_short()

    def _optimizer(self) -> Iterator[Fault]:
        kind = self.run.text(schema.OPT_NAME)
        if kind not in schema.OPTIMIZER:
            yield self.run.of(schema.OPT_NAME).line or None, f"opt_name is {printable(kind) or 'absent'}"
            return
        points = [schema.WARMUP_EPOCHS[kind], *schema.OPTIMIZER[kind].values()]
        if missing := [point.key for point in points if not self.run.number(point)]:
            yield None, f"no {', '.join(missing)} beside the rest of the recipe"

    def _ending(self, every_s: Any) -> Iterator[Fault]:
        """What belongs to the status of a run that ended."""
        run, succeeded = self.run, self.run.status == "success"
        aborted, telemetry = run.of(schema.ABORT_REASON), run.of(schema.TELEMETRY_SUMMARY)
        if aborted.line and succeeded:
            yield aborted.line, "an abort_reason, and status success"
        count, wanted = run.number(schema.TELEMETRY_SUMMARY), 1 if every_s and succeeded else 0
        if count != wanted and run.stop:
            yield telemetry.line or None, f"{count} telemetry_summary, {wanted} by TELEMETRY_S and the status"
        elif not count:
            return
        elif not fits(schema.TelemetrySummary, telemetry.value):
            yield telemetry.line, f"telemetry_summary is not as the schema has it: {printable(telemetry.value)}"
        elif run.stop and telemetry.line < run.stop.line:
            yield telemetry.line, "telemetry_summary before run_stop"
        else:
            energy_j = telemetry.value["energy_j"] or 0
            joules = (telemetry.value["joules_per_image"] or 0) * self.order.measured.all_images
            if not abs(joules - energy_j) <= TIME_TOLERANCE * joules:
                yield telemetry.line, f"{energy_j:.6g} J; by joules_per_image it is {joules:.6g} J"

    def _nodes(self) -> list[dict[str, Any]]:
        hardware = self.run.section(schema.HARDWARE)
        return hardware["nodes"] if fits(schema.Hardware, hardware) else []

    def _too_fast(self, pixels: Any) -> Iterator[Fault]:
        """A rate over the peak of the header's cards, or of its cores where it has none."""
        (rate, line), nodes = self.order.measured.fastest, self._nodes()
        resnet = self.run.text(schema.SUBMISSION_BENCHMARK) == "resnet"
        if not nodes or not resnet or type(pixels) is not int or not has_type(pixels, COUNT):
            return
        on_gpus, cores = self.run.section(schema.HARDWARE)["device"] == "gpu", sum(node["cores"] for node in nodes)
        cards = [str(gpu["name"]) for node in nodes for gpu in node["gpus"]] if on_gpus else []
        most = most_images_per_s(cards, cores, pixels)
        if most is not None and rate > most:
            bound = f"the peak of its {f'{len(cards)} cards' if cards else f'{cores} cores'} is below {most:.6g}"
            yield line, f"a window of {rate:.6g} images/s; {bound} at {pixels} px"

    def _too_short(self) -> Iterator[Fault]:
        """An end before the recipe's, or fewer samples of telemetry than half of those due."""
        run, configured, last = self.run, self.run.settings, self.order.last_epoch
        every_s: Any = configured.get("TELEMETRY_S")
        epochs, target = configured.get("RECIPE.epochs"), run.recipe_target
        reached = target is None or any(one.value >= target for one in run.evaluations)
        short = is_number(epochs) and (last or 0) < float(str(epochs)) and not configured.get("MAX_EPOCHS")
        if run.stop and run.status == "success" and short and not reached:
            yield run.stop.line, f"it ends in epoch {last} of {epochs}, and did not reach its target"
        summary = run.of(schema.TELEMETRY_SUMMARY)
        samples: Any = summary.value.get("samples") if isinstance(summary.value, dict) else None
        if not is_number(samples) or not is_number(every_s) or every_s <= 0:
            return
        if run.start_ms is not None and run.stop_ms is not None:
            due = (run.stop_ms - run.start_ms) / 1000 / every_s * max(len(self._nodes()), 1)
            if samples < due / 2:
                what = f"{samples} samples of telemetry; {due:.0f} were due"
                yield summary.line, f"{what}, by TELEMETRY_S and the run's time"

    def _contradictions(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """What the log says in two places, and differently."""
        configured = self.run.settings
        for name, form in _SOURCE.items():
            if (text := self.run.section(schema.SOURCE)[name]) is not None and not re.fullmatch(form, text):
                yield None, f"source's {name} is {printable(text)}"
        at_line = self.run.of(schema.RUN_SUMMARY).line
        needed = _SETTINGS | ({"RECIPE.image_size"} if configured.get("WORKLOAD") == "rn50" else set())
        if missing := sorted(needed - configured.keys()):
            yield None, f"the header section config lacks {', '.join(missing)}"
            return
        nodes, devices = self._nodes(), summary.devices
        if min(devices, summary.batch_per_device, len(nodes)) < 1 or len(nodes) > summary.nodes:
            ranks = f"{devices} devices of {summary.batch_per_device} images"
            yield at_line, f"{ranks}, {summary.nodes} nodes, {len(nodes)} hosts"
        for node in nodes if configured["DEVICE"] == "gpu" else []:
            if len(node["gpus"]) * summary.nodes < devices:
                yield None, f"{devices} ranks on {summary.nodes} nodes, and {len(node['gpus'])} GPUs in one of them"
        for line, name, found, by, wanted in self._said_twice(summary):
            if found != wanted:
                yield line, f"{name} is {printable(found)}; by {by} it is {printable(wanted)}"

    def _said_twice(self, summary: schema.RunSummary) -> Iterator[tuple[int, str, Any, str, Any]]:
        """Line, name and value of what is said in two places; the other place, and what it says."""

        def event(point: schema.Point[Any]) -> tuple[int, str, Any]:
            first = self.run.of(point)
            return first.line, point.key, first.value

        configured = self.run.settings
        dataset, hardware = (self.run.section(of) for of in (schema.DATASET, schema.HARDWARE))
        line, batch = self.run.of(schema.RUN_SUMMARY).line, summary.devices * summary.batch_per_device
        row = workloads.find(str(configured["WORKLOAD"]))
        benchmark = None if row is None else row.benchmark
        model = None if row is None else row.model
        ranks, resumes = configured["DGXNGPU"], configured["RESUME"] == "auto"
        for name, by in _OF_SUMMARY.items():
            yield line, f"run_summary's {name}", getattr(summary, name), by, configured[by]
        yield line, "run_summary's model", summary.model, "WORKLOAD", model
        yield line, "run_summary's devices", summary.devices, "DGXNGPU", type(ranks) is int and ranks * summary.nodes
        yield line, "run_summary's profiled", summary.profiled, "PROFILE", configured["PROFILE"] != ""
        yield line, "run_summary's resumed", summary.resumed, "RESUME", resumes and summary.resumed
        yield line, "hardware's math_mode", hardware["math_mode"], "PRECISION", configured["PRECISION"]
        if configured["DEVICE"] == "cpu":
            yield line, "PRECISION", configured["PRECISION"], "DEVICE", "fp32"
        yield line, "hardware's device", hardware["device"], "DEVICE", configured["DEVICE"]
        yield line, "dataset's synthetic", dataset["synthetic"], "DATA", configured["DATA"] == "synthetic"
        for point in _OF_SUBMISSION:
            yield *event(point), point.key.upper(), configured[point.key.upper()]
        yield *event(schema.SUBMISSION_BENCHMARK), "WORKLOAD", benchmark
        platform = configured["SUBMISSION_PLATFORM"] or configured["DGXSYSTEM"]
        yield *event(schema.SUBMISSION_PLATFORM), "SUBMISSION_PLATFORM", platform
        yield *event(schema.GLOBAL_BATCH_SIZE), "run_summary", batch
        yield *event(schema.TRAIN_SAMPLES), "dataset", dataset["train_samples"]
        yield *event(schema.EVAL_SAMPLES), "dataset", dataset["eval_samples"]
        kind = self.run.text(schema.OPT_NAME)
        if optimizer := schema.OPTIMIZER.get(kind):
            repeated: dict[str, schema.Point[Any]] = {
                "RECIPE.optimizer.kind": schema.OPT_NAME,
                "RECIPE.warmup_epochs": schema.WARMUP_EPOCHS[kind],
                "RECIPE.end_learning_rate": optimizer["end_learning_rate"],
                "RECIPE.optimizer.momentum": optimizer["momentum"],
                "RECIPE.optimizer.weight_decay": optimizer["weight_decay"],
            }
            for name in (name for name in repeated if name in configured):
                yield *event(repeated[name]), name, configured[name]
            rate: Any = configured.get("RECIPE.base_learning_rate")
            of_batch: Any = configured.get("RECIPE.base_batch")
            if is_number(rate) and (of_batch is None or (is_number(of_batch) and of_batch > 0)):
                rate = float(rate) * (batch / of_batch if of_batch else 1.0)
                yield *event(optimizer["base_learning_rate"]), "the recipe and the batch", rate
        if not summary.resumed and configured["SEED"] != -1:
            yield *event(schema.SEED), "SEED", configured["SEED"]


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
    if type(value) is int:  # JSON's has no bound
        return kind in (int, float) and abs(value) < 2**63
    return type(value) is kind
