# shellcheck shell=bash
# 2 DGX-1, 16 x V100:  CONT=paddle-reference DGXSYSTEM=2xDGX1 DATADIR=/data/imagenet launch/mpirun.sh --hosts node1,node2
# Throughput to expect: by this code not measured. Published for V100, AMP O1, batch 256: 16154 images/s (FleetX benchmark);
# V100 16 GB, FP32, batch 128: 4890 (DLPerf, Paddle 1.8.3).
# SPDX-License-Identifier: Apache-2.0
export DGXNNODES="${DGXNNODES:-2}"
export NCCL_IB_HCA="${NCCL_IB_HCA:-=mlx5_0,mlx5_1,mlx5_2,mlx5_3}" # =: exact names, or mlx5_1 would take mlx5_10 too
source "$(dirname "${BASH_SOURCE[0]}")/launch/dgx_nodes.sh"
source "$(dirname "${BASH_SOURCE[0]}")/config_DGX1.sh"
