"""The doctor's judgement of CUDA's and NCCL's start: each fault with its cause and what to do, by faults.yaml."""

import re
from collections.abc import Iterator

import pynvml

from harness import env, nvidia
from runlog.verdict import FATAL, WARNING, Verdict
from tools.doctor import nccl
from tools.doctor.cuda import CudaStart, Step, System
from tools.doctor.nccl import NcclStart, choice_of
from tools.doctor.rows import FAULTS, Facts, row

# cuda.h: CUresult, of which MIG, a compute mode or a device that cannot be opened may be the cause
INVALID_VALUE, NOT_INITIALIZED, DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE = 1, 3, 46, 100, 101
CONTEXT_ALREADY_IN_USE, OPERATING_SYSTEM, NOT_PERMITTED, NOT_SUPPORTED, UNKNOWN_ERROR = 216, 304, 800, 801, 999
OF_MIG = (INVALID_VALUE, NOT_INITIALIZED, DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE, NOT_PERMITTED, NOT_SUPPORTED)
OF_COMPUTE_MODE = (DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE, CONTEXT_ALREADY_IN_USE)
OF_DEVICES = (NOT_INITIALIZED, NO_DEVICE, OPERATING_SYSTEM, NOT_PERMITTED, UNKNOWN_ERROR)
# Interfaces between containers and virtual machines of one host, by which no other node is reached.
VIRTUAL = (
    *("docker", "br-", "virbr", "vnet", "veth", "cni", "flannel", "cali", "tunl", "cilium", "lxc", "lxd", "podman"),
    *("kube", "nerdctl", "weave", "vxlan", "vmnet", "tap", "tun", "wg", "tailscale", "dummy"),
)
LOST = re.compile(r"GPU\d+: ")  # how NVML's words on a GPU without a handle begin
LINK_LOCAL = ("169.254.", "fe80:")  # addresses that nobody gave, as of the USB link to a DGX A100's own BMC


