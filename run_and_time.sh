#!/usr/bin/env bash
# The job of one node: set up, train NEXP trials, check each log, score them, print a table.
#   ./run_and_time.sh [--dry-run | --check | --acceptance [--short]]        what may be set: the table in README.md
# --check: is the machine fit for the job?   --acceptance: does it compute right, and how fast? (15 minutes at most)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

dry_run=""
short=()
instead=() # of the trials
for argument in "$@"; do
  case "${argument}" in
    --dry-run) dry_run=1 ;;
    --check | --acceptance) instead=("${argument}") ;;
    --short) short=(--short) ;;
    -h | --help)
      sed -n '2,4s/^# *//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "error: unknown argument ${argument}: use --dry-run, --check, --acceptance or --help; a job is described by its environment" >&2
      exit 2
      ;;
  esac
done
if [[ -n "${short[*]}" && "${instead[*]}" != --acceptance ]]; then
  echo "error: --short is a form of --acceptance: give both" >&2
  exit 2
fi
instead+=("${short[@]}")

# ---- configuration: the user's environment, then the system's file, then harness/env.py
JOB_FROM_USER="${JOB_FROM_USER:-$(compgen -e | paste -sd ' ')}"
export DGXSYSTEM="${DGXSYSTEM:-CPU}"
if [[ ! -f "config_${DGXSYSTEM}.sh" ]]; then
  systems="$(printf '%s\n' config_*.sh | sed 's/^config_//; s/\.sh$//' | paste -sd ' ')"
  echo "error: DGXSYSTEM=${DGXSYSTEM}: there is no config_${DGXSYSTEM}.sh; there are: ${systems}" >&2
  exit 2
fi
# shellcheck disable=SC1090,SC1091 # a file of exports, checked by itself
source "config_${DGXSYSTEM}.sh"
JOB_FROM_CONFIG="$(comm -13 <(tr ' ' '\n' <<<"${JOB_FROM_USER}" | sort) <(compgen -e | sort) | paste -sd ' ')"
export JOB_FROM_USER JOB_FROM_CONFIG

# ---- set-up, and the job with every value resolved
launch/setup.sh run
if [[ -z "${PROGRESS:-}" && -t 1 ]]; then
  PROGRESS=bar
  COLUMNS="$(tput cols 2>/dev/null || echo 100)"
  export PROGRESS COLUMNS
fi
resolved="$(.venv/bin/python -m harness.env)" || exit 2
JOB_VARIABLES="SEED RESULT_FILE"
while IFS='=' read -r name value; do
  export "${name}=${value}"
  JOB_VARIABLES+=" ${name}"
done <<<"${resolved}"
export JOB_VARIABLES
if [[ -n "${dry_run}" ]]; then
  .venv/bin/python -m harness.env --json
  launch/trials.sh --dry-run
  exit 0
fi

# ---- trials and their table: the first node runs them, the others serve it
if ((DGXNNODES > 1 && NODE_RANK > 0)); then
  exec launch/nodes.sh serve
fi
job=(launch/trials.sh "${instead[@]}")
if ((DGXNNODES > 1)); then
  job=(launch/nodes.sh lead launch/trials.sh "${instead[@]}")
fi
# A container or a batch job signals this script alone, so it passes the signal on. (-m: or the child would ignore SIGINT.)
set -m
"${job[@]}" &
child=$!
set +m
trap 'kill -TERM "${child}"' TERM HUP
trap 'kill -INT "${child}"' INT
while :; do # a trapped signal ends `wait` early
  status=0
  wait "${child}" || status=$?
  kill -0 "${child}" 2>/dev/null || break
done
exit "${status}"
