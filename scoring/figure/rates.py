"""The rate of a row of a log, and the images and seconds of a run's windows."""

from collections.abc import Sequence
from typing import NamedTuple

from scoring.importers.text import steps_as_weights
from scoring.record import InputError, Record, Window


def are_rates_of_one_device(record: Record) -> bool:
    """Return whether the rates of a log can only be given for one device, because it does not say how many ran.

    Args:
        record: The run as read from its log. If it prints rates of all devices, it need not say how many they are.
    """
    return record.rate_scope != "global" and record.devices is None


def devices_per_printed_rate(record: Record) -> int:
    """Return the factor that turns the rates that a log prints into rates of all devices.

    Args:
        record: The run as read from its log.

    Returns:
        The number of devices; 1 if the log prints rates of all devices, or if the number is not known.
    """
    if record.rate_scope == "global":
        return 1
    return record.devices or 1  # if their number is not known, the rates stay those of one device


def rate_of(record: Record, item: Window, *, printed: bool = False) -> float | None:
    """Return the images/s of all devices in one window or epoch; None if its row says too little.

    Args:
        record: The run as read from its log. It tells the devices, and whether printed rates are of one device or of
            all.
        item: The window (what one printed row of the log covers) or the summary of an epoch.
        printed: Whether the rate that the row prints is preferred to images / seconds. Otherwise images / seconds is
            preferred.

    Returns:
        The rate. It may be the rate of one device if the number of devices is not known.
    """
    measured_rate = item.images_per_s
    printed_rate = _printed_rate_of_all(record, item)
    if printed:
        return printed_rate or measured_rate or _rate_by_step_time(record, item)
    return measured_rate or printed_rate or _rate_by_step_time(record, item)


def _printed_rate_of_all(record: Record, item: Window) -> float | None:
    """Return the rate that a row prints, of all devices if their number is known.

    Args:
        record: The run as read from its log. It tells whether printed rates are of one device or of all.
        item: The window (what one printed row of the log covers) or the summary of an epoch.

    Returns:
        The images/s; None if the row prints no rate.
    """
    if item.printed_rate is None:
        return None
    return item.printed_rate * devices_per_printed_rate(record)


def _rate_by_step_time(record: Record, item: Window) -> float | None:
    """Return the images/s of a window or an epoch: the batch of one device * devices / the printed step time.

    Args:
        record: The run as read from its log.
        item: The window (what one printed row of the log covers) or the summary of an epoch.

    Returns:
        The rate, which is of one device if the number of devices is not known. None if the step time or the batch is
        not known, or if a log that prints rates of all devices does not say how many they are.
    """
    devices = record.devices
    if devices is None and record.rate_scope == "global":
        return None  # other rows have rates of all devices, among which a rate of one device must not stand
    if devices is None:
        devices = 1
    if not (item.printed_step_time_s and devices and record.batch_per_device):
        return None
    return record.batch_per_device * devices / item.printed_step_time_s


def rate_or_refuse(record: Record, item: Window, *, printed: bool) -> float:
    """Return the images/s of a window or an epoch; raise InputError if the row in the log says too little for a rate.

    Args:
        record: The run as read from its log.
        item: The window (what one printed row of the log covers) or the summary of an epoch.
        printed: Whether the rate that the row prints is preferred to images / seconds.

    Raises:
        InputError: There is no rate. If the row prints a step time, the message asks for the number that is missing to
            make a rate of it: the batch or the number of devices.
    """
    rate = rate_of(record, item, printed=printed)
    if rate is not None:
        return rate
    if item.printed_step_time_s is not None:
        _refuse_if_devices_or_batch_are_missing(record)
    raise InputError(f"{record.file}: line {item.line} holds neither a rate nor images and time")


def images_per_step(record: Record) -> int:
    """Return the images of one step on all devices; of one device if the number of devices is not known.

    Args:
        record: The run as read from its log.

    Raises:
        InputError: The batch of one device is not known, or the log prints rates of all devices without their number.
    """
    _refuse_if_devices_or_batch_are_missing(record)
    assert record.batch_per_device is not None, "a missing batch is refused"
    return record.batch_per_device * (record.devices or 1)


def _refuse_if_devices_or_batch_are_missing(record: Record) -> None:
    """Raise an error if the images of a step cannot be told, because a number is missing that the user can give.

    Args:
        record: The run as read from its log.

    Raises:
        InputError: The batch of one device is not known, or the log prints rates of all devices without their number.
    """
    if record.devices is None and record.rate_scope == "global":
        raise InputError(f"{record.file}: the log does not say how many devices ran; give --devices")
    if record.batch_per_device is None:
        raise InputError(f"{record.file}: the log does not say the batch of one device; give --batch")


class Work(NamedTuple):
    """The images of each window, and the seconds that they took.

    If the log does not say them, images and seconds in the ratio of the printed speed stand in.
    """

    images: Sequence[float]
    seconds: Sequence[float]

    @property
    def seconds_per_image(self) -> list[float]:
        """Return how many seconds an image took, in each window."""
        return [seconds / images for images, seconds in zip(self.images, self.seconds, strict=True)]


