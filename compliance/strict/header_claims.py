"""The header of a log of this project, held against what the run shows of its machines, program and data.

The header must fit the schema.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from compliance.logged_run import LoggedRun, is_number
from compliance.strict.measured import Fault
from compliance.strict.program_claims import faults_of_program
from compliance.strict.schema_types import fits
from compliance.strict.sensors import Sensors
from runlog import schema, workloads
from runlog.digits import counted, six_digits
from runlog.json_types import JsonObject
from runlog.reader import Event
from runlog.run import setting_of_epochs
from runlog.text import printable

_MIB_PER_GIB = 1024
_ROUNDING_OF_MEMORY = 1.01  # the header rounds the memory of a GPU to a tenth of a GiB
_MAX_GIB_PER_NAMED_GB = 1.06  # GiB over the GB in a card's name; all known cards have no more than the number in GiB
_SHA256 = re.compile("[0-9a-f]{64}")
_GB_IN_NAME = re.compile(r"\b(\d+) ?GB\b")
# Cards before compute capability 8.0, such as V100S-PCIE-32GB, Quadro RTX 8000, T1000, TITAN RTX and GeForce RTX 2080
# Ti. The GeForce RTX 2050 is a later one: it has 8.6.
_WITHOUT_TF32 = re.compile(r"\b(?:G?V100\w?|T\d+G?|[PMK]\d+\w?|GTX|TITAN|Quadro RTX|RTX 20[678]0)\b")
_TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
_CHOICE_OF_GPU = "FLAGS_selected_gpus"
_MIN_READINGS = 20  # windows with a power, and telemetry's samples: fewer may all be of a moment without work
_MAX_ENERGY_RATIO = 3.0  # of the energy and the windows' power over the run's time: nodes and moments differ
_MIN_POWER_W = 10  # of a GPU in the window of the most power; an A100 that does nothing takes some 50
_MAX_POWER_W = 2000  # of a GPU; a B200's limit is 1000
# That telemetry's peak has of the most that a window says was held: some of it may have been given back at once.
_MIN_SHARE_OF_HELD_MEMORY = 0.5
_MAX_TEMPERATURE_C = 150  # cards stop far below
_MAX_CPU_SHARE = 1.1  # of the thread that takes the samples, where both of its times are rounded
_FIGURES_OF_GPUS = ("peak_gpu_memory_mib", "peak_gpu_temperature_c", "energy_j", "joules_per_image")


def faults_of_claims(run: LoggedRun, summary: schema.RunSummary, sensors: Sensors, last_epoch: int) -> Iterator[Fault]:
    """Yield a fault for each statement about the machine, the program and the data that is impossible or contradicted.

    Most are statements of the header, and contradicted by the log's events.

    Args:
        run: The facts that the log states of the run. Its header must fit the schema.
        summary: The value of the event run_summary.
        sensors: The memory and power of GPUs that the windows of steps state.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.

    Yields:
        The fault, with the line to blame. For the header this is the line of run_summary, because `LoggedRun` does not
        keep the header's own lines.
    """
    hardware = run.header_section(schema.HARDWARE)
    yield from _impossible_nodes(run, hardware["nodes"])
    yield from _wrong_cache_clears(run, hardware["nodes"])
    if hardware["device"] == "gpu":
        claims = _GpuClaims(run, sensors, hardware["nodes"])
        yield from claims.faults(summary)
    else:
        yield from _figures_of_absent_gpus(run, sensors)
    yield from _impossible_readings(run, sensors)
    for what in faults_of_program(run, summary):
        yield Fault(_line(run), what)
    yield from _wrong_passports(run)
    yield from _wrong_form(run)
    yield from _epochs_beyond_plan(run, last_epoch)


def _line(run: LoggedRun) -> int:
    """Return the line that a fault of the header is shown at: that of run_summary. The header's own are not kept."""
    return run.first_event(schema.RUN_SUMMARY).line


# --- nodes ---


