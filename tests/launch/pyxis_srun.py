#!/usr/bin/env python3
"""srun with pyxis, of one node: it takes pyxis 0.24's options and resolves an image's name as enroot 4.1 does.

Neither is to be had where the tests run. What this knows: `srun --help` of pyxis; that an image is a path where its
name begins with a dot or a slash, else one of Docker Hub's unless its registry is named; that a mount's source must
exist; that all of the job's environment is in the container, where the image's own values win; and that enroot's hook
98-nvidia.sh wants NVIDIA's tool unless NVIDIA_VISIBLE_DEVICES, the job's or the image's, is void or absent.

IN_IMAGE is the folder that stands for the image's /workspace; IMAGE_ENVIRONMENT what its Dockerfile sets.
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--ntasks-per-node", "--nodes", "--kill-on-bad-exit", "--export"):
    parser.add_argument(name)
parser.add_argument("--container-image", metavar="[USER@][REGISTRY#]IMAGE[:TAG]|PATH")
parser.add_argument("--container-mounts", metavar="SRC:DST[:FLAGS][,SRC:DST...]", default="")
parser.add_argument("--container-workdir", metavar="PATH")
parser.add_argument("--no-container-mount-home", action="store_true")
parser.add_argument("command", nargs=argparse.REMAINDER)
args = parser.parse_args()


def fail(text: str) -> None:
    sys.exit(f"slurmstepd: error: pyxis: {text}")


image = args.container_image
if image[0] in "./":
    if not Path(image).is_file():
        fail(f"No such file or directory: {image}")
else:
    user_registry, _, rest = image.removeprefix("docker://").rpartition("#")
    repository = rest if user_registry or "/" in rest else f"library/{rest}"
    fail(f"importing docker image: {user_registry or 'registry-1.docker.io'}/{repository}: no network")
for mount in args.container_mounts.split(","):
    source, target, *flags = mount.split(":")
    if not Path(source).exists() or not Path(target).is_absolute() or flags not in ([], ["ro"]):
        fail(f"could not add mount entry: {mount}")
of_image = dict(re.findall(r"\b([A-Z_]+)=(\S+)", os.environ.pop("IMAGE_ENVIRONMENT")))
devices = os.environ.get("NVIDIA_VISIBLE_DEVICES", of_image.get("NVIDIA_VISIBLE_DEVICES", "void"))
if devices != "void" and shutil.which("nvidia-container-cli") is None:
    fail("[ERROR] Command not found: nvidia-container-cli, see https://github.com/NVIDIA/libnvidia-container")
assert args.container_workdir == "/workspace" and args.no_container_mount_home
os.chdir(os.environ.pop("IN_IMAGE"))
of_image |= {"PATH": os.defpath, "HOME": "/proc/nowhere"}  # the home of the caller is not mounted
os.execvpe(args.command[0], args.command, os.environ | of_image | {"SLURM_NODEID": "0", "SLURM_PROCID": "0"})
