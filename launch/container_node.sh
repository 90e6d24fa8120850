#!/usr/bin/env bash
# Runs this node's part of a job in a container of image CONT: run_and_time.sh there, with what this shell's environment says.
#
#   CONT=paddle-reference DGXSYSTEM=DGX1 DATADIR=/data/imagenet launch/container_node.sh [--dry-run | --print0]
#
#   --check, --fleet, --acceptance [--short]    instead of training, as ./run_and_time.sh has them
#   --dry-run                          print the engine's command; --print0 with a NUL after each word
#
# ENGINE is docker (default), podman or apptainer, whose CONT is the .sif file that launch/apptainer.def makes.
# Mounts the files and folders of the job's settings at their own paths, read-only but for those that it writes, and JOB_KEY
# as a secret; runs as the calling user on a read-only root with a /tmp of its own. The container goes when this script goes.
# May be told CONT_NETWORK (default: none for a job of one node, else host), CONT_NAME (the container's name) and CONT_HOST
# (its node's name on a network of its own); CONT_GPUS, CONT_DEVICES, CONT_SHM_SIZE, CONT_MEMLOCK and CONT_IPC come from the
# system's config file. An Apptainer job has its host's network, devices, /tmp, limits and shared memory, and no name.
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
source launch/common.sh

print0=""
take_options "--print0 ${INSTEAD}" "$@"
print=${dry_run:+%q }${print0:+%s\\0}
known_engine docker podman apptainer
[[ -n ${CONT:-} ]] || refuse "set CONT to the image to run: build one with launch/build_image.sh"

environment=()
load_job --launch
load_paths
for variable in ${JOB_GIVEN}; do
  [[ -n ${path_of[${variable}]:-} || ${variable} == IMAGE_DIGEST ]] || environment+=("${variable}=${!variable}")
done

name=${CONT_NAME:-paddle-reference-$$-${NODE_RANK:-0}}
# One node needs no network: in a container with loopback alone nobody reaches what mpirun listens on.
network=${CONT_NETWORK:-$( ((DGXNNODES == 1)) && echo none || echo host)}
digest=$(image_id "${CONT}")
environment+=("IMAGE_DIGEST=${digest}")
mounts=()
declare -A mounted=()
add_mount() { # SOURCE INSIDE OPTIONS
  [[ $1 != *[,\"]* ]] || refuse "$1: a path with a comma or a quote cannot be mounted into a container: rename it"
  [[ -n ${mounted[$2]:-} ]] || mounts+=("src=$1,dst=$2$3") # two settings may name one folder
  mounted[$2]=yes
}
for folder in "${writes[@]}"; do add_mount "${folder}" "${folder}" ""; done
for variable in "${reads[@]}"; do
  if [[ ${variable} == FLEET_BASELINE && ${NODE_RANK:-0} != 0 ]]; then # the first node judges
    unset "path_of[${variable}]"
    continue
  fi
  inside=${path_of[${variable}]}
  [[ " JOB_KEY HOSTFILE FLEET_BASELINE " != *" ${variable} "* ]] || inside=/run/${variable,,}
  add_mount "${path_of[${variable}]}" "${inside}" ,ro
  path_of[${variable}]=${inside}
done
for variable in "${!path_of[@]}"; do environment+=("${variable}=${path_of[${variable}]}"); done
# Root flushes the host's page cache before each trial; in a container /proc/sys is read-only.
[[ ! -w /proc/sys/vm/drop_caches || ${ENGINE} == apptainer ]] || add_mount /proc/sys/vm/drop_caches /run/drop_caches ""

if [[ ${ENGINE} == apptainer ]]; then
  run=(apptainer exec --cleanenv --no-home --pwd /workspace)
  [[ -z ${CONT_GPUS:-} ]] || run+=(--nv)
else
  run=("${ENGINE}" run --rm --init --name "${name}" --network "${network}" --user "$(id -u):$(id -g)"
    --read-only --tmpfs /tmp:exec --security-opt no-new-privileges)
  # Root needs no more of a container than to read and write its files; between nodes sshd, until it knows who asks, is
  # another user in a folder of its own.
  [[ $(id -u) != 0 ]] || run+=(--cap-drop ALL --cap-add DAC_OVERRIDE)
  [[ $(id -u) != 0 || ${DGXNNODES} == 1 ]] || run+=(--cap-add SETUID --cap-add SETGID --cap-add SYS_CHROOT)
  # Rootless: the caller keeps its number inside, so that files are read and written as on the host.
  [[ ${ENGINE} != podman || $(id -u) == 0 ]] || run+=(--userns keep-id)
  host=${CONT_HOST:-${name}}
  case ${network} in
    host) ;; # the container has its node's name already
    none | bridge) run+=(--hostname "${host}") ;; # bridge: docker's own, which has no aliases
    *) run+=(--hostname "${host}" --network-alias "${host}") ;;
  esac
  [[ -z ${CONT_SHM_SIZE:-} ]] || run+=(--shm-size "${CONT_SHM_SIZE}")
  [[ -z ${CONT_IPC:-} ]] || run+=(--ipc "${CONT_IPC}")
  [[ -z ${CONT_MEMLOCK:-} ]] || run+=(--ulimit "memlock=${CONT_MEMLOCK}")
  case ${CONT_GPUS:+${ENGINE}} in
    docker) run+=(--gpus "${CONT_GPUS}") ;;
    podman) run+=(--device "nvidia.com/gpu=${CONT_GPUS}") ;; # of the host's CDI description, by `nvidia-ctk cdi generate`
  esac
  for device in ${CONT_DEVICES:-}; do run+=(--device "${device}"); done