def _impossible_nodes(run: LoggedRun, nodes: list[JsonObject]) -> Iterator[Fault]:
    """Yield a fault for each node without cores or memory, or that is described twice.

    Args:
        run: The facts that the log states of the run.
        nodes: The nodes that the header's section `hardware` describes, each with its host, cores and memory.
    """
    hosts: set[str] = set()
    for node in nodes:
        host = node["host"]
        if node["cores"] < 1 or node["memory_gib"] <= 0:
            size = f"{node['cores']} cores and {node['memory_gib']} GiB"
            yield Fault(_line(run), f"hardware has a node {printable(host)} of {size}")
        is_second_of_name = host in hosts
        if is_second_of_name:
            yield Fault(_line(run), f"hardware describes the node {printable(host)} twice")
        hosts.add(host)


def _wrong_cache_clears(run: LoggedRun, nodes: list[JsonObject]) -> Iterator[Fault]:
    """Yield the faults of each event cache_clear, and a fault for each node that has no such event.

    Args:
        run: The facts that the log states of the run, with its events cache_clear.
        nodes: The nodes that the header's section `hardware` describes, each with its host.
    """
    hosts = {node["host"] for node in nodes}
    hosts_of_caches = set()  # those of `hosts` for which the log has an event cache_clear
    for event in run.all_events[schema.CACHE_CLEAR.key]:
        yield from _wrong_value_of_cache_clear(run, event)
        host = event.metadata.get("node")  # of any type of JSON
        if isinstance(host, str) and host in hosts:
            hosts_of_caches.add(host)
        else:
            yield Fault(event.line, f"a cache_clear of the node {printable(host)}, which hardware does not describe")
    for host in sorted(hosts - hosts_of_caches):
        yield Fault(_line(run), f"no cache_clear of the node {printable(host)}")


def _wrong_value_of_cache_clear(run: LoggedRun, event: Event) -> Iterator[Fault]:
    """Yield a fault if a cache_clear is true though CLEAR_CACHES is 0, and one if its value contradicts its status.

    A run writes true with the status "done", and false with any other status.

    Args:
        run: The facts that the log states of the run, with its settings.
        event: A cache_clear.
    """
    if event.value is True and run.settings.get("CLEAR_CACHES") == 0:
        yield Fault(event.line, "a cache that was cleared; CLEAR_CACHES is 0")
    status = event.metadata.get("status")
    value_by_status = status == "done"
    if event.value is not value_by_status:  # not `!=`, because 1 == True: a value of 1 would pass as true
        yield Fault(event.line, f"a cache_clear of {printable(event.value)} with the status {printable(status)}")


# --- GPUs ---


