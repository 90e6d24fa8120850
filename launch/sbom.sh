#!/usr/bin/env bash
# Writes what the image's locks install as a bill of materials in CycloneDX:  launch/sbom.sh FILE
# By cyclonedx-py of locks/dev.lock (launch/setup.sh run dev). What differs between Pythons is there in each version.
set -euo pipefail
file="$(realpath -m "${1:?a file to write}")"
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

cat locks/run.lock locks/cuda.lock | .venv/bin/cyclonedx-py requirements --output-file "${file}" -
