# shellcheck shell=bash
# Sourced by run_and_time.sh and the launchers: times, wrong use, flags, the job's description, signals.

## How long each asks before it kills, in seconds. Each waits longer than the one before, which it ends, takes in order.
##   LAST_WINDOW_S   trial.py:  ranks end after a window of steps and a checkpoint; then mpirun ends them
##   MPIRUN_END_S    trial.py:  mpirun ends; then it is killed
##   JOB_END_S       nodes.py: the first node's trials and their reason; the other nodes wait as long for the first
##   CONTAINER_END_S container_node.sh: the engine's `stop`
##   HOST_END_S      on_host.sh: the container, or the job without one
## Two cannot be told from here: mpijob.yaml's terminationGracePeriodSeconds (60: a pod is a container) and slurm.sub's
## --signal (90: before the time limit; at scancel SLURM's own KillWait of 30 s holds).
# shellcheck disable=SC2034 # those who source it read them
# SPDX-License-Identifier: Apache-2.0
readonly LAST_WINDOW_S=10 MPIRUN_END_S=2 JOB_END_S=25 CONTAINER_END_S=30 HOST_END_S=45
##   SEE_LOSS_S             mpirun.sh: from a node's end to the order to the others; longer than SIGNAL_S of nodes.py
##   ALIVE_S, ALIVE_COUNT   a keepalive of ssh each ALIVE_S; a node that misses ALIVE_COUNT of them is lost
##   ACCEPTANCE_*           an acceptance begins its last job by the one and is ended at the other
readonly SEE_LOSS_S=5 ALIVE_S=5 ALIVE_COUNT=3 ACCEPTANCE_LAST_START_S=660 ACCEPTANCE_END_S=900

if [[ ${BASH_SOURCE[0]:-} == "$0" ]]; then
  echo "error: launch/common.sh is sourced by the scripts beside it: start one of them, or ./run_and_time.sh; each has --help" >&2
  exit 2
fi
[[ ${OSTYPE} == linux* && -d /proc/self/fd ]] || # on macOS what follows would go on without a stdout and a stderr
  { echo "error: a job needs Linux with /proc, this is ${OSTYPE}: to check and score logs, pip install . into a venv" >&2; exit 2; }

## The shell's own Python is not the job's: a module of PYTHONPATH would go before the hashed packages, PYTHONOPTIMIZE drop
## the asserts. tests/null_gpu has its stand-ins in PYTHONPATH.
set +o posix # of `sh SCRIPT`, where sh is bash
unset CDPATH
for variable in "${!PYTHON@}"; do
  [[ ${variable} == PYTHONDONTWRITEBYTECODE || ${NULL_GPU:+${variable}} == PYTHONPATH ]] || unset "${variable}"
done
export HOME=${HOME:-/} # Open MPI does not start without one
# A closed stdin, stdout or stderr would be given to the next file that is opened.
[[ -e /proc/self/fd/0 ]] || exec </dev/null
[[ -e /proc/self/fd/1 ]] || exec >/dev/null
[[ -e /proc/self/fd/2 ]] || exec 2>/dev/null

refuse() { printf 'error: %s\n' "${1//[[:cntrl:]]/?}" >&2; exit 2; } # of what the user wrote, a terminal obeys nothing
[[ -d ${TMPDIR:-/tmp} && -w ${TMPDIR:-/tmp} ]] || refuse "${TMPDIR:-/tmp} is not a folder that can be written: set TMPDIR to one that is"

## The command line of a script, which opens with a comment that says it. --write-hosts= in KNOWN sets write_hosts to what
## follows, --shrink sets shrink to 1; WORDS takes what is not an option into words.
readonly INSTEAD="--check --fleet --acceptance --short"
dry_run=""
instead=() # of training: --check, --fleet, --acceptance or --acceptance --short, for ./run_and_time.sh
words=()
take_options() { # "KNOWN..." ARGUMENTS...
  local known=" $1 --dry-run " name
  shift
  while (($#)); do
    name=${1#--}
    if [[ $1 == -h || $1 == --help ]]; then
      (cd -- "${CALLED_FROM}" && sed -n '2,${/^#\( \|$\)/!q; s/^# \{0,1\}//p}' "$0") # $0 is from before the script's `cd`
      exit 0
    elif [[ $1 == --[a-z]* && ${known} == *" $1= "* ]]; then
      [[ -n ${2:-} ]] || refuse "$1 needs a value; see --help"
      printf -v "${name//-/_}" %s "$2"
      shift
    elif [[ $1 =~ ^--[a-z0-9-]+$ && ${known} == *" $1 "* ]]; then
      if [[ " ${INSTEAD} " == *" $1 "* ]]; then instead+=("$1"); else printf -v "${name//-/_}" 1; fi
    elif [[ ${known} == *" WORDS "* && $1 != -* ]]; then
      words+=("$1")
    else
      refuse "unknown argument $1; see --help"
    fi
    shift
  done
  case "${instead[*]}" in
    "" | --check | --fleet | --acceptance | "--acceptance --short") ;;
    "--short --acceptance") instead=(--acceptance --short) ;;
    *) refuse "${instead[*]}: give --check, or --fleet, or --acceptance, or --acceptance --short" ;;
  esac
}

