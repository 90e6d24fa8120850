#!/usr/bin/env bash
# Runs a rank on the cores of its GPU's NUMA node:  RANK_NUMA=3,3,1,1 launch/bind.sh COMMAND...  (mpirun starts it)
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
if [[ -z ${RANK_NUMA:-} || -z ${OMPI_COMM_WORLD_LOCAL_RANK:-} || ${1:--} == -* ]]; then
  cd "${PWD}" # OLDPWD is this folder now, and not what the shell had before
  # shellcheck source=launch/common.sh
  source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/common.sh"
  take_options WORDS "$@"
  refuse "launch/bind.sh is for mpirun, which starts each rank by it: set RANK_NUMA and start ./run_and_time.sh"
fi
IFS=, read -ra numa <<<"${RANK_NUMA}"
node=${numa[OMPI_COMM_WORLD_LOCAL_RANK]:-}
cores=/sys/devices/system/node/node${node}/cpulist
if [[ -z ${node} || ! -r ${cores} ]]; then
  # Where the GPUs are missing too, the machine is another one: the rank itself says so.
  [[ ${DEVICE:-cpu} == cpu ]] || compgen -G "/dev/nvidia[0-9]*" >/dev/null || exec "$@"
  echo "error: RANK_NUMA=${RANK_NUMA}: local rank ${OMPI_COMM_WORLD_LOCAL_RANK} has no NUMA node of this machine there:" \
    "set it to what nvidia-smi topo -m says, or to nothing" >&2
  exit 2
fi
each_of() { # LIST as 0-3,8
  local part
  for part in ${1//,/ }; do seq "${part%-*}" "${part#*-}"; done | sort
}
# A container or batch job may have been given some of the cores: Linux refuses others, or lets the rank leave its share.
given=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
own=$(comm -12 <(each_of "$(<"${cores}")") <(each_of "${given}") | paste -sd,)
if [[ -z ${own} ]]; then
  echo "error: RANK_NUMA=${RANK_NUMA}: local rank ${OMPI_COMM_WORLD_LOCAL_RANK} may use cores ${given}, and none of them is of" \
    "NUMA node ${node} ($(<"${cores}")): ask for its cores too, or set RANK_NUMA to nothing" >&2
  exit 2
fi
# Memory follows: Linux gives a page from the node of the core that touches it first.
exec taskset --cpu-list "${own}" "$@"
