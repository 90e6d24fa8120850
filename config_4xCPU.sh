# shellcheck shell=bash
# 4 nodes' CPUs:  CONT=paddle-reference DGXSYSTEM=4xCPU launch/mpirun.sh --hosts node1,node2,node3,node4
# Throughput to expect: depends on the machines: not measured. The training is that of 4 ranks on one node, step by step.
# SPDX-License-Identifier: Apache-2.0
export DGXNNODES="${DGXNNODES:-4}"
source "$(dirname "${BASH_SOURCE[0]}")/config_2xCPU.sh"
