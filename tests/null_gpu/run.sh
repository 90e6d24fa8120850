#!/usr/bin/env bash
# Runs a command on null GPUs:  tests/null_gpu/run.sh COMMAND...        nothing is computed; see README.md beside this file
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
repository="$(cd "${here}/../.." && pwd)"
(($#)) || { sed -n '2s/^# *//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

"${here}/build.sh"
NULLGPU_OUT="$(realpath -m "${NULLGPU_OUT:-$(mktemp -d)}")"
mkdir -p "${NULLGPU_OUT}"
export NULLGPU_OUT NULLGPU_TRACE="${NULLGPU_TRACE:-1}"
export LOGDIR="${LOGDIR:-${NULLGPU_OUT}/results}"
results="${repository}/results"
if [[ "$(realpath -m "${LOGDIR}")/" == "${results}/"* ]]; then
  echo "error: LOGDIR=${LOGDIR}: a run on null GPUs computes nothing and is not a result: set LOGDIR to a folder outside ${results}" >&2
  exit 2
fi
export NULL_GPU="nothing is computed" # the log's section "environment" has it
export LD_LIBRARY_PATH="${here}/build${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}"
export PYTHONPATH="${here}/python${PYTHONPATH:+:${PYTHONPATH}}"
exec env LD_PRELOAD="${here}/build/libnullgpu.so" "$@"
