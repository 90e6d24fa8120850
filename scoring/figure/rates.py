"""The rate of a row of a log, and the images and seconds of a run's windows."""

from collections.abc import Sequence
from typing import NamedTuple

from scoring.importers.text import steps_as_weights
from scoring.record import InputError, Record, Window


def devices_in_rate(record: Record) -> int | None:
    """Return the factor from a printed rate to the rate of all devices; None if the log does not say it.

    - The log prints the rate of all devices: 1.
    - It prints the rate of one device, or does not say which: the number of devices, None if not known.
    """
    return 1 if record.rate_scope == "global" else record.devices


def rate_of(record: Record, item: Window, *, printed: bool = False) -> float | None:
    """Return the images/s of all devices in a window or an epoch; None if its row says too little.

    The first of these rates that the row has is taken:

    - its images over its seconds,
    - the rate that it prints,
    - the batch over the step time that it prints.

    With `printed`, the printed rate comes before the others. If the log prints rates of one device, and does not say
    the number of devices, the result is the rate of one device.
    """
    measured_rate = item.images_per_s
    printed_rate = _printed_rate_of_all(record, item)
    if printed:
        return printed_rate or measured_rate or _rate_by_step_time(record, item)
    return measured_rate or printed_rate or _rate_by_step_time(record, item)


def _printed_rate_of_all(record: Record, item: Window) -> float | None:
    """Return the rate that a row prints, of all devices if their number is known; None if it prints none."""
    if item.printed_rate is None:
        return None
    return item.printed_rate * (devices_in_rate(record) or 1)


def _rate_by_step_time(record: Record, item: Window) -> float | None:
    """Return the batch of all devices over the step time that a row prints; None if one of the two is not known."""
    devices = record.devices
    prints_rates_of_all = record.rate_scope == "global"
    # The rate of one device may stand in for that of all, but not beside printed rates of all devices.
    if devices is None and not prints_rates_of_all:
        devices = 1
    if item.printed_step_time_s and devices and record.batch_per_device:
        return record.batch_per_device * devices / item.printed_step_time_s
    return None


def rate_or_refuse(record: Record, item: Window, *, printed: bool) -> float:
    """Return the images/s of a window or an epoch as `rate_of` does. Raises InputError if its row says too little.

    If the row prints a step time, it lacks only the batch or the number of devices. The error then asks for that one.
    """
    rate = rate_of(record, item, printed=printed)
    if rate is None and item.printed_step_time_s is not None:
        images_per_step(record)  # raises the error that asks for the missing batch or number of devices
    if rate is None:
        raise InputError(f"{record.file}: line {item.line} holds neither a rate nor images and time")
    return rate


def images_per_step(record: Record) -> int:
    """Return the images of one step on all devices; of one device if the number of devices is not known.

    In the second case the unit of the figure says `per device`. Raises InputError if the batch of one device is not
    known, or if the log prints rates of all devices without their number.
    """
    if record.devices is None and record.rate_scope == "global":
        raise InputError(f"{record.file}: the log does not say how many devices ran; give --devices")
    if record.batch_per_device is None:
        raise InputError(f"{record.file}: the log does not say the batch of one device; give --batch")
    return record.batch_per_device * (record.devices or 1)


class Work(NamedTuple):
    """The images of each window, and the seconds that they took.

    If the log prints only a speed, they are any images and seconds that make that speed, such as 1 image in 1 / rate
    seconds. So only their ratio is meaningful.
    """

    images: Sequence[float]
    seconds: Sequence[float]

    @property
    def seconds_per_image(self) -> list[float]:
        """Return how many seconds an image took, in each window."""
        return [seconds / images for images, seconds in zip(self.images, self.seconds, strict=True)]


def work_of(record: Record, chosen: Sequence[Window], over_steps: str) -> Work:
    """Return the images and seconds of each chosen window, by the way in which the protocol averages the windows.

    - `over_steps` is `images_over_time`, and all rows measured both: these.
    - `epoch_rates`: any images and seconds that make the printed speed. All epochs weigh the same.
    - Otherwise: such images and seconds times the steps of the window, so that longer windows weigh more.

    Raises InputError if the log lacks something that is needed, such as the batch.
    """
    if over_steps == "images_over_time":
        measured = _measured_work(record, chosen)
        if measured is not None:
            return measured

    at_printed_speed = _work_at_printed_speed(record, chosen, over_steps)
    if over_steps == "epoch_rates":
        return at_printed_speed  # all epochs weigh the same
    return _weighted_by_steps(at_printed_speed, chosen)


def _weighted_by_steps(work: Work, chosen: Sequence[Window]) -> Work:
    """Return each window's images and seconds times its steps: 20 steps weigh twice as much as 10."""
    weights = steps_as_weights(chosen)
    images = [count * weight for count, weight in zip(work.images, weights, strict=True)]
    seconds = [time * weight for time, weight in zip(work.seconds, weights, strict=True)]
    return Work(images, seconds)


def _measured_work(record: Record, chosen: Sequence[Window]) -> Work | None:
    """Return the images and seconds that the windows' rows measured; None if they do not give both.

    - All rows give seconds and images: these.
    - All give seconds and steps, but not all give images: the seconds, and steps * batch of all devices.
    - Otherwise: None.

    Raises InputError in the second case if that batch is not known.
    """
    seconds = _values_if_in_all(chosen, "seconds")
    if not seconds:
        return None
    images = _values_if_in_all(chosen, "images")
    if images:
        return Work(images, seconds)
    steps = _values_if_in_all(chosen, "steps")
    if steps:
        batch = images_per_step(record)  # of all devices
        return Work([count * batch for count in steps], seconds)
    return None


def _work_at_printed_speed(record: Record, chosen: Sequence[Window], over_steps: str) -> Work:
    """Return images and seconds for each window that make the speed of its row. The windows' lengths play no part.

    All windows use the same source, the first of these that all rows print:

    - A step time: the images of one step in this time. It is passed over if rates are preferred: for `epoch_rates`, and
      if all rows print the rate of all devices.
    - A rate: N images in 1 / rate seconds. N is 1 for a rate of all devices. For a rate of one device, N is the number
      of devices, or 1 if it is not known.
    - Otherwise the rate by `rate_of`: 1 image in 1 / rate seconds. This rate is of all devices already.

    Raises InputError if a row gives no rate, or if the batch is not known for a step time.
    """
    windows = len(chosen)
    rates = _values_if_in_all(chosen, "printed_rate")
    step_times = _values_if_in_all(chosen, "printed_step_time_s")
    all_print_rate_of_all_devices = bool(rates) and record.rate_scope == "global"
    prefers_rates = over_steps == "epoch_rates" or all_print_rate_of_all_devices
    if step_times and not prefers_rates:
        return Work([images_per_step(record)] * windows, step_times)
    if rates:
        images_in_1_over_rate = devices_in_rate(record) or 1  # None: take 1, the images of one device
        return Work([images_in_1_over_rate] * windows, [1 / rate for rate in rates])
    rates_of_any_kind = [rate_or_refuse(record, window, printed=False) for window in chosen]
    return Work([1] * windows, [1 / rate for rate in rates_of_any_kind])


def _values_if_in_all(windows: Sequence[Window], name: str) -> list[float]:
    """Return the field `name` of all windows; an empty list if it is None or 0 in one of them."""
    values = [getattr(window, name) for window in windows]
    return values if all(values) else []
