# shellcheck shell=bash
# DGX A100, 8 x A100:  DGXSYSTEM=DGXA100 DATADIR=/data/imagenet ./run_and_time.sh        one GPU: DGXNGPU=1 before it
# Throughput to expect: by this code not measured. Published for 8 x A100 40 GB, AMP O2, batch 256: 17588 images/s
# (PaddlePaddle/Perf ResNet50V1.5, Paddle 2.5.0); for 80 GB, AMP: 23874, TF32: 8013 (NVIDIA's Paddle ResNet-50).
# Another machine: copy this file to config_<NAME>.sh, and set DGXNGPU and, by `nvidia-smi topo -m`, RANK_NUMA, or nothing.
# SPDX-License-Identifier: Apache-2.0

## Ranks, on the cores of their GPU's NUMA node (two 64-core sockets with four nodes each)
export RANK_NUMA="${RANK_NUMA-3,3,1,1,7,7,5,5}"
export DATA_THREADS="${DATA_THREADS:-6}" # of 8 cores a GPU

source "$(dirname "${BASH_SOURCE[0]}")/launch/dgx.sh"
