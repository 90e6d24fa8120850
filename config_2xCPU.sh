# shellcheck shell=bash
# 2 nodes' CPUs:  CONT=paddle-reference DGXSYSTEM=2xCPU launch/mpirun.sh --hosts node1,node2
# Throughput to expect: depends on the machines: not measured. The training is that of 2 ranks on one node, step by step.
# SPDX-License-Identifier: Apache-2.0
export DGXNNODES="${DGXNNODES:-2}"
export DGXNGPU="${DGXNGPU:-1}"
source "$(dirname "${BASH_SOURCE[0]}")/config_CPU.sh"
