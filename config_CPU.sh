# shellcheck shell=bash
# Any machine's CPU:  ./run_and_time.sh
# Throughput to expect: depends on the machine; benchmarks/README.md has one that was measured.
export DEVICE="${DEVICE:-cpu}"

## Ranks
export DGXNNODES="${DGXNNODES:-1}"
export DGXNGPU="${DGXNGPU:-2}" # processes, each with its share of the cores

## Work of one device
export BATCHSIZE="${BATCHSIZE:-$([[ ${WORKLOAD:-rn50} == hrnet ]] && echo 4 || echo 16)}"
export PRECISION="${PRECISION:-fp32}"
