#!/usr/bin/env bash
# Runs a job over several hosts from one head node, which reaches them by ssh: one run_and_time.sh on each, in a container of
# image CONT by ENGINE (docker, podman or apptainer), or with --no-container in this checkout, which is at one path on every host.
#
#   CONT=paddle-reference DGXSYSTEM=2xDGX1 DATADIR=/data/imagenet launch/mpirun.sh --hosts node1,node2
#
#   --hosts A,B      hosts, the first node first, or a file with one a line
#   --ssh COMMAND    how the head node reaches a host (default: ssh)
#   --no-container   bare: the checkout's run_and_time.sh with its .venv
#   --check, --fleet, --acceptance [--short]    instead of training: see docs/operations.md
#   --write-hosts FILE [--nodes N]     with --fleet: the (first N) good hosts to FILE, other good ones to FILE.spares
#   --baseline FILE  with --fleet: an earlier fleet.json, on the first host, to compare with (FLEET_BASELINE on every launcher)
#   --topology FILE  with --fleet: a host and its switch group a line
#   --workdir DIR    where the checkout is on the hosts (default: where it is here)
#   SPARES=C,D       in the environment, with ON_FAILURE=go_on: a spare takes the place of a host that is lost, the trial that
#                    was lost with it stays aborted, and the trials that are left follow. LOGDIR must outlive the first host.
#   --dry-run        print each host's command and the resolved configuration, run nothing
#
# A key is made for the job, goes to the hosts through ssh, and is removed there when the job ends, also where this script
# dies. Exit status: the first node's, or that of the first other one to fail.
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
source launch/common.sh

hosts="" no_container="" workdir=${PWD} ssh=ssh write_hosts="" nodes="" topology="" baseline=""
take_options "--hosts= --write-hosts= --nodes= --topology= --baseline= --ssh= --workdir= --no-container ${INSTEAD}" "$@"
read -ra ssh <<<"${ssh}"
for option in baseline topology write_hosts; do
  [[ -z ${!option} ]] || printf -v "${option}" %s "$(from_caller "${!option}")"
done
file=${hosts:+$(from_caller "${hosts}")}
if [[ -f ${file} ]]; then
  ! grep -qaP '[\x00-\x08\x0e-\x1f]' "${file}" || refuse "--hosts ${hosts}: is not a text file of hosts, one a line"
  hosts=$(hosts_of_file "${file}" "--hosts ${file}")
