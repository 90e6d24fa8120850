"""The rules of a whole run, once its log has ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from compliance import passports
from compliance.logged_run import Evaluation, LoggedRun, is_count, is_number, own_metadata
from compliance.official.checks import read_check
from compliance.official.language import State, holds
from compliance.rules import Benchmark, Finding, FindingCollector, Ruleset, WrittenRule
from compliance.strict.accuracies import (
    StatedData,
    check_best_miou,
    check_curve,
    check_samples,
    check_schedule,
    index_of_target,
    stated_data,
)
from compliance.strict.copies import whole_seed
from compliance.strict.pace import check_pace
from compliance.strict.project_log import ProjectLog
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.digits import counted, significant, six_digits
from runlog.reader import Event
from runlog.text import as_json, printable, visible

# A status that says in other words than "aborted" that the run failed, in small letters.
_WORDS_FOR_FAILURE = frozenset(
    {"aborted", "abort", "failed", "failure", "fail", "error", "crashed", "killed", "cancelled", "canceled"}
    | {"interrupted", "timeout", "diverged", "not converged", "incomplete"}
)
_VALUES_OF_UNCLEARED_CACHE = frozenset({"false", "no", "n", "off", "0", "none", "skipped", "failed"})
_SUMMARY_OF_A_WHOLE_RUN = {"mode": "train", "data": "real", "resumed": False, "profiled": False}
_EVALUATED_AFTER_THE_RUN = ("minigo", "stable_diffusion")
_RULES_FOR_BENCHMARK_DATA = (
    "eval-schedule",
    "eval-samples",
    "accuracy-curve",
    "rcp-hyperparameters",
    "rcp-convergence",
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules about a run as a whole. Its log must have been read to the end.

    `order` has followed the events of the run, and `collector` gets the findings.
    """

    ruleset: Ruleset
    run: LoggedRun
    order: RunOrder
    collector: FindingCollector

    def check(self, benchmark_asked: str | None, target_reached_ms: float | None) -> None:
        """Report the breaches of the rules about the run as a whole. Call it once, after all events were checked.

        `collector` already has the findings of the checks of events, and gets the new ones.

        Args:
            benchmark_asked: The benchmark that the log must be of, such as "resnet"; None allows any.
            target_reached_ms: When the earliest evaluation met the official target, in Unix milliseconds; None if none
                did, or if there is no target, as for most benchmarks in the open division.
        """
        name = self.run.stated_text(schema.SUBMISSION_BENCHMARK)
        division = self.run.stated_text(schema.SUBMISSION_DIVISION)
        benchmark = self.ruleset.benchmarks.get(name)  # None if this project has no rules for it
        self._check_benchmark_asked(benchmark_asked)
        self._check_status(benchmark)
        self._check_summary()
        self._check_caches()
        self._check_seeds()
        self._check_clock_settings()
        if benchmark is None:
            self._check_batch()
            self._check_target_reached_in_time(name, target_reached_ms)
        else:
            self._check_benchmark(benchmark, division)
        if self.run.is_project_log:
            self._check_project_log(benchmark)
            self._warn_of_early_event_before_run()
        self._settle_findings(name, division)

    def _settle_findings(self, name: str, division: str) -> None:
        """Change the findings, once all checks were made: repeat some as errors, and drop or note rules not applied.

        Args:
            name: The benchmark that the log states.
            division: The division that the log states.
        """
        if self.run.is_project_log:
            self._repeat_breaches_of_form_as_errors()
        self.collector.drop_inapplicable_rules(name, division)  # and note that these rules were not applied
        if self._is_refused_for_other_data():
            self._note_rules_for_benchmark_data()  # comes last: a rule that was dropped has a note of its own

    def _add_breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        self.collector.add_breach(rule, line, actual, expected)

    # --- rules of every benchmark ---

    def _check_benchmark_asked(self, asked: str | None) -> None:
        """Report a log that states another benchmark than the user asked for.

        Args:
            asked: The benchmark that the user asked for; None allows any.
        """
        name = self.run.stated_text(schema.SUBMISSION_BENCHMARK)
        if asked and name and name != asked:
            line = self.run.first_event(schema.SUBMISSION_BENCHMARK).line
            self._add_breach("benchmark-asked", line, printable(name), f"benchmark {asked}")

    def _check_status(self, benchmark: Benchmark | None) -> None:
        """Report a run that did not end with success, with its abort_reason. A log without run_stop is skipped.

        Args:
            benchmark: The benchmark of the run. None if this project has no rules for it: then any text passes that is
                neither blank nor a word for failure, because such logs may have other words for success.
        """
        run = self.run
        status = run.status
        if run.stop is None or status == "success":
            return
        words = status.strip().casefold() if isinstance(status, str) else ""
        may_be_word_for_success = words != "" and words not in _WORDS_FOR_FAILURE
        if benchmark is None and may_be_word_for_success:
            return
        abort_reason = run.first_event(schema.ABORT_REASON)
        has_abort_reason = abort_reason.line > 0  # the line of a missing event is 0
        why = f": {printable(abort_reason.value)}" if has_abort_reason else ""
        self._add_breach("run-status", run.stop.line, f"status {printable(status)}{why}")

    def _check_summary(self) -> None:
        """Report each field of run_summary that shows that the run was not a whole training on real data.

        If the log has no run_summary, as those of other projects, or one that does not fit the schema, it is noted that
        the rule was not applied.
        """
        summary = self.run.summary
        if summary is None:
            self.collector.add_note("run-mode", "not applied: the log has no run_summary that says so")
            return
        line = self.run.first_event(schema.RUN_SUMMARY).line
        for field, wanted in _SUMMARY_OF_A_WHOLE_RUN.items():
            value = getattr(summary, field)
            if value != wanted:
                actual = f"run_summary's {field} is {printable(value)}"
                expected = f"run_summary's {field} is {printable(wanted)}"
                self._add_breach("run-mode", line, actual, expected)

    def _check_caches(self) -> None:
        """Report each cache_clear event whose cache was not cleared, and a run whose caches were cleared too late.

        A cache counts as cleared unless its event says otherwise. A log without any cache_clear breaks another rule.
        """
        cleared: list[Event] = []
        for event in self.run.all_events[schema.CACHE_CLEAR.key]:
            reason = _why_not_cleared(event)
            if reason:
                self._add_breach("cache-cleared", event.line, f"not cleared: {reason}")
            else:
                cleared.append(event)
        if cleared and self.run.start_ms is not None:
            self._check_time_of_clearing(cleared, self.run.start_ms)

    def _check_time_of_clearing(self, cleared: Sequence[Event], start_ms: float) -> None:
        """Report the earliest clearing of a cache if it came too long after run_start.

        The other clearings may come at any time: each node may log its own by its own clock.

        Args:
            cleared: The events cache_clear whose cache was cleared; at least one.
            start_ms: The time of run_start, in Unix milliseconds.
        """
        earliest = min(cleared, key=lambda event: event.time_ms)
        after_start_ms = earliest.time_ms - start_ms
        if after_start_ms > self.collector.strict_rules["cache-cleared"].bounds["late_ms"]:
            self._add_breach("cache-cleared", earliest.line, f"{after_start_ms:.0f} ms after run_start")

    def _check_seeds(self) -> None:
        """Report a log without a seed, and each seed that the official seed_checker does not take."""
        seeds = self.run.all_events[schema.SEED.key]
        if not seeds:
            self._add_breach("seed-present", None, "no seed")
        for seed in seeds:
            has_place_in_code = "file" in seed.metadata and "lineno" in seed.metadata
            if whole_seed(seed.value) is None:  # int() refuses it
                self._add_breach("seed-present", seed.line, f"seed {printable(seed.value)}")
            elif not has_place_in_code:
                self._add_breach("seed-present", seed.line, "a seed without file and lineno, which seed_checker needs")

    def _check_clock_settings(self) -> None:
        """Report each time that the system's clock was set back during the run, and warn once if it was set ahead.

        The log states a setting as a clock_set in seconds: above 0 if ahead, below 0 if back.
        """
        lines_ahead = []
        ahead_s = 0.0  # in all
        for event in self.run.all_events[schema.CLOCK_SET.key]:
            if not is_number(event.value):
                continue
            if event.value > 0:
                lines_ahead.append(event.line)
                ahead_s += event.value
            else:
                self._check_setting_back(event, back_s=-event.value)
        if lines_ahead:  # the run's time is no shorter for it
            actual = f"the system's clock was set ahead {counted(len(lines_ahead), 'time')}, by {six_digits(ahead_s)} s"
            actual += " in all: the times of the windows are not held to it there"
            self.collector.add_breach("time-order", lines_ahead[0], actual, severity="warning")

    def _check_setting_back(self, event: Event, back_s: float) -> None:
        """Report a setting back of the clock, by which the run's time is too short, if it is more than a correction.

        Args:
            event: The event clock_set.
            back_s: By how many seconds the clock was set back, 0 or more.
        """
        if back_s > self.collector.strict_rules["time-order"].bounds["back_ms"] / 1000:
            self._add_breach("time-order", event.line, f"the system's clock was set back by {six_digits(back_s)} s")

    # --- rules of the other benchmarks ---

    def _check_batch(self) -> None:
        """Report a log whose first and last global_batch_size differ, or of which one is not a whole number above 0."""
        if self.run.number_of_events(schema.GLOBAL_BATCH_SIZE) == 0:  # the official rules say where one is needed
            return
        first = self.run.first_event(schema.GLOBAL_BATCH_SIZE)
        last_value = self.run.as_tools_read.batch  # of the last such event, which rcp_checker takes
        for value in (first.value, last_value):
            if not is_count(value):
                self._add_breach("global-batch", first.line, f"global_batch_size is {visible(as_json(value), 160)}")
                return
        if first.value != last_value:
            actual = f"global_batch_size is {first.value}, and later {last_value}"
            self._add_breach("global-batch", first.line, actual)  # the line of the last one is not kept

    def _check_target_reached_in_time(self, benchmark: str, reached_ms: float | None) -> None:
        """Report a run whose run_stop came before the first evaluation that reached the target.

        Args:
            benchmark: The benchmark of the run. The checkpoints of some are evaluated after the run: they are left out.
            reached_ms: When the earliest evaluation met the official target. None if none did, or if there is no
                target: nothing is checked then.
        """
        stop = self.run.stop
        if reached_ms is None or stop is None or benchmark in _EVALUATED_AFTER_THE_RUN:
            return
        after_stop_ms = reached_ms - stop.time_ms
        # Another node, whose clock is a little apart, may have logged the evaluation.
        most_between_clocks_ms = self.collector.strict_rules["run-time"].bounds["repeat_ms"]
        if after_stop_ms > most_between_clocks_ms:
            before = f"{significant(after_stop_ms, digits=10)} ms before the first evaluation that reached the target"
            self._add_breach("run-time", stop.line, f"run_stop {before}")

    # --- rules of this project's benchmarks ---

    def _check_benchmark(self, benchmark: Benchmark, division: str) -> None:
        """Check the times, accuracies, target and numbers of samples of a run of one of this project's benchmarks.

        Args:
            benchmark: The benchmark of the run.
            division: The division of MLPerf that the log states: "closed", "open", or "" if it states none.
        """
        self.order.measured.judge_waits_for_checkpoints()
        self._check_accuracies_are_shares()
        check_pace(self.run, self.order, benchmark, self.collector)
        self._check_target(benchmark, division)

        data = stated_data(self.run, benchmark)
        is_closed = division == "closed"
        if data.is_of_benchmark and not is_closed:
            self._note_lower_target(benchmark)
        are_samples_right = data is StatedData.BENCHMARK  # not so if only eval_samples is wrong
        if are_samples_right and self.run.is_project_log:
            self._check_bytes_of_data_set(benchmark)
        if is_closed:
            self._check_closed_run(data, benchmark)
        if benchmark.name == "resnet":
            self._check_evaluations_of_resnet(data, benchmark, is_closed=is_closed)
        elif is_closed and data.is_of_benchmark:
            check_best_miou(self.run.evaluations, self.collector)

    def _check_closed_run(self, data: StatedData, benchmark: Benchmark) -> None:
        """Report wrong values of single keys in a closed run, and wrong numbers of samples.

        Args:
            data: Whether the run is on the benchmark's data set, by the numbers that its log states.
            benchmark: The benchmark of the run. Values of single keys are only checked for ResNet.
        """
        if benchmark.name == "resnet":  # written.yaml is for ResNet alone
            self.collector.findings += self._breaches_of_written_rules()
        self._check_counts_of_closed_run(data, benchmark)

    def _check_evaluations_of_resnet(self, data: StatedData, benchmark: Benchmark, *, is_closed: bool) -> None:
        """Report what is wrong with the evaluations of a ResNet run.

        Args:
            data: Which data set the run is on, by the numbers that its log states.
            benchmark: The benchmark, with its number of evaluation samples and its target.
            is_closed: Whether the run is of the closed division.
        """
        if is_closed and data.is_of_benchmark:
            self._check_evaluations_of_closed_run(benchmark)
        elif self.run.is_project_log:  # logs of others may state a wrong eval_samples, such as a number of batches
            self._check_accuracies_by_stated_samples()

    def _check_accuracies_are_shares(self) -> None:
        """Report each accuracy that is not between 0 and 1."""
        for evaluation in self.run.evaluations:
            if not 0 <= evaluation.value <= 1:
                actual = f"eval_accuracy is {evaluation.value!r}"
                self._add_breach("value-type", evaluation.line, actual, "eval_accuracy is a share, 0 to 1")

    def _check_counts_of_closed_run(self, data: StatedData, benchmark: Benchmark) -> None:
        """Report a closed run that does not state the benchmark's numbers of samples.

        It is an error if the run is on other data, and a warning if only the stated eval_samples is wrong.

        Args:
            data: Whether the run is on the benchmark's data set, by the numbers that its log states.
            benchmark: The benchmark, with the right numbers of samples.
        """
        if data is StatedData.OTHER:
            self._report_wrong_counts(benchmark)
        elif data is StatedData.WRONG_EVAL_SAMPLES:
            self._warn_of_wrong_eval_samples(benchmark)

    def _check_evaluations_of_closed_run(self, benchmark: Benchmark) -> None:
        """Report what is wrong with the schedule, the samples and the curve of the evaluations of a closed ResNet run.

        The schedule of a resumed run is not checked, because its first evaluations are in another log.

        Args:
            benchmark: The benchmark, on whose data set the run is, with its number of evaluation samples and its
                target.
        """
        # "at least as frequently" in version 0.7 of the rules, "at the same frequency" from 1.0 on
        must_be_exact = self.ruleset.version > "0.7.0"
        if not self.run.is_resumed:  # of one that is, the first evaluations are in another log
            check_schedule(self.run, self.order, exact=must_be_exact, collector=self.collector)
        check_samples(self.run, benchmark.eval_samples, self.collector)
        check_curve(self.run.evaluations, benchmark.targets["closed"], self.collector)

    def _check_accuracies_by_stated_samples(self) -> None:
        """Report accuracies that do not fit the eval_samples that the log states, if it states a number of samples."""
        stated_samples = int(self.run.stated_count(schema.EVAL_SAMPLES))
        if stated_samples > 0:
            check_samples(self.run, stated_samples, self.collector)

    def _check_bytes_of_data_set(self, benchmark: Benchmark) -> None:
        """Report files that cannot be those of the benchmark's data set, by the sums of their bytes in the header.

        Args:
            benchmark: The benchmark. Nothing is checked if the sizes of its published files are not known.
        """
        if benchmark.published_sizes is None:  # the sizes of the published files are not known
            return
        stated = passports.bytes_of_parts(self.run.header_section(schema.DATASET))
        for difference in passports.differences(stated, benchmark.published_sizes):
            self._add_breach("data-distributed", None, difference)

    def _report_wrong_counts(self, benchmark: Benchmark) -> None:
        """Report the stated train_samples and eval_samples, because at least one of them is not the benchmark's.

        The breach blames the line of train_samples if that is wrong, and otherwise the line of eval_samples.

        Args:
            benchmark: The benchmark, with the right numbers. The caller has seen that the run is closed and on other
                data.
        """
        train = self.run.first_event(schema.TRAIN_SAMPLES)
        evaluation = self.run.first_event(schema.EVAL_SAMPLES)
        wanted = f"train_samples {benchmark.train_samples} and eval_samples {benchmark.eval_samples}"
        is_train_wrong = train.value != benchmark.train_samples
        blamed_event = train if is_train_wrong else evaluation
        line = blamed_event.line or None  # the line of a missing event is 0
        actual = f"{printable(train.value, 30)} and {printable(evaluation.value, 30)}"
        self._add_breach("closed-data", line, actual, wanted)

    def _warn_of_wrong_eval_samples(self, benchmark: Benchmark) -> None:
        """Warn of a run on the benchmark's data set that states a wrong eval_samples, such as a number of batches.

        Args:
            benchmark: The benchmark, with the right number.
        """
        evaluation = self.run.first_event(schema.EVAL_SAMPLES)
        by_accuracies = f"the accuracies are whole numbers of {benchmark.eval_samples}"
        actual = f"eval_samples is {evaluation.value}; {by_accuracies}"
        self.collector.add_breach("eval-samples", evaluation.line, actual, severity="warning")

    def _is_refused_for_other_data(self) -> bool:
        """Return whether the rule closed-data, which is for closed runs alone, refuses the run."""
        return any(finding.rule == "closed-data" and finding.severity == "error" for finding in self.collector.findings)

    def _note_rules_for_benchmark_data(self) -> None:
        """Note that the rules for runs on the benchmark's data set were not applied.

        A rule with findings gets no note: it was applied, or a finding says already why it was not.
        """
        rules_found = {finding.rule for finding in self.collector.findings}
        for rule in _RULES_FOR_BENCHMARK_DATA:
            if rule not in rules_found:
                self.collector.add_note(rule, "not applied: not the benchmark's data set")

    def _check_target(self, benchmark: Benchmark, division: str) -> None:
        """Report a run whose status contradicts its accuracies: success without the target, or the reverse.

        Args:
            benchmark: The benchmark of the run, with its target by division.
            division: The division that the log states. If the benchmark has no target for it, that of the recipe in the
                log's header counts.
        """
        run = self.run
        target = benchmark.targets.get(division, run.recipe_target)
        if target is None:
            why = f"the {printable(division, 20)} division fixes no target, nor does the log's header"
            self.collector.add_note("target-status", f"not applied: {why}")
            return
        if not run.evaluations or run.stop is None:
            return
        index = index_of_target(run.evaluations, target)  # of the first evaluation that reached it
        if index is not None:
            self._check_run_that_reached_target(run.evaluations[index], run.stop, division)
        elif run.status == "success":
            last = run.evaluations[-1]
            actual = f"status success; the last evaluation gave {six_digits(last.value)}, the target is {target}"
            self._add_breach("target-status", last.line, actual)

    def _note_lower_target(self, benchmark: Benchmark) -> None:
        """Note that a run which is not closed was to end at a lower target than that of the closed division.

        Args:
            benchmark: The benchmark of the run, on whose data set the run is.
        """
        stated = self.run.recipe_target
        target_of_closed = benchmark.targets.get("closed")  # None if the benchmark has no closed division
        if stated is None or target_of_closed is None or stated >= target_of_closed:
            return
        what = f"the target is {six_digits(stated)}, as an open run may have"
        self.collector.add_note("target-status", f"{what}; the benchmark's is {six_digits(target_of_closed)}")

    def _check_run_that_reached_target(self, reaching: Evaluation, stop: Event, division: str) -> None:
        """Report a run that reached its target without the status success, or only after its run_stop.

        It is noted if a closed run went on after that.

        Args:
            reaching: The first evaluation that reached the target.
            stop: The run_stop of the run.
            division: The division that the log states, such as "closed".
        """
        run = self.run
        reached = f"epoch {reaching.epoch} reached {six_digits(reaching.value)}"
        after_stop_ms = reaching.time_ms - stop.time_ms  # mostly below 0
        most_after_stop_ms = self.collector.strict_rules["target-status"].bounds["after_stop_ms"]  # 100
        went_on = reaching is not run.evaluations[-1]
        if run.status != "success":
            actual = f"status {printable(run.status)}, although {reached}"
            self._add_breach("target-status", reaching.line, actual)
        elif after_stop_ms > most_after_stop_ms:
            actual = f"{reached} {significant(after_stop_ms, digits=10)} ms after run_stop"
            self._add_breach("target-status", reaching.line, actual)
        elif division == "closed" and went_on:
            self.collector.add_note("target-status", f"{reached} already and the run went on, as it may")

    # --- the written rules of single values ---

    def _breaches_of_written_rules(self) -> list[Finding]:
        """Return a finding for each rule of written.yaml that the run breaks.

        These rules stand in the texts of MLPerf, but the checker of mlperf-logging does not check them. Each is about
        the first event of one key, such as a hyperparameter. A rule is left out if the log has no such event, or if the
        rule is for another optimizer than the run's.
        """
        # A rule may compare the value of its key with these: the first value of any key, and the number of epochs.
        state = State(self.run.first_values.items())
        state["epochs_trained"] = self.order.epochs_counted
        optimizer = self.run.stated_text(schema.OPT_NAME)
        findings = []
        for rule in self.ruleset.written:
            event = self.run.first_events.get(rule.key)
            is_for_optimizer = rule.opt_name in (None, optimizer)  # None: the rule is for any optimizer
            if event is None or not is_for_optimizer:
                continue
            finding = _breach_of_written_rule(rule, event, state)
            if finding is not None:
                findings.append(finding)
        return findings

    # --- a log of this project ---

    def _check_project_log(self, benchmark: Benchmark | None) -> None:
        """Report what no log of this project has, such as values that contradict each other, by the rule `own-log`.

        Args:
            benchmark: The benchmark of the run; None if this project has no rules for it.
        """
        for fault in ProjectLog(run=self.run, order=self.order, benchmark=benchmark).faults():
            self._add_breach("own-log", fault.line, fault.what)

    def _warn_of_early_event_before_run(self) -> None:
        """Warn of the first event up to run_start that is more than 100 ms earlier than one above it.

        It is not an error, because somebody may have set the clock.
        """
        early = self.order.times.first_early_before_run
        if early is not None:
            key = printable(early.event.key)
            actual = f"{key} {significant(early.early_ms, digits=10)} ms before an event above it"
            expected = "the events up to run_start are in the order of their times"
            self.collector.add_breach("time-order", early.event.line, actual, expected, severity="warning")

    def _repeat_breaches_of_form_as_errors(self) -> None:
        """Report the breaches of form so far once more, as errors of the rule `own-log`.

        They only warn in other logs. The writer of this project's logs makes none of them.
        """
        for finding in list(self.collector.findings):  # a copy, as the loop adds findings
            is_note = finding.severity == "info"
            if finding.kind == "form" and not is_note:
                self._add_breach("own-log", finding.line, f"{finding.rule}: {finding.actual}")


