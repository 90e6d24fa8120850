#!/usr/bin/env bash
# Runs NEXP trials of a resolved job, one log each, and prints their table; called by run_and_time.sh on the first node only.
# A trial is one mpirun over all nodes; where the nodes are is Open MPI's environment (launch/nodes.sh).
set -euo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

: "${LOGDIR:?start this by ./run_and_time.sh}" "${DGXSYSTEM:?}" "${WORKLOAD:?}" "${NEXP:?}" "${SEED:?}"
: "${DGXNNODES:?}" "${DGXNGPU:?}" "${ON_FAILURE:?}" "${KEEP_TRIALS:?}" "${MODE:?}"

FOLDER="${LOGDIR}/${DGXSYSTEM}/${WORKLOAD}"
case "${1:-}" in
  --acceptance | --fleet) FOLDER="${LOGDIR}/${1#--}/${DGXSYSTEM}-$(date -u +%Y%m%dT%H%M%SZ)" ;;
esac
readonly FOLDER
# Open MPI wants to be told twice that this is meant.
[[ "$(id -u)" != 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The ranks of one node talk through shared memory: then none of them listens on the network.
# What a cluster sets for its own Open MPI is not for this one.
if ((DGXNNODES == 1)); then
  unset "${!OMPI_MCA_@}"
  export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm
fi
readonly SUCCESS='"key": "run_stop".*"status": "success"'
mpirun_pid=""
signal=""
reason=""
deadline=0
end_s=0 # when a trial is ended that is not done; 0: never

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
  for name in ${JOB_FORWARDED:?} ${COLUMNS:+COLUMNS}; do printf -- '-x\n%s\n' "${name}"; done
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
    deadline=$((SECONDS + LAST_WINDOW_S))
  fi
}

# Processes that this node's kernel has ended for want of memory.
out_of_memory_kills() { awk '$1 == "oom_kill" { n = $2 } END { print n + 0 }' /proc/vmstat; }

# Why a trial failed, in one line: the launcher's reason, a rank's own, or what mpirun said.
reason_of() {
  local stderr="$1" status="$2"
  if [[ -n "${ABORT_REASON_FILE:-}" && -s "${ABORT_REASON_FILE}" ]]; then
    head -n 1 "${ABORT_REASON_FILE}"
  elif [[ -n "${signal}" ]]; then
    grep -a -m 1 '^error: stopped by signal' "${stderr}" | cut -c 8- | grep . || echo "stopped by signal ${signal}"
  elif [[ ! -e "${stderr}" ]]; then
    echo "${FOLDER} was removed during the run"
  elif grep -aq '^error: ' "${stderr}"; then
    grep -a -m 1 '^error: ' "${stderr}" | cut -c 8-
  elif (($(out_of_memory_kills) > kills_before)) && grep -aq 'signal 9 ' "${stderr}"; then
    echo "out of memory at BATCHSIZE=${BATCHSIZE}: the kernel of $(hostname), which has" \
      "$(awk '/^MemTotal/ { printf "%.2f GiB", $2 / 2^20 }' /proc/meminfo) (its container may have less)," \
      "killed a rank: lower BATCHSIZE or DGXNGPU, or compute the update in parts: STRATEGY=gradient_merge=N"
  else
    # mpirun breaks its sentence over lines.
    tr -s '\n' ' ' <"${stderr}" |
      grep -a -o -E 'process rank [0-9]+ with PID [0-9]+ on node \S+ exited on signal [0-9]+ \([^)]*\)' | head -n 1 ||
      { ((status > 128 && status < 192)) && echo "mpirun was ended by signal $((status - 128))"; } || echo "a rank ended with status ${status}"
  fi
}

run_trial() { # RESULT MODULE [ARGUMENTS]
  local result="$1" command status=0 kills_before waited segments=""
  local stderr="${result%.txt}.stderr"
  if ! { mkdir -p "${FOLDER}" && : >"${stderr}"; } 2>/dev/null; then
    echo "error: ${FOLDER} cannot be written: set LOGDIR to a writable folder with room in it" >&2
    return 2
  fi
  mapfile -t command < <(mpirun_command "${@:2}")
  # A rank that is killed leaves its segments in the node's memory; other nodes' are gone with their container.
  ((DGXNNODES > 1)) || segments="$(mktemp -d /dev/shm/ranks.XXXXXX 2>/dev/null)" || true
  [[ -z "${segments}" ]] || export OMPI_MCA_btl_sm_backing_directory="${segments}"
  kills_before="$(out_of_memory_kills)"
  "${command[@]}" </dev/null 2>"${stderr}" &
  mpirun_pid=$!
  while ((end_s > 0)) && [[ -z "${signal}" ]] && kill -0 "${mpirun_pid}" 2>/dev/null; do
    ((SECONDS < end_s)) || { kill -TERM "${mpirun_pid}" 2>/dev/null || true; break; }
    sleep 1
  done
  # A trapped signal ends `wait` early; from then on mpirun has until the deadline.
  wait "${mpirun_pid}" 2>/dev/null || status=$? # where mpirun was killed, bash says so here
  while [[ -n "${signal}" ]] && kill -0 "${mpirun_pid}" 2>/dev/null; do
    ((SECONDS < deadline)) || kill -TERM "${mpirun_pid}" 2>/dev/null || true
    ((SECONDS < deadline + MPIRUN_END_S)) || kill -KILL "${mpirun_pid}" 2>/dev/null || true
    sleep 0.2
  done
  rm -rf "${TMPDIR:-/tmp}/ompi.${mpirun_pid}" ${segments:+"${segments}"} # a killed mpirun leaves its own folder too
  mpirun_pid=""
  # Open MPI 5.0.11's mpirun ends with 0 where it loses a node as the ranks start: only what rank 0 wrote says that a run is
  # done. An acceptance whose checks are not possible here has no log, but its lines; a fleet's has its record.
  ((status != 0)) || [[ -s "${result%.txt}.lines" || -s "${result%.txt}.json" ]] || grep -aqs '"key": "run_stop"' "${result}" || status=1
  # Where a node was lost or all are being stopped, mpirun may fail before this node hears of it: at once by a rank's word,
  # and by the end of its own ssh, whose keepalives may be one ahead of this node's.
  for ((waited = 0; status != 0 && DGXNNODES > 1 && waited < (ALIVE_S + 3) * 10; waited++)); do
    [[ -z "${signal}" && ! -s "${ABORT_REASON_FILE:-}" ]] || break
    ((waited < 30)) || ! grep -aq '^error: ' "${stderr}" || break
    sleep 0.1
  done
  case "${signal}" in
    INT) status=130 ;;
    TERM) status=143 ;;
  esac
  if ((status != 0)); then
    reason="$(reason_of "${stderr}" "${status}")"
    ((end_s == 0 || SECONDS < end_s)) || reason="it was not done after the ${end_s} s that an acceptance may take"
    ((status == 2 || status == 130 || status == 143)) || status=1
    reason="$(.venv/bin/python -m runlog close "${result}" "${reason}")" || true
    echo "error: ${reason}$([[ -f "${result}" ]] && echo " (log ${result}, messages ${stderr})")" >&2
  fi
  return "${status}"
}

