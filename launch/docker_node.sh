#!/usr/bin/env bash
# Runs this node's part of a job in a container of image CONT: run_and_time.sh there, with what this shell's environment says.
#
#   CONT=paddle-reference DGXSYSTEM=DGX1 DATADIR=/data/imagenet launch/docker_node.sh [--dry-run | --print0]
#
#   --check, --fleet, --acceptance [--short]    instead of training, as ./run_and_time.sh has them
#   --dry-run                          print the docker command; --print0 with a NUL after each word
#
# Mounts DATADIR (read-only) and LOGDIR at their own paths and JOB_KEY as a secret; runs as the calling user on a read-only
# root with a /tmp of its own. The container goes when this script goes. May be told CONT_NETWORK (default: none for a job
# of one node, else host), CONT_NAME (the container's name) and CONT_HOST (its node's name on a network of its own);
# CONT_GPUS, CONT_DEVICES, CONT_SHM_SIZE, CONT_MEMLOCK and CONT_IPC come from the system's config file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

print=""
for argument in "$@"; do
  if [[ ${argument} == --print0 ]]; then print='%s\0'; else job_flag "${argument}" || refuse "unknown argument ${argument}; see --help"; fi
done
[[ -z ${dry_run} ]] || print='%q '
[[ -n ${CONT:-} ]] || refuse "set CONT to the image to run: build one with launch/build_image.sh"

environment=()
load_job --launch
for variable in ${JOB_GIVEN}; do
  case ${variable} in
    JOB_KEY | LOGDIR | DATADIR | HOSTFILE | CACHE_CLEARED | IMAGE_DIGEST) ;; # below
    *) environment+=(--env "${variable}=${!variable}") ;;
  esac
done

name=${CONT_NAME:-paddle-reference-$$-${NODE_RANK:-0}}
# One node needs no network: in a container with loopback alone nobody reaches what mpirun listens on.
network=${CONT_NETWORK:-$( ((DGXNNODES == 1)) && echo none || echo host)}
digest=$(docker image inspect --format '{{.Id}}' "${CONT}" 2>/dev/null || true)
logdir=$(realpath -m "${LOGDIR:-results}")
run=(docker run --rm --init --name "${name}" --network "${network}" --user "$(id -u):$(id -g)"
  --read-only --tmpfs /tmp:exec --security-opt no-new-privileges
  --mount "type=bind,src=${logdir},dst=${logdir}" --env "LOGDIR=${logdir}" --env "IMAGE_DIGEST=${digest}")
host=${CONT_HOST:-${name}}
case ${network} in
  host) ;; # the container has its node's name already
  none) run+=(--hostname "${host}" --add-host "${host}:127.0.0.1") ;;
  bridge) run+=(--hostname "${host}") ;; # docker's own, which has no aliases
  *) run+=(--hostname "${host}" --network-alias "${host}") ;;
esac
[[ -z ${CONT_SHM_SIZE:-} ]] || run+=(--shm-size "${CONT_SHM_SIZE}")
[[ -z ${CONT_IPC:-} ]] || run+=(--ipc "${CONT_IPC}")
[[ -z ${CONT_MEMLOCK:-} ]] || run+=(--ulimit "memlock=${CONT_MEMLOCK}")
[[ -z ${CONT_GPUS:-} ]] || run+=(--gpus "${CONT_GPUS}")
for device in ${CONT_DEVICES:-}; do run+=(--device "${device}"); done
if [[ -n ${DATADIR:-} ]]; then
  datadir=$(realpath -m "${DATADIR}")
  run+=(--mount "type=bind,src=${datadir},dst=${datadir},readonly" --env "DATADIR=${datadir}")
fi
[[ -z ${JOB_KEY:-} ]] || run+=(--mount "type=bind,src=${JOB_KEY},dst=/run/job_key,readonly" --env JOB_KEY=/run/job_key)
[[ -z ${HOSTFILE:-} ]] ||
  run+=(--mount "type=bind,src=$(realpath "${HOSTFILE}"),dst=/run/hostfile,readonly" --env HOSTFILE=/run/hostfile)
run+=("${environment[@]}")

if [[ -n ${print} ]]; then
  # shellcheck disable=SC2059 # one of the two formats above
  printf "${print}" "${run[@]}" "${CONT}" ./run_and_time.sh "${instead[@]}"
  [[ ${print} == *0 ]] || echo
  exit 0
fi
command -v docker >/dev/null || refuse "docker is missing on this node: install docker.io"
[[ -n ${digest} ]] || refuse "image ${CONT} is not on this node: build it with launch/build_image.sh, or pull it"
mkdir -p "${logdir}"
# The container is not root, so root flushes out here before a single trial; in several, each log says that it was skipped.
# An acceptance flushes nothing; --check is told what can be done, as it judges that.
if [[ ${CLEAR_CACHES:-1} == 1 && ${NEXP:-1} == 1 && ${instead[*]} != *--acceptance* && -w /proc/sys/vm/drop_caches ]]; then
  [[ -n ${instead[*]} ]] || { sync && echo 3 >/proc/sys/vm/drop_caches; }
  run+=(--env "CACHE_CLEARED=launch/docker_node.sh")
fi

# shellcheck disable=SC2329 # the trap calls it
stop() { docker stop --time ${CONTAINER_END_S} "${name}" >/dev/null 2>&1 || true; }
trap stop TERM INT HUP
trap 'docker rm --force "${name}" >/dev/null 2>&1 || true' EXIT
"${run[@]}" "${CONT}" ./run_and_time.sh "${instead[@]}" </dev/null &
child=$!
await "${child}"