def _breach_of_written_rule(rule: WrittenRule, event: Event, state: State) -> Finding | None:
    """Return the finding that an event breaks a rule of written.yaml; None if it does not.

    Args:
        rule: A rule about the value or the metadata of the event, which the official checker does not check.
        event: The first event of the key that the rule is about.
        state: Other values of the run with which the rule may compare the event: the first value of each key, and
            `epochs_trained`.
    """
    check = read_check(rule.check)
    is_about_value = check.aspect == "value"
    if is_about_value and not is_number(event.value):  # as the name of a schedule; other rules report most of these
        return None
    if holds(check.is_met, event, state):  # `is_met` is an expression; one that raises an exception does not hold
        return None
    return Finding(
        rule=f"{rule.key}.{check.aspect}",
        severity=rule.severity,
        line=event.line,
        expected=f"{rule.key}: {check.words}",
        actual=printable(event.value if is_about_value else own_metadata(event.metadata)),
        fix=f"make {rule.key} {check.words}",
        source=rule.source,
    )


def _why_not_cleared(event: Event) -> str:
    """Return the reason to believe that a cache was not cleared; an empty text if there is none.

    The reason is a value of the event such as false, "no" or "failed", or a `status` in its metadata other than "done".

    Args:
        event: The event cache_clear.
    """
    # A value of null is usual and says nothing, but its text is "none", which says that the cache was not cleared.
    has_value = event.value is not None
    word = str(event.value).strip().lower()  # such as "false" of the value false
    if has_value and word in _VALUES_OF_UNCLEARED_CACHE:
        return f"the value is {printable(event.value)}"
    status = event.metadata.get("status", "done")
    if status != "done":
        return printable(own_metadata(event.metadata))
    return ""