if [[ "${1:-}" == --check ]]; then
  mapfile -t command < <(mpirun_command tools.doctor)
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

trap 'stop INT' INT
trap 'stop TERM' TERM
if [[ "${1:-}" == --fleet ]]; then
  export MODE=throughput RESUME=no RESULT_FILE="${FOLDER}/fleet.txt"
  baseline=()
  if [[ -n "${FLEET_BASELINE:-}" ]]; then # looked at now: a fleet is not measured for nothing
    baseline=(--baseline "${FLEET_BASELINE}")
    status=0
    .venv/bin/python -m tools.fleet "${FLEET_BASELINE}" >/dev/null || status=$?
    ((status <= 1)) || exit "${status}"
  fi
  run_trial "${RESULT_FILE}" tools.fleet || exit $?
  echo "record    ${FOLDER}/fleet.json"
  hosts=(--write-hosts "${FOLDER}/hosts")
  ((DGXNNODES > 1)) || hosts=() # its ranks were compared
  exec .venv/bin/python -m tools.fleet "${FOLDER}/fleet.json" --html "${FOLDER}/fleet.html" "${hosts[@]}" "${baseline[@]}"
fi
if [[ "${1:-}" == --acceptance ]]; then # a job for each precision; what follows --acceptance is for the ranks
  precisions="$(.venv/bin/python -m tools.acceptance --precisions)" || exit 2
  if ! mkdir -p "${FOLDER}" 2>/dev/null; then
    echo "error: ${FOLDER} cannot be written: set LOGDIR to a writable folder" >&2
    exit 2
  fi
  end_s="${ACCEPTANCE_END_S}"
  export MODE=throughput DATA=synthetic CLEAR_CACHES=0 RESUME=no PRECISION RESULT_FILE
  for PRECISION in ${precisions}; do
    RESULT_FILE="${FOLDER}/${PRECISION}.txt"
    status=0
    if ((SECONDS > ACCEPTANCE_LAST_START_S)); then
      reason="the jobs before it took ${SECONDS} s of its 15 minutes"
    else
      run_trial "${RESULT_FILE}" tools.acceptance "${@:2}" || status=$?
      [[ -z "${signal}" ]] || exit "${status}"
      ((status != 0)) || continue
    fi
    echo "${reason}" >"${FOLDER}/${PRECISION}.failed"
  done
  exec .venv/bin/python -m tools.acceptance --report "${FOLDER}" "${@:2}"
fi

for ((trial = 0; trial < NEXP && !KEEP_TRIALS; trial++)); do
  if [[ -e "$(result_of "${trial}")" ]]; then
    echo "error: $(result_of "${trial}") exists, results are never overwritten: move it or set LOGDIR" >&2
    exit 2
  fi
done

first_seed="${SEED}"
failed=0
logs=()
aborted=()
for ((trial = 0; trial < NEXP; trial++)); do
  RESULT_FILE="$(result_of "${trial}")"
  ((first_seed < 0)) || SEED=$((first_seed + trial))
  export RESULT_FILE SEED
  status=0
  if [[ ! -e "${RESULT_FILE}" ]]; then
    run_trial "${RESULT_FILE}" harness || status=$?
  elif ! grep -aq "${SUCCESS}" "${RESULT_FILE}"; then # of a node that was lost, so that nobody may have closed it
    status=1 reason="$(.venv/bin/python -m runlog close "${RESULT_FILE}" "its first node was lost")" || true
  fi
  if ((status == 0)); then
    logs+=("${RESULT_FILE}")
  else
    failed=${status}
    aborted+=("trial ${trial} aborted: ${reason}")
    if [[ -n "${signal}" || "${ON_FAILURE}" == stop || "${status}" == 2 ]]; then
      break
    fi
  fi
done
if ((failed != 0)) && { [[ -n "${signal}" || "${ON_FAILURE}" == stop ]] || ((${#logs[@]} == 0)); }; then
  exit "${failed}"
fi
[[ "${MODE}" != throughput ]] || logs+=(--throughput)
.venv/bin/python -m tools.summarize "${logs[@]}" || failed=$?
((${#aborted[@]} == 0)) || printf '%s\n' "${aborted[@]}"
exit "${failed}"
