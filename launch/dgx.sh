# shellcheck shell=bash
# What the DGX systems share; a config_<SYSTEM>.sh sources it.
# SPDX-License-Identifier: Apache-2.0
export DEVICE="${DEVICE:-gpu}"

## Ranks: one a GPU
export DGXNGPU="${DGXNGPU:-8}"
export THREADS="${THREADS:-4}"

## Work of one device
export RN50_RECIPE="${RN50_RECIPE:-nvidia_cosine}"
export RN50_BATCHSIZE="${RN50_BATCHSIZE:-256}"
export HRNET_RECIPE="${HRNET_RECIPE:-cityscapes_80k}"
export HRNET_BATCHSIZE="${HRNET_BATCHSIZE:-2}"
export PRECISION="${PRECISION:-amp_o2}"

## Steps: those of MODE=throughput are a minute on a DGX A100; a printed window waits for the GPUs
export WARMUP_STEPS="${WARMUP_STEPS:-50}"
export MEASURED_STEPS="${MEASURED_STEPS:-500}"
export PRINT_STEPS="${PRINT_STEPS:-10}"

## cuDNN, by Paddle's own flags (a knob of STRATEGY wins over them); its workspace: harness/memory.py, by the card's memory
export FLAGS_cudnn_exhaustive_search="${FLAGS_cudnn_exhaustive_search:-1}"        # all algorithms, on the first step
export FLAGS_cudnn_batchnorm_spatial_persistent="${FLAGS_cudnn_batchnorm_spatial_persistent:-1}"

## Container
export CONT_GPUS="${CONT_GPUS:-all}"
export CONT_SHM_SIZE="${CONT_SHM_SIZE:-8g}" # NCCL's buffers between GPUs without a direct link
export CONT_MEMLOCK="${CONT_MEMLOCK:--1}" # RDMA and GPU copies lock memory
export CONT_IPC="${CONT_IPC:-private}"