# A path on the command line, which is relative to the folder that the script was called from.
readonly CALLED_FROM=${OLDPWD:-.}
from_caller() { (cd -- "${CALLED_FROM}" && realpath -m -- "$1"); }

## The engine of the job's containers
ENGINE=${ENGINE:-docker}
known_engine() { # NAMES...
  [[ " $* " == *" ${ENGINE} "* ]] || refuse "ENGINE=${ENGINE}: must be one of $*"
}
need_engine() {
  command -v "${ENGINE}" >/dev/null || refuse "${ENGINE} is missing on this node: install ${ENGINE/docker/docker.io}"
}
# The digest of an image that is here, or nothing; of an image of Apptainer's or enroot's, which is a file, the file's.
image_id() {
  local id
  if [[ ${ENGINE} == apptainer || ${ENGINE} == enroot ]]; then
    [[ ! -f $1 ]] || sha256sum "$1" | sed 's/^/sha256:/; s/ .*//'
  elif id=$("${ENGINE}" image inspect --format '{{.Id}}' "$1" 2>/dev/null); then
    echo "sha256:${id#sha256:}"
  fi
}

# Sets JOB_PYTHON to what reads the job: the environment's Python, or on a host that may have none the system's.
find_job_python() {
  JOB_PYTHON=.venv/bin/python
  [[ ! -x ${JOB_PYTHON} ]] || return 0
  JOB_PYTHON=python3
  "${JOB_PYTHON}" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    refuse "this host has no Python 3.10 or newer, with which a launcher reads the job: install python3"
}

# Exports what `python -m harness.describe $1` says of the job: --shell, or --launch on a host that may have no .venv.
load_job() {
  local pairs
  find_job_python
  # A value need not be UTF-8. Ctrl-C ends this shell; Python, as it loads its modules, would print where it was.
  mapfile -d '' -t pairs < <(trap '' INT; PYTHONIOENCODING=:surrogateescape "${JOB_PYTHON}" -m harness.describe "$1")
  wait $! || exit 2
  unset JOB_DROPPED
  export "${pairs[@]}"
  # shellcheck disable=SC2086 # names
  unset ${JOB_SECRETS} ${JOB_DROPPED:-}
}

# The files and folders of a job that load_job --launch has described: path_of[VARIABLE] is absolute, `writes` are the folders
# that must be there for it, LOGDIR first, `reads` the variables of what it reads.
declare -A path_of=()
writes=() reads=()
load_paths() {
  local line variable path
  path_of=() writes=() reads=()
  while IFS= read -r line; do
    variable=${line%%=*} path=${line#*=}
    [[ ${path} == "{JOB_KEY}" ]] || path=$(realpath -m -- "${path}") # which on_host.sh replaces
    path_of[${variable}]=${path}
    case ${variable} in
      LOGDIR | CHECKPOINT_DIR | DATA_CACHE) writes+=("${path}") ;;
      TELEMETRY_PROMETHEUS) writes+=("$(dirname "${path}")") ;; # each sample renames a new file to it
      *) reads+=("${variable}") ;;
    esac
  done <<<"${JOB_PATHS}"
}

# A host's name or IPv4 address: ssh would take what begins with - as an option, Open MPI what is behind : as its own.
# shellcheck disable=SC2034 # those who source it read it
readonly HOST_NAME='[A-Za-z0-9_][A-Za-z0-9_.-]*'

# The lines of a file without what Windows adds: the mark of UTF-8 before the first, the carriage return behind each.
plain_lines() { # FILE
  LC_ALL=C sed '1s/^\xEF\xBB\xBF//; s/\r$//' "$1"
}

# Hosts of a file, which the user NAMED so, with commas between: first word of each line, comments and Open MPI's slots left
# out. A file that names no host is refused, and one whose only line names several.
hosts_of_file() { # FILE NAMED
  local lines other_name='[[:blank:]]+[A-Za-z0-9_.-]*[A-Za-z.][A-Za-z0-9_.-]*'
  lines=$(plain_lines "$1" | sed 's/#.*//' | awk 'NF')
  [[ -n ${lines} ]] || refuse "$2: names no host: give a file with a host's name in each line"
  [[ ! ${lines} =~ ^[[:blank:]]*${HOST_NAME}(${other_name})+[[:blank:]]*$ ]] ||
    refuse "$2: names several hosts in one line: give each a line of its own"
  awk '{ print $1 }' <<<"${lines}" | paste -sd,
}

# Waits for a child to its very end and returns its status: a trapped signal ends `wait` early.
await() {
  local status
  while :; do
    status=0
    wait "$1" || status=$?
    kill -0 "$1" 2>/dev/null || return "${status}"
  done
}

# Sends a signal to a child that is a Python program of launch/, once it listens, or after 10 s: while it loads its modules
# Python would end at INT with a stack of its own. It listens to TERM, signal 15, as soon as to all. Before that the child is
# a shell, which has the traps of this one for a moment, and setpriv.
tell() { # SIGNAL PID
  local program caught turn
  for ((turn = 0; turn < 200; turn++)); do
    program=$(readlink "/proc/$2/exe") || break # it has ended
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$2/status" 2>/dev/null) || break
    if [[ ${program##*/} == python* ]] && ((16#${caught:-0} >> 14 & 1)); then break; fi
    sleep 0.05
  done
  kill -"$1" "$2" 2>/dev/null || true
}
