"""The doctor's judgement of CUDA's and NCCL's start: each fault with its cause and what to do, by faults.yaml."""

import functools
import re
from collections.abc import Iterator, Sequence

import pynvml

from harness import env, nvidia
from runlog.digits import counted
from runlog.verdict import FATAL, OK, WARNING, Verdict
from tools.doctor import nccl
from tools.doctor.cuda import CudaStart, Step, System
from tools.doctor.nccl import NcclStart, choice_of
from tools.doctor.rows import FAULTS, Facts, gpu_name, judge_check

# cuda.h: CUresult, of which MIG, a compute mode or a device that cannot be opened may be the cause
INVALID_VALUE, NOT_INITIALIZED, DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE = 1, 3, 46, 100, 101
CONTEXT_ALREADY_IN_USE, OPERATING_SYSTEM, NOT_PERMITTED, NOT_SUPPORTED, UNKNOWN_ERROR = 216, 304, 800, 801, 999
OF_MIG = (INVALID_VALUE, NOT_INITIALIZED, DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE, NOT_PERMITTED, NOT_SUPPORTED)
OF_COMPUTE_MODE = (DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE, CONTEXT_ALREADY_IN_USE)
OF_DEVICES = (NOT_INITIALIZED, NO_DEVICE, OPERATING_SYSTEM, NOT_PERMITTED, UNKNOWN_ERROR)
# {sign of a fault, by its name in faults.yaml: the codes of CUDA that it can cause}, the most telling sign first
CODES_BY_SIGN = {"lost": OF_DEVICES, "mig": OF_MIG, "prohibited": OF_COMPUTE_MODE, "device": OF_DEVICES}
# How the names begin of interfaces between containers and virtual machines of one host. They reach no other node.
VIRTUAL = (
    *("docker", "br-", "virbr", "vnet", "veth", "cni", "flannel", "cali", "tunl", "cilium", "lxc", "lxd", "podman"),
    *("kube", "nerdctl", "weave", "vxlan", "vmnet", "tap", "tun", "wg", "tailscale", "dummy"),
)
LOST = re.compile(r"GPU\d+: ")  # how NVML's reason begins if it has lost one GPU
LINK_LOCAL = ("169.254.", "fe80:")  # addresses that an interface gave itself, as a DGX A100's USB link to its BMC does


