#!/usr/bin/env bash
# Runs NEXP trials of a resolved job, one log each; called by run_and_time.sh on the first node only.
# A trial is one mpirun over all nodes; where the nodes are is Open MPI's environment (launch/nodes.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${LOGDIR:?start this by ./run_and_time.sh}" "${DGXSYSTEM:?}" "${WORKLOAD:?}" "${NEXP:?}" "${SEED:?}"
: "${DGXNNODES:?}" "${DGXNGPU:?}" "${ON_FAILURE:?}"

readonly FOLDER="${LOGDIR}/${DGXSYSTEM}/${WORKLOAD}"
readonly KILL_AFTER_S=10 # from asking the ranks to end, which takes a window of steps and a checkpoint, to ending them
# The ranks of one node talk through shared memory: then none of them listens on the network.
((DGXNNODES > 1)) || export OMPI_MCA_btl="${OMPI_MCA_btl:-self,sm}"
mpirun_pid=""
signal=""
deadline=0

# The log of a trial. One that goes on from a checkpoint gets a name of its own, which no package takes for a result.
result_of() {
  local result="${FOLDER}/result_$1.txt" k=1
  if [[ "${RESUME:-no}" == auto && -e "${result}" ]]; then
    while [[ -e "${FOLDER}/result_$1.resumed_${k}.txt" ]]; do k=$((k + 1)); done
    result="${FOLDER}/result_$1.resumed_${k}.txt"
  fi
  echo "${result}"
}

# What mpirun must carry to the ranks of other nodes: the job, and what libraries read.
forwarded() {
  local name
  for name in $(compgen -e); do
    case "${name}" in
      JOB_FROM_* | NCCL_* | UCX_* | FLAGS_* | OMP_* | MKL_* | NVIDIA_* | COLUMNS) printf -- '-x\n%s\n' "${name}" ;;
      *) [[ " ${JOB_VARIABLES:-} " == *" ${name} "* ]] && printf -- '-x\n%s\n' "${name}" ;;
    esac
  done
  return 0
}

mpirun_command() {
  local venv="${PWD}/.venv"
  printf '%s\n' "${venv}/bin/mpirun" --prefix "${venv}" -n "$((DGXNNODES * DGXNGPU))" \
    --map-by "ppr:${DGXNGPU}:node:OVERSUBSCRIBE" --bind-to none --wdir "${PWD}"
  forwarded
  [[ -z "${RANK_NUMA:-}" ]] || echo launch/bind.sh
  printf '%s\n' "${venv}/bin/python" -u -m "$@"
}

# shellcheck disable=SC2329 # the traps call it
stop() {
  signal="$1"
  if [[ -n "${mpirun_pid}" ]]; then
    # At TERM and INT mpirun kills its ranks at once; these two it passes on. A rank with nothing to save dies of them.
    kill -"$([[ "${signal}" == INT ]] && echo USR2 || echo USR1)" "${mpirun_pid}" 2>/dev/null || true
    deadline=$((SECONDS + KILL_AFTER_S))
  fi
}

# Why a trial failed, in one line: the launcher's reason, a rank's own, or what mpirun said.
reason_of() {
  local stderr="$1" status="$2"
  if [[ -n "${ABORT_REASON_FILE:-}" && -s "${ABORT_REASON_FILE}" ]]; then
    head -n 1 "${ABORT_REASON_FILE}"
  elif [[ -n "${signal}" ]]; then
    grep -a -m 1 '^error: stopped by signal' "${stderr}" | cut -c 8- | grep . || echo "stopped by signal ${signal}"
  elif grep -aq '^error: ' "${stderr}"; then
    grep -a -m 1 '^error: ' "${stderr}" | cut -c 8-
  else
    grep -a -m 1 -E 'exited on signal|signal [0-9]+ \(' "${stderr}" || echo "a rank ended with status ${status}"
  fi
}

run_trial() {
  local result="$1" command status=0
  local stderr="${result%.txt}.stderr"
  mkdir -p "${FOLDER}" || return 2
  mapfile -t command < <(mpirun_command harness)
  if [[ "$(id -u)" == 0 ]]; then # Open MPI wants to be told twice that this is meant
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  "${command[@]}" </dev/null 2>"${stderr}" &
  mpirun_pid=$!
  # A trapped signal ends `wait` early; from then on mpirun has until the deadline.
  wait "${mpirun_pid}" || status=$?
  while [[ -n "${signal}" ]] && kill -0 "${mpirun_pid}" 2>/dev/null; do
    ((SECONDS < deadline)) || kill -TERM "${mpirun_pid}" 2>/dev/null || true
    ((SECONDS < deadline + 2)) || kill -KILL "${mpirun_pid}" 2>/dev/null || true
    sleep 0.2
  done
  mpirun_pid=""
  case "${signal}" in
    INT) status=130 ;;
    TERM) status=143 ;;
  esac
  if ((status != 0)); then
    local reason
    reason="$(reason_of "${stderr}" "${status}")"
    ((status == 2 || status == 130 || status == 143)) || status=1
    .venv/bin/python -m harness.events "${result}" "${reason}" || true
    echo "error: ${reason}$([[ -f "${result}" ]] && echo " (log ${result}, messages ${stderr})")" >&2
  fi
  return "${status}"
}

if [[ "${1:-}" == --check ]]; then
  if [[ "$(id -u)" == 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  mapfile -t command < <(mpirun_command harness.doctor)
  status=0
  "${command[@]}" </dev/null || status=$?
  exit "$((status == 2 ? 2 : status != 0))"
fi

if [[ "${1:-}" == --dry-run ]]; then
  for ((trial = 0; trial < NEXP; trial++)); do
    mapfile -t command < <(RESULT_FILE="$(result_of "${trial}")" mpirun_command harness)
    printf 'trial %d: RESULT_FILE=%s SEED=%d' "${trial}" "$(result_of "${trial}")" "$((SEED < 0 ? -1 : SEED + trial))"
    printf ' %q' "${command[@]}"
    echo
  done
  exit 0
fi

for ((trial = 0; trial < NEXP; trial++)); do
  if [[ -e "$(result_of "${trial}")" ]]; then
    echo "error: $(result_of "${trial}") exists, results are never overwritten: move it or set LOGDIR" >&2
    exit 2
  fi
done

trap 'stop INT' INT
trap 'stop TERM' TERM
first_seed="${SEED}"
failed=0
for ((trial = 0; trial < NEXP; trial++)); do
  RESULT_FILE="$(result_of "${trial}")"
  ((first_seed < 0)) || SEED=$((first_seed + trial))
  export RESULT_FILE SEED
  status=0
  run_trial "${RESULT_FILE}" || status=$?
  if ((status != 0)); then
    failed=${status}
    if [[ -n "${signal}" || "${ON_FAILURE}" == stop || "${status}" == 2 ]]; then
      break
    fi
  fi
done
exit "${failed}"
