"""What containers and the launcher cost: start of a container to its first step, joining of nodes, size by layer.

    python benchmarks/launch_cost.py [--image NAME] [--repeats N] [--short]

The nodes are containers on a network of this machine, so joining is measured without the way between machines. "added"
is the wall time of `launch/nodes.py lead mpirun` less that of the very mpirun in it: joining, lifelines and the end.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import ratios

JOB = {
    "MODE": "throughput",
    "IMAGE_SIZE": "32",
    "BATCHSIZE": "4",
    "WARMUP_STEPS": "1",
    "MEASURED_STEPS": "1",
    "PRINT_STEPS": "1",
    "CLEAR_CACHES": "0",
    "PROGRESS": "plain",
    "LOGDIR": "/tmp/results",
}
TIMED = """start=$(date +%s.%N); .venv/bin/python -m launch.nodes lead -- bash -c '
start=$(date +%s.%N); mpirun --prefix $PWD/.venv -n {nodes} --map-by ppr:1:node:OVERSUBSCRIBE true
echo "inner $start $(date +%s.%N)"'; echo "outer $start $(date +%s.%N)" """


def docker(*arguments: str) -> str:
    """Output of a docker command that must succeed."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def show(name: str, values: list[float], unit: str) -> None:
    """One measured quantity with its spread."""
    spread = f"{min(values):.2f} to {max(values):.2f}, {len(values)} turns"
    print(f"{name:44} {statistics.median(values):8.2f} {unit}  ({spread})")


def first_step_s(image: str) -> float:
    """Seconds from `docker run` to the line of the first training step."""
    command = ["docker", "run", "--rm"]
    for name, value in JOB.items():
        command += ["--env", f"{name}={value}"]
    start = time.perf_counter()
    with subprocess.Popen([*command, image], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if " step 1/" in line:
                elapsed = time.perf_counter() - start
                process.communicate()
                return elapsed
    raise RuntimeError(f"the job in {image} ended without a step")


def joining_s(image: str, nodes: int, key: str) -> tuple[float, float]:
    """Seconds of a bare mpirun over waiting nodes, and what launch/nodes.py adds to it."""
    network = f"launch-cost-{os.getpid()}"
    names = [f"{network}-{rank}" for rank in range(nodes)]
    hosts = ",".join(f"n{rank}" for rank in range(nodes))
    docker("network", "create", network)
    try:
        for rank in reversed(range(nodes)):
            settings = {"DGXNNODES": nodes, "DGXNGPU": 1, "HOSTS": hosts, "NODE_RANK": rank}
            settings |= {"JOB_KEY": "/job_key", "SSH_PORT": 2222, "NODE_WAIT_S": 60}
            script = TIMED.format(nodes=nodes) if rank == 0 else "exec .venv/bin/python -m launch.nodes serve"
            docker(
                *("run", "--detach", "--name", names[rank], "--network", network, "--hostname", f"n{rank}"),
                *("--network-alias", f"n{rank}", "--volume", f"{key}:/job_key:ro"),
                *(word for name, value in settings.items() for word in ("--env", f"{name}={value}")),
                *(image, "bash", "-c", script),
            )
            if rank == 1:
                time.sleep(2)  # the others wait before the first node comes
        docker("wait", names[0])
        times = {}
        for line in docker("logs", names[0]).splitlines():
            if line.startswith(("inner", "outer")):
                name, start, end = line.split()
                times[name] = float(end) - float(start)
        return times["inner"], times["outer"] - times["inner"]
    finally:
        docker("rm", "--force", *names)
        docker("network", "rm", network)


def main() -> None:
    """Measures and prints."""
    parser = ratios.parser(__doc__)
    parser.add_argument("--image", default="paddle-reference:latest")
    args = parser.parse_args()
    repeats = 1 if args.short else args.repeats
    try:
        size = int(json.loads(docker("image", "inspect", args.image))[0]["Size"])
    except (FileNotFoundError, subprocess.CalledProcessError):
        print(f"not measured: no Docker, or no image {args.image} (launch/build_image.sh makes it)")
        return
    print(f"image {size / 1e9:.3f} GB, limit 7.6 GB; its layers:")
    for line in docker("history", "--format", "{{.Size}}\t{{.CreatedBy}}", args.image).splitlines():
        layer, _, made_by = line.partition("\t")
        if layer != "0B":
            print(f"  {layer:>8}  {made_by[:90]}")
    show("docker run to the first step", [first_step_s(args.image) for _ in range(repeats)], "s")
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        Path(folder).chmod(0o755)
        key.chmod(0o644)
        for nodes in (1, 2) if args.short else (1, 2, 4):
            measured = [joining_s(args.image, nodes, str(key)) for _ in range(repeats)]
            show(f"{nodes} nodes: bare mpirun", [bare for bare, _ in measured], "s")
            show(f"{nodes} nodes: added by the launcher", [added for _, added in measured], "s")


if __name__ == "__main__":
    main()
