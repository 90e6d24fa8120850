#!/usr/bin/env bash
# Runs one report's table: `launch/campaign.sh dlperf`. Stop it at any time; started again it does what is missing.
#
#   launch/campaign.sh NAME [--dry-run] [--shrink]
#   NAME        a file of campaigns/ without .yaml: dlperf, perf_rn50, fleetx, perf_hrnet or oneflow
#   --dry-run   list the commands and an estimate of the time, run nothing
#   --shrink    run the whole grid tiny on CPU ranks, to see that every run goes through
#
# Environment: DGXSYSTEM (of one node), DATADIR, CONT, HOSTS or HOSTFILE as for the launchers; LOGDIR, the results
# (default: results), to be seen from here and from the first host; REPEATS, trials of a run instead of the protocol's
# number. A job of one node is one call of ./run_and_time.sh (of launch/container_node.sh where CONT is set), one of
# several nodes of launch/mpirun.sh over the first of the hosts; RUNNER is a command to call instead of these.
# Exit status: 0 every run that this machine can do is done, 1 one failed, 2 wrong use.
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

source launch/common.sh

shrink=""
take_options "--shrink WORDS" "$@"
((${#words[@]} == 1)) || refuse "which campaign? Name one campaign of: $(cd campaigns && echo *.yaml | sed 's/\.yaml//g')"
name=${words[0]}

[[ ${REPEATS:-1} =~ ^0*[1-9][0-9]{0,8}$ ]] ||
  refuse "REPEATS=$REPEATS: must be a whole number above 0 and below 1000000000"

hosts=""
results=${LOGDIR:-results}/campaigns
launch/setup.sh run
[[ -z ${HOSTFILE:-} || -f ${HOSTFILE} ]] || refuse "HOSTFILE=${HOSTFILE}: name a file with a host's name in each line"
[[ -n ${HOSTS:-} || -z ${HOSTFILE:-} ]] || hosts=$(hosts_of_file "$HOSTFILE" "HOSTFILE=$HOSTFILE")
hosts=${HOSTS:-$hosts}
[[ -z $hosts || $hosts =~ ^$HOST_NAME(,$HOST_NAME)*$ ]] ||
  refuse "HOSTS=$hosts: must be names or IPv4 addresses, comma-separated, none of them empty or with a port"
campaign() {
  HOSTS=$hosts .venv/bin/python -m scoring.published.campaign "$1" "$name" --results "$results" ${shrink:+--shrink} \
    ${REPEATS:+--repeats "$REPEATS"} ${RUNNER:+--runner "$RUNNER"} "${@:2}"
}

if [[ -n $dry_run ]]; then
  campaign plan
  exit
fi

mkdir -p "$results" 2>/dev/null || refuse "$results cannot be written: set LOGDIR to a writable folder"
exec 9>"$results/.lock"
flock -n 9 || refuse "$results: another campaign.sh is at work there; wait for it or set LOGDIR"

jobs=$(campaign plan --jobs)
failed=0
child="" stopped=""
# Stopping the campaign stops the run; its half log is set aside when the campaign is started again.
trap 'stopped=yes; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' INT TERM
while [[ -z $stopped ]] && IFS=$'\t' read -r -u 8 run trial folder command exports; do
  [[ -n $run ]] || continue
  if [[ -e $folder ]]; then
    aside=1
    while [[ -e $folder.stopped_$aside ]]; do ((aside += 1)); done
    mv "$folder" "$folder.stopped_$aside"
  fi
  mkdir -p "$folder"
  IFS=' ' read -r -a assignments <<<"$exports"
  IFS=' ' read -r -a command <<<"$command"
  # The launchers are told the hosts of this job; a job of one node has none.
  [[ -n ${RUNNER:-} ]] || assignments=(-u HOSTS -u HOSTFILE -u NODE_RANK "${assignments[@]}")
  echo "== $name $run, trial $trial"
  started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
  begin=$SECONDS status=0
  setpriv --pdeathsig TERM env "${assignments[@]}" "LOGDIR=$folder" "${command[@]}" >"$folder/run.out" 2>&1 9>&- &
  child=$!
  [[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null || true # a signal came before there was a run
  await "$child" || status=$?
  child=""
  [[ -z $stopped ]] || break
  printf '{"run": "%s", "trial": %d, "started": "%s", "wall_s": %d, "exit": %d}\n' \
    "$run" "$trial" "$started" "$((SECONDS - begin))" "$status" >>"$folder/../../campaign.jsonl"
  if ((status)); then
    failed=1
    echo "   failed with exit status $status; the end of $folder/run.out:" >&2
    tail -n 5 "$folder/run.out" | sed 's/^/   | /' >&2
  fi
done 8<<<"$jobs"
[[ -z $stopped ]] || { echo "launch/campaign.sh: stopped; start it again to go on" >&2; exit 130; }

campaign table || failed=1
exit "$failed"
