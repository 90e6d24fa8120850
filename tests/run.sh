#!/usr/bin/env bash
# All tests that need no Docker:  ./tests/run.sh [--slow] [--cluster] [pytest's own arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

markers="not slow and not cluster"
arguments=()
for argument in "$@"; do
  case "${argument}" in
    --slow) markers="${markers/not slow/slow or not slow}" ;;
    --cluster) markers="cluster" ;;
    *) arguments+=("${argument}") ;;
  esac
done

launch/setup.sh run dev peers
PATH="${PWD}/.venv/bin:${PATH}"

if [[ "${markers}" != cluster && ${#arguments[@]} -eq 0 ]]; then
  echo "== linters"
  ruff check --quiet .
  ruff format --quiet --check .
  mapfile -t scripts < <(git ls-files '*.sh' '*.sub' .ci/run)
  shellcheck "${scripts[@]}"
  mypy
fi
echo "== tests"
# A test that starts ranks has both cores of a small machine to itself: it is in the group "ranks".
exec pytest -n 2 --dist loadgroup -m "${markers}" "${arguments[@]}"
