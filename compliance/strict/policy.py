"""What the policies ask of a whole run, once its log has ended."""

import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from compliance.logged_run import COUNT, EVENTS_KEPT, LoggedRun, has_type, is_number, own_metadata
from compliance.official.language import State, holds
from compliance.official.rule_files import read_check
from compliance.rules import FINDINGS_PER_RULE, Benchmark, Collected, Finding, Ruleset
from compliance.strict.project_log import ProjectLog
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.text import printable

# Of 1,000 published closed runs the best top-1 is 0.765; of those with 5 evaluations to the target at least, the last
# rise is 0.114 at most, and 81 % of the evaluations or more are better than the one before
MOST_ACCURATE, LEAST_CURVE, MOST_LAST_RISE, LEAST_RISES = 0.8, 5, 0.3, 0.6
# Of 1,015 published runs the least are 6.3 ms, and 0.115 of the time that as many images of training take
SHORTEST_STEP_MS, FASTEST_EVALUATION = 1.0, 0.03
_ROUNDED = 5e-7  # an accuracy of six digits; single precision is finer
_LEAST_VALUES = 3  # each is a whole number of 50,000 by a chance of 5 %
_COUNT_TOLERANCE = 0.012  # of a count of images, by an accuracy in single precision
CACHE_CLEAR_MS = 3_600_000  # between cache_clear and init_start, or run_start, at most
_ALSO_OURS = ("line-encoding", "event-type")  # of the rules of form; the others a log of ours never breaks
_NO = frozenset({"false", "no", "n", "off", "0", "none", "skipped", "failed"})  # of a cleared cache
_OF_OUR_BENCHMARKS = (
    *("target-status", "closed-data", "epoch-order", "block-order", "eval-order", "epoch-time", "throughput-agrees"),
    *("eval-schedule", "eval-samples", "eval-means", "eval-padding", "eval-late", "accuracy-curve", "data-label"),
    *("rcp-hyperparameters", "rcp-convergence"),
)
OF_CLOSED_DATA = ("closed-data", "eval-schedule", "eval-samples", "rcp-hyperparameters", "rcp-convergence")
Broken = Iterator[tuple[Any, ...]]  # a rule, the line to blame, what breaks it; and what is expected, if not as ever


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A run that has ended."""

    ruleset: Ruleset
    run: LoggedRun
    order: RunOrder
    collected: Collected

    def broken(self, benchmark_asked: str | None) -> Broken:
        """What is against it; what does not apply is collected as a note."""
        run, named = self.run, self.run.of(schema.SUBMISSION_BENCHMARK)
        name, division = run.text(schema.SUBMISSION_BENCHMARK), run.text(schema.SUBMISSION_DIVISION)
        benchmark, closed = self.ruleset.benchmarks.get(name), division == "closed"
        if benchmark_asked and name and name != benchmark_asked:
            yield "benchmark-asked", named.line, printable(name), f"benchmark {benchmark_asked}"
        if run.stop and run.status != "success":
            aborted = run.of(schema.ABORT_REASON)
            why = f": {printable(aborted.value)}" if aborted.line else ""
            yield "run-status", run.stop.line, f"status {printable(run.status)}{why}"
        yield from self._summary()
        if closed:
            yield from self._caches()
        else:
            self._not_applied(["cache-cleared"], "not a closed run")
        yield from self._seeds(closed=closed)
        if benchmark is None:
            self.collected.drop(_OF_OUR_BENCHMARKS)
            why = f"checked by the rules of {self.ruleset.version}, for which this project has none such"
            self._not_applied(_OF_OUR_BENCHMARKS, why)
        else:
            self.order.finish()
            yield from self._evaluated()
            if name == "resnet":
                yield from self._pace(benchmark)
            yield from self._target(benchmark, division)
            yield from self._closed_data(benchmark, closed=closed)
            if closed and name == "resnet":
                self.collected.found += self._written()
        if run.is_project_log:  # it is whole, and in the order in which our writer writes it
            for fault in ProjectLog(run=run, order=self.order).faults():
                yield "own-log", *fault
            for found in [f for f in self.collected.found if f.kind == "form" and f.rule not in _ALSO_OURS]:
                yield "own-log", found.line, f"{found.rule}: {found.actual}"

    def _not_applied(self, rules: Iterable[str], why: str) -> None:
        for rule in rules:
            self.collected.note(rule, f"not applied: {why}")

    def _evaluated(self) -> Broken:
        number, accuracy = self.run.number, self.run.of(schema.EVAL_ACCURACY)
        evaluated = number(schema.EVAL_START) and number(schema.EVAL_STOP)
        blocks = number(schema.BLOCK_START) and number(schema.BLOCK_STOP)  # either is what the official rules ask
        if accuracy.line and not (evaluated or blocks):
            yield "eval-order", accuracy.line, "accuracies without eval_start and eval_stop"
        for one in self.run.evaluations:  # of both benchmarks it is a share; others' may be a distance
            if not 0 <= one.value <= 1:
                yield "value-type", one.line, f"eval_accuracy is {one.value!r}", "eval_accuracy is a share, 0 to 1"

    def _pace(self, benchmark: Benchmark) -> Broken:
        """No step is shorter than its 500 kernels; on the benchmark's data no evaluation far faster than training."""
        run, epochs = self.run, self.order.last_epoch
        counts = [run.count(e) for e in (schema.TRAIN_SAMPLES, schema.EVAL_SAMPLES, schema.GLOBAL_BATCH_SIZE)]
        if not epochs or run.stop is None or not all(counts):
            return
        samples, evaluated, batch = counts
        image_ms = (run.stop.time_ms - (run.start_ms or 0)) / epochs / samples
        if 0 < image_ms * batch < SHORTEST_STEP_MS:
            actual = f"{image_ms * batch:.3g} ms a step of {batch} images, by the run's time and epochs"
            yield "epoch-time", run.stop.line, actual, f"a step takes {SHORTEST_STEP_MS} ms at least"
        least_ms = min((ms for (key, _), ms in run.intervals.items() if key == schema.EVAL_STOP.key), default=0)
        if samples == benchmark.train_samples and 0 < least_ms < FASTEST_EVALUATION * image_ms * evaluated:
            training = f"{evaluated} images of training take {image_ms * evaluated:.4g} ms"
            yield "epoch-time", run.stop.line, f"an evaluation of {least_ms:.10g} ms; {training}"

    def _summary(self) -> Broken:
        summary, line = self.run.summary, self.run.of(schema.RUN_SUMMARY).line
        if summary is None:
            self._not_applied(("run-resumed", "run-profiled", "run-mode"), "the log has no run_summary that says so")
            return
        if summary.resumed:
            yield "run-resumed", line, "it says that it was resumed"
        if summary.profiled:
            yield "run-profiled", line, "it says that it was profiled"
        for name, value, wanted in (("mode", summary.mode, "train"), ("data", summary.data, "real")):
            if value != wanted:
                yield "run-mode", line, f"{name} is {printable(value)}", f"{name} is {wanted}"

    def _caches(self) -> Broken:
        start, cleared, kept = self.run.first.get(schema.RUN_START.key), [], []
        for event in self.run.kept[schema.CACHE_CLEAR.key]:
            if str(event.value or False).strip().lower() in _NO and event.value is not None:
                kept.append((event.line, f"the value is {printable(event.value)}"))
            elif event.metadata.get("status", "done") != "done":
                kept.append((event.line, printable(own_metadata(event.metadata))))
            else:
                cleared.append(event)
        for line, reason in kept[:FINDINGS_PER_RULE]:
            yield "cache-cleared", line, f"not cleared: {reason}"
        inits_ms = [init.time_ms for init in self.run.kept[schema.INIT_START.key]]
        starts_ms = [*sorted(inits_ms)[:1], *([start.time_ms] if start else [])]
        for event in cleared:
            off_ms = min((abs(event.time_ms - start_ms) for start_ms in starts_ms), default=0)
            if start and event.time_ms >= start.time_ms:
                others = any(one.time_ms < start.time_ms for one in cleared)  # nodes have clocks of their own
                rule = "cache-order" if others else "cache-cleared"
                yield rule, event.line, f"{event.time_ms - start.time_ms:.0f} ms after run_start"
            elif off_ms > CACHE_CLEAR_MS:
                yield "cache-order", event.line, f"{off_ms / 3.6e6:.1f} h from init_start and run_start"
            elif start and event.line > start.line:
                yield "cache-order", event.line, f"written below run_start, which is line {start.line}"

    def _seeds(self, *, closed: bool) -> Broken:
        seeds = self.run.kept[schema.SEED.key]
        if closed and not seeds:
            yield "seed-present", None, "no seed"
        elif not seeds:
            self._not_applied(["seed-present"], "not a closed run; this log has no seed")
        for seed in seeds:
            if type(seed.value) is not int:
                yield "seed-present", seed.line, f"seed {printable(seed.value)}"
            elif not {"file", "lineno"} <= seed.metadata.keys():
                yield "seed-present", seed.line, "a seed without file and lineno, which seed_checker needs"

    def _written(self) -> Iterator[Finding]:
        """What the written rules ask of single values."""
        first_values = State(self.run.values.items())
        for rule in self.ruleset.written:
            event = self.run.first.get(rule.key)
            if not event or rule.opt_name not in (None, self.run.text(schema.OPT_NAME)):
                continue
            check = read_check("written.yaml", rule.key, rule.check)
            if check.aspect == "value" and not is_number(event.value):
                continue  # label-type says so
            if not holds(check.code, event, first_values):
                yield Finding(
                    rule=f"{rule.key}.{check.aspect}",
                    severity=rule.severity,
                    line=event.line,
                    expected=f"{rule.key}: {check.words}",
                    actual=printable(event.value if check.aspect == "value" else own_metadata(event.metadata)),
                    fix=f"make {rule.key} {check.words}",
                    source=rule.source,
                )

    def _target(self, benchmark: Benchmark, division: str) -> Broken:
        target, evaluations = benchmark.targets.get(division, self.run.recipe_target), self.run.evaluations
        if target is None:
            why = f"the {printable(division, 20)} division fixes no target, nor does the log's header"
            self._not_applied(["target-status"], why)
            return
        if not evaluations or not self.run.stop:
            return
        last, success = evaluations[-1], self.run.status == "success"
        first = next((e for e in evaluations if e.value >= target), None)
        reached = f"epoch {first.epoch} reached {first.value:.6g}" if first else ""
        if success and not first:
            actual = f"status success; the last evaluation gave {last.value:.6g}, the target is {target}"
            yield "target-status", last.line, actual
        elif first and not success:
            yield "target-status", first.line, f"status {printable(self.run.status)}, although {reached}"
        elif first and division == "closed" and first is not last:
            self.collected.note("target-status", f"{reached} already and the run went on, as it may")

    def _closed_data(self, benchmark: Benchmark, *, closed: bool) -> Broken:
        train, evaluation = self.run.of(schema.TRAIN_SAMPLES), self.run.of(schema.EVAL_SAMPLES)
        samples, resnet, own_data = evaluation.value, benchmark.name == "resnet", False
        if closed and train.value == benchmark.train_samples and has_type(samples, COUNT):
            batch = self.run.count(schema.GLOBAL_BATCH_SIZE)
            own_data = 0 <= samples - benchmark.eval_samples < max(batch, 1)  # padding may count
            values = {one.value for one in self.run.evaluations}
            off, off_said = _off(values, benchmark.eval_samples), _off(values, samples)
            if resnet and not own_data and len(values) >= _LEAST_VALUES and off_said and not off:
                own_data = True  # some log the number of batches
                actual = f"eval_samples is {samples}; the accuracies are whole numbers of {benchmark.eval_samples}"
                yield "data-label", evaluation.line, actual
        if not own_data:
            not_applied = list(OF_CLOSED_DATA)
            if closed:
                wanted = f"train_samples {benchmark.train_samples} and eval_samples {benchmark.eval_samples}"
                blamed = train if train.value != benchmark.train_samples else evaluation
                actual = f"{printable(train.value, 30)} and {printable(samples, 30)}"
                yield "closed-data", blamed.line or None, actual, wanted
                not_applied.remove("closed-data")
            if self.run.is_project_log and resnet and has_type(samples, COUNT):
                yield from self._whole_samples(int(samples))
                not_applied.remove("eval-samples")
            self._not_applied(not_applied, "not the benchmark's data set" if closed else "not a closed run")
            return
        if benchmark.evaluate_every_epochs:
            # "at least as frequently" in version 0.7 of the rules, "at the same frequency" from 1.0 on
            yield from self._schedule(benchmark.evaluate_every_epochs, exact=self.ruleset.version > "0.7.0")
        if resnet:
            yield from self._whole_samples(benchmark.eval_samples)
            yield from self._curve(benchmark.targets["closed"])

    def _schedule(self, period: int, *, exact: bool) -> Broken:
        """By the evaluations' numbers, or by how many epochs were started or announced, where these keep to it."""
        order, evaluations, previous = self.order, self.run.evaluations, None
        counted = [one.trained for one in evaluations if one.trained]
        steps = {after - before for before, after in itertools.pairwise(counted)}
        gaps = [after.epoch - before.epoch for before, after in itertools.pairwise(evaluations)]
        whole = steps == {period} and counted[0] <= period and order.epochs_counted - counted[-1] < period
        if whole and max(gaps) <= period:
            return
        for epoch, _, line, _ in evaluations:
            if not epoch:
                continue  # of the initial weights
            if previous is None and not epoch <= period:
                yield "eval-schedule", line, f"the first evaluation is of epoch {epoch}"
            elif previous is not None and (epoch - previous > period or (exact and epoch - previous != period)):
                yield "eval-schedule", line, f"an evaluation of epoch {epoch}, {epoch - previous} after the one before"
            previous = epoch
        if (count := self.run.number(schema.EVAL_ACCURACY)) > EVENTS_KEPT:
            yield "eval-schedule", None, f"{count} evaluations"
        if previous is not None and order.last_epoch is not None and order.last_epoch - previous >= period:
            actual = f"the last evaluation is of epoch {previous}, the last epoch {order.last_epoch}"
            yield "eval-schedule", evaluations[-1].line, actual

    def _curve(self, target: float) -> Broken:
        """The accuracies up to the target are those of a training, by what 1,000 published runs have."""
        evaluations = self.run.evaluations
        reached = next((i for i, one in enumerate(evaluations) if one.value >= target), None)
        if best := next((one for one in evaluations if one.value > MOST_ACCURATE), None):
            actual = f"top-1 {best.value:.6g}; none of ResNet-50's is over {MOST_ACCURATE}"
            yield "accuracy-curve", best.line, actual
        if reached is None or reached < LEAST_CURVE - 1:
            return
        values, line = [one.value for one in evaluations[: reached + 1]], evaluations[reached].line
        rises = sum(map(operator.lt, values, values[1:])) / (len(values) - 1)
        if values[-2] < target - MOST_LAST_RISE:
            yield "accuracy-curve", line, f"{values[-2]:.6g} at one evaluation, {values[-1]:.6g} at the next"
        elif rises < LEAST_RISES:
            yield "accuracy-curve", line, f"{rises:.0%} of its evaluations are better than the one before"

    def _whole_samples(self, samples: int) -> Broken:
        """Accuracies are whole numbers of `samples`; of more where the last batch's padding counts, too."""
        evaluations = self.run.evaluations
        off = [one for one in evaluations if _off([one.value], samples)]
        if not off:
            return
        batch = self.run.global_batch or 0
        batch = batch if batch <= samples else 0
        counts = range(max(samples - batch, 1), samples + batch)
        distinct = {one.value for one in evaluations}
        found = None
        if len(counts) * (2 * _COUNT_TOLERANCE) ** len(distinct) < 1e-3:  # else one of the counts may fit by chance
            found = next((n for n in counts if all(_is_whole(v * n, _COUNT_TOLERANCE) for v in distinct)), None)
        of = f"the accuracies are whole numbers of {found} samples"
        if found and found > samples:
            yield "eval-padding", off[0].line, f"{of}: {found - samples} of padding count"
        elif found:
            yield "eval-samples", off[0].line, f"{of}: {samples - found} of {samples} are left out"
        for one in off if not found else ():
            yield "eval-means", one.line, f"{one.value!r} is {one.value * samples:.3f} of {samples} samples"


def _off(values: Iterable[float], samples: float) -> list[float]:
    """Those that are no whole number of `samples`, to six digits."""
    return [value for value in values if not _is_whole(value * samples, max(0.01, samples * _ROUNDED))]


def _is_whole(count: float, tolerance: float) -> bool:
    # any count is within half; that of 10^18 samples may be infinite, which has no whole number
    return tolerance >= 0.5 or abs(count - round(count)) <= tolerance
