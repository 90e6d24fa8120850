#!/usr/bin/env bash
# Resolves locks/*.in into hashed locks/*.lock for Python 3.10 to 3.12 (needs uv, which dev.lock installs).
# --dry-run says which, and resolves nothing.
#
# usage: launch/lock.sh [LOCK...]            (default: run official dev uv cuda bench peers export)
#        launch/lock.sh cuda12 --index URL   locks/run12.lock and locks/cuda12.lock, for Hopper: Paddle's build for CUDA 12,
#                                            which its own index alone has, and the other packages as run.lock has them
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

source launch/common.sh

index=""
take_options "--index= WORDS" "$@"
((${#words[@]})) || words=(run official dev uv cuda bench peers export)
for lock in "${words[@]}"; do
  [[ ${lock} =~ ^[a-z0-9]+$ && -f locks/${lock}.in ]] ||
    refuse "no lock '${lock}': give one or more of $(cd locks && echo *.in | sed 's/\.in//g')"
done
[[ " ${words[*]} " != *" cuda12 "* || -n ${index} ]] || refuse "cuda12 needs --index URL, Paddle's own index for CUDA 12"
if [[ -n ${dry_run} ]]; then
  echo "lock.sh: to be resolved: ${words[*]}"
  exit 0
fi
[[ ! -x .venv/bin/uv ]] || PATH=${PWD}/.venv/bin:${PATH}
command -v uv >/dev/null || refuse "uv is not here: launch/setup.sh run dev installs it"

resolve() { # LOCK INPUT [OPTION...]
  uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate "${@:3}" \
    --custom-compile-command launch/lock.sh --output-file "locks/$1.lock" "$2"
}

for lock in "${words[@]}"; do
  options=()
  [[ "${lock}" != peers ]] || options=(--no-deps)
  [[ "${lock}" != run ]] || options=(--overrides locks/run.without)
  if [[ "${lock}" == cuda12 ]]; then
    pinned="$(mktemp)"
    trap 'rm -f -- "${pinned}"' EXIT
    sed -n 's/^\([a-z].*\) \\$/\1/p' locks/run.lock | grep -v '^paddlepaddle-gpu=\|^nvidia-dali-' >"${pinned}"
    sed 's/^paddlepaddle-gpu==[^ ]*/&.post120/; s/^nvidia-dali-cuda110/nvidia-dali-cuda120/' locks/run.in |
      resolve run12 - --overrides locks/run.without --constraints "${pinned}" --extra-index-url "${index}"
  fi
  resolve "${lock}" "locks/${lock}.in" "${options[@]}"
done
