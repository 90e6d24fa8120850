"""A log of this project must hold the sections, events and fields of runlog's schema, all in agreement."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from compliance.logged_run import LoggedRun, is_count, is_number
from compliance.rules import Benchmark, most_images_per_s
from compliance.strict.accuracies import are_shares_of_samples, index_of_target
from compliance.strict.measured import Fault
from compliance.strict.own_log import own_log_rules
from compliance.strict.repeated_values import contradictory_values, missing_settings
from compliance.strict.run_order import RunOrder
from compliance.strict.schema_types import fits
from runlog import schema
from runlog.digits import six_digits
from runlog.json_types import JsonObject
from runlog.reader import Event
from runlog.text import printable

_MOST_ENERGY_DIFFERENCE = 0.01  # as a share
_LEAST_SHARE_OF_DUE = 0.5  # of the telemetry samples that are due during the run
_MOST_SHARE_OF_DUE = 1.5  # of the telemetry samples that are due in all
_MOST_EXTRA_SAMPLES_PER_NODE = 10  # beyond that share, for short runs
_LEAST_SHARE_OF_CONVOLUTIONS = 0.5  # of the model's that are left as operators if passes fuse some


@dataclass(frozen=True, kw_only=True)
class ProjectLog:
    """The whole log of a run that calls itself one of this project's; `faults` shows whether it is.

    `benchmark` is None if this project has no rules for the log's benchmark.
    """

    run: LoggedRun
    order: RunOrder
    benchmark: Benchmark | None

    def faults(self) -> Iterator[Fault]:
        """Yield each fault that shows that this is not the whole log of a run of this project, with the line to blame.

        The log may lack something, state a value twice and differently, or state something impossible. If a section of
        the header does not fit the schema, the values that rely on the header are not compared.
        """
        misfits = self._sections_unlike_schema()
        does_header_fit = not misfits
        yield from misfits
        yield from self._wrong_numbers_of_events()
        summary = self.run.first_event(schema.RUN_SUMMARY)
        if summary.line and not fits(schema.RunSummary, summary.value):
            yield Fault(summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}")
        elif self.run.summary and does_header_fit:
            yield from self._wrong_statements(self.run.summary)
        yield from self._wrong_ending()
        yield from self.order.measured.faults
        yield from self._window_beyond_peak()
        yield from self._early_end()
        yield from self._wrong_number_of_telemetry_samples()
        yield from self._impossible_accuracies()
        if does_header_fit:
            yield from self._missing_convolutions()

    # --- what must be there ---

    def _sections_unlike_schema(self) -> list[Fault]:
        """Return a fault for each section of the header that is missing, or does not fit the schema."""
        faults = []
        for name, section in schema.SECTIONS.items():
            value = self.run.headers.get(name)
            if name not in self.run.headers:
                faults.append(Fault(None, f"no header section {name}"))
            elif not fits(section.value, value):
                what = f"the header section {name} is not as the schema has it: {printable(value)}"
                faults.append(Fault(None, what))
        return faults

    def _wrong_numbers_of_events(self) -> Iterator[Fault]:
        """Yield a fault for each kind of event that the log lacks, or has more often than a run of this project.

        - run_summary and seed must not be repeated.
        - There must be an epoch_throughput for each epoch_stop.
        - opt_name must name a known optimizer, unless Paddle chooses one (STRATEGY=auto).
        - Every key that such a run needs must occur: see `_needed_keys`.
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

        logs_optimizer = run.settings.get("STRATEGY") != "auto"
        optimizer = run.stated_text(schema.OPT_NAME)
        if logs_optimizer and optimizer not in schema.OPTIMIZER:
            line = run.first_event(schema.OPT_NAME).line or None
            yield Fault(line, f"opt_name is {printable(optimizer) or 'absent'}")
        for key in self._needed_keys():
            if not run.event_counts[key]:
                yield Fault(None, f"no {key}")

    def _needed_keys(self) -> list[str]:
        """Return the keys that the log must have at least one event of.

        - those of any run of this project
        - if the run is a training that succeeded: those of a training
        - if its optimizer is known: those of the optimizer's hyperparameters
        """
        run = self.run
        needed_keys = list(own_log_rules().events_of_a_run)
        is_training = run.summary is not None and run.summary.mode == "train"
        if is_training and run.status == "success":
            needed_keys += own_log_rules().events_of_a_training
        logs_optimizer = run.settings.get("STRATEGY") != "auto"  # else Paddle chooses it, and its events are not logged
        optimizer = run.stated_text(schema.OPT_NAME)
        if logs_optimizer and optimizer in schema.OPTIMIZER:
            needed_keys.append(schema.WARMUP_EPOCHS[optimizer].key)
            needed_keys += [event.key for event in schema.OPTIMIZER[optimizer].values()]
        return needed_keys

    def _wrong_ending(self) -> Iterator[Fault]:
        """Yield what is wrong with the events abort_reason and telemetry_summary at the end of the log.

        A run that succeeded has no abort_reason.
        """
        abort_reason = self.run.first_event(schema.ABORT_REASON)
        has_abort_reason = abort_reason.line > 0
        if has_abort_reason and self.run.status == "success":
            yield Fault(abort_reason.line, "an abort_reason, and status success")
        yield from self._wrong_telemetry()

    def _wrong_telemetry(self) -> Iterator[Fault]:
        """Yield the first fault of the event telemetry_summary:

        - There must be one if the setting TELEMETRY_S asked for telemetry and the run succeeded, and none otherwise. A
          run without run_stop was cut off, and may have any number.
        - It must fit the schema.
        - It must come after run_stop.
        - Its energy must agree with the energy of an image.
        """
        run = self.run
        telemetry = run.first_event(schema.TELEMETRY_SUMMARY)
        count = run.number_of_events(schema.TELEMETRY_SUMMARY)
        wanted_count = 1 if run.settings.get("TELEMETRY_S") and run.status == "success" else 0
        if run.stop and count != wanted_count:
            what = f"{count} telemetry_summary, {wanted_count} by TELEMETRY_S and the status"
            yield Fault(telemetry.line or None, what)
            return
        if not count:
            return
        if not fits(schema.TelemetrySummary, telemetry.value):
            shown = printable(telemetry.value)
            yield Fault(telemetry.line, f"telemetry_summary is not as the schema has it: {shown}")
        elif run.stop and telemetry.line < run.stop.line:
            yield Fault(telemetry.line, "telemetry_summary before run_stop")
        else:
            yield from self._contradictory_energy(telemetry)

    def _contradictory_energy(self, telemetry: Event) -> Iterator[Fault]:
        """Yield an energy that is not the energy of an image times the number of images, within 1 %."""
        stated_j = telemetry.value["energy_j"] or 0
        computed_j = (telemetry.value["joules_per_image"] or 0) * self.order.measured.all_images
        if not abs(computed_j - stated_j) <= _MOST_ENERGY_DIFFERENCE * computed_j:
            by_image = f"by joules_per_image it is {six_digits(computed_j)} J"
            yield Fault(telemetry.line, f"{six_digits(stated_j)} J; {by_image}")

    # --- what cannot be ---

    def _described_nodes(self) -> list[JsonObject]:
        """Return the nodes that the header's section `hardware` describes; empty if it does not fit the schema."""
        hardware = self.run.header_section(schema.HARDWARE)
        return hardware["nodes"] if fits(schema.Hardware, hardware) else []

    def _window_beyond_peak(self) -> Iterator[Fault]:
        """Yield the fastest window of a ResNet run if its images/s exceed what the machines can do at their peak.

        The peak depends on the setting RECIPE.image_size. If it is absent or no number of pixels, that is a fault.
        Nothing is yielded for other benchmarks, for a header without nodes, or if the peak is not known.
        """
        nodes = self._described_nodes()
        if not nodes or self.run.stated_text(schema.SUBMISSION_BENCHMARK) != "resnet":
            return
        pixels = self.run.settings.get("RECIPE.image_size")
        # COUNT wants a number above 0, but takes 224.0, too, so the type is tested first. None: the setting is absent.
        if type(pixels) is not int or not is_count(pixels):
            yield Fault(None, f"RECIPE.image_size is {printable(pixels)}, no number of pixels")
            return
        cores = sum(node["cores"] for node in nodes)
        cards = self._cards_of(nodes)
        most = most_images_per_s(cards, cores, pixels)  # at the peak; None if it is not known
        fastest = self.order.measured.fastest
        if most is not None and fastest.images_per_s > most:
            devices = f"{len(cards)} cards" if cards else f"{cores} cores"
            bound = f"the peak of its {devices} is below {six_digits(most)}"
            yield Fault(
                fastest.line, f"a window of {six_digits(fastest.images_per_s)} images/s; {bound} at {pixels} px"
            )

    def _cards_of(self, nodes: list[JsonObject]) -> list[str]:
        """Return the names of the GPUs of the nodes; empty for a run on CPUs."""
        if self.run.header_section(schema.HARDWARE)["device"] != "gpu":
            return []
        cards: list[str] = []
        for node in nodes:
            cards += [str(gpu["name"]) for gpu in node["gpus"]]
        return cards

    def _impossible_accuracies(self) -> Iterator[Fault]:
        """Yield each accuracy of a ResNet run that is not a whole number of right samples over eval_samples."""
        samples = self.run.stated_count(schema.EVAL_SAMPLES)
        if self.benchmark is None or self.benchmark.name != "resnet" or not samples:
            return
        for evaluation in self.run.evaluations:
            if not are_shares_of_samples([evaluation.value], samples):
                count = evaluation.value * samples
                yield Fault(evaluation.line, f"{evaluation.value!r} is {count:.3f} of {samples} samples")

    def _early_end(self) -> Iterator[Fault]:
        """Yield a fault if a run ended with success before its recipe's last epoch, without reaching the target.

        Nothing is yielded if the setting MAX_EPOCHS ended the run, or if the log states no epochs or no target.
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
        """Yield a fault if the number of telemetry samples is too small or too large for the time of the run.

        A sample is due on each node every TELEMETRY_S seconds. There must be

        - at least half of the samples that are due from run_start to run_stop, and
        - at most 1.5 times the samples that are due from the beginning of the log to telemetry_summary, and 10 for each
          node in addition.

        Nothing is yielded if the log does not state the samples, TELEMETRY_S or run_start.
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
        due_in_run = (stop_ms - run.start_ms) * samples_per_ms
        due_in_all = (summary.time_ms - self._began_ms(run.start_ms)) * samples_per_ms

        least = _LEAST_SHARE_OF_DUE * due_in_run
        most = _MOST_SHARE_OF_DUE * due_in_all + _MOST_EXTRA_SAMPLES_PER_NODE * nodes
        if not least <= samples <= most:
            what = f"{samples} samples of telemetry; {due_in_run:.0f} were due by TELEMETRY_S and the run's time"
            yield Fault(summary.line, f"{what}, and there was time for {most:.0f}")

    def _began_ms(self, start_ms: float) -> float:
        """Return the time of init_start or `start_ms`, the time of run_start, whichever is earlier."""
        init_start = self.run.first_events.get(schema.INIT_START.key)
        return start_ms if init_start is None else min(start_ms, init_start.time_ms)

    def _missing_convolutions(self) -> Iterator[Fault]:
        """Yield a fault if the program has fewer convolutions than the benchmark's model needs.

        The header's section `program` has the number of its operators by their kind.

        - An operator counts if its kind contains `conv2d`. So does `resnet_unit`, which is a convolution fused with
          what follows it. Operators of the backward pass, `..._grad`, do not count.
        - At least half of the model's convolutions must be there. Passes of the compiler may fuse the others into
          operators of any name.

        Nothing is yielded for a benchmark without a known number, and for STRATEGY=auto: Paddle makes that program.
        """
        wanted = self.benchmark.convolutions if self.benchmark else None
        if wanted is None or self.run.settings.get("STRATEGY") == "auto":  # then Paddle makes the program
            return
        convolutions = 0
        for kind, count in self.run.header_section(schema.PROGRAM)["operators"].items():
            is_forward = not kind.endswith("_grad")
            # resnet_unit is a convolution fused with what follows it.
            if is_forward and ("conv2d" in kind or kind == "resnet_unit"):
                convolutions += count
        if convolutions < _LEAST_SHARE_OF_CONVOLUTIONS * wanted:
            yield Fault(None, f"a program of {convolutions} convolutions; the model has {wanted}")

    # --- what is stated wrongly, or twice and differently ---

    def _wrong_statements(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield a fault for each wrong statement in the header, the settings and the events, in this order:

        1. malformed hashes in the header's section `source`, such as a commit that is not a hexadecimal number
        2. missing settings; nothing more is then yielded, because the next checks need them
        3. impossible numbers of nodes, devices and GPUs
        4. values that contradict each other
        """
        for name, pattern in own_log_rules().source_patterns.items():
            text = self.run.header_section(schema.SOURCE)[name]
            if text is not None and not re.fullmatch(pattern, text):
                yield Fault(None, f"source's {name} is {printable(text)}")
        missing = missing_settings(self.run)
        if missing:
            yield Fault(None, f"the header section config lacks {', '.join(missing)}")
            return
        yield from self._impossible_sizes(summary)
        yield from contradictory_values(self.run, summary)

    def _impossible_sizes(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield numbers of nodes, devices and GPUs that cannot be those of one run.

        - There must be at least one device, one image in its batch, and one node that the header describes.
        - The header may describe fewer nodes than the run has, but not more.
        - In a run on GPUs, each node that it describes must have enough GPUs for its share of the devices.
        """
        nodes = self._described_nodes()
        devices = summary.devices
        is_something_missing = devices < 1 or summary.batch_per_device < 1 or not nodes
        are_too_many_described = len(nodes) > summary.nodes
        if is_something_missing or are_too_many_described:
            ranks = f"{devices} devices of {summary.batch_per_device} images"
            what = f"{ranks}, {summary.nodes} nodes, {len(nodes)} hosts"
            yield Fault(self.run.first_event(schema.RUN_SUMMARY).line, what)
        if self.run.settings["DEVICE"] != "gpu":
            return
        for node in nodes:
            gpus = len(node["gpus"])
            has_enough_gpus = gpus * summary.nodes >= devices  # gpus >= devices / nodes
            if not has_enough_gpus:
                yield Fault(None, f"{devices} ranks on {summary.nodes} nodes, and {gpus} GPUs in one of them")
