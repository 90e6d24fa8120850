#!/usr/bin/env bash
# All tests that need no Docker:  ./tests/run.sh [--bare] [--ci | --slow] [--cluster] [--null-gpu] [--coverage] [pytest's own arguments]
# --bare: the README's commands on bare systems, and nothing else (tests/bare/run.sh)
# --slow: also those marked slow, of whichever kind; --ci: of these those marked ci too, as .ci/run does
# --null-gpu: each recipe and precision by the GPU's path on null GPUs (tests/null_gpu/); with --slow the whole matrix
# --cluster: on containers as nodes and on a SLURM; with --null-gpu both, one test at a time
# --coverage: also which lines of program/, harness/, tools/ and paddle_*/ no test executed, in any process that the tests
#   start; with --null-gpu the plain tests and the null GPUs' in one run
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

kinds=()
slow="not slow and "
arguments=()
workers=2
coverage=""
for argument in "$@"; do
  case "${argument}" in
    --bare) exec tests/bare/run.sh ;;
    --slow) slow="" ;;
    --ci) slow="(not slow or ci) and " ;;
    --null-gpu) kinds+=(null_gpu) ;;
    --cluster) kinds+=(cluster) workers=0 ;; # one test at a time: its containers share the machine's cores
    --coverage) coverage=1 ;;
    *) arguments+=("${argument}") ;;
  esac
done

unset PYTHONDONTWRITEBYTECODE # the tests start some hundred commands, which would compile each module again and again
launch/setup.sh run dev peers
PATH="${PWD}/.venv/bin:${PATH}"

if ((${#kinds[@]} == 0 && ${#arguments[@]} == 0)); then
  echo "== linters"
  ruff check --quiet .
  ruff format --quiet --check .
  mapfile -t scripts < <(git ls-files '*.sh' '*.sub' .ci/run)
  shellcheck "${scripts[@]}"
  mypy
fi
echo "== tests"
# A test that starts ranks has both cores of a small machine to itself: it is in the group "ranks".
case "${kinds[*]}" in
  "") kind="not cluster and not null_gpu" ;;
  *\ *) kind="(cluster or null_gpu)" ;;
  null_gpu) [[ -n "${coverage}" ]] && kind="not cluster" || kind="null_gpu" ;;
  *) kind="${kinds[0]}" ;;
esac
tests=(pytest -n "${workers}" -m "${slow}${kind}" --durations 8 --durations-min 5 "${arguments[@]}")
[[ -n "${coverage}" ]] || exec "${tests[@]}"
folder="$(mktemp -d)"
trap 'rm -rf "${folder}"' EXIT
export COVERAGE_FILE="${folder}/data" # of each process, beside each other
status=0
coverage run -m "${tests[@]}" || status=$?
echo "== lines that no test executed"
coverage combine --quiet || true # a process that was killed leaves half a file, which is left out
rm -f "${COVERAGE_FILE}".* # the report would ask for it again
coverage report --skip-covered --show-missing
exit "${status}"