class _GpuClaims(NamedTuple):
    """The GPUs that the header describes, and what the run's sensors show of them."""

    run: LoggedRun
    sensors: Sensors
    nodes: list[JsonObject]

    def faults(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield signs that no GPU computed, and what is wrong with the GPUs' memory, arithmetic, power and energy.

        Args:
            summary: The value of the event run_summary: the precision, and the number of devices and nodes.
        """
        yield from self._signs_of_cpu()
        yield from self._memory_beyond_names()
        yield from self._memory_beyond_cards()
        if self.sensors.line_of_less_memory:  # each window states the most since the run began, which cannot fall
            yield Fault(self.sensors.line_of_less_memory, "less GPU memory than a window before; it is the most so far")
        yield from self._contradicted_precision(summary.precision)
        yield from self._impossible_power(summary)
        telemetry = self.run.first_event(schema.TELEMETRY_SUMMARY)  # its value is None if the log has no such event
        if fits(schema.TelemetrySummary, telemetry.value):  # None does not fit
            yield from self._less_memory_than_held(telemetry.value["peak_gpu_memory_mib"], telemetry.line)
            yield from self._energy_beyond_power(telemetry.value["energy_j"], telemetry.line)

    def _signs_of_cpu(self) -> Iterator[Fault]:
        """Yield a fault for each sign that rank 0 computed on a CPU, and not on one of the GPUs.

        A rank on a GPU states in its windows how much of the GPU's memory was held. It also tells Paddle which GPU to
        take, by a variable that the header has among those of the libraries.
        """
        if self.sensors.line_without_memory and self.sensors.first_memory_mib is None:
            yield Fault(self.sensors.line_without_memory, "step_windows without a GPU's memory, of a run on GPUs")
        if not self.run.header_section(schema.ENVIRONMENT).get(_CHOICE_OF_GPU):
            yield Fault(_line(self.run), f"a run on GPUs, and no {_CHOICE_OF_GPU} in the environment")

    @property
    def _cards(self) -> list[JsonObject]:
        cards: list[JsonObject] = []
        for node in self.nodes:
            cards += node["gpus"]
        return cards

    def _memory_beyond_names(self) -> Iterator[Fault]:
        """Yield a fault for the first card with more memory than its name says, such as "NVIDIA A100-SXM4-80GB".

        Up to _MAX_GIB_PER_NAMED_GB GiB are allowed for each GB of the name. A card is left out if its name has no GB,
        or if its memory is not known.
        """
        for card in self._cards:
            memory_in_name = _GB_IN_NAME.search(card["name"] or "")
            memory_gib = card["memory_gib"]
            if memory_in_name is None or memory_gib is None:
                continue
            digits = memory_in_name.group(1)[:6]  # int() refuses thousands of digits, which a forged name may have
            named_gb = int(digits)
            if memory_gib > _MAX_GIB_PER_NAMED_GB * named_gb:
                what = f"hardware has a {printable(card['name'])} of {six_digits(memory_gib)} GiB"
                yield Fault(_line(self.run), what)
                return

    def _memory_beyond_cards(self) -> Iterator[Fault]:
        """Yield a fault if windows of steps used more memory of a GPU than any card has, and one if telemetry did.

        Nothing is checked if the header describes no card, or if the memory of a card is not known.
        """
        memories_gib = [card["memory_gib"] for card in self._cards]
        if not memories_gib or None in memories_gib:
            return
        largest_card_mib = max(memories_gib) * _MIB_PER_GIB
        yield from self._memory_beyond(largest_card_mib, self.sensors.most_memory_mib, self.sensors.line_of_memory)
        telemetry = self.run.first_event(schema.TELEMETRY_SUMMARY)
        if fits(schema.TelemetrySummary, telemetry.value):
            peak_mib = telemetry.value["peak_gpu_memory_mib"]
            yield from self._memory_beyond(largest_card_mib, peak_mib, telemetry.line)

    def _memory_beyond(self, card_mib: float, used_mib: float | None, line: int) -> Iterator[Fault]:
        """Yield a fault if more memory of a GPU was used than a card has.

        Args:
            card_mib: The memory of the largest card, in MiB, rounded to a tenth of a GiB.
            used_mib: The memory that was used, in MiB. None if it is not stated.
            line: The line that states it.
        """
        if used_mib is not None and used_mib > _ROUNDING_OF_MEMORY * card_mib:
            what = f"{six_digits(used_mib)} MiB of a GPU; its cards have {six_digits(card_mib)}"
            yield Fault(line, what)

    def _less_memory_than_held(self, peak_mib: float | None, line: int) -> Iterator[Fault]:
        """Yield a fault if telemetry saw far less memory in use than rank 0 held by the first window of steps.

        Telemetry samples all memory in use on a GPU now and then. Rank 0 keeps most of the memory that it held by its
        first window until the run ends, so later samples must see it. A peak below half of this memory
        (_MIN_SHARE_OF_HELD_MEMORY) is a fault. Nothing is compared if the run is not known to be long enough for
        _MIN_READINGS samples, or if one of the two is not stated.

        Args:
            peak_mib: The peak that telemetry_summary states. None if it states none.
            line: The line of telemetry_summary.
        """
        held_mib = self.sensors.first_memory_mib
        if peak_mib is None or held_mib is None or not self._has_enough_samples():
            return
        if peak_mib < _MIN_SHARE_OF_HELD_MEMORY * held_mib:
            what = f"telemetry saw at most {six_digits(peak_mib)} MiB of a GPU in use"
            yield Fault(line, f"{what}; its first step_window has {six_digits(held_mib)}")

    def _has_enough_samples(self) -> bool:
        """Return whether the run is known to be long enough for _MIN_READINGS samples of telemetry."""
        interval_s: Any = self.run.settings.get("TELEMETRY_S")
        if not is_number(interval_s) or self.run.minutes is None:
            return False
        return bool(self.run.minutes * 60 >= _MIN_READINGS * interval_s)

    def _impossible_power(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield a fault if the GPUs of the first node took less or more power than GPUs at work can take.

        A window states the power of these GPUs alone. The window with the most power counts.

        Args:
            summary: The value of the event run_summary. All nodes use equally many GPUs.
        """
        if self.sensors.windows_with_power < _MIN_READINGS or summary.nodes < 1:
            return
        gpus_of_first_node = summary.devices // summary.nodes
        least_w = _MIN_POWER_W * gpus_of_first_node
        most_w = _MAX_POWER_W * gpus_of_first_node
        stated_w = self.sensors.most_power_w
        is_possible = least_w <= stated_w <= most_w
        if not is_possible:
            what = f"step_windows with a power of up to {six_digits(stated_w)} W"
            yield Fault(_line(self.run), f"{what}, of {counted(gpus_of_first_node, 'GPU')}")

    def _contradicted_precision(self, precision: str) -> Iterator[Fault]:
        """Yield a fault if the environment contradicts the precision fp32 or tf32, and one if a card has no TF32.

        A card that has TF32 uses it for multiplications in FP32, unless NVIDIA_TF32_OVERRIDE=0 in the environment
        forbids it. A run in fp32 sets this on all cards, and a run in tf32 does not start with it.

        Args:
            precision: The precision that run_summary states: fp32, tf32, amp_o1 or amp_o2.
        """
        override = self.run.header_section(schema.ENVIRONMENT).get(_TF32_OVERRIDE)  # None if it is not set
        is_tf32_forbidden = override == "0"
        is_fp32_contradicted = precision == "fp32" and not is_tf32_forbidden
        is_tf32_contradicted = precision == "tf32" and is_tf32_forbidden
        if is_fp32_contradicted or is_tf32_contradicted:
            stated = f"no {_TF32_OVERRIDE}" if override is None else f"{_TF32_OVERRIDE}={printable(override)}"
            yield Fault(_line(self.run), f"precision {precision}, and {stated} in the environment")
        if precision == "tf32":
            yield from self._card_without_tf32()

    def _card_without_tf32(self) -> Iterator[Fault]:
        """Yield a fault for the first card that is known by its name to have no TF32, such as a V100."""
        for card in self._cards:
            if _WITHOUT_TF32.search(card["name"] or ""):
                yield Fault(_line(self.run), f"precision tf32, which a {printable(card['name'])} does not have")
                return

    def _energy_beyond_power(self, energy_j: float | None, line: int) -> Iterator[Fault]:
        """Yield a fault if telemetry states an energy that is impossible by the power that the windows of steps state.

        The energy is that of the GPUs of all nodes during the run. A window only states the power of the first node's
        GPUs, at one moment. So the energy is held to two bounds, each widened by a factor of 3. For instance, windows
        of 100 s in a run of 120 s state 1000 W to 2000 W on the first of 2 nodes. The least energy is
        1000 * 100 / 3 J, the most 2000 * 120 * 2 * 3 J.

        Args:
            energy_j: The energy that telemetry_summary states, in joules. None if it states none: nothing is compared.
            line: The line of telemetry_summary.
        """
        sensors = self.sensors
        are_powers_few = sensors.windows_with_power < _MIN_READINGS
        if energy_j is None or are_powers_few or not self._has_enough_samples():
            return
        assert self.run.minutes is not None  # `_has_enough_samples` is False without it
        run_s = self.run.minutes * 60
        least_j_of_first_node = sensors.least_power_w * sensors.time_s  # in the windows that state a power
        most_j_of_all_nodes = sensors.most_power_w * run_s * len(self.nodes)
        is_possible = least_j_of_first_node / _MAX_ENERGY_RATIO <= energy_j <= most_j_of_all_nodes * _MAX_ENERGY_RATIO
        if not is_possible:
            power = f"{six_digits(sensors.least_power_w)} to {six_digits(sensors.most_power_w)} W"
            yield Fault(line, f"{six_digits(energy_j)} J in {six_digits(run_s)} s; its step_windows have {power}")


def _figures_of_absent_gpus(run: LoggedRun, sensors: Sensors) -> Iterator[Fault]:
    """Yield a fault for each place where the log of a CPU run states a figure of GPUs, which it cannot have.

    The places are the first window of steps with a GPU's memory or power, and each field of telemetry_summary in
    _FIGURES_OF_GPUS that has a value.

    Args:
        run: The facts that the log states of the run, which trained on CPUs.
        sensors: The memory and power of GPUs that the windows of steps state, which should be none.
    """
    if sensors.line_of_gpu:
        yield Fault(sensors.line_of_gpu, "a step_window with a GPU's memory or power, of a run on CPUs")
    telemetry = run.first_event(schema.TELEMETRY_SUMMARY)
    value = telemetry.value if isinstance(telemetry.value, dict) else {}
    for name in _FIGURES_OF_GPUS:
        if value.get(name) is not None:
            yield Fault(telemetry.line, f"telemetry_summary has {name}, of a run on CPUs")


def _impossible_readings(run: LoggedRun, sensors: Sensors) -> Iterator[Fault]:
    """Yield a fault for each kind of sensor figure of which the log has an impossible one.

    Args:
        run: The facts that the log states of the run, with its telemetry_summary.
        sensors: The power and memory of GPUs that the windows of steps state.
    """
    if sensors.least_power_w < 0:  # infinite if no window states a power
        yield Fault(_line(run), f"a step_window with a power of {six_digits(sensors.least_power_w)} W")
    if sensors.least_memory_mib < 0:  # infinite if no window states it
        yield Fault(_line(run), f"a step_window that held {six_digits(sensors.least_memory_mib)} MiB of a GPU")
    telemetry = run.first_event(schema.TELEMETRY_SUMMARY)
    if not fits(schema.TelemetrySummary, telemetry.value):
        return
    temperature_c = telemetry.value["peak_gpu_temperature_c"]
    if temperature_c is not None and not 0 <= temperature_c <= _MAX_TEMPERATURE_C:
        yield Fault(telemetry.line, f"a GPU of {six_digits(temperature_c)} degrees C")
    # The CPU time over the elapsed time of a thread that reads the sensors.
    cpu_share = telemetry.value["sampler_cpu_share"]
    if not 0 <= cpu_share <= _MAX_CPU_SHARE:
        yield Fault(telemetry.line, f"a sampler that took {six_digits(cpu_share)} of a CPU")


# --- data and epochs ---


def _wrong_passports(run: LoggedRun) -> Iterator[Fault]:
    """Yield a fault for each passport that is wrong or missing, and for two passports of one digest.

    A passport describes the files of a part of the data set: their number, the sum of their bytes and a SHA-256. The
    header may have four: `train` and `eval` of the data themselves, `train_source` and `eval_source` of the files that
    the data were packed from.

    Args:
        run: The facts that the log states of the run. Its header's section `dataset` must fit the schema.
    """
    dataset = run.header_section(schema.DATASET)
    for part in ("train", "eval"):
        if dataset["synthetic"]:
            yield from _passport_of_synthetic_data(run, dataset, part)
        else:
            yield from _wrong_passport_of_real_data(run, dataset, part)
    yield from _equal_digests(run, dataset, "train", "eval")
    yield from _equal_digests(run, dataset, "train_source", "eval_source")
    yield from _malformed_digests_of_sources(run, dataset)


def _malformed_digests_of_sources(run: LoggedRun, dataset: JsonObject) -> Iterator[Fault]:
    """Yield a fault for each passport of files that were packed whose digest is not 64 hexadecimal digits.

    Args:
        run: The facts that the log states of the run.
        dataset: The header's section `dataset`.
    """
    for name in ("train_source", "eval_source"):
        passport = dataset.get(name)  # None if the data were not packed
        if passport is not None and not _SHA256.fullmatch(passport["sha256"]):
            yield Fault(_line(run), f"dataset.{name} with the digest {printable(passport['sha256'])}")


def _passport_of_synthetic_data(run: LoggedRun, dataset: JsonObject, part: str) -> Iterator[Fault]:
    """Yield a fault if a part of a synthetic data set has a passport, because no files were read.

    Args:
        run: The facts that the log states of the run.
        dataset: The header's section `dataset`.
        part: "train" or "eval".
    """
    if dataset.get(part) is not None:
        yield Fault(_line(run), f"dataset.{part} describes files, of a run on synthetic data")


def _wrong_passport_of_real_data(run: LoggedRun, dataset: JsonObject, part: str) -> Iterator[Fault]:
    """Yield at most one fault of the passport of a part of a real data set: it is missing, or wrong.

    Args:
        run: The facts that the log states of the run.
        dataset: The header's section `dataset`.
        part: "train" or "eval".
    """
    passport = dataset.get(part)
    if passport is None:
        yield Fault(_line(run), f"no dataset.{part}, which says what files a run on real data read")
        return
    samples = dataset[f"{part}_samples"]
    has_too_few_bytes = passport["bytes"] < passport["files"]  # each file has at least one
    has_digest = _SHA256.fullmatch(passport["sha256"]) is not None
    if passport["files"] != samples:  # a passport counts one file for each sample
        what = f"dataset.{part} has {counted(passport['files'], 'file')}; dataset.{part}_samples is {samples}"
        yield Fault(_line(run), what)
    elif has_too_few_bytes or not has_digest:
        digest = printable(passport["sha256"])
        yield Fault(_line(run), f"dataset.{part} of {passport['bytes']} bytes with the digest {digest}")
    else:
        yield from _other_files_than_embedded(run, passport, part)


def _other_files_than_embedded(run: LoggedRun, passport: JsonObject, part: str) -> Iterator[Fault]:
    """Yield a fault if a run without DATADIR read other files than its workload's embedded data set has.

    This project makes that data set itself, and it has the same names, sizes and labels wherever it is made. So another
    digest shows that somebody put other files, such as easier ones, in the place of its files.

    Args:
        run: The facts that the log states of the run.
        passport: The passport of the part, of as many files as the part has samples.
        part: "train" or "eval".
    """
    workload = workloads.find(run.workload_name)
    embedded = workload.embedded if workload else None
    has_own_folder = run.settings.get("DATADIR") != ""
    if embedded is None or has_own_folder:
        return
    digest = embedded.train_sha256 if part == "train" else embedded.eval_sha256
    if passport["sha256"] != digest:
        read = f"dataset.{part} with the digest {printable(passport['sha256'])}"
        yield Fault(_line(run), f"{read}; DATADIR is empty, and the embedded {embedded.name} has {digest}")


def _equal_digests(run: LoggedRun, dataset: JsonObject, name: str, other_name: str) -> Iterator[Fault]:
    """Yield a fault if two passports have the same digest: then the training data were evaluated.

    Args:
        run: The facts that the log states of the run.
        dataset: The header's section `dataset`. It may lack either passport.
        name: The one passport, such as "train".
        other_name: The other passport, such as "eval".
    """
    passport = dataset.get(name)
    other = dataset.get(other_name)
    if passport is None or other is None:
        return
    if passport["sha256"] == other["sha256"]:
        what = f"dataset.{name} and dataset.{other_name} have one digest"
        yield Fault(_line(run), f"{what}: what was trained on was evaluated")


def _wrong_form(run: LoggedRun) -> Iterator[Fault]:
    """Yield a fault if the stated form of the training images is unknown, or contradicts their passports.

    The form is files, recordio or tfrecord. At most one fault is found.

    Args:
        run: The facts that the log states of the run. Its header's section `dataset` must fit the schema.
    """
    dataset = run.header_section(schema.DATASET)
    form = dataset.get("form")
    if form is None:
        return
    if form not in schema.FORMS:
        yield Fault(_line(run), f"dataset.form is {printable(form)}, none of {', '.join(schema.FORMS)}")
        return
    passport = dataset.get("train")  # of the files that hold the images; None of synthetic data
    # Whether the sizes in a passport are those of the images alone: not so for tfrecord, whose records hold more.
    are_sizes_exact = schema.FORMS[form]
    was_packed = dataset.get("train_source") is not None
    if passport is not None and passport["is_exact"] != are_sizes_exact:
        sizes = f"dataset.train has is_exact {printable(passport['is_exact'])}"
        yield Fault(_line(run), f"{sizes}, and dataset.form is {form}")
    elif form == "files" and was_packed:
        yield Fault(_line(run), "dataset.train_source says what was packed, and dataset.form is files")


def _epochs_beyond_plan(run: LoggedRun, last_epoch: int) -> Iterator[Fault]:
    """Yield a fault if a run trained more epochs than it was to train at most.

    If the log states no limit above 0, there is no fault.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
    """
    setting = setting_of_epochs(run.settings)
    most_epochs: Any = run.settings.get(setting)
    is_limited = is_number(most_epochs) and most_epochs > 0
    if is_limited and last_epoch > most_epochs:
        line = run.stop.line if run.stop else None
        yield Fault(line, f"{counted(last_epoch, 'epoch')}; {setting} is {printable(most_epochs)}")