def judge_start(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on whether CUDA and NCCL start on a node, and whether NCCL chose a network to the other nodes.

    A library that was not started has no verdict.

    Args:
        facts: What was seen of the node, as `node.probe` returns it. "cuda_start" and "nccl_start" are missing for a
            job on CPUs.
        job: Settings of the training job, with the number of nodes.
    """
    if facts.get("cuda_start") is not None:
        yield from _judge_cuda(facts, job)
    if facts.get("nccl_start") is not None:
        yield from _judge_nccl(facts, job)


# ---- CUDA


def _judge_cuda(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield a fatal verdict on each failure of CUDA's start, of the driver itself or of one GPU.

    If nothing failed, the only verdict is on the number of GPUs, because CUDA may show too few.

    Args:
        facts: What was seen of the node: "cuda_start" is the result of starting CUDA, and "gpus" has the GPUs that NVML
            shows.
        job: Settings of the training job, with the number of GPUs that a node uses (DGXNGPU).
    """
    start: CudaStart = facts["cuda_start"]
    failed_driver_step = start.failed_driver_step
    failed_steps_of_gpus = start.failed_steps_of_gpus
    if failed_driver_step is not None:
        yield _judge_failed_cuda_step("", failed_driver_step, facts, job)
    for number, step in failed_steps_of_gpus.items():
        yield _judge_failed_cuda_step(f"{_name_of_cuda_gpu(number, facts)}: ", step, facts, job)
    nothing_failed = failed_driver_step is None and not failed_steps_of_gpus
    if nothing_failed:
        yield _judge_context_count(start, facts, job)


def _judge_context_count(start: CudaStart, facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on a start of CUDA in which no step failed: whether CUDA shows as many GPUs as the job needs.

    Args:
        start: The result of the start. A context, which a process needs to compute on a GPU, was made on each GPU of
            the job that CUDA shows.
        facts: What was seen of the node, for the cause if there are too few GPUs.
        job: Settings of the training job, with the number of GPUs that a node uses (DGXNGPU).
    """
    needed_gpus = job.cluster.dgxngpu
    shown_gpus = start.shown_gpus or 0  # 0 also if CUDA did not say how many there are
    if shown_gpus < needed_gpus:
        # Always fatal. The text is what was seen and its cause.
        return _cause_verdict(f"CUDA shows {counted(shown_gpus, 'GPU')}", _cause_of_few_gpus(facts), facts, job)
    found = f"a context on {counted(len(start.step_by_gpu), 'GPU')}; the driver's CUDA is {start.version_words}"
    return judge_check(job, "cuda.start", OK, found=found)


def _cause_of_few_gpus(facts: Facts) -> dict[str, str]:
    """Return why CUDA shows too few GPUs, and what to do about it, from faults.yaml.

    The cause is a GPU that NVML has lost, a GPU in MIG mode, or unknown.

    Args:
        facts: What was seen of the node.

    Returns:
        {"cause": "...", "fix": "..."}. The texts may hold placeholders, such as {driver}.
    """
    evidence = _evidence(facts)
    if evidence["lost"]:
        name = "lost"
    elif evidence["mig"]:
        name = "mig"
    else:
        name = "few"
    cause: dict[str, str] = FAULTS["evidence"][name]
    return cause


def _name_of_cuda_gpu(number: int, facts: Facts) -> str:
    """Return the name of a GPU for a message: "GPU3" by its number in nvidia-smi, or "CUDA's GPU 3".

    The second form is for a GPU whose number NVML does not tell.

    Args:
        number: CUDA's number of the GPU, from 0, which may differ from that of nvidia-smi.
        facts: What was seen of the node: "gpus" has the GPUs that NVML shows, in CUDA's order.
    """
    gpus: list[nvidia.Gpu] = facts["gpus"]  # in CUDA's order, which is that of the ranks
    if number < len(gpus) and gpus[number].index is not None:
        return gpu_name(gpus[number])
    return f"CUDA's GPU {number}"


def _judge_failed_cuda_step(subject: str, step: Step, facts: Facts, job: env.Job) -> Verdict:
    """Return the fatal verdict on a step of CUDA's start that failed: the failure, its cause and what to do.

    Its text reads, for example, "GPU3: cuCtxCreate_v2: CUDA_ERROR_OUT_OF_MEMORY (2)", followed by the cause.

    Args:
        subject: How the text begins, such as "GPU3: "; empty for a step of the driver itself.
        step: The call of CUDA's driver that failed, hung, killed its process, or could not be made.
        facts: What was seen of the node, which may tell the cause.
        job: Settings of the training job, for the texts of the verdict.
    """
    if step.hang_or_death:
        failure = f"{step.call} {step.hang_or_death}"  # "cuCtxCreate_v2 no answer in 20 s"
    elif step.could_not_call:
        failure = step.reason  # "libcuda.so.1: cannot open shared object file"
    else:
        failure = f"{step.call}: {step.code_name or 'CUDA_ERROR'} ({step.code})"
    return _cause_verdict(f"{subject}{failure}", _cuda_cause(step, facts), facts, job)


def _cuda_cause(step: Step, facts: Facts) -> dict[str, str]:
    """Return the likely cause of a failed step of CUDA's start, and what to do about it, from faults.yaml.

    One error code of CUDA has many causes. So other evidence, such as a hang or a GPU in MIG mode, counts before the
    code.

    Args:
        step: The step that failed.
        facts: What was seen of the node.

    Returns:
        {"cause": "...", "fix": "..."}. The texts may hold placeholders, such as {driver}.
    """
    name = _name_of_evidence(step, _evidence(facts))
    if name:
        cause: dict[str, str] = FAULTS["evidence"][name]
        return cause
    cause_of_code: dict[str, str] = FAULTS["cuda"].get(step.code, FAULTS["cuda"]["default"])
    return cause_of_code


def _name_of_evidence(step: Step, evidence: dict[str, str]) -> str:
    """Return the name of what explains a failed step of CUDA's start: a key under "evidence" in faults.yaml.

    Args:
        step: The step that failed.
        evidence: A text for each sign of a fault, as {"mig": "GPU0, GPU3", "lost": ""}. It is empty if the sign was not
            found.

    Returns:
        The key, such as "mig"; empty if nothing explains the step.
    """
    if step.has_hung:
        return "hang"
    if step.has_died:
        return "death"
    if step.could_not_call:
        return "load"
    # Otherwise the first sign that was found and can cause the step's error code.
    for sign, codes_it_can_cause in CODES_BY_SIGN.items():
        was_found = evidence[sign] != ""
        if was_found and step.code in codes_it_can_cause:
            return sign
    return ""


def _evidence(facts: Facts) -> dict[str, str]:
    """Return the texts that fill the placeholders of faults.yaml, such as {driver}: what may explain a fault of CUDA.

    Args:
        facts: What was seen of the node: "gpus" and "gpu_absence" by NVML, "cuda_system" and "cuda_start".

    Returns:
        Texts by the placeholder's name: versions of the driver's parts, the file of CUDA, and the signs of a fault, of
        which those that were not found are empty.
    """
    gpus: list[nvidia.Gpu] = facts["gpus"]
    system: System = facts["cuda_system"]
    start: CudaStart = facts["cuda_start"]
    drivers = [gpu.driver for gpu in gpus if gpu.driver]
    driver = {
        "driver": drivers[0] if drivers else "unknown",
        "fabric_manager": system.fabric_manager or "unknown here: systemctl status nvidia-fabricmanager on the host",
        "kernel_module": system.kernel_module or "unknown",
        "library": start.library or "libcuda.so.1",
    }
    return driver | _signs_of_a_fault(gpus, system, absence=facts.get("gpu_absence", ""))


def _signs_of_a_fault(gpus: Sequence[nvidia.Gpu], system: System, *, absence: str) -> dict[str, str]:
    """Return a text for each sign of a fault of CUDA, such as {"mig": "GPU0, GPU3"}; empty if a sign was not found.

    The signs are "lost" (a GPU that NVML has lost), "mig" (a GPU divided into several), "prohibited" (its compute mode
    lets no process in) and "device" (a device file that cannot be opened).

    Args:
        gpus: The GPUs that NVML shows.
        system: The driver's device files and why one cannot be opened.
        absence: Why NVML does not show some GPUs; empty if it shows all.
    """
    in_mig_mode = [gpu_name(gpu) for gpu in gpus if gpu.mig]
    prohibited = [gpu_name(gpu) for gpu in gpus if gpu.compute_mode == pynvml.NVML_COMPUTEMODE_PROHIBITED]
    unopened = [f"{path} cannot be opened ({why})" for path, why in system.devices.items() if why]
    return {
        "lost": absence if LOST.match(absence) else "",  # a GPU that fell off the bus
        "mig": ", ".join(in_mig_mode),  # GPUs that are divided into several
        "prohibited": ", ".join(prohibited),  # GPUs whose compute mode lets no process in
        "device": "; ".join(unopened),  # device files that cannot be opened
    }


def _cause_verdict(failure: str, cause: dict[str, str], facts: Facts, job: env.Job) -> Verdict:
    """Return the fatal verdict on a fault of CUDA's start.

    Args:
        failure: What happened, such as "CUDA shows 3 GPUs". The text of the cause follows it.
        cause: An entry of faults.yaml with the texts "cause" and "fix", which may hold placeholders.
        facts: What was seen of the node, to fill the placeholders.
        job: Settings of the training job, for the texts of the verdict.
    """
    evidence = _evidence(facts)
    found = f"{failure}: {cause['cause'].format(**evidence)}"
    return judge_check(job, "cuda.start", FATAL, found=found, fix=cause["fix"].format(**evidence))


# ---- NCCL


def _judge_nccl(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield a verdict on whether NCCL starts with the settings that the ranks will have.

    For a job of several nodes, verdicts follow on the interface, if NCCL named one, and on the node's InfiniBand ports,
    if it has any.

    Args:
        facts: What was seen of the node: "nccl_start" is the result of starting NCCL, "nccl_settings" has the variables
            of its network, "address" is the node's address by HOSTS, "infiniband" the state of each port.
        job: Settings of the training job, with the number of nodes.
    """
    start: NcclStart = facts["nccl_start"]
    variables: dict[str, str] = facts["nccl_settings"]
    settings = _settings_in_words(variables, facts.get("nccl_files", ()))
    has_started = start.code == 0 and not start.hang_or_death
    if has_started:
        yield judge_check(job, "nccl.start", OK, found=f"{_meeting_in_words(start)}; settings: {settings}")
    else:
        yield _judge_failed_nccl_start(start, settings, job)

    if job.cluster.dgxnnodes > 1:
        if start.interface:
            yield _judge_interface(start, facts["address"], job)
        if facts["infiniband"]:
            yield _judge_ports(variables.get("NCCL_IB_HCA", ""), facts["infiniband"], job)


def _meeting_in_words(start: NcclStart) -> str:
    """Return on which network interface the ranks would meet, as text: "meets on eth0 10.0.0.1".

    Args:
        start: The result of starting NCCL, with the interface that NCCL chose and its address.
    """
    return f"meets on {start.interface or 'an interface that it does not name'} {start.address}".rstrip()


def _settings_in_words(variables: dict[str, str], files: Sequence[str]) -> str:
    """Return NCCL's variables as text, and which files set more: "NCCL_IB_HCA=mlx5, and those of /etc/nccl.conf".

    Args:
        variables: NCCL's variables that choose a network, with their values; may be empty.
        files: Existing files in which NCCL may find more variables.
    """
    settings = " ".join(f"{name}={value}" for name, value in variables.items()) or "none is set"
    for path in files:
        settings += f", and those of {path}"
    return settings


def _judge_failed_nccl_start(start: NcclStart, settings: str, job: env.Job) -> Verdict:
    """Return the fatal verdict on a failed call of ncclGetUniqueId, which needs the network but no GPU.

    Args:
        start: What came of the call: an error code of NCCL, a hang or death of the process, or no call at all.
        settings: NCCL's variables as text, such as "NCCL_IB_HCA=mlx5".
        job: Settings of the training job, for the texts of the verdict.
    """
    if start.hang_or_death:
        found = f"ncclGetUniqueId {start.hang_or_death}"
        fault = FAULTS["nccl"]["hang"]
    elif start.code is None:
        found = start.message or "no answer"  # the message says why NCCL could not be called
        fault = FAULTS["nccl"]["load"]
    else:
        found = f"ncclGetUniqueId: {start.code}, {start.message or 'no message'}; settings: {settings}"
        fault = FAULTS["nccl"].get(start.code, FAULTS["nccl"]["default"])
    return judge_check(job, "nccl.start", FATAL, found=found, fix=fault["fix"].format(settings=settings))


def _judge_interface(start: NcclStart, hosts_address: str, job: env.Job) -> Verdict:
    """Return the verdict on whether the network interface that NCCL chose leads to other nodes.

    It is fatal for the loopback, and a warning for an interface that may lead nowhere.

    Args:
        start: The result of starting NCCL, with the interface ("eth0") and its address.
        hosts_address: The address by which HOSTS names this node; empty if it is unknown.
        job: Settings of the training job, for the texts of the verdict.
    """
    found = f"{start.interface} {start.address}, this node's address in HOSTS is {hosts_address or 'unknown'}"
    verdict = functools.partial(judge_check, job, "nccl.interface", found=found)
    is_loopback = start.interface == "lo"
    is_virtual = start.interface.startswith(VIRTUAL)  # between containers or virtual machines
    is_link_local = start.address.startswith(LINK_LOCAL)  # an address that the interface gave itself
    if is_loopback:  # which leads to this node alone
        return verdict(FATAL)
    if start.address == hosts_address:  # the other nodes know it, whatever its name or its address looks like
        return verdict(OK)
    if is_virtual or is_link_local:
        return verdict(WARNING)
    return verdict(OK)


def _accident_and_fix(setting: str, names: str) -> tuple[str, str]:
    """Return two texts on a value of NCCL_IB_HCA: which devices are matched by accident, and how to mend the value.

    NCCL compares beginnings of names, so "mlx5_1" also matches the device mlx5_10.

    Args:
        setting: The value of NCCL_IB_HCA, such as "mlx5_1" or "^mlx5_1".
        names: The devices that are matched by accident, as text: "mlx5_10" or "mlx5_10, mlx5_11".

    Returns:
        (accident, fix). `accident` goes on from a text such as "NCCL_IB_HCA=mlx5_1 takes mlx5_1:1, mlx5_10:1; ".
    """
    names_devices_to_leave_out = choice_of(setting).leaves_out  # the value begins with ^
    if names_devices_to_leave_out:
        fix = f"begin it with ^=, so that names count whole: NCCL_IB_HCA=^={setting.removeprefix('^')}"
        return f"it leaves out {names} too, by the beginning of a name", fix
    fix = f"begin it with =, so that names count whole: NCCL_IB_HCA=={setting}"
    return f"{names} by the beginning of a name", fix


def _judge_ports(setting: str, ports: dict[str, str], job: env.Job) -> Verdict:
    """Return the verdict on the InfiniBand ports that NCCL uses by its setting NCCL_IB_HCA.

    Args:
        setting: The value of NCCL_IB_HCA, such as "mlx5_0,mlx5_1"; empty takes every port.
        ports: The state of each port of the node: {"mlx5_0:1": "ACTIVE 200 Gb/sec (4X HDR)"}.
        job: Settings of the training job, for the texts of the verdict.
    """
    taken = nccl.names_taken(setting, list(ports))
    found = f"NCCL_IB_HCA={setting} takes {', '.join(taken) or 'no port'}"
    # NCCL compares beginnings of names, so "mlx5_1" takes the device mlx5_10, too, which the user did not mean.
    matched_by_accident = nccl.devices_matched_by_accident(setting, list(ports))
    if matched_by_accident:
        accident, fix = _accident_and_fix(setting, ", ".join(matched_by_accident))
        return judge_check(job, "nccl.ports", WARNING, found=f"{found}; {accident}", fix=fix)

    active = [port for port in taken if ports[port].startswith("ACTIVE")]
    if not active:
        return judge_check(job, "nccl.ports", WARNING, found=f"{found}, none of them ACTIVE")

    on_ethernet = [port for port in active if ports[port].endswith(nccl.ETHERNET)]
    both_kinds_are_active = 0 < len(on_ethernet) < len(active)
    if both_kinds_are_active:
        found += f"; of Ethernet {', '.join(on_ethernet)}, which cannot be joined with a port of InfiniBand"
        return judge_check(job, "nccl.ports", WARNING, found=found)
    return judge_check(job, "nccl.ports", OK, found=found)
