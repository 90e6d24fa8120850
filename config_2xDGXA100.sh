# shellcheck shell=bash
# 2 DGX A100, 16 x A100:  CONT=paddle-reference DGXSYSTEM=2xDGXA100 DATADIR=/data/imagenet launch/mpirun.sh --hosts node1,node2
# Throughput to expect: not measured; a published figure of Paddle is not known here.
# SPDX-License-Identifier: Apache-2.0
export DGXNNODES="${DGXNNODES:-2}"
export NCCL_IB_HCA="${NCCL_IB_HCA:-=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9}" # exact names; mlx5_4 and mlx5_5 are storage's
source "$(dirname "${BASH_SOURCE[0]}")/launch/dgx_nodes.sh"
source "$(dirname "${BASH_SOURCE[0]}")/config_DGXA100.sh"