def judge_start(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether CUDA and NCCL start on this node, and NCCL by the network that leads to the other nodes."""
    if facts.get("cuda_start") is not None:
        yield from _judge_cuda(facts, job)
    if facts.get("nccl_start") is not None:
        yield from _judge_nccl(facts, job)


# ---- CUDA


def _judge_cuda(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """A verdict for each fault of CUDA's start, or one that says that there is none."""
    start: CudaStart = facts["cuda_start"]
    if start.fault is not None:
        yield _cuda_fault("", start.fault, facts, job)
    faulty = {number: step for number, step in start.gpus.items() if step.code != 0}
    for number, step in faulty.items():
        yield _cuda_fault(f"{_label(number, facts)}: ", step, facts, job)
    if start.fault is not None or faulty:
        return

    count = start.count or 0
    if count < job.cluster.dgxngpu:
        known = _evidence(facts)
        few = next((name for name in ("lost", "mig") if known[name]), "few")
        yield _fault_row(f"CUDA shows {count} GPUs", FAULTS["evidence"][few], facts, job)
        return
    asked = len(start.gpus)
    if asked < job.cluster.dgxngpu:
        yield row(job, "cuda.start", False, f"{asked} of {job.cluster.dgxngpu} GPUs asked in time", bad=WARNING)
        return
    found = f"a context on each of {asked} GPUs; the driver's CUDA is {start.version_words}"
    yield row(job, "cuda.start", True, found)


def _label(number: int, facts: Facts) -> str:
    """A GPU by the number that nvidia-smi gives it, where NVML knows it; CUDA's numbers are those of the ranks."""
    gpus: list[nvidia.Gpu] = facts["gpus"]
    if number < len(gpus) and gpus[number].index is not None:
        return f"GPU{gpus[number].index}"
    return f"CUDA's GPU {number}"


def _cuda_fault(where: str, step: Step, facts: Facts, job: env.Job) -> Verdict:
    """A fatal verdict that names the step, its result, the cause and what to do."""
    if step.ended:
        said = f"{where}{step.call} {step.ended}"
    elif step.code is None:
        said = f"{where}{step.name}"
    else:
        said = f"{where}{step.call}: {step.name or 'CUDA_ERROR'} ({step.code})"
    return _fault_row(said, _cuda_cause(step, facts), facts, job)


def _cuda_cause(step: Step, facts: Facts) -> dict[str, str]:
    """Cause and fix of a step that failed: what NVML and the system say at the same time goes before its result."""
    evidence, known = FAULTS["evidence"], _evidence(facts)
    by_evidence = (
        ("hang", step.ended.startswith("no answer")),
        ("death", bool(step.ended)),
        ("load", step.code is None),
        ("lost", step.code in OF_DEVICES and bool(known["lost"])),
        ("mig", step.code in OF_MIG and bool(known["mig"])),
        ("prohibited", step.code in OF_COMPUTE_MODE and bool(known["prohibited"])),
        ("device", step.code in OF_DEVICES and bool(known["device"])),
    )
    for name, applies in by_evidence:
        if applies:
            cause: dict[str, str] = evidence[name]
            return cause
    by_result: dict[str, str] = FAULTS["cuda"].get(step.code, FAULTS["cuda"]["default"])
    return by_result


def _evidence(facts: Facts) -> dict[str, str]:
    """Signs of a fault by the names that the texts of faults.yaml have; an empty text where there is none."""
    gpus: list[nvidia.Gpu] = facts["gpus"]
    system: System = facts["cuda_system"]
    start: CudaStart = facts["cuda_start"]
    prohibited = [gpu for gpu in gpus if gpu.compute_mode == pynvml.NVML_COMPUTEMODE_PROHIBITED]
    drivers = [gpu.driver for gpu in gpus if gpu.driver]
    absence: str = facts.get("gpu_absence", "")
    unopened = [f"{path} cannot be opened ({why})" for path, why in system.devices.items() if why]
    return {
        "driver": drivers[0] if drivers else "unknown",
        "fabric_manager": system.fabric_manager or "unknown here: systemctl status nvidia-fabricmanager on the host",
        "kernel_module": system.kernel_module or "unknown",
        "library": start.library or "libcuda.so.1",
        "lost": absence if LOST.match(absence) else "",
        "mig": ", ".join(f"GPU{gpu.index}" for gpu in gpus if gpu.mig),
        "prohibited": ", ".join(f"GPU{gpu.index}" for gpu in prohibited),
        "device": "; ".join(unopened),
    }


def _fault_row(said: str, cause: dict[str, str], facts: Facts, job: env.Job) -> Verdict:
    known = _evidence(facts)
    found = f"{said}: {cause['cause'].format(**known)}"
    return row(job, "cuda.start", False, found, fix=cause["fix"].format(**known))


# ---- NCCL


def _judge_nccl(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether NCCL starts, and for several nodes: on which interface, and by which ports of InfiniBand."""
    start: NcclStart = facts["nccl_start"]
    settings: dict[str, str] = facts["nccl_settings"]
    shown = " ".join(f"{name}={value}" for name, value in settings.items()) or "none is set"
    shown += "".join(f", and those of {path}" for path in facts.get("nccl_files", ()))
    if start.code == 0 and not start.ended:
        found = f"meets on {start.interface or 'an interface that it does not name'} {start.address}".rstrip()
        yield row(job, "nccl.start", True, f"{found}; settings: {shown}")
    else:
        yield _nccl_fault(start, shown, job)

    if job.cluster.dgxnnodes > 1:
        if start.interface:
            yield _judge_interface(start, facts, job)
        if facts["infiniband"]:
            yield _judge_ports(settings, facts["infiniband"], job)


def _nccl_fault(start: NcclStart, settings: str, job: env.Job) -> Verdict:
    """A fatal verdict that names NCCL's result, its message and what to do."""
    if start.ended:
        found = f"ncclGetUniqueId {start.ended}"
        fault = FAULTS["nccl"]["hang"]
    elif start.code is None:
        found = start.message or "no answer"
        fault = FAULTS["nccl"]["load"]
    else:
        found = f"ncclGetUniqueId: {start.code}, {start.message or 'no message'}; settings: {settings}"
        fault = FAULTS["nccl"].get(start.code, FAULTS["nccl"]["default"])
    return row(job, "nccl.start", False, found, fix=fault["fix"].format(settings=settings))


def _judge_interface(start: NcclStart, facts: Facts, job: env.Job) -> Verdict:
    """Whether NCCL's interface leads to other nodes; one of containers does where it has the address of HOSTS."""
    address = facts["address"]
    is_lo = start.interface == "lo"
    is_strange = start.interface.startswith(VIRTUAL) or start.address.startswith(LINK_LOCAL)
    is_strange = is_strange and start.address != address
    found = f"{start.interface} {start.address}, this node's address in HOSTS is {address or 'unknown'}"
    bad = FATAL if is_lo else WARNING
    return row(job, "nccl.interface", not is_lo and not is_strange, found, bad=bad)


def _judge_ports(settings: dict[str, str], ports: dict[str, str], job: env.Job) -> Verdict:
    """Whether NCCL_IB_HCA takes ports that are up, and none that it does not name."""
    value = settings.get("NCCL_IB_HCA", "")
    taken = nccl.takes(value, list(ports))
    up = [port for port in taken if ports[port].startswith("ACTIVE")]
    found = f"NCCL_IB_HCA={value} takes {', '.join(taken) or 'no port'}"
    by_prefix = nccl.matched_by_prefix(value, list(ports))
    if by_prefix and choice_of(value).leaves_out:
        fix = f"begin it with ^=, so that names count whole: NCCL_IB_HCA=^={value.removeprefix('^')}"
        found += f"; it leaves out {', '.join(by_prefix)} too, by the beginning of a name"
        return row(job, "nccl.ports", False, found, fix=fix)
    if by_prefix:
        fix = f"begin it with =, so that names count whole: NCCL_IB_HCA=={value}"
        return row(job, "nccl.ports", False, f"{found}; {', '.join(by_prefix)} by the beginning of a name", fix=fix)
    if not up:
        return row(job, "nccl.ports", False, f"{found}, none of them ACTIVE")
    on_ethernet = [port for port in up if ports[port].endswith(nccl.ETHERNET)]
    if on_ethernet and len(on_ethernet) < len(up):
        found += f"; of Ethernet {', '.join(on_ethernet)}, which cannot be joined with a port of InfiniBand"
        return row(job, "nccl.ports", False, found)
    return row(job, "nccl.ports", True, found)
