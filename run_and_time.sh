#!/usr/bin/env bash
# The job of one node: set up, train NEXP trials, check each log, score them, print a table.
#   ./run_and_time.sh [--dry-run | --check | --fleet | --acceptance [--short]]        what may be set: docs/settings.md
# --check: is the machine fit for the job?   --fleet: which node, or rank of one node, is slow or wrong?
# --acceptance: does it compute right, and how fast? (15 minutes at most)
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # of `sh run_and_time.sh`
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")"
source launch/common.sh

take_options "${INSTEAD}" "$@"
[[ -z "${dry_run}" || ${#instead[@]} == 0 ]] || refuse "--dry-run shows a training job: leave out ${instead[*]}, or --dry-run"

# ---- set-up, and the job with every value resolved: the user's environment, the system's file, harness/env.py
[[ -n "${dry_run}" ]] || launch/setup.sh run # a dry run needs no package
load_job --shell
unset TERMINAL_COLUMNS
if [[ -t 1 ]]; then # mpirun stands between the terminal and the rank that shows the progress
  TERMINAL_COLUMNS="$(tput cols 2>/dev/null || echo 100)"
  export TERMINAL_COLUMNS
fi
if [[ -n "${dry_run}" ]]; then
  mapfile -t description < <(trap '' INT; exec "${JOB_PYTHON}" -m harness.describe --json) # as load_job does
  wait $! || exit
  printf '%s\n' "${description[@]}" 2>/dev/null || refuse "the output cannot be written: name another file for it"
  launch/trials.sh --dry-run
  exit 0
fi

# ---- trials and their table: the first node runs them, the others serve it
if ((DGXNNODES > 1 && NODE_RANK > 0)); then
  exec .venv/bin/python -m launch.nodes serve
fi
# Nothing of the job goes on where this script is killed. By KILL, as who starts a job may have it ignore the other signals,
# as nohup does HUP, and a shell then cannot trap them. launch/trial.py, which ends the trial in order, takes HUP for itself.
ends_with_this=(setpriv --pdeathsig KILL)
job=("${ends_with_this[@]}" launch/trials.sh "${instead[@]}")
((DGXNNODES == 1)) || job=("${ends_with_this[@]}" .venv/bin/python -m launch.nodes lead -- "${job[@]}")
# A container or a batch job signals this script alone, so it passes the signal on. (-m: or the child would ignore SIGINT.)
exec {held}> >(:) # a pipe that each script of the job has open, and launch/trial.py
exec {closed}<"/proc/self/fd/${held}"
set -m
"${job[@]}" &
child=$!
set +m
trap 'kill -TERM "${child}"' TERM
trap 'kill -HUP "${child}"' HUP
trap 'kill -INT "${child}"' INT
status=0
await "${child}" 2>/dev/null || status=$? # where it was killed, bash says so here
# Where one of them was killed another still closes the log, and a container would end with this script.
exec {held}>&-
read -r -t "${JOB_END_S}" -u "${closed}" || true
exit "${status}"