fi
run+=("${mounts[@]/#/--mount=type=bind,}")

absent="image ${CONT} is not on this node: build it with launch/build_image.sh, or pull it"
if [[ -z ${print} ]]; then
  need_engine
  [[ -n ${digest} ]] || refuse "${absent}"
  mkdir -p -- "${writes[@]}"
fi
case ${ENGINE} in
  apptainer) run+=("${CONT}" env "${environment[@]}") ;; # its own --env ends a value at a comma
  *) run+=("${environment[@]/#/--env=}" "${CONT}") ;;
esac
run+=(./run_and_time.sh "${instead[@]}")
if [[ -n ${print} ]]; then
  # A launcher (CONT_HOST) prints it for another machine, and an engine that does not answer knows of no image.
  if [[ -n ${dry_run} && -z ${digest}${CONT_HOST:-} ]] && "${ENGINE}" version >/dev/null 2>&1; then
    echo "warning: ${absent}" >&2
  fi
  # shellcheck disable=SC2059 # one of the two formats above
  printf "${print}" "${run[@]}"
  [[ ${print} == *0 ]] || echo
  exit 0
fi

child="" asked=""
ask_engine() { # TERM | HUP
  if [[ $1 == TERM ]]; then
    "${ENGINE}" stop --time ${CONTAINER_END_S} "${name}" >/dev/null 2>&1 || true
  elif "${ENGINE}" kill --signal HUP "${name}" >/dev/null 2>&1; then # by hand, as not every engine's `stop` takes a signal
    timeout "${CONTAINER_END_S}" "${ENGINE}" wait "${name}" >/dev/null 2>&1 || true
    "${ENGINE}" kill "${name}" >/dev/null 2>&1 || true # one that has ended is gone
  fi
}
# The job is told of a hang-up by HUP and else by TERM, so that its log and its exit status say which it was.
stop() { # TERM | HUP
  local turn
  asked=$1
  [[ -n ${child} ]] || return 0 # called again once there is one
  if [[ ${ENGINE} == apptainer ]]; then
    kill "-$1" "${child}" 2>/dev/null || true # which it passes on
    return
  fi
  # What docker has made and not yet started is not stopped, and starts then: so it is asked again until its client has ended.
  for ((turn = 0; turn < 50; turn++)); do
    kill -0 "${child}" 2>/dev/null || break
    ask_engine "$1"
    sleep 0.2
  done
}
trap 'stop TERM' TERM INT
trap 'stop HUP' HUP
[[ ${ENGINE} == apptainer ]] || trap '"${ENGINE}" rm --force "${name}" >/dev/null 2>&1 || true' EXIT
setpriv --pdeathsig TERM "${run[@]}" </dev/null & # the engine's client passes TERM on where this script is killed
child=$!
[[ -z ${asked} ]] || stop "${asked}" # a signal came before there was a client
await "${child}"
