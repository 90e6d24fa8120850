#!/usr/bin/env bash
# All tests that need no Docker:  ./tests/run.sh [--slow] [--null-gpu | --cluster | --bare] [--coverage] [pytest's own arguments]
# --slow: also those marked slow, of whichever kind
# --null-gpu: each recipe and precision by the GPU's path on null GPUs (tests/null_gpu/); with --slow the whole matrix
# --bare: the README's commands on bare systems (tests/bare/)
# --coverage: also which lines of harness/ and paddle_*/ no test executed, in any process that the tests start
set -euo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

kind="not cluster and not null_gpu"
slow=""
arguments=()
workers=2
coverage=""
for argument in "$@"; do
  case "${argument}" in
    --slow) slow=1 ;;
    --null-gpu) kind="null_gpu" ;;
    --bare) exec tests/bare/run.sh ;;
    --cluster) kind="cluster" workers=0 ;; # one test at a time: its containers share the machine's cores
    --coverage) coverage=1 ;;
    *) arguments+=("${argument}") ;;
  esac
done

launch/setup.sh run dev peers
PATH="${PWD}/.venv/bin:${PATH}"

if [[ "${kind}" == "not cluster"* && ${#arguments[@]} -eq 0 ]]; then
  echo "== linters"
  ruff check --quiet .
  ruff format --quiet --check .
  mapfile -t scripts < <(git ls-files '*.sh' '*.sub' .ci/run)
  shellcheck "${scripts[@]}"
  mypy
fi
echo "== tests"
# A test that starts ranks has both cores of a small machine to itself: it is in the group "ranks".
markers="${kind}"
[[ -n "${slow}" ]] || markers="not slow and ${kind}"
tests=(pytest -n "${workers}" --dist loadgroup -m "${markers}" --durations 8 --durations-min 10 "${arguments[@]}")
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
