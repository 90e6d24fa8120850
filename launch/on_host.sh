# shellcheck shell=bash
# What launch/mpirun.sh runs on each host, by `bash -c` and after common.sh: a command with the job's key, until it ends or the head node is gone.
#   $1 the job's engine there and $2 its container, or nothing   $3 folders to make, one a line   $4... the command; {JOB_KEY} in it stands for the key's file
# Standard input: the job's private key, then nothing until the head node closes it or dies. The key is gone when this is.
set -uo pipefail
# SPDX-License-Identifier: Apache-2.0
if (($# < 4)) || ! declare -F await >/dev/null; then
  echo "error: launch/on_host.sh is what launch/mpirun.sh runs on each host: start that one; see launch/mpirun.sh --help" >&2
  exit 2
fi
engine=$1 container=$2
mapfile -t folders <<<"$3"
shift 3
mkdir -p -- "${folders[@]}" || exit 1
if [[ -w /dev/shm ]]; then parent=/dev/shm; else parent=/tmp; fi
folder=$(mktemp -d -p "${parent}" job-key.XXXXXX) || exit 1
child="" killer=""
# shellcheck disable=SC2329 # the traps call it
stop() {
  [[ -n ${child} && -z ${killer} ]] || return 0
  kill -TERM "${child}" 2>/dev/null
  { sleep "${HOST_END_S}"; kill -KILL "${child}"; } >/dev/null 2>&1 & # holds none of what the head node reads
  killer=$!
}
# shellcheck disable=SC2329
clean() {
  [[ -z ${container} ]] || "${engine}" rm --force "${container}" >/dev/null 2>&1
  rm -rf -- "${folder}"
}
trap clean EXIT
trap stop TERM INT HUP
(umask 077 && sed -u '/^-----END /q' >"${folder}/key")
"${@//\{JOB_KEY\}/${folder}/key}" </dev/null &
child=$!
{ cat >/dev/null; kill -TERM "$$"; } <&0 2>/dev/null & # the end of standard input is the head node's
watcher=$!
status=0
await "${child}" || status=$?
kill "${watcher}" ${killer:+"${killer}"} 2>/dev/null
exit "${status}"
