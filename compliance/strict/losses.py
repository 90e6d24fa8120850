"""The losses of a log of this project: numbers that a training can have."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compliance.logged_run import LoggedRun, is_number
from runlog import schema, workloads
from runlog.digits import counted, six_digits
from runlog.reader import from_json

_MIN_EQUAL_LOSSES = 10  # that are not a coincidence
_REPEATED_LOSSES = 5  # in a row, each another one, that are not a coincidence
_MIN_SPREAD = 1e-3  # of such losses, as a share of the largest: far above the last digit of a 32-bit number, 6e-8
# The first window of a training from random weights, on data of which it is known how fast they are learned.
_MIN_FIRST_LOSS = 0.6  # of the loss of a guess
_MAX_SHARE_OF_EPOCH = 0.25
_MAX_STEPS_ON_DIGITS = 5  # the default of PRINT_STEPS
_MAX_STEPS_ON_IMAGENET = 100
_MIN_BATCH = 16  # images of which the loss is a mean: that of a few may be low by chance
# The last epoch of a training that reached its target. Of 4 windows no loss is high by chance, but where a batch
# normalization is over a few images: most losses of 4 are above 1.6 in an epoch that an evaluation gives 0.77.
_MIN_SPAN = 16  # images of a batch normalization, which are no more than those of the loss
_MAX_LAST_LOSS = 0.7  # of the loss of a guess; trainings on the digits end below 0.3 of it
_MIN_WINDOWS_OF_EPOCH = 4
_MIN_ACCURACY = 0.7
_MAX_SMOOTHING = 0.2  # of the labels; with more the loss of a network that has learned is that of a guess, too


class _Guess(NamedTuple):
    """A guess by a network that has learned nothing."""

    classes: int
    loss: float


def faults_of_losses(losses: Sequence[float | None], not_read: int) -> Iterator[str]:
    """Yield in words why the losses of a run cannot be those of a training: two faults at most.

    - Some losses are not numbers; or else, all losses are 0, or all are one number.
    - 5 losses in a row come a second time.

    Args:
        losses: The losses of a run's first windows, in their order; None for a window that could not be read, and for
            one whose loss is not a number.
        not_read: How many of these windows could not be read. They are not a fault here: the caller reports them.
    """
    not_numbers = losses.count(None) - not_read  # how many losses are not numbers
    if not_numbers > 0:
        yield f"{not_numbers} of the losses {_of_first_windows(losses)} are not numbers"
    else:
        yield from _losses_without_change(losses)

    start = _start_of_repeated_losses(losses)  # the index of the first of 5 losses that come a second time
    if start is not None:
        last = losses[start + _REPEATED_LOSSES - 1]  # of these 5; helps the user to find them in the log
        yield f"{_REPEATED_LOSSES} losses in a row, up to {last}, are those of {_REPEATED_LOSSES} windows before"


def describe_early_loss(run: LoggedRun) -> str:
    """Describe a first loss of a ResNet run that is too low for a network that has learned nothing yet.

    A network with random weights guesses: with 10 classes its loss is about ln 10 = 2.3, and after 5 steps not below
    1.4. A lower one shows that the run started from other weights, or that epochs before were cut off. Only runs on the
    embedded digits and on ImageNet are looked at, because a user's data may be learned in 5 steps.

    Args:
        run: The facts that the log states of the run.

    Returns:
        What is wrong, in words. Empty if nothing is, and also for a resumed run, or one whose first window has too many
        steps, or no loss.
    """
    event = run.first_event(schema.STEP_WINDOW)
    window = from_json(schema.StepWindow, event.value)  # None if there is no window, or it does not fit the schema
    if window is None or window.loss is None or not _is_before_learning(run, window):
        return ""
    guess = _guess(run)
    if guess is None or window.loss >= _MIN_FIRST_LOSS * guess.loss:
        return ""
    steps = counted(window.steps, "step")
    start = f"a network of {guess.classes} classes with random weights begins at about {six_digits(guess.loss)}"
    return f"a loss of {six_digits(window.loss)} after the first {steps}; {start}"


def describe_late_loss(run: LoggedRun, windows: int, least_loss: float) -> str:
    """Describe losses of a ResNet run's last epoch that are too high for a network that has just reached its target.

    For instance, all losses of the last epoch are above 1.6 with 10 classes, of which a guess has a loss of 2.3, and
    its evaluation finds the digit of 96 % of the images. So the evaluation is another epoch's. Only runs on the
    embedded digits and on ImageNet are looked at, and only those of a high accuracy: a recipe may ask for less.

    Args:
        run: The facts that the log states of the run.
        windows: How many windows of steps the last epoch has.
        least_loss: The lowest loss of these windows; infinite if none has one.

    Returns:
        What is wrong, in words. Empty if nothing is, and also for a run without evaluations, an epoch of fewer than 4
        windows or without losses, batch normalizations over fewer than 16 images, and a recipe that smooths its labels
        by more than 0.2.
    """
    has_high_accuracy = run.evaluations and run.evaluations[-1].value >= _MIN_ACCURACY
    has_large_span = run.stated_count(schema.MODEL_BN_SPAN) >= _MIN_SPAN
    if not has_high_accuracy or not has_large_span or _most_steps_before_learning(run) is None:
        return ""
    smoothing = run.settings.get("RECIPE.label_smoothing", 0.0)
    is_smooth = not is_number(smoothing) or smoothing > _MAX_SMOOTHING
    if is_smooth or windows < _MIN_WINDOWS_OF_EPOCH or math.isinf(least_loss):
        return ""
    guess = _guess(run)
    if guess is None or least_loss <= _MAX_LAST_LOSS * guess.loss:
        return ""
    losses = f"losses are {six_digits(least_loss)} at least"
    guessed = f"a guess of {guess.classes} classes has {six_digits(guess.loss)}"
    return f"the target was reached after an epoch whose {losses}; {guessed}"


def _guess(run: LoggedRun) -> _Guess | None:
    """Return what a network that has learned nothing guesses among, and its loss: ln 10 = 2.3 with 10 classes.

    Args:
        run: The facts that the log states of the run.

    Returns:
        The guess. None if the log states no number of classes, or fewer than 2: there is nothing to guess among then.
    """
    classes = run.whole_setting("RECIPE.classes")
    if classes is None or classes < 2:
        return None
    return _Guess(classes, math.log(classes))


def _is_before_learning(run: LoggedRun, first: schema.StepWindow) -> bool:
    """Return whether a run's first window ends before a ResNet can have learned the digits, or ImageNet.

    Args:
        run: The facts that the log states of the run. False for a resumed run, which may have learned before its first
            window, and for one that failed, which nobody may publish.
        first: The first window of the log.
    """
    most_steps = _most_steps_before_learning(run)
    if most_steps is None or run.is_resumed:
        return False
    samples = run.stated_count(schema.TRAIN_SAMPLES)
    has_large_batch = first.images >= _MIN_BATCH * first.steps
    return has_large_batch and first.steps <= most_steps and first.images <= _MAX_SHARE_OF_EPOCH * samples


def _most_steps_before_learning(run: LoggedRun) -> int | None:
    """Return after how many steps a ResNet cannot have learned the data; None where this is not known.

    It is known of the embedded digits and of ImageNet, in a run that succeeded. Other data are the user's own.

    Args:
        run: The facts that the log states of the run.
    """
    workload = workloads.find(run.workload_name)
    if workload is None or workload.benchmark != "resnet":  # its family may be that of a user's workload, too
        return None
    if run.status != "success" or run.settings.get("DATA") != "real":
        return None
    if run.settings.get("DATADIR") == "":
        return _MAX_STEPS_ON_DIGITS
    if run.stated_count(schema.TRAIN_SAMPLES) == workload.train_samples:
        return _MAX_STEPS_ON_IMAGENET
    return None


def _losses_without_change(losses: Sequence[float | None]) -> Iterator[str]:
    """Yield a fault if all known losses are 0, or if 10 or more losses, all known, are one number.

    Training changes the weights, so its losses change, too.

    Args:
        losses: The losses of a run's first windows. None: the window could not be read.
    """
    numbers = [loss for loss in losses if loss is not None]
    if not numbers:
        return
    if not any(numbers):  # even if there are fewer than 10, or some are None
        yield f"all losses {_of_first_windows(losses)} are 0"
        return
    are_all_equal = len(set(losses)) == 1  # not so if any loss is None
    if are_all_equal and len(losses) >= _MIN_EQUAL_LOSSES:
        yield f"all losses {_of_first_windows(losses)} are {losses[0]}"


def _of_first_windows(losses: Sequence[float | None]) -> str:
    return f"of the first {len(losses)} step_windows"


def _start_of_repeated_losses(losses: Sequence[float | None]) -> int | None:
    """Return the index at which 5 losses in a row begin that the run has had before, as in an epoch that was copied.

    For instance, the index is 6 in 9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5: the 5 losses from index 6 on equal the first 5.

    Args:
        losses: The losses of a run's first windows, in their order. None is a loss that is not known.

    Returns:
        The index; None if no row of 5 comes twice. A row does not count if one of its losses is not known, two are
        equal, or all are within 0.1 % of the largest: an honest run may have such a row twice.
    """
    rows_before = set()  # tuples: each 5 losses in a row so far that an honest run has only once
    for start in range(len(losses) - _REPEATED_LOSSES + 1):
        row = tuple(losses[start : start + _REPEATED_LOSSES])
        if row in rows_before:
            return start
        if not _may_come_twice(row):
            rows_before.add(row)
    return None


def _may_come_twice(in_a_row: Sequence[float | None]) -> bool:
    """Return whether an honest run may have these losses in a row twice, or one of them is not known.

    Args:
        in_a_row: Some losses of windows that follow each other.
    """
    numbers = {loss for loss in in_a_row if loss is not None}
    if len(numbers) < len(in_a_row):  # some are equal, as in a run that learns nothing, or not known
        return True
    # They are almost equal, as in a run that has learned its only batch by heart.
    return max(numbers) - min(numbers) <= _MIN_SPREAD * max(numbers)
