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
    """Yield the faults of a run's evaluations: impossible accuracies, a wrong schedule, and training beyond the target.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
        are_shares_of_samples: Whether an accuracy is the number of right samples / eval_samples, as for top-1. If
            false, as for a mean IoU, no accuracy is impossible here.
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
    """Yield a fault for the first evaluation that the recipe does not ask for, and a fault for the first missing one.

    The recipe asks for evaluations of the epochs `offset` + n * `period`, such as 1, 5 and 9 for a period of 4 and an
    offset of 1, and allows one of the last planned epoch. If the log states no period, nothing is checked. If the
    period or the offset is not a whole number, or the period is below 1, the only fault says so.

    Args:
        run: The facts that the log states of the run, with its settings and its evaluations.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
    """
    period: Any = run.settings.get("RECIPE.eval_every_epochs")
    offset: Any = run.settings.get("RECIPE.eval_offset_epochs", 0)  # 0 for a recipe without this setting
    if period is None:  # not stated
        return
    # `is int` also refuses True and 4.0.
    are_whole_numbers = type(period) is int and type(offset) is int
    if not are_whole_numbers or period < 1:
        shown = f"every {printable(period)} epochs from {printable(offset)} on"
        yield Fault(None, f"a recipe that evaluates {shown}, which are not numbers of epochs")
        return
    yield from _evaluation_too_many(run, last_epoch, period, offset)
    yield from _missing_evaluation(run, last_epoch, period, offset)


def _evaluation_too_many(run: LoggedRun, last_epoch: int, period: int, offset: int) -> Iterator[Fault]:
    """Yield one fault at most: for the first evaluation of an epoch that the recipe does not evaluate.

    The recipe evaluates the epochs `offset` + n * `period` for each whole n, and also the last planned epoch. For
    instance, a recipe with a period of 4, an offset of 1 and a plan of 10 epochs evaluates the epochs 1, 5, 9 and 10.
    An evaluation of epoch 7 is a fault, at the line of this evaluation.

    Args:
        run: The facts that the log states of the run, with its settings and its evaluations.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
        period: Epochs from one evaluation to the next, above 0.
        offset: Any epoch of the series, also below 1: with a period of 4, the offsets 1, 5 and -3 mean the same.
    """
    name_of_setting = setting_of_epochs(run.settings)  # "MAX_EPOCHS" or "RECIPE.epochs", whichever counts
    planned: Any = run.settings.get(name_of_setting)
    is_planned = is_number(planned) and planned > 0
    # Without a plan in the settings, the last trained epoch may have been the last planned one, and be evaluated.
    last_planned_epoch = planned if is_planned else last_epoch
    for evaluation in run.evaluations:
        is_due = (evaluation.epoch - offset) % period == 0  # `offset` + n * `period` for some whole n
        if not is_due and evaluation.epoch != last_planned_epoch:
            asked = f"RECIPE.eval_every_epochs {period} and eval_offset_epochs {offset} do not ask for"
            yield Fault(evaluation.line, f"epoch {evaluation.epoch} was evaluated, which {asked}")
            return


def _missing_evaluation(run: LoggedRun, last_epoch: int, period: int, offset: int) -> Iterator[Fault]:
    """Yield a fault for the first trained epoch that the recipe evaluates and the run did not; nothing if all is well.

    With a period of 4 and an offset of 1, the recipe evaluates the epochs 1, 5, 9 and so on. If a run evaluated only
    the epochs 1 and 9, the fault is about epoch 5, at the line of the evaluation of epoch 9, which came instead.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
        period: Epochs from one evaluation to the next, above 0.
        offset: Any epoch of the series, also below 1: with a period of 4, the offsets 1, 5 and -3 mean the same.
    """
    if not _are_all_evaluations_known(run):
        return
    line_by_epoch = {evaluation.epoch: evaluation.line for evaluation in run.evaluations}
    for epoch in _epochs_to_evaluate(run, last_epoch, period, offset):
        if epoch not in line_by_epoch:
            lines_of_later_epochs = [line for evaluated, line in line_by_epoch.items() if evaluated > epoch]
            blamed_line = min(lines_of_later_epochs, default=None)  # of the evaluation that came instead, if any
            what = f"epoch {epoch} was not evaluated, which RECIPE.eval_every_epochs {period} asks for"
            yield Fault(blamed_line, what)
            return


def _are_all_evaluations_known(run: LoggedRun) -> bool:
    """Return whether `run.evaluations` has all evaluations of the run.

    It lacks accuracies that are not numbers or repeat the one before, and has EVENTS_KEPT at most. The first
    evaluations of a resumed run are in another log.
    """
    return not run.is_resumed and len(run.evaluations) >= run.number_of_events(schema.EVAL_ACCURACY)


def _epochs_to_evaluate(run: LoggedRun, last_epoch: int, period: int, offset: int) -> range:
    """Return the epochs that a run must have evaluated, such as 1, 5 and 9 for a period of 4 and an offset of 1.

    None is after the last trained epoch. If the run did not succeed, this epoch is none of them either: the run may
    have failed before it could evaluate it.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
        period: Epochs from one evaluation to the next, above 0.
        offset: Any epoch of the series, also below 1: the offsets 1, 5 and -3 mean the same here.
    """
    last_to_evaluate = last_epoch if run.status == "success" else last_epoch - 1
    # From 1 to `period`, because epochs count from 1. With a period of 4: 1 for the offsets 5 and -3; 4, not 0, for 8.
    first_to_evaluate = offset % period or period
    return range(first_to_evaluate, last_to_evaluate + 1, period)


def _training_beyond_target(run: LoggedRun, last_epoch: int) -> Iterator[Fault]:
    """Yield a fault if a run trained more epochs after an evaluation had reached the recipe's target.

    A run ends at the first evaluation that reaches the target. No fault is yielded if the recipe has no target, or if
    no evaluation reached the target.

    Args:
        run: The facts that the log states of the run, with its target and its evaluations.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
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
