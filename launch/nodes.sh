#!/usr/bin/env bash
# Joins this node to its job of several nodes; launch/nodes.py says how.
#
#   launch/nodes.sh serve             node above 0: waits on sshd until the first node ends
#   launch/nodes.sh lead COMMAND...   first node: waits for the others, then runs COMMAND
#
# Reads DGXNNODES, DGXNGPU, NODE_RANK, HOSTS or HOSTFILE (one host a line), JOB_KEY (the job's private ssh key), and may
# be told SSH_PORT, SSH_ADDRESS (that sshd listens on; default all) and NODE_WAIT_S (for each other).
set -euo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

: "${DGXNNODES:?nodes of the job}" "${DGXNGPU:?ranks on a node}"
role=${1:?serve or lead}
shift
if [[ -n ${HOSTFILE:-} ]]; then
  [[ -r ${HOSTFILE} ]] || refuse "HOSTFILE=${HOSTFILE} is not a readable file"
  HOSTS=$(hosts_of_file "${HOSTFILE}")
fi
# A waiting node needs no names: the first node calls it.
if [[ ${role} == lead || -n ${HOSTS:-} ]]; then
  [[ -n ${HOSTS:-} ]] || refuse "DGXNNODES=${DGXNNODES} needs HOSTS, the nodes' names with commas between (or a HOSTFILE)"
  hosts=$(tr ',' '\n' <<<"${HOSTS}" | grep -c .)
  ((hosts == DGXNNODES)) || refuse "DGXNNODES=${DGXNNODES}, but HOSTS names ${hosts} (${HOSTS}): they must agree"
fi
[[ ${NODE_RANK:=0} =~ ^[0-9]+$ && ${NODE_RANK} -lt ${DGXNNODES} ]] ||
  refuse "NODE_RANK=${NODE_RANK}: must be a number from 0 to $((DGXNNODES - 1)), another on each node"
[[ -n ${JOB_KEY:-} ]] || refuse "DGXNNODES=${DGXNNODES} needs JOB_KEY, the file of the job's private ssh key (ssh-keygen -t ed25519 -N '')"

exec .venv/bin/python -m launch.nodes "${role}" --hosts "${HOSTS:-}" --rank "${NODE_RANK}" --key "${JOB_KEY}" \
  --port "${SSH_PORT:?}" --address "${SSH_ADDRESS:-}" --wait "${NODE_WAIT_S:?}" --slots "${DGXNGPU}" \
  --alive "${ALIVE_S}" --alive-count "${ALIVE_COUNT}" --stop "${JOB_END_S}" -- "$@"
