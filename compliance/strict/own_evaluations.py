"""The evaluations of a log of this project, held against its recipe and its numbers of samples."""

from collections.abc import Iterator
from typing import Any

from compliance.logged_run import LoggedRun, is_number
from compliance.strict.accuracies import index_of_target
from compliance.strict.measured import Fault
from runlog import schema
from runlog.run import setting_of_epochs
from runlog.text import printable

_ROUNDING_OF_QUOTIENT = 1e-9  # far above that of a float, and below what a cut digit leaves


def faults_of_evaluations(run: LoggedRun, last_epoch: int, *, are_shares_of_samples: bool) -> Iterator[Fault]:
    """Yield a fault for each evaluation that the recipe does not let a run make, and for one that is missing.

    These are faults, in this order:

    - an accuracy that is not a whole number of right samples over eval_samples;
    - an evaluation of an epoch that the recipe does not evaluate, and a missing one of an epoch that it does;
    - an evaluation that reached the target, if the run trained on after it.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
        are_shares_of_samples: Whether an accuracy is a share of the evaluated samples, as top-1 is. A mean IoU is none,
            and the first check is left out for it.
    """
    if are_shares_of_samples:
        yield from _accuracies_of_no_whole_count(run)
    yield from _evaluations_out_of_schedule(run, last_epoch)
    yield from _training_beyond_target(run, last_epoch)


def _accuracies_of_no_whole_count(run: LoggedRun) -> Iterator[Fault]:
    """Yield a fault for each accuracy that is not a whole number of right samples divided by eval_samples.

    A run computes its accuracy as this quotient, and its log has all digits. Nothing is checked if the log does not
    state eval_samples. An accuracy below 0 or above 1 is left to another rule.
    """
    samples = run.stated_count(schema.EVAL_SAMPLES)  # 0 if it is not stated
    if samples == 0:
        return
    for evaluation in run.evaluations:
        if not 0 <= evaluation.value <= 1:  # another rule reports it
            continue
        right_samples = evaluation.value * samples
        if abs(evaluation.value - round(right_samples) / samples) > _ROUNDING_OF_QUOTIENT:
            yield Fault(evaluation.line, f"{evaluation.value!r} is {right_samples:.7g} of {samples} samples")


def _evaluations_out_of_schedule(run: LoggedRun, last_epoch: int) -> Iterator[Fault]:
    """Yield a fault for the first evaluation that the recipe does not ask for, and for the first that is missing.

    Settings of the schedule that are no numbers of epochs are a fault, too. Nothing is checked if the header does not
    say which epochs the recipe evaluates.
    """
    period: Any = run.settings.get("RECIPE.eval_every_epochs")
    offset: Any = run.settings.get("RECIPE.eval_offset_epochs", 0)
    if period is None:
        return
    are_whole_numbers = type(period) is int and type(offset) is int
    if not are_whole_numbers or period < 1:
        shown = f"every {printable(period)} epochs from {printable(offset)} on"
        yield Fault(None, f"a recipe that evaluates {shown}, which are no numbers of epochs")
        return
    yield from _evaluation_too_many(run, last_epoch, period, offset)
    yield from _missing_evaluation(run, last_epoch, period, offset)


def _evaluation_too_many(run: LoggedRun, last_epoch: int, period: int, offset: int) -> Iterator[Fault]:
    """Yield a fault for the earliest evaluation that the recipe does not ask for.

    A recipe evaluates the epochs offset + n * period, for any whole n, and the last epoch of its plan in any case. With
    a period of 4 and an offset of 1 these are the epochs 1, 5, 9 and so on; an offset of -3 gives the same ones.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained. It counts as the last one of the plan if the settings
            state no number of epochs above 0.
        period: Epochs from one evaluation to the next, above 0.
        offset: Any number of the series, also one below 1.
    """
    name_of_setting = setting_of_epochs(run.settings)  # "MAX_EPOCHS" or "RECIPE.epochs", whichever counts
    planned: Any = run.settings.get(name_of_setting)
    is_planned = is_number(planned) and planned > 0
    last_planned_epoch = planned if is_planned else last_epoch
    for evaluation in run.evaluations:
        is_due = (evaluation.epoch - offset) % period == 0
        if not is_due and evaluation.epoch != last_planned_epoch:
            asked = f"RECIPE.eval_every_epochs {period} and eval_offset_epochs {offset} do not ask for"
            yield Fault(evaluation.line, f"epoch {evaluation.epoch} was evaluated, which {asked}")
            return


def _missing_evaluation(run: LoggedRun, last_epoch: int, period: int, offset: int) -> Iterator[Fault]:
    """Yield a fault for the first trained epoch that the recipe evaluates, and that has no accuracy.

    The recipe evaluates each epoch for which (epoch - offset) % period is 0. With a period of 4 these are 1, 5, 9, ...
    for the offsets -3, 1 and 5, and 4, 8, 12, ... for the offset 0. A run without success may have ended before the
    evaluation of its last epoch.

    Nothing is checked in two cases:

    - the run was resumed, so that earlier evaluations are in another log;
    - an accuracy was not kept in `run.evaluations`: it is no number, or repeats the one before, or there are too many.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained.
        period: Epochs from one evaluation to the next, above 0.
        offset: Any number of the series, also one below 1.
    """
    lacks_an_accuracy = len(run.evaluations) < run.number_of_events(schema.EVAL_ACCURACY)
    if run.is_resumed or lacks_an_accuracy:
        return
    last_to_evaluate = last_epoch if run.status == "success" else last_epoch - 1
    first_to_evaluate = offset % period  # from 0 to period - 1: 1 for a period of 4 and an offset of -3, 1 or 5
    if first_to_evaluate == 0:
        first_to_evaluate = period  # epochs count from 1
    line_by_epoch = {evaluation.epoch: evaluation.line for evaluation in run.evaluations}
    for epoch in range(first_to_evaluate, last_to_evaluate + 1, period):
        if epoch not in line_by_epoch:
            lines_of_later_epochs = [line for evaluated, line in line_by_epoch.items() if evaluated > epoch]
            blamed_line = min(lines_of_later_epochs, default=None)  # of the evaluation that came instead, if any
            what = f"epoch {epoch} was not evaluated, which RECIPE.eval_every_epochs {period} asks for"
            yield Fault(blamed_line, what)
            return


def _training_beyond_target(run: LoggedRun, last_epoch: int) -> Iterator[Fault]:
    """Yield a fault if a run trained on after the evaluation that reached its recipe's target, because that ends a run.

    Nothing is checked if the recipe states no target.
    """
    target = run.recipe_target
    if target is None:
        return
    index = index_of_target(run.evaluations, target)  # of the first evaluation that reached the target
    if index is None:
        return
    reached = run.evaluations[index]
    if last_epoch > reached.epoch:
        went_on = f"the run trained on to epoch {last_epoch}"
        yield Fault(reached.line, f"epoch {reached.epoch} reached the target {target}, and {went_on}")
