"""The rate of a row of a log, and the images and seconds of a run's windows."""

from collections.abc import Sequence
from typing import NamedTuple

from scoring.importers.text import steps_as_weights
from scoring.record import InputError, Record, Window


def are_rates_of_one_device(record: Record) -> bool:
    """Tell whether the rates of a log can only be given for one device, because it does not say how many ran.

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

    If the number of devices is not known, the result is the rate of one device. But if the log then prints rates of all
    devices together, there is no result, because a rate of one device must not stand among these rates.

    Args:
        record: The run as read from its log.
        item: The window (what one printed row of the log covers) or the summary of an epoch.

    Returns:
        The rate. None if the step time or the batch is not known, or if the number of devices is not known and the log
        prints rates of all devices together.
    """
    # 1 if the number of devices is not known and the log prints no rates of all devices together. Otherwise the number
    # of devices, or None if the log prints rates of all devices without their number.
    devices = 1 if are_rates_of_one_device(record) else record.devices
    if item.printed_step_time_s and devices and record.batch_per_device:
        return record.batch_per_device * devices / item.printed_step_time_s
    return None


def rate_or_refuse(record: Record, item: Window, *, printed: bool) -> float:
    """Return the images/s of a window or an epoch; raise InputError if the row in the log says too little for a rate.

    Args:
        record: The run as read from its log.
        item: The window (what one printed row of the log covers) or the summary of an epoch.
        printed: Whether the rate that the row prints is preferred to images / seconds.

    Raises:
        InputError: There is no rate. If the row prints a step time, and only the batch or the number of devices is
            missing, the message asks for the missing number.
    """
    rate = rate_of(record, item, printed=printed)  # None: there is no rate
    # With the batch and the number of devices, `rate_of` would have made a rate of the step time. So one of the two is
    # missing, and `images_per_step` raises an InputError that asks for it.
    if rate is None and item.printed_step_time_s is not None:
        images_per_step(record)
    if rate is None:
        raise InputError(f"{record.file}: line {item.line} holds neither a rate nor images and time")
    return rate


def images_per_step(record: Record) -> int:
    """Return the images of one step on all devices; of one device if the number of devices is not known.

    Args:
        record: The run as read from its log.

    Raises:
        InputError: The batch of one device is not known, or the log prints rates of all devices without their number.
    """
    if record.devices is None and record.rate_scope == "global":
        raise InputError(f"{record.file}: the log does not say how many devices ran; give --devices")
    if record.batch_per_device is None:
        raise InputError(f"{record.file}: the log does not say the batch of one device; give --batch")
    return record.batch_per_device * (record.devices or 1)


class Work(NamedTuple):
    """The images of each window, and the seconds that they took.

    If the log prints only rates, just their ratio has a meaning, such as 1 image in 1 / rate seconds.
    """

    images: Sequence[float]
    seconds: Sequence[float]

    @property
    def seconds_per_image(self) -> list[float]:
        """Return how many seconds an image took, in each window."""
        return [seconds / images for images, seconds in zip(self.images, self.seconds, strict=True)]


def work_over_time(record: Record, chosen: Sequence[Window]) -> Work:
    """Return the images and seconds of each window, as measured or else at the printed speed.

    The first case that fits all rows decides:

    1. They give their seconds and images: these are taken.
    2. They give their seconds and steps: the images are steps * batch.
    3. Otherwise the work is made of the speed that each row prints (`work_at_printed_speed`).

    Args:
        record: The run as read from its log.
        chosen: The windows to use. A window is what one printed row of the log covers.

    Returns:
        The images and seconds. In case 3, only their ratio has a meaning.

    Raises:
        InputError: Something that is needed is not known, such as the batch, or a row does not give its speed.
    """
    measured = _measured_work(record, chosen)
    if measured is not None:
        return measured
    return work_at_printed_speed(record, chosen)


def work_at_printed_speed(record: Record, chosen: Sequence[Window]) -> Work:
    """Return images and seconds for each window, in the ratio of the speed that the window's row prints.

    A speed does not say how many images a window has. So each step gets the same number of images. For example, a
    window of 20 steps at 100 images/s and a window of 10 steps at 50 images/s give

        images:    20 and 10            (1 for each step)
        seconds:   20 / 100 and 10 / 50

    All images / all seconds is then an average in which the window of 20 steps weighs twice as much. If some window
    does not say its steps, all windows count as one step.

    If some row prints no speed, `_equal_work_at_printed_speed` says which rate stands in.

    Args:
        record: The run as read from its log.
        chosen: The windows to use. A window is what one printed row of the log covers.

    Raises:
        InputError: Something that is needed is not known, such as the batch, or a row does not give its speed.
    """
    equal_work = _equal_work_at_printed_speed(record, chosen)  # the same number of images for each window
    weights = steps_as_weights(chosen)  # the steps of each window; all 1 if some window does not say its steps
    images = [count * weight for count, weight in zip(equal_work.images, weights, strict=True)]
    seconds = [time * weight for time, weight in zip(equal_work.seconds, weights, strict=True)]
    return Work(images, seconds)


