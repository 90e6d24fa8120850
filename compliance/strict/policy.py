"""What the policies ask of a whole run, once its log has ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compliance.findings import Collected, breach_of_key
from compliance.first_values import COUNT, FirstValues, has_type, is_number, own_metadata
from compliance.official.language import State, holds
from compliance.official.rule_files import read_check
from compliance.rules import Benchmark, Ruleset
from compliance.strict import project_log as own
from compliance.strict.run_order import EVENTS_KEPT, Course
from runlog import schema
from runlog.reader import Event, table_of
from runlog.text import printable

_ROUNDED = 5e-7  # an accuracy of six digits; single precision is finer
CACHE_CLEAR_MS = 3_600_000  # between cache_clear and init_start at most
_NEVER_OURS = ("exactly-once", "block-order")  # others may write so
_OF_SHARES = ("resnet", "hrnet")  # their quality is one: others' may be a distance
_OF_OUR_BENCHMARKS = (
    *("target-status", "closed-data", "epoch-order", "block-order", "eval-order", "epoch-time", "throughput-agrees"),
    *("eval-schedule", "eval-samples", "rcp-hyperparameters", "rcp-convergence"),
)
OF_CLOSED_DATA = ("closed-data", "eval-schedule", "eval-samples", "rcp-hyperparameters", "rcp-convergence")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A run that has ended; `finish` collects what is against it."""

    ruleset: Ruleset
    values: FirstValues
    course: Course
    headers: Mapping[str, Any]
    collected: Collected

    def finish(self, benchmark_asked: str | None) -> None:
        """Applies all of them."""
        closed = self.values.text(schema.SUBMISSION_DIVISION) == "closed"
        benchmark = self.ruleset.benchmarks.get(self.values.text(schema.SUBMISSION_BENCHMARK))
        self._asked(benchmark_asked)
        self._ending()
        self._summary()
        self._own()
        self._closed_run(closed=closed)
        if benchmark is None:
            self.collected.drop(_OF_OUR_BENCHMARKS)
            for rule in _OF_OUR_BENCHMARKS:
                actual = (
                    f"not applied: checked by the rules of {self.ruleset.version}, for which this project has none such"
                )
                self.collected.note(rule, actual)
            return
        self.course.finish()
        self._evaluated()
        self._shares(benchmark)
        self._target(benchmark, self.values.text(schema.SUBMISSION_DIVISION))
        self._closed_data(benchmark, closed=closed)
        if closed and benchmark.name == "resnet":
            self._written()

    def _breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        self.collected.breach(rule, line, actual, expected=expected)

    def _asked(self, benchmark: str | None) -> None:
        name = self.values.text(schema.SUBMISSION_BENCHMARK)
        if benchmark and name and name != benchmark:
            line = self.values.of(schema.SUBMISSION_BENCHMARK).line
            self._breach("benchmark-asked", line, printable(name), f"benchmark {benchmark}")

    def _ending(self) -> None:
        of, course = self.values.of, self.course
        if of(schema.RUN_STOP).count and course.status != "success":
            aborted = of(schema.ABORT_REASON)
            why = f": {printable(aborted.value)}" if aborted.count else ""
            self._breach("run-status", course.stop_line, f"status {printable(course.status)}{why}")

    def _evaluated(self) -> None:
        of = self.values.of
        accuracy = of(schema.EVAL_ACCURACY)
        evaluated = of(schema.EVAL_START).count and of(schema.EVAL_STOP).count
        blocks = of(schema.BLOCK_START).count and of(schema.BLOCK_STOP).count  # either is what the official rules ask
        if accuracy.count and not (evaluated or blocks):
            self._breach("eval-order", accuracy.line, "accuracies without eval_start and eval_stop")

    def _summary(self) -> None:
        state = self.values.of(schema.RUN_SUMMARY)
        summary, line = table_of(schema.RunSummary, state.value), state.line
        if summary is None:
            for rule in ("run-resumed", "run-profiled", "run-mode"):
                self.collected.note(rule, "not applied: the log has no run_summary that says so")
            return
        if summary.resumed:
            self._breach("run-resumed", line, "it says that it was resumed")
        if summary.profiled:
            self._breach("run-profiled", line, "it says that it was profiled")
        for name, said, wanted in (("mode", summary.mode, "train"), ("data", summary.data, "real")):
            if said != wanted:
                self._breach("run-mode", line, f"{name} is {printable(said)}", f"{name} is {wanted}")

    def _own(self) -> None:
        """A log of ours is whole, and in the order in which our writer writes it."""
        if not own.is_own(self.headers, self.values, self.course):
            return
        for line, actual in own.lacks(self.headers, self.values, self.course):
            self._breach("own-log", line, actual)
        for found in [f for f in self.collected.found if f.rule in _NEVER_OURS]:
            self._breach("own-log", found.line, f"{found.rule}: {found.actual}")

    def _closed_run(self, *, closed: bool) -> None:
        seeds = self.course.seeds
        if closed:
            for line, reason in self.course.caches_kept:
                self._breach("cache-cleared", line, f"not cleared: {reason}")
            self._caches_cleared()
            if not seeds:
                self._breach("seed-present", None, "no seed")
        else:
            self.collected.note("cache-cleared", "not applied: not a closed run")
            if not seeds:
                self.collected.note("seed-present", "not applied: not a closed run; this log has no seed")
        for value, line, placed in seeds:
            if type(value) is not int:
                self._breach("seed-present", line, f"seed {printable(value)}")
            elif not placed:
                self._breach("seed-present", line, "a seed without file and lineno, which seed_checker needs")

    def _written(self) -> None:
        """What the written rules ask of single values."""
        state = State((key, said.value) for key, said in self.values.keys.items() if said.count)
        for rule in self.ruleset.written:
            said = self.values.keys[rule.key]
            if not said.count or rule.opt_name not in (None, self.values.text(schema.OPT_NAME)):
                continue
            event = Event(rule.key, said.value, dict(said.metadata), 0, "", said.line, 0)
            check = read_check("written.yaml", rule.key, rule.check)
            if not holds(check.code, event, state):
                actual = printable(said.value if check.aspect == "value" else own_metadata(said.metadata))
                wanted, fix = f"{rule.key}: {check.words}", f"make {rule.key} {check.words}"
                found = breach_of_key(
                    rule.key, check.aspect, said.line, wanted, actual, fix, source=rule.source, official=False
                )
                self.collected.found.append(found)

    def _caches_cleared(self) -> None:
        course = self.course
        for line, time_ms in course.caches_cleared:
            if course.start_ms is not None and time_ms >= course.start_ms:
                self._breach("cache-cleared", line, f"{time_ms - course.start_ms:.0f} ms after run_start")
            elif course.first_init_ms is not None and abs(time_ms - course.first_init_ms) > CACHE_CLEAR_MS:
                off_h = abs(time_ms - course.first_init_ms) / 3.6e6
                self._breach("cache-cleared", line, f"{off_h:.1f} h from init_start")
            elif course.start_line is not None and line > course.start_line:
                self._breach("cache-cleared", line, f"written below run_start, which is line {course.start_line}")

    def _target(self, benchmark: Benchmark, division: str) -> None:
        target, course = benchmark.targets.get(division), self.course
        if target is None:
            target = self._own_target()
        if target is None:
            actual = f"not applied: the {printable(division, 20)} division fixes no target, nor does the log's header"
            self.collected.note("target-status", actual)
            return
        if not course.evaluations or course.stop_line is None:
            return
        last, success = course.evaluations[-1], course.status == "success"
        if success and last.value < target:
            actual = f"status success; the last evaluation gave {last.value:.6g}, the target is {target}"
            self._breach("target-status", last.line, actual)
        reached = next((e for e in course.evaluations if e.value >= target), None)
        if reached is None:
            return
        if not success:
            actual = f"status {printable(course.status)}, although epoch {reached.epoch} reached {reached.value:.6g}"
            self._breach("target-status", reached.line, actual)
        elif division == "closed" and reached is not last:
            actual = f"epoch {reached.epoch} reached {reached.value:.6g} already and the run went on"
            self._breach("target-status", reached.line, actual)

    def _shares(self, benchmark: Benchmark) -> None:
        for evaluation in self.course.evaluations if benchmark.name in _OF_SHARES else ():
            if not 0 <= evaluation.value <= 1:
                actual = f"eval_accuracy is {evaluation.value!r}"
                self._breach("value-type", evaluation.line, actual, "eval_accuracy is a share, 0 to 1")

    def _own_target(self) -> float | None:
        """The target of the recipe that the header's `config` names; an open run may choose it."""
        config = self.headers.get(schema.CONFIG.name)
        for name, entry in (config if isinstance(config, dict) else {}).items():
            if name.startswith("RECIPE.target_") and isinstance(entry, dict) and is_number(entry.get("value")):
                return float(entry["value"])
        return None

    def _closed_data(self, benchmark: Benchmark, *, closed: bool) -> None:
        train, evaluation = self.values.of(schema.TRAIN_SAMPLES), self.values.of(schema.EVAL_SAMPLES)
        padding = evaluation.value - benchmark.eval_samples if has_type(evaluation.value, COUNT) else -1
        batch = self.values.of(schema.GLOBAL_BATCH_SIZE).value
        most = batch if has_type(batch, COUNT) else 0
        own_data = train.value == benchmark.train_samples and (padding == 0 or 0 < padding < most)
        if not closed or not own_data:
            if closed:
                wanted = f"train_samples {benchmark.train_samples} and eval_samples {benchmark.eval_samples}"
                actual = f"{printable(train.value, 30)} and {printable(evaluation.value, 30)}"
                blamed = train if train.value != benchmark.train_samples else evaluation
                self._breach("closed-data", blamed.line or None, actual, wanted)
            reason = "not the benchmark's data set" if closed else "not a closed run"
            not_applied = list(OF_CLOSED_DATA[1:] if closed else OF_CLOSED_DATA)
            ours = own.is_own(self.headers, self.values, self.course)
            if ours and benchmark.name == "resnet" and has_type(evaluation.value, COUNT):
                self._whole_samples(evaluation.value)
                not_applied.remove("eval-samples")
            for rule in not_applied:
                self.collected.note(rule, f"not applied: {reason}")
            return
        if benchmark.evaluate_every_epochs:
            self._schedule(benchmark.evaluate_every_epochs)
        if benchmark.name == "resnet":
            self._whole_samples(benchmark.eval_samples)

    def _schedule(self, period: int) -> None:
        course, previous = self.course, None
        for evaluation in course.evaluations:
            epoch = evaluation.epoch
            if previous is None and not epoch <= period:
                self._breach("eval-schedule", evaluation.line, f"the first evaluation is of epoch {epoch}")
            elif previous is not None and epoch - previous != period:
                actual = f"an evaluation of epoch {epoch}, {epoch - previous} after the one before"
                self._breach("eval-schedule", evaluation.line, actual)
            previous = epoch
        if course.evaluation_count > EVENTS_KEPT:
            self._breach("eval-schedule", None, f"{course.evaluation_count} evaluations")
        if previous is not None and course.last_epoch is not None and course.last_epoch - previous >= period:
            actual = f"the last evaluation is of epoch {previous}, the last epoch {course.last_epoch}"
            self._breach("eval-schedule", course.evaluations[-1].line, actual)

    def _whole_samples(self, samples: int) -> None:
        for evaluation in self.course.evaluations:
            count = evaluation.value * samples
            if abs(count - round(count)) > max(0.01, samples * _ROUNDED):
                actual = f"{evaluation.value!r} is {count:.3f} of {samples} samples"
                self._breach("eval-samples", evaluation.line, actual)
