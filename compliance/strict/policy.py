"""The rules of a whole run, once its log has ended."""

from dataclasses import dataclass

from compliance import passports
from compliance.logged_run import COUNT, Evaluation, LoggedRun, has_type, is_number, own_metadata
from compliance.official.checks import read_check
from compliance.official.language import State, holds
from compliance.rules import Benchmark, Finding, FindingCollector, Ruleset, WrittenRule
from compliance.strict.accuracies import (
    check_curve,
    check_samples,
    check_schedule,
    index_of_target,
    states_benchmark_data,
    states_wrong_eval_samples,
)
from compliance.strict.copies import whole_seed
from compliance.strict.pace import check_pace
from compliance.strict.project_log import ProjectLog
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.digits import significant, six_digits
from runlog.reader import Event
from runlog.text import printable

_VALUES_OF_UNCLEARED_CACHE = frozenset({"false", "no", "n", "off", "0", "none", "skipped", "failed"})
_SUMMARY_OF_A_WHOLE_RUN = {"mode": "train", "data": "real", "resumed": False, "profiled": False}
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

    def check(self, benchmark_asked: str | None) -> None:
        """Report the breaches of the rules about the run as a whole. Call it after all events were checked.

        `benchmark_asked` is the benchmark that the log must be of; None allows any.

        Rules may hold for some benchmarks or one division only. At the end, the findings of rules that do not hold for
        this run are dropped, also those of single events, and a note names each such rule. If the ruleset does not
        define the run's benchmark, no rule for some benchmarks holds.
        """
        run = self.run
        name = run.stated_text(schema.SUBMISSION_BENCHMARK)
        division = run.stated_text(schema.SUBMISSION_DIVISION)
        benchmark = self.ruleset.benchmarks.get(name)  # None: the ruleset does not define it
        self._check_benchmark_asked(benchmark_asked)
        self._check_status(ours=benchmark is not None)
        self._check_summary()
        self._check_caches()
        self._check_seeds()
        if benchmark is not None:
            self._check_benchmark(benchmark, division)
        if run.is_project_log:
            # It looks at the breaches of form found so far, so it comes after all other checks, and before some of
            # their findings are dropped.
            self._check_project_log(benchmark)

        name_if_in_round = name if benchmark is not None else None  # None: no rule for some benchmarks holds
        self.collector.drop_inapplicable_rules(name_if_in_round, division)
        if division == "closed":  # last: it looks at the findings that are left
            self._note_rules_for_benchmark_data()

    def _add_breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        self.collector.add_breach(rule, line, actual, expected)

    # --- rules of every benchmark ---

    def _check_benchmark_asked(self, asked: str | None) -> None:
        """Report a log of another benchmark than the user asked for; None allows any."""
        name = self.run.stated_text(schema.SUBMISSION_BENCHMARK)
        if asked and name and name != asked:
            line = self.run.first_event(schema.SUBMISSION_BENCHMARK).line
            self._add_breach("benchmark-asked", line, printable(name), f"benchmark {asked}")

    def _check_status(self, *, ours: bool) -> None:
        """Report a run that did not end with success. A log without run_stop is skipped.

        `ours` says whether the benchmark is one of this project's. Logs of other benchmarks have other words for
        success, so only the status "aborted" is reported for them.
        """
        run = self.run
        status = run.status
        if run.stop is None or status == "success":
            return
        if not ours and status != "aborted":
            return
        abort_reason = run.first_event(schema.ABORT_REASON)
        why = f": {printable(abort_reason.value)}" if abort_reason.line else ""
        self._add_breach("run-status", run.stop.line, f"status {printable(status)}{why}")

    def _check_summary(self) -> None:
        """Report each field of run_summary that shows that the run was not a whole training on real data.

        Such a run only measured throughput, or it was resumed, profiled or on synthetic data. Logs of other projects
        have no run_summary: it is noted that the rule was not applied.
        """
        summary = self.run.summary
        if summary is None:
            self.collector.add_note("run-mode", "not applied: the log has no run_summary that says so")
            return
        line = self.run.first_event(schema.RUN_SUMMARY).line
        for field, wanted in _SUMMARY_OF_A_WHOLE_RUN.items():
            value = getattr(summary, field)
            if value != wanted:
                field_is = f"run_summary's {field} is"
                self._add_breach("run-mode", line, f"{field_is} {printable(value)}", f"{field_is} {printable(wanted)}")

    def _check_caches(self) -> None:
        """Report each cache_clear event that says that the cache was not cleared, and a clearing that came too late.

        The earliest clearing may come up to `late_ms`, a bound of the rule, after run_start. The others may be later,
        because each node may log its clearing by its own clock. A log without any cache_clear breaks another rule.
        """
        cleared: list[Event] = []
        for event in self.run.all_events[schema.CACHE_CLEAR.key]:
            reason = _why_not_cleared(event)
            if reason:
                self._add_breach("cache-cleared", event.line, f"not cleared: {reason}")
            else:
                cleared.append(event)
        if not cleared or self.run.start_ms is None:
            return
        earliest = min(cleared, key=lambda event: event.time_ms)
        late_ms = earliest.time_ms - self.run.start_ms
        if late_ms > self.collector.strict_rules["cache-cleared"].bounds["late_ms"]:
            self._add_breach("cache-cleared", earliest.line, f"{late_ms:.0f} ms after run_start")

    def _check_seeds(self) -> None:
        """Report a log without a seed, and each seed that the official seed_checker does not take."""
        seeds = self.run.all_events[schema.SEED.key]
        if not seeds:
            self._add_breach("seed-present", None, "no seed")
        for seed in seeds:
            if whole_seed(seed.value) is None:
                self._add_breach("seed-present", seed.line, f"seed {printable(seed.value)}")
            elif not {"file", "lineno"} <= seed.metadata.keys():
                self._add_breach("seed-present", seed.line, "a seed without file and lineno, which seed_checker needs")

    # --- rules of this project's benchmarks ---

    def _check_benchmark(self, benchmark: Benchmark, division: str) -> None:
        """Report what is wrong with a run of one of this project's benchmarks.

        Any run is checked for its throughputs, its accuracies, its pace and its target. Some runs are checked for more:

        - logs of this project on the benchmark's data: for the bytes of the data set
        - closed ResNet runs: by the checks of written.yaml, such as those of hyperparameters
        - closed runs: for their numbers of samples
        - ResNet runs: for their evaluations
        """
        run = self.run
        is_closed = division == "closed"
        is_resnet = benchmark.name == "resnet"
        self.order.measured.judge_short_throughputs()
        self._check_accuracies_are_shares()
        check_pace(run, self.order, benchmark, self.collector)
        self._check_target(benchmark, division)

        if run.is_project_log and states_benchmark_data(run, benchmark):
            self._check_bytes_of_data_set(benchmark)
        if is_closed and is_resnet:
            self.collector.findings += self._written_findings()  # by the checks of written.yaml
        # An open run is not checked for its counts. A closed one is, and the answer is whether it is on its data set.
        is_closed_on_its_data = is_closed and self._check_counts_of_closed_run(benchmark)
        if is_resnet:
            self._check_resnet_evaluations(benchmark, is_closed_on_its_data=is_closed_on_its_data)

    def _check_accuracies_are_shares(self) -> None:
        """Report each accuracy that is not between 0 and 1."""
        for evaluation in self.run.evaluations:
            if not 0 <= evaluation.value <= 1:
                actual = f"eval_accuracy is {evaluation.value!r}"
                self._add_breach("value-type", evaluation.line, actual, "eval_accuracy is a share, 0 to 1")

    def _check_counts_of_closed_run(self, benchmark: Benchmark) -> bool:
        """Report a closed run that does not state the benchmark's numbers of samples.

        Return whether the run is on the benchmark's data set.

        - It states the benchmark's numbers: True.
        - Only eval_samples is wrong, and the accuracies of a ResNet run show this: a warning, and True. They show it if
          all of them fit the benchmark's eval_samples (accuracy * eval_samples is whole), but not all fit the stated.
        - Anything else: the wrong numbers are reported, and False.
        """
        if states_benchmark_data(self.run, benchmark):
            return True
        is_only_eval_samples_wrong = benchmark.name == "resnet" and states_wrong_eval_samples(self.run, benchmark)
        if is_only_eval_samples_wrong:
            self._warn_of_wrong_eval_samples(benchmark)
        else:
            self._report_wrong_counts(benchmark)
        return is_only_eval_samples_wrong

    def _check_resnet_evaluations(self, benchmark: Benchmark, *, is_closed_on_its_data: bool) -> None:
        """Report what is wrong with the evaluations of a ResNet run.

        - A closed run on the data set of the benchmark: their schedule, their number of samples, and
          the curve of their accuracies.
        - Another run of this project: the accuracies must fit the eval_samples that it states, if that is a count.
        - Any other run: nothing is checked.
        """
        run = self.run
        if is_closed_on_its_data:
            # "at least as frequently" in version 0.7 of the rules, "at the same frequency" from 1.0 on
            must_be_exact = self.ruleset.version > "0.7.0"
            check_schedule(run, self.order, exact=must_be_exact, collector=self.collector)
            check_samples(run, benchmark.eval_samples, self.collector)
            check_curve(run.evaluations, benchmark.targets["closed"], self.collector)
        elif run.is_project_log and has_type(run.first_event(schema.EVAL_SAMPLES).value, COUNT):
            check_samples(run, int(run.stated_count(schema.EVAL_SAMPLES)), self.collector)

    def _check_bytes_of_data_set(self, benchmark: Benchmark) -> None:
        """Report files that cannot be those of the benchmark's data set, by the sums of their bytes in the header."""
        if benchmark.published_sizes is None:  # the sizes of the published files are not known
            return
        stated = passports.bytes_of_parts(self.run.header_section(schema.DATASET))
        for difference in passports.differences(stated, benchmark.published_sizes):
            self._add_breach("data-distributed", None, difference)

    def _report_wrong_counts(self, benchmark: Benchmark) -> None:
        """Report a closed run that does not state the numbers of samples of the benchmark's data set."""
        train = self.run.first_event(schema.TRAIN_SAMPLES)
        evaluation = self.run.first_event(schema.EVAL_SAMPLES)
        wanted = f"train_samples {benchmark.train_samples} and eval_samples {benchmark.eval_samples}"
        is_train_wrong = train.value != benchmark.train_samples  # else evaluation is
        blamed_event = train if is_train_wrong else evaluation
        actual = f"{printable(train.value, 30)} and {printable(evaluation.value, 30)}"
        self._add_breach("closed-data", blamed_event.line or None, actual, wanted)  # the line of a missing event is 0

    def _warn_of_wrong_eval_samples(self, benchmark: Benchmark) -> None:
        """Warn of a run on the benchmark's data set that states a wrong eval_samples, such as a number of batches."""
        evaluation = self.run.first_event(schema.EVAL_SAMPLES)
        by_accuracies = f"the accuracies are whole numbers of {benchmark.eval_samples}"
        actual = f"eval_samples is {evaluation.value}; {by_accuracies}"
        self.collector.add_breach("eval-samples", evaluation.line, actual, severity="warning")

    def _note_rules_for_benchmark_data(self) -> None:
        """Note the rules that were not applied because a closed run is not on the benchmark's data set.

        Rules that have findings already are left out.
        """
        findings = self.collector.findings
        is_on_other_data = any(finding.rule == "closed-data" and finding.severity == "error" for finding in findings)
        if not is_on_other_data:
            return
        rules_found = {finding.rule for finding in findings}
        for rule in _RULES_FOR_BENCHMARK_DATA:
            if rule not in rules_found:
                self.collector.add_note(rule, "not applied: not the benchmark's data set")

    def _check_target(self, benchmark: Benchmark, division: str) -> None:
        """Report a status that contradicts the accuracies.

        - An accuracy reached the target: the status must be success, and the target reached by run_stop.
        - No accuracy reached the target: the status must not be success.

        The target is that of the benchmark for the division, else that of the recipe in the log's header. If there is
        no target, a note says that the rule was not applied. A run without evaluations or run_stop is skipped.
        """
        run = self.run
        target = benchmark.targets.get(division, run.recipe_target)
        if target is None:
            why = f"the {printable(division, 20)} division fixes no target, nor does the log's header"
            self.collector.add_note("target-status", f"not applied: {why}")
            return
        if not run.evaluations or run.stop is None:
            return
        index = index_of_target(run.evaluations, target)
        if index is not None:
            self._check_reached(run.evaluations[index], division)
        elif run.status == "success":
            last = run.evaluations[-1]
            actual = f"status success; the last evaluation gave {six_digits(last.value)}, the target is {target}"
            self._add_breach("target-status", last.line, actual)

    def _check_reached(self, reaching: Evaluation, division: str) -> None:
        """Check a run that first reached the target at the evaluation `reaching`. The run must have a run_stop.

        Only the first of these that applies is reported:

        - The run's status is not success: a breach.
        - The evaluation came after run_stop by more than `after_stop_ms`, a bound of the rule target-status: a breach.
        - It is not the last evaluation of a closed run: a note. Such a run may go on after it reached the target.
        """
        run = self.run
        assert run.stop is not None
        reached = f"epoch {reaching.epoch} reached {six_digits(reaching.value)}"
        late_ms = reaching.time_ms - run.stop.time_ms
        if run.status != "success":
            actual = f"status {printable(run.status)}, although {reached}"
            self._add_breach("target-status", reaching.line, actual)
        elif late_ms > self.collector.strict_rules["target-status"].bounds["after_stop_ms"]:
            actual = f"{reached} {significant(late_ms, digits=10)} ms after run_stop"
            self._add_breach("target-status", reaching.line, actual)
        elif division == "closed" and reaching is not run.evaluations[-1]:
            self.collector.add_note("target-status", f"{reached} already and the run went on, as it may")

    # --- the written rules of single values ---

    def _written_findings(self) -> list[Finding]:
        """Return a finding for each check of written.yaml that the run does not pass.

        The written rules of MLPerf demand these checks, and mlperf-logging's checker does not make them. A check looks
        at the first event of its key. It may use the first values of other keys and the number of epochs, too.

        A check is skipped if the log has no such event, or if it is for another optimizer than the run's.
        """
        state = State(self.run.first_values.items())  # `s` in a check has the first value of each key
        state["epochs_trained"] = self.order.epochs_counted
        findings = []
        for rule in self.ruleset.written:
            event = self.run.first_events.get(rule.key)
            is_for_optimizer = rule.opt_name in (None, self.run.stated_text(schema.OPT_NAME))  # None: for any
            if event is None or not is_for_optimizer:
                continue
            finding = _written_finding(rule, event, state)
            if finding is not None:
                findings.append(finding)
        return findings

    # --- a log of this project ---

    def _check_project_log(self, benchmark: Benchmark | None) -> None:
        """Report what a log of this project cannot hold, as breaches of the rule `own-log`, which are errors.

        These are the faults of ProjectLog, and all breaches of form found so far: they only warn in other logs, but the
        writer of this project's logs makes none of them.
        """
        for fault in ProjectLog(run=self.run, order=self.order, benchmark=benchmark).faults():
            self._add_breach("own-log", fault.line, fault.what)
        for finding in list(self.collector.findings):
            if finding.kind == "form" and finding.severity != "info":
                self._add_breach("own-log", finding.line, f"{finding.rule}: {finding.actual}")


def _written_finding(rule: WrittenRule, event: Event, state: State) -> Finding | None:
    """Return the finding that an event breaks a rule of written.yaml; None if it does not.

    The rule's check looks at the event's value or its metadata, and at `state`, the values of other events. A value
    that is not a number is not checked here: the rules `log-form` and `value-type` report it.
    """
    check = read_check(rule.check)
    is_about_value = check.aspect == "value"
    if is_about_value and not is_number(event.value):
        return None
    if holds(check.is_met, event, state):
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
    """Return the part of a cache_clear event that says that the cache was not cleared; empty if nothing says so.

    If the value is false or a word such as "no", "none" or "failed", the value is returned. A value of null says
    nothing. If the metadata has a `status` other than "done", the metadata is returned.
    """
    has_value = event.value is not None  # null is usual; str(None) would be the word "none"
    if has_value and str(event.value).strip().lower() in _VALUES_OF_UNCLEARED_CACHE:
        return f"the value is {printable(event.value)}"
    if event.metadata.get("status", "done") != "done":
        return printable(own_metadata(event.metadata))
    return ""
