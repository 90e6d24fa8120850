"""A log of this project must hold the sections, events and fields of runlog's schema, all in agreement."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from compliance.logged_run import LoggedRun, is_number
from compliance.rules import Benchmark
from compliance.strict.accuracies import index_of_target
from compliance.strict.header_claims import faults_of_claims
from compliance.strict.losses import describe_early_loss
from compliance.strict.measured import Fault
from compliance.strict.own_evaluations import faults_of_evaluations
from compliance.strict.own_log import own_log_rules
from compliance.strict.peak_rates import rates_beyond_peak
from compliance.strict.program_claims import faults_of_weights
from compliance.strict.repeated_values import contradictory_values, missing_settings
from compliance.strict.run_order import RunOrder
from compliance.strict.schema_types import fits
from compliance.strict.strategy import is_automatic, wrong_knobs
from runlog import schema
from runlog.digits import counted, six_digits
from runlog.json_types import JsonObject
from runlog.reader import Event, other_format
from runlog.text import printable

MAX_SETTING = 10**18 - 1  # of one that is a number: a run takes 18 digits
_MAX_ENERGY_DIFFERENCE = 0.01  # as a share
_MIN_SHARE_OF_DUE = 0.5  # of the telemetry samples that are due during the run
_MAX_SHARE_OF_DUE = 1.05  # of the telemetry samples that are due in all; a sampler makes up for none that it missed
_MAX_EXTRA_SAMPLES_PER_NODE = 10  # beyond that share, for short runs
_MIN_SHARE_OF_CONVOLUTIONS = 0.5  # of the model's that are left as operators if passes fuse some
_EQUAL_MIOUS = 3  # in a row, that are not a coincidence
_MAX_MIOU_OF_ONE_CLASS = 0.5  # where all pixels are said to be of one class: 1 over the number of classes


class _StatedTelemetry(NamedTuple):
    """How many samples of telemetry a log states, and what decides how many there should be."""

    line: int  # of telemetry_summary
    samples: float
    interval_s: float  # from one sample of a node to the next, above 0
    nodes: int
    run_ms: float  # that the run took at least: what samples must be there for; 0 without run_stop
    log_ms: float  # from the log's start to telemetry_summary, less what the clock was set ahead: limits the samples

    def samples_due(self, duration_ms: float) -> float:
        """Return how many samples of telemetry all nodes take in a time: one each `interval_s` on each node.

        Args:
            duration_ms: The time, in milliseconds.
        """
        samples_per_ms = self.nodes / 1000 / self.interval_s
        return duration_ms * samples_per_ms


@dataclass(frozen=True, kw_only=True)
class ProjectLog:
    """The whole log of a run that calls itself one of this project's; `faults` shows whether it is.

    `benchmark` is None if this project has no rules for the log's benchmark.
    """

    run: LoggedRun
    order: RunOrder
    benchmark: Benchmark | None

    def faults(self) -> Iterator[Fault]:
        """Yield each fault that shows that this is not the whole log of a run of this project.

        First come missing and malformed parts of the log, then statements that contradict each other or what the run
        did. Most statements of the header are only compared if header and run_summary fit the schema, and so have all
        fields.

        Yields:
            The fault in words, with the line to blame or None.
        """
        faults_of_header = self._sections_unlike_schema()
        faults_of_summary = self._summary_unlike_schema()
        yield from self._other_format()
        yield from faults_of_header
        yield from self._wrong_numbers_of_events()
        yield from faults_of_summary

        does_header_fit = not faults_of_header
        does_summary_fit = not faults_of_summary
        summary = self.run.summary  # None if the log has no run_summary
        if summary is not None and does_summary_fit and does_header_fit:  # the two checks read their fields
            yield from self._wrong_statements(summary)
            yield from faults_of_claims(self.run, summary, self.order.measured.sensors, self.order.last_epoch or 0)
            yield from self._other_weights(summary)
        yield from self._faults_of_course()
        if does_header_fit:
            yield from self._missing_convolutions()

    def _faults_of_course(self) -> Iterator[Fault]:
        """Yield the faults of what the run did: of its end, windows, checkpoints, rates, evaluations and telemetry.

        These checks need no header that fits the schema.
        """
        yield from self._wrong_ending()
        yield from self.order.measured.faults  # kept before this call, such as those of windows and checkpoints
        yield from self._early_loss()
        yield from rates_beyond_peak(self.run, self.order, self._described_nodes())
        yield from self._early_end()
        yield from faults_of_evaluations(self.run, self.order.last_epoch or 0, are_shares_of_samples=self._is_resnet)
        yield from self._wrong_number_of_telemetry_samples()
        yield from self._repeated_mious()

    @property
    def _is_planned_by_paddle(self) -> bool:
        """Whether Paddle makes the program and chooses the optimizer (STRATEGY=auto), which no event states then."""
        return is_automatic(str(self.run.settings.get("STRATEGY")))

    @property
    def _is_resnet(self) -> bool:
        return self.benchmark is not None and self.benchmark.name == "resnet"

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

    def _other_format(self) -> Iterator[Fault]:
        """Yield a fault if the log says that it is of another form or version than the one that is checked here."""
        stated = other_format(self.run.header_section(schema.LOG))
        if stated is not None:
            known = schema.Format()
            shown = f"{printable(stated.format)}, version {printable(stated.version)}"
            yield Fault(None, f"a log of the form {shown}; this checker reads {known.format}, version {known.version}")

    def _summary_unlike_schema(self) -> list[Fault]:
        """Return a fault if the log has a run_summary that does not fit the schema."""
        summary = self.run.first_event(schema.RUN_SUMMARY)
        is_missing = summary.line == 0
        if is_missing or fits(schema.RunSummary, summary.value):
            return []
        return [Fault(summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}")]

    def _wrong_numbers_of_events(self) -> Iterator[Fault]:
        """Yield a fault for each event that is missing or too often in the log, and for a wrong seed or optimizer."""
        yield from self._second_events()
        yield from self._impossible_seeds()
        yield from self._wrong_number_of_throughputs()
        yield from self._unknown_optimizer()
        for key in self._needed_keys():
            if self.run.event_counts[key] == 0:
                yield Fault(None, f"no {key}")

    def _second_events(self) -> Iterator[Fault]:
        """Yield a fault for each key that a run writes once, and that the log has more events of."""
        keys_of_one_event = [schema.INIT_START.key, schema.OPT_NAME.key, *own_log_rules().events_of_a_run]
        for key in [*keys_of_one_event, *self._keys_of_optimizer()]:
            count = self.run.event_counts[key]
            if count > 1:  # a second one may say something else
                yield Fault(self.run.first_events[key].line, f"{count} {key}; a run writes one")

    def _impossible_seeds(self) -> Iterator[Fault]:
        """Yield a fault for each seed that is not a whole number from 0 on."""
        for seed in self.run.all_events[schema.SEED.key]:
            is_whole_number = fits(schema.SEED.value, seed.value)
            if not is_whole_number or seed.value < 0:
                yield Fault(seed.line, f"seed is {printable(seed.value)}, no whole number from 0 on")

    def _wrong_number_of_throughputs(self) -> Iterator[Fault]:
        """Yield a fault unless the log has one epoch_throughput for each epoch in which the run trained a step."""
        epochs = self.run.number_of_events(schema.EPOCH_STOP)
        if self._is_first_epoch_without_steps:
            epochs -= 1
        throughputs = self.run.number_of_events(schema.EPOCH_THROUGHPUT)
        if throughputs != epochs:
            yield Fault(None, f"{throughputs} epoch_throughput of {counted(epochs, 'epoch')}")

    @property
    def _is_first_epoch_without_steps(self) -> bool:
        """Whether the run went on from a checkpoint of an epoch's last step: no window comes before the epoch's end."""
        first_stop = self.run.first_event(schema.EPOCH_STOP)
        has_epoch = first_stop.line > 0  # the line of a missing event is 0
        return has_epoch and self.run.is_resumed_without_steps(first_stop.line)

    def _unknown_optimizer(self) -> Iterator[Fault]:
        """Yield a fault if the schema does not have the optimizer, or if none is stated, unless Paddle chose it."""
        optimizer = self.run.stated_text(schema.OPT_NAME)
        if optimizer not in schema.OPTIMIZERS and not self._is_planned_by_paddle:
            line = self.run.first_event(schema.OPT_NAME).line or None  # the line of a missing event is 0
            yield Fault(line, f"opt_name is {printable(optimizer) or 'absent'}")

    def _needed_keys(self) -> list[str]:
        """Return the keys of which the log must have at least one event.

        A training that succeeded needs more of them than any other run. The hyperparameters of the optimizer are also
        needed, unless Paddle chose the optimizer, or the schema does not have it.
        """
        run = self.run
        needed_keys = list(own_log_rules().events_of_a_run)
        is_training = run.summary is not None and run.summary.mode == "train"
        if is_training and run.status == "success":
            needed_keys += own_log_rules().events_of_a_training
        if not self._is_planned_by_paddle:
            needed_keys += self._keys_of_optimizer()
        return needed_keys

    def _keys_of_optimizer(self) -> list[str]:
        """Return the keys of the hyperparameters of the run's optimizer; empty if the schema does not have it."""
        optimizer = schema.OPTIMIZERS.get(self.run.stated_text(schema.OPT_NAME))
        if optimizer is None:
            return []
        return [optimizer.warmup_epochs.key, *(event.key for event in optimizer.hyperparameters.values())]

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
        """Yield at most one fault of telemetry_summary: a wrong number of these events, or else a wrong first event."""
        run = self.run
        count = run.number_of_events(schema.TELEMETRY_SUMMARY)
        asks_for_telemetry = bool(run.settings.get("TELEMETRY_S"))
        wanted_count = 1 if asks_for_telemetry and run.status == "success" else 0
        has_ended = run.stop is not None  # a log that was cut off may lack its telemetry_summary
        telemetry = run.first_event(schema.TELEMETRY_SUMMARY)
        if has_ended and count != wanted_count:
            line = telemetry.line if count > 0 else None
            yield Fault(line, f"{count} telemetry_summary, {wanted_count} by TELEMETRY_S and the status")
        elif count > 0:
            yield from self._wrong_telemetry_summary(telemetry)

    def _wrong_telemetry_summary(self, telemetry: Event) -> Iterator[Fault]:
        """Yield the first fault of a telemetry_summary: by the schema, by its place in the log or by its energy.

        Args:
            telemetry: The event.
        """
        stop = self.run.stop
        if not fits(schema.TelemetrySummary, telemetry.value):
            shown = printable(telemetry.value)
            yield Fault(telemetry.line, f"telemetry_summary is not as the schema has it: {shown}")
        elif stop is not None and telemetry.line < stop.line:
            yield Fault(telemetry.line, "telemetry_summary before run_stop")
        else:
            yield from self._contradictory_energy(telemetry)

    def _contradictory_energy(self, telemetry: Event) -> Iterator[Fault]:
        """Yield a fault if the energy is not the energy of an image times the number of images, within 1 %.

        Nothing is checked if a window of steps could not be read, so that the number of images is not known.

        Args:
            telemetry: The event telemetry_summary, whose value must fit the schema.
        """
        images = self.order.measured.all_images
        if images is None:
            return
        stated_j = telemetry.value["energy_j"] or 0  # None: not measured
        joules_per_image = telemetry.value["joules_per_image"] or 0
        computed_j = joules_per_image * images
        does_agree = abs(computed_j - stated_j) <= _MAX_ENERGY_DIFFERENCE * computed_j
        if not does_agree:
            by_image = f"by joules_per_image it is {six_digits(computed_j)} J"
            yield Fault(telemetry.line, f"{six_digits(stated_j)} J; {by_image}")

    # --- what cannot be ---

    def _described_nodes(self) -> list[JsonObject]:
        """Return the nodes that the header's section `hardware` describes; empty if it does not fit the schema."""
        hardware = self.run.header_section(schema.HARDWARE)
        return hardware["nodes"] if fits(schema.Hardware, hardware) else []

    def _early_loss(self) -> Iterator[Fault]:
        """Yield a fault if the first loss is not one of a network that starts from random weights."""
        what = describe_early_loss(self.run)
        if what:
            yield Fault(self.run.first_event(schema.STEP_WINDOW).line, what)

    def _repeated_mious(self) -> Iterator[Fault]:
        """Yield a fault if 3 evaluations in a row of an HRNet run have exactly the same mean IoU, above a half.

        That is not a coincidence: a mean IoU is a share of very many pixels, and weights that train change the class of
        some. A network that calls all pixels one class repeats its mean IoU, but this is no more than a half.
        """
        is_hrnet = self.benchmark is not None and self.benchmark.name == "hrnet"
        evaluations = self.run.evaluations if is_hrnet else []
        miou_before = None
        equal_in_a_row = 0
        for evaluation in evaluations:
            equal_in_a_row = equal_in_a_row + 1 if evaluation.value == miou_before else 1
            miou_before = evaluation.value
            if equal_in_a_row == _EQUAL_MIOUS and evaluation.value > _MAX_MIOU_OF_ONE_CLASS:
                what = f"{_EQUAL_MIOUS} evaluations in a row have a mean IoU of {evaluation.value!r}"
                yield Fault(evaluation.line, what)
                return

    def _early_end(self) -> Iterator[Fault]:
        """Yield a fault if a run ended with success before its recipe's last epoch, and did not reach its target.

        Nothing is checked if the recipe states no number of epochs or no target.
        """
        run = self.run
        if run.stop is None or run.status != "success" or self._may_end_before_last_epoch:
            return
        epochs: Any = run.settings.get("RECIPE.epochs")
        target = run.recipe_target
        if not is_number(epochs) or target is None:
            return
        last_epoch = self.order.last_epoch  # None if no epoch was trained, or the last one states no number
        is_early = (last_epoch or 0) < epochs
        is_target_reached = index_of_target(run.evaluations, target) is not None
        if is_early and not is_target_reached:
            yield Fault(run.stop.line, f"it ends in epoch {last_epoch} of {epochs}, and did not reach its target")

    @property
    def _may_end_before_last_epoch(self) -> bool:
        """Whether the run may end before its recipe does: it only measures throughput, or MAX_EPOCHS is set."""
        only_measures_throughput = self.run.summary is not None and self.run.summary.mode == "throughput"
        has_own_end = bool(self.run.settings.get("MAX_EPOCHS"))
        return only_measures_throughput or has_own_end

    def _wrong_number_of_telemetry_samples(self) -> Iterator[Fault]:
        """Yield a fault if the log states too few or too many samples of telemetry.

        One sample is due on each node every TELEMETRY_S seconds. At least half of those that are due during the run
        must be there. Telemetry may also be taken before and after the run, so the time of the log limits their number.
        """
        telemetry = self._stated_telemetry()
        if telemetry is None:
            return
        due_in_run = telemetry.samples_due(telemetry.run_ms)
        due_in_log = telemetry.samples_due(telemetry.log_ms)
        least = _MIN_SHARE_OF_DUE * due_in_run
        most = _MAX_SHARE_OF_DUE * due_in_log + _MAX_EXTRA_SAMPLES_PER_NODE * telemetry.nodes
        is_possible = least <= telemetry.samples <= most
        if not is_possible:
            due = f"{due_in_run:.0f} were due by TELEMETRY_S and the run's time"
            what = f"{telemetry.samples} samples of telemetry; {due}, and there was time for {most:.0f}"
            yield Fault(telemetry.line, what)

    def _stated_telemetry(self) -> _StatedTelemetry | None:
        """Return how many samples of telemetry the log states, and the facts by which this number is judged.

        Returns:
            The facts; None if the log does not state them all. Other checks report what is missing.
        """
        run = self.run
        telemetry = run.first_event(schema.TELEMETRY_SUMMARY)
        samples: Any = telemetry.value.get("samples") if isinstance(telemetry.value, dict) else None
        interval_s: Any = run.settings.get("TELEMETRY_S")
        if not is_number(samples) or not is_number(interval_s) or interval_s <= 0:
            return None
        log_start_ms = self._log_start_ms()
        if log_start_ms is None:
            return None
        # A setting of the clock ahead makes a time by the log's clock seem longer.
        log_ms = telemetry.time_ms - log_start_ms - self._set_ahead_ms()
        return _StatedTelemetry(
            line=telemetry.line,
            samples=samples,
            interval_s=interval_s,
            nodes=max(len(self._described_nodes()), 1),  # a run has one at least
            run_ms=self._least_run_ms(),
            log_ms=log_ms,
        )

    def _log_start_ms(self) -> float | None:
        """Return the earliest time of submission_benchmark, init_start and run_start, in Unix milliseconds.

        They are in this order in the log. But if the clock was set back between them, a later event has an earlier
        time.

        Returns:
            The time. None if the log lacks init_start or run_start. submission_benchmark may be missing.
        """
        run = self.run
        init_start = run.first_events.get(schema.INIT_START.key)
        if run.start_ms is None or init_start is None:
            return None
        times_ms = [init_start.time_ms, run.start_ms]
        # Before init_start, page caches are flushed, maybe for minutes, and telemetry is taken already.
        submission_benchmark = run.first_events.get(schema.SUBMISSION_BENCHMARK.key)
        if submission_benchmark is not None:
            times_ms.append(submission_benchmark.time_ms)
        return min(times_ms)

    def _least_run_ms(self) -> float:
        """Return a lower bound of the time that the run took, in milliseconds; 0 without a run_start or run_stop.

        It is the longer one of two lower bounds:

        - The time from run_start to run_stop by the log's clock, less all time by which the clock was set ahead. A
          setting back only makes this time shorter, so it is still a lower bound.
        - The sum of the times that the windows of steps state, which no setting of the clock makes shorter.
        """
        if self.run.start_ms is None or self.run.stop_ms is None:
            return 0.0
        by_clock_ms = self.run.stop_ms - self.run.start_ms - self._set_ahead_ms()
        windows_ms = 1000 * self.order.measured.all_windows_s
        return max(by_clock_ms, windows_ms)

    def _set_ahead_ms(self) -> float:
        """Return by how much the system's clock was set ahead in all, as the events clock_set say."""
        set_ahead_s = 0.0
        for event in self.run.all_events[schema.CLOCK_SET.key]:
            if is_number(event.value) and event.value > 0:
                set_ahead_s += event.value
        return 1000 * set_ahead_s

    def _missing_convolutions(self) -> Iterator[Fault]:
        """Yield a fault if the program has less than half as many convolutions as the benchmark's model.

        Only half of them must be there, because passes of the compiler may have fused others into operators whose names
        do not tell of a convolution. Nothing is checked if the number of the model's convolutions is not known, or with
        STRATEGY=auto: then Paddle makes the program, instead of this project.

        The header's section `program` must fit the schema.
        """
        convolutions_of_model = self.benchmark.convolutions if self.benchmark else None
        if convolutions_of_model is None or self._is_planned_by_paddle:
            return
        count_by_kind = self.run.header_section(schema.PROGRAM)["operators"]
        convolutions = sum(count for kind, count in count_by_kind.items() if _is_forward_convolution(kind))
        if convolutions < _MIN_SHARE_OF_CONVOLUTIONS * convolutions_of_model:
            yield Fault(None, f"a program of {convolutions} convolutions; the model has {convolutions_of_model}")

    def _other_weights(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield a fault if the program has other gradients than the benchmark's model has weights.

        Nothing is checked if the weights of the model are not known.

        Args:
            summary: The value of the event run_summary. The header must fit the schema.
        """
        weights = self.benchmark.weights if self.benchmark else None
        if weights is not None:
            for what in faults_of_weights(self.run, summary, weights):
                yield Fault(None, what)

    # --- what is stated wrongly, or twice and differently ---

    def _wrong_statements(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield a fault for each wrong statement about the source, the settings and the sizes of the run.

        Args:
            summary: The value of the event run_summary. The header must fit the schema.
        """
        for name, pattern in own_log_rules().source_patterns.items():
            text = self.run.header_section(schema.SOURCE)[name]
            if text is not None and not re.fullmatch(pattern, text):
                yield Fault(None, f"source's {name} is {printable(text)}")
        missing = missing_settings(self.run)
        if missing:
            yield Fault(None, f"the header section config lacks {', '.join(missing)}")
            return  # because the checks below need the settings
        yield from self._unknown_values_of_settings()
        yield from self._impossible_hyperparameters()
        yield from self._unclear_target()
        yield from self._impossible_sizes(summary)
        if self.run.settings["DEVICE"] == "gpu":
            yield from self._nodes_with_too_few_gpus(summary)
        yield from contradictory_values(self.run, summary)

    def _unknown_values_of_settings(self) -> Iterator[Fault]:
        """Yield a fault for each setting, and each knob of STRATEGY, with a value that no run can have.

        An example is a precision that does not exist. The header must have all settings that are looked at here.
        """
        for name, least in own_log_rules().least_of_setting.items():
            number = self.run.whole_setting(name)
            if number is None or not least <= number <= MAX_SETTING:
                shown = printable(self.run.settings[name])
                yield Fault(None, f"{name} is {shown}, no whole number from {least} to {MAX_SETTING}")
        for name, values in own_log_rules().values_of_setting.items():
            value = self.run.settings[name]
            if value not in values:
                yield Fault(None, f"{name} is {printable(value)}, none of {', '.join(values)}")
        for what in wrong_knobs(str(self.run.settings["STRATEGY"])):
            yield Fault(None, what)

    def _impossible_hyperparameters(self) -> Iterator[Fault]:
        """Yield a fault for each hyperparameter of the optimizer that is below 0, and for a momentum of 1 or more.

        The epochs of warm-up count as one of the hyperparameters. With a momentum of 1 or more no gradient is ever
        forgotten. Nothing is checked if the schema does not have the optimizer.
        """
        optimizer = self.run.stated_text(schema.OPT_NAME)
        if optimizer not in schema.OPTIMIZERS:
            return
        known = schema.OPTIMIZERS[optimizer]
        momentum = known.hyperparameters.get("momentum")  # None: the optimizer has none
        for point in (*known.hyperparameters.values(), known.warmup_epochs):
            event = self.run.first_event(point)
            if not is_number(event.value):
                continue
            if event.value < 0:
                yield Fault(event.line, f"{event.key} is {six_digits(event.value)}, below 0")
            elif point is momentum and event.value >= 1:
                yield Fault(event.line, f"{event.key} is {six_digits(event.value)}, not below 1")

    def _unclear_target(self) -> Iterator[Fault]:
        """Yield a fault if the settings do not say clearly which target the run was to reach: one number, or null."""
        targets = {name: value for name, value in self.run.settings.items() if name.startswith("RECIPE.target_")}
        if len(targets) > 1:
            yield Fault(None, f"a recipe with several targets: {', '.join(map(printable, sorted(targets)))}")
        for name, value in targets.items():
            if value is not None and not is_number(value):
                yield Fault(None, f"{printable(name)} is {printable(value)}, no number")
        yield from self._success_without_target(targets)

    def _success_without_target(self, targets: Mapping[str, object]) -> Iterator[Fault]:
        """Yield a fault if a run succeeded although its recipe has no target.

        A training ends with success only when it reaches its target. Nothing is checked if own_log.yaml has no row for
        the run's WORKLOAD. The recipe of such an unknown workload may have its target under a setting that does not
        begin with RECIPE.target_.

        Args:
            targets: The targets among the settings, by their names. A target may be None.
        """
        stop = self.run.stop
        has_known_recipe = self.run.workload_name in own_log_rules().recipe_settings
        has_target = any(target is not None for target in targets.values())
        if stop is None or self.run.status != "success" or has_target or not has_known_recipe:
            return
        yield Fault(stop.line, "status success, and the recipe has no target (RECIPE.target_...) that it reached")

    def _impossible_sizes(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield a fault if the numbers of devices, nodes and images cannot be those of one run.

        The header may describe fewer nodes than the run has, but not more.

        Args:
            summary: The value of the event run_summary: devices, nodes, and the images of a step on a device.
        """
        described_nodes = len(self._described_nodes())
        is_one_missing = summary.devices < 1 or summary.batch_per_device < 1 or described_nodes == 0
        are_nodes_too_many = described_nodes > summary.nodes
        if is_one_missing or are_nodes_too_many:
            ranks = f"{counted(summary.devices, 'device')} of {counted(summary.batch_per_device, 'image')}"
            what = f"{ranks}, {counted(summary.nodes, 'node')}, {counted(described_nodes, 'host')}"
            yield Fault(self.run.first_event(schema.RUN_SUMMARY).line, what)

    def _nodes_with_too_few_gpus(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield a fault for each node in the header that has fewer GPUs than the devices that the run uses on a node.

        All nodes use equally many devices.

        Args:
            summary: The value of the event run_summary: how many devices and nodes the run has.
        """
        for node in self._described_nodes():
            gpus = len(node["gpus"])
            usable_devices = gpus * summary.nodes  # if each node has as many GPUs as this one
            if usable_devices < summary.devices:
                ranks = f"{counted(summary.devices, 'rank')} on {counted(summary.nodes, 'node')}"
                what = f"{ranks}, and {counted(gpus, 'GPU')} in one of them"
                yield Fault(None, what)


def _is_forward_convolution(kind: str) -> bool:
    """Return whether operators of a kind are convolutions of the forward pass; the backward pass has them again.

    Args:
        kind: The type of an operator of Paddle, such as "conv2d" or "conv2d_grad".
    """
    is_forward = not kind.endswith("_grad")
    return is_forward and ("conv2d" in kind or kind == "resnet_unit")