elif [[ -e ${file} && (${hosts} == */* || ! -d ${file}) ]]; then # a folder may have the name of a host
  refuse "--hosts ${hosts}: is a folder, a pipe or a device: name a file of hosts, or give their names"
fi
[[ -n ${hosts} ]] || refuse "which hosts? Give --hosts A,B or --hosts FILE"
IFS=, read -ra host <<<"${hosts}"
IFS=, read -ra spare <<<"${SPARES:-}"
((${#spare[@]} == 0)) || [[ ${ON_FAILURE:-} == go_on ]] || refuse "SPARES=${SPARES} needs ON_FAILURE=go_on"
for name in "${host[@]}" "${spare[@]}"; do
  [[ ${name} =~ ^${HOST_NAME}$ ]] ||
    refuse "host $(printf '%q' "${name}"): must be a name or an IPv4 address (a port or a user belongs into ~/.ssh/config); a file of hosts must exist"
done
twice=$(printf '%s\n' "${host[@]}" "${spare[@]}" | sort | uniq -d | paste -sd ' ')
[[ -z ${twice} ]] || refuse "named more than once: ${twice}; give each host once"
[[ -n ${no_container} || -n ${CONT:-} ]] || refuse "set CONT to the image to run, or give --no-container"
[[ -z ${write_hosts}${nodes}${topology}${baseline} || ${instead[*]} == --fleet ]] ||
  refuse "--write-hosts, --nodes, --topology and --baseline go with --fleet"
[[ -z ${topology} || -f ${topology} && -r ${topology} ]] || refuse "--topology ${topology}: not a readable file"
[[ ${nodes} =~ ^[1-9][0-9]*$ || -z ${nodes} ]] || refuse "--nodes ${nodes}: must be a whole number from 1"
[[ -z ${nodes} || -n ${write_hosts} ]] || refuse "--nodes goes with --write-hosts"
((${nodes:-0} <= ${#host[@]})) || refuse "--nodes ${nodes}: there are ${#host[@]} hosts"
may_write() { # FILE: one that is there, or a new one
  if [[ -e $1 ]]; then [[ -f $1 && -w $1 ]]; else [[ -d $(dirname "$1") && -w $(dirname "$1") ]]; fi
}
[[ -z ${write_hosts} ]] || may_write "${write_hosts}" || refuse "--write-hosts ${write_hosts}: cannot be written"
for option in baseline topology; do # the files are read before the hosts are written, so nothing else would stop it
  for written in ${write_hosts:+"${write_hosts}" "${write_hosts}.spares"}; do
    [[ ${!option} != "${written}" && ! ${!option} -ef ${written} ]] ||
      refuse "--write-hosts ${write_hosts}: would write over --${option} ${!option}: give another file"
  done
done
command -v "${ssh[0]:-}" >/dev/null || refuse "--ssh ${ssh[*]}: no such command here: give one that reaches the hosts, as ssh does"
ssh+=(-T -o BatchMode=yes -o ConnectTimeout=10 -o "ServerAliveInterval=${ALIVE_S}" -o "ServerAliveCountMax=${ALIVE_COUNT}")
[[ -n ${no_container} ]] || known_engine docker podman apptainer
unset HOSTFILE
[[ -z ${baseline} ]] || export FLEET_BASELINE=${baseline}
if [[ ${instead[*]} == --fleet && -z ${dry_run} ]]; then # goes on without those that cannot be reached
  declare -A asked=()
  for name in "${host[@]}"; do
    "${ssh[@]}" "${name}" true </dev/null >/dev/null 2>&1 &
    asked[${name}]=$!
  done
  reached=()
  for name in "${host[@]}"; do
    if wait "${asked[${name}]}"; then reached+=("${name}"); else echo "failed    ${name}: not reached by ssh"; fi
  done
  ((${#reached[@]})) || refuse "none of ${hosts} is reached by ssh"
  host=("${reached[@]}") hosts=$(IFS=,; echo "${reached[*]}")
fi
if [[ -n ${topology} ]]; then
  SWITCH_GROUPS=$(for name in "${host[@]}"; do plain_lines "${topology}" | awk -v host="${name}" '$1 == host { print $2 }'; done | paste -sd,)
  export SWITCH_GROUPS
fi
export ENGINE HOSTS=${hosts} DGXNNODES=${#host[@]} JOB_KEY="{JOB_KEY}" NODE_RANK=0
load_job --launch
load_paths
export LOGDIR=${path_of[LOGDIR]}
job=paddle-reference-$$-$(date +%s)

# The command of node $1, each word quoted for the shell of its host.
command_of() {
  local container="" command=() variable
  NODE_RANK=$1
  if [[ -n ${no_container} ]]; then
    command=(env -C "${workdir}")
    writes=("${LOGDIR}") # others are each host's own
    for variable in ${JOB_GIVEN} LOGDIR; do command+=("${variable}=${!variable}"); done
    command+=(./run_and_time.sh "${instead[@]}")
  else
    [[ ${ENGINE} == apptainer ]] || container=${job}-$1
    mapfile -t -d '' command < <(CONT_NAME=${job}-$1 CONT_HOST=${host[$1]} launch/container_node.sh --print0 "${instead[@]}")
  fi
  printf '%q ' "${ENGINE}" "${container}" "$(printf '%s\n' "${writes[@]}")" "${command[@]}"
}
on_host=(launch/common.sh launch/on_host.sh) # what runs there, sent as text

if [[ -n ${dry_run} ]]; then
  for rank in "${!host[@]}"; do
    echo "node ${rank}: ${ssh[*]} ${host[rank]} bash -c \"\$(cat ${on_host[*]})\" on_host $(command_of "${rank}")"
  done
  unset JOB_KEY
  NODE_RANK=0 ./run_and_time.sh --dry-run
  exit 0
fi

command -v ssh-keygen >/dev/null || refuse "ssh-keygen is missing: install openssh-client"
folder=$(mktemp -d)
declare -A node=() # of the ssh that runs it
hold=""
release() { # closes every host's standard input, which ends the job there
  [[ -z ${hold} ]] || exec {hold}>&-
  hold=""
}
# shellcheck disable=SC2329 # the trap calls it
clean() {
  release
  for pid in "${!node[@]}"; do wait "${pid}" || true; done
  rm -rf -- "${folder}"
}
trap clean EXIT
ssh-keygen -q -t ed25519 -N '' -C "${job}" -f "${folder}/key"
key=$(<"${folder}/key")
rm "${folder}/key" "${folder}/key.pub" # from here on it is in this process and on the hosts only
stopped=0
trap 'stopped=143; release' TERM
trap 'stopped=130; release' INT
trap 'stopped=129; release' HUP

# Runs every node to its end: `status` is the first one's, or that of the first other one to fail; `first_to_fail` its rank.
run_nodes() {
  local rank remote ending ended this tenths
  rm -f "${folder}/hold"
  mkfifo "${folder}/hold"
  exec {hold}<>"${folder}/hold" # this process alone may write to it: when it ends, however that is, the readers see the end
  exec {ending}<"${folder}/hold" # opened now: a reader that opened it after the last writer is gone would wait for ever
  for rank in "${!host[@]}"; do
    remote="bash -c $(printf '%q' "$(cat "${on_host[@]}")") on_host $(command_of "${rank}")"
    {
      trap '' INT # Ctrl-C is for the head to pass on
      exec {hold}>&-
      "${ssh[@]}" "${host[rank]}" "${remote}" < <(printf '%s\n' "${key}"; exec cat <&"${ending}") 2>&1 |
        if ((rank == 0)); then tee "${folder}/first"; else sed -u "s/^/[${host[rank]}] /"; fi
    } &
    node[$!]=${rank}
  done
  exec {ending}<&-
  ((stopped == 0)) || release # a signal came before there were nodes
  status=0 first_to_fail=""
  while ((${#node[@]})); do
    ended="" this=0
    wait -n -p ended "${!node[@]}" || this=$?
    [[ -n ${ended} ]] || continue # a trapped signal came
    rank=${node[${ended}]}
    unset "node[${ended}]"
    if ((this != 0 && stopped == 0)); then
      ((status != 0)) || status=${this} first_to_fail=${rank}
      echo "mpirun.sh: node ${rank} (${host[rank]}) ended with status ${this}" >&2
      # The others must not wait for it. Before it is stopped too, the first node has time to see for itself whom it lost.
      for ((tenths = 0; rank > 0 && tenths < SEE_LOSS_S * 10; tenths++)); do
        [[ " ${node[*]} " == *" 0 "* && ${stopped} == 0 ]] || break
        sleep 0.1
      done
      release
    fi
  done
  release
}

# The rank of the host that the job was lost with, or nothing: the first node names another; one that is gone ends its ssh
# with 255, one whose container was killed with 137.
lost_rank() {
  local said
  said=$(sed -n 's/.*node \([0-9]*\) (.*) was lost; the job ends$/\1/p' "${folder}/first" | head -n 1)
  if [[ -n ${said} ]]; then echo "${said}"; elif ((status == 255 || status == 137)); then echo "${first_to_fail}"; fi
}

run_nodes
while ((status != 0 && stopped == 0 && ${#spare[@]} > 0)); do
  lost=$(lost_rank)
  [[ -n ${lost} ]] || break
  echo "mpirun.sh: node ${lost}: ${spare[0]} takes the place of ${host[lost]}; spares left: $((${#spare[@]} - 1))" >&2
  host[lost]=${spare[0]}
  spare=("${spare[@]:1}")
  HOSTS=$(IFS=,; echo "${host[*]}")
  export HOSTS KEEP_TRIALS=1
  load_job --launch
  run_nodes
done
if [[ -n ${write_hosts} && -s ${folder}/first ]]; then
  good=$(sed -n 's/^good  *\([^ ]\)/\1/p' "${folder}/first" | tr ',' '\n')
  if [[ -n ${good} ]]; then
    head -n "${nodes:-${#host[@]}}" <<<"${good}" >"${write_hosts}"
    tail -n "+$((${nodes:-${#host[@]}} + 1))" <<<"${good}" >"${write_hosts}.spares"
    taken=$(grep -c . "${write_hosts}")
    if ((taken < ${nodes:-0})); then
      echo "mpirun.sh: ${nodes} nodes are wanted, ${taken} are good: add hosts" >&2
      ((status)) || status=1
    fi
  fi
fi
exit $((stopped ? stopped : status))
