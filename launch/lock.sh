#!/usr/bin/env bash
# Resolves locks/*.in into hashed locks/*.lock for Python 3.10 to 3.12 (needs uv, which dev.lock installs).
set -euo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

locks=("$@")
((${#locks[@]})) || locks=(run dev cuda bench peers)
for lock in "${locks[@]}"; do
  options=()
  [[ "${lock}" != peers ]] || options=(--no-deps)
  uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate "${options[@]}" \
    --custom-compile-command launch/lock.sh --output-file "locks/${lock}.lock" "locks/${lock}.in"
done