def work_over_time(record: Record, chosen: Sequence[Window]) -> Work:
    """Return the images and seconds of each window, as measured or else at the printed speed.

    Args:
        record: The run as read from its log.
        chosen: The windows to use. A window is what one printed row of the log covers.

    Returns:
        The images and seconds. If they are not measured in all windows, only their ratio has a meaning.

    Raises:
        InputError: Something that is needed is not known, such as the batch, or a row does not give its speed.
    """
    measured = _measured_work(record, chosen)
    if measured is not None:
        return measured
    return _work_at_printed_speed(record, chosen)


def _measured_work(record: Record, chosen: Sequence[Window]) -> Work | None:
    """Return the images and the seconds that the windows of a run measured, or None if not every row gives them.

    Args:
        record: The run as read from its log. It tells the batch and the number of devices.
        chosen: The windows to use. A window is what one printed row of the log covers.

    Returns:
        The images and seconds of each window. If a row lacks its images, steps * batch stands in for all rows. None if
        a row lacks its seconds, or if some row lacks its images and some row its steps.

    Raises:
        InputError: The images must be computed from the steps, and the batch or the number of devices is not known.
    """
    seconds = _values_if_in_all(chosen, "seconds")
    if not seconds:
        return None
    images = _values_if_in_all(chosen, "images")
    if images:
        return Work(images, seconds)
    steps = _values_if_in_all(chosen, "steps")
    if steps:
        batch_of_all_devices = images_per_step(record)
        return Work([count * batch_of_all_devices for count in steps], seconds)
    return None


def _work_at_printed_speed(record: Record, chosen: Sequence[Window]) -> Work:
    """Return images and seconds of each window that are right only in their ratio: the speed that its row prints.

    A step counts as one image, so that all images / all seconds weighs each window by its steps. For example:

        20 steps at 100 images/s    20 images in 0.2 s
        10 steps at 50 images/s     10 images in 0.2 s
        all                         30 images in 0.4 s: 75 images/s

    Args:
        record: The run as read from its log.
        chosen: The windows to use. A window is what one printed row of the log covers.

    Raises:
        InputError: Something that is needed is not known, such as the batch, or a row does not give its speed.
    """
    images = steps_as_weights(chosen)  # the steps of each window; all 1 if some window does not say its steps
    seconds_per_image = seconds_per_image_by_printed_speed(record, chosen)  # [1 / 100, 1 / 50] in the example
    seconds = [count * time for count, time in zip(images, seconds_per_image, strict=True)]
    return Work(images, seconds)


def seconds_per_image_by_printed_speed(record: Record, chosen: Sequence[Window]) -> list[float]:
    """Return how many seconds an image took in each window, by the speed that its row prints: a rate or a step time.

    Args:
        record: The run as read from its log. It tells the batch and the number of devices.
        chosen: The windows to use. A window is what one printed row of the log covers.

    Returns:
        The seconds for all devices together; for one device if the number of devices is not known.

    Raises:
        InputError: A step time is used and the batch or a needed number of devices is not known, or a row has no rate.
    """
    step_times = _values_if_in_all(chosen, "printed_step_time_s")
    all_rows_print_a_rate = bool(_values_if_in_all(chosen, "printed_rate"))
    # Rates of all devices go before step times, because they need neither the batch nor the number of devices.
    print_rates_of_all_devices = all_rows_print_a_rate and record.rate_scope == "global"
    if print_rates_of_all_devices or not step_times:  # no step times: some row prints none
        return seconds_per_image_by_rates(record, chosen)
    images = images_per_step(record)
    return [step_time / images for step_time in step_times]


def seconds_per_image_by_rates(record: Record, chosen: Sequence[Window]) -> list[float]:
    """Return how many seconds an image took in each window or epoch, by its rate: 0.01 for 100 images/s.

    Args:
        record: The run as read from its log. It tells whether the printed rates are of one device or of all.
        chosen: The windows (what one printed row of the log covers), or the summaries of epochs.

    Returns:
        The seconds for all devices together; for one device if the number of devices is not known.

    Raises:
        InputError: Some row prints no rate, and some row says too little to work out its rate.
    """
    all_rows_print_a_rate = bool(_values_if_in_all(chosen, "printed_rate"))
    # Printed rates are used if all rows have one. Otherwise each row is rated by its images / its seconds, and by its
    # printed rate or step time only if it lacks these.
    rates = [rate_or_refuse(record, row, printed=all_rows_print_a_rate) for row in chosen]
    return [1 / rate for rate in rates]


def _values_if_in_all(windows: Sequence[Window], name: str) -> list[float]:
    """Return one field of all windows; an empty list if some window lacks it (None or 0).

    Args:
        windows: The windows; a window is what one printed row of the log covers.
        name: Name of the field, such as "seconds".
    """
    values = [getattr(window, name) for window in windows]
    return values if all(values) else []