def _measured_work(record: Record, chosen: Sequence[Window]) -> Work | None:
    """Return the images and the seconds that the windows of a run measured, or None if not every row gives them.

    Args:
        record: The run as read from its log. It tells the batch and the number of devices.
        chosen: The windows to use. A window is what one printed row of the log covers.

    Returns:
        The images and seconds of each window; None if a row lacks its seconds, or if rows lack both images and steps.
        Without images, steps * batch stands in.

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


def _equal_work_at_printed_speed(record: Record, chosen: Sequence[Window]) -> Work:
    """Return the same number of images for every window, and the seconds that these images take at the row's speed.

    Only the quotient seconds / images of a window has a meaning. The first case that fits decides:

    1. All rows print a rate of all devices together, such as 100 and 50 images/s: 1 image in 0.01 s and in 0.02 s.
    2. All rows print a step time, such as 0.1 s and 0.2 s, and a step has 256 images: 256 images in 0.1 s and in 0.2 s.
       The 256 images are the batch of all devices, or of one device if the number of devices is not known.
    3. Otherwise: the printed rates of one device if all rows print a rate. Each window then has as many images as there
       are devices, or 1 image if their number is not known. If some row prints no rate, a rate of each row is taken or
       worked out (`rate_of`), and each window has 1 image.

    Args:
        record: The run as read from its log. It tells the batch and the number of devices.
        chosen: The windows to use. A window is what one printed row of the log covers.

    Raises:
        InputError: A step time is used and the batch or a needed number of devices is not known, or a row has no rate.
    """
    # Case 1 goes first, because it needs neither the batch nor the number of devices.
    if _all_print_rates_of_all_devices(record, chosen):
        return equal_work_at_printed_rates(record, chosen)  # takes the printed rates, because all rows print a rate
    step_times = _values_if_in_all(chosen, "printed_step_time_s")  # empty if some row prints no step time
    if step_times:
        return Work([images_per_step(record)] * len(chosen), step_times)
    return equal_work_at_printed_rates(record, chosen)  # takes the printed rates of one device, or works out rates


def _all_print_rates_of_all_devices(record: Record, chosen: Sequence[Window]) -> bool:
    """Tell whether the rows of all windows print a rate, and these are rates of all devices together."""
    return record.rate_scope == "global" and bool(_values_if_in_all(chosen, "printed_rate"))


def equal_work_at_printed_rates(record: Record, chosen: Sequence[Window]) -> Work:
    """Return the same number of images for every window, and the seconds that the images take at the window's rate.

    The rate is the one that the window's row prints. For example, two rows print 100 and 50 images/s for each of 8
    devices. Both windows then get 8 images: in 0.01 s and in 0.02 s. The true number of images is not known from a
    rate, so use only the quotient seconds / images of the result.

    If some row prints no rate, each window gets 1 image, and each rate is the best one that the window's row gives.

    Args:
        record: The run as read from its log. It tells whether the printed rates are of one device or of all.
        chosen: The windows to use. A window is what one printed row of the log covers: some steps, or an epoch.

    Raises:
        InputError: Some row prints no rate, and some row says too little to work out its rate.
    """
    printed_rates = _values_if_in_all(chosen, "printed_rate")  # empty if some row prints no rate
    if printed_rates:
        # The images: as many as the devices, if the rates are of one device; 1 if the rates are of all devices
        # together, or if the number of devices is not known.
        return _equal_work(devices_per_printed_rate(record), printed_rates)
    # The first of these that a row has: its images / its seconds, the rate that it prints, a rate by its step time.
    # `printed=False` puts the printed rate second. A rate may be of one device if the number of devices is not known.
    rates_of_all_devices = [rate_or_refuse(record, window, printed=False) for window in chosen]
    return _equal_work(1, rates_of_all_devices)


def _equal_work(images: int, rates: Sequence[float]) -> Work:
    """Return the work of windows that all have the same number of images.

    For 8 images and the rates [100, 50], it is Work([8, 8], [0.01, 0.02]).

    Args:
        images: The number of images of each window.
        rates: For each window the rate that gives its time, 1 / rate seconds: the images/s of one device, if `images`
            is the number of devices.
    """
    return Work([images] * len(rates), [1 / rate for rate in rates])


def _values_if_in_all(windows: Sequence[Window], name: str) -> list[float]:
    """Return one field of all windows; an empty list if it is None or 0 in one of them.

    Args:
        windows: The windows; a window is what one printed row of the log covers.
        name: Name of the field, such as "seconds".
    """
    values = [getattr(window, name) for window in windows]
    return values if all(values) else []
