# shellcheck shell=bash
# Any machine's CPU:  ./run_and_time.sh
# Throughput to expect: depends on the machine; benchmarks/README.md has one that was measured.
export DEVICE="${DEVICE:-cpu}"

## Ranks
export DGXNNODES="${DGXNNODES:-1}"
export DGXNGPU="${DGXNGPU:-2}" # processes, each with its share of the cores

## Work of one device
case "${WORKLOAD:-rn50}" in
  hrnet) export BATCHSIZE="${BATCHSIZE:-4}" ;;
  *) export BATCHSIZE="${BATCHSIZE:-16}" ;;
esac
export PRECISION="${PRECISION:-fp32}"
