# shellcheck shell=bash
# DGX-1, 8 x V100:  DGXSYSTEM=DGX1 DATADIR=/data/imagenet ./run_and_time.sh        one GPU: DGXNGPU=1 before it
# Throughput to expect: by this code not measured. Published for 8 x V100 32 GB, AMP O2, batch 256: 10937 images/s, FP32: 3019
# (PaddlePaddle/Perf ResNet50V1.5, Paddle 2.5.0). For 16 GB: FP32, batch 128: 2621 images/s (DLPerf, Paddle 1.8.3).
export DEVICE="${DEVICE:-gpu}"

## Ranks: one a GPU, on the cores of its socket (GPU 0 to 3 hang on the first)
export DGXNNODES="${DGXNNODES:-1}"
export DGXNGPU="${DGXNGPU:-8}"
export RANK_NUMA="${RANK_NUMA-0,0,0,0,1,1,1,1}"
export THREADS="${THREADS:-4}"
export DATA_THREADS="${DATA_THREADS:-4}" # of 5 cores a GPU

## Work of one device
export RECIPE="${RECIPE:-$([[ ${WORKLOAD:-rn50} == hrnet ]] && echo cityscapes_80k || echo nvidia_cosine)}"
export BATCHSIZE="${BATCHSIZE:-$([[ ${WORKLOAD:-rn50} == hrnet ]] && echo 2 || echo 256)}" # fits 32 GB; on 16 GB set 128
export PRECISION="${PRECISION:-amp_o2}"

## cuDNN, by Paddle's own flags (a knob of STRATEGY wins over them)
export FLAGS_conv_workspace_size_limit="${FLAGS_conv_workspace_size_limit:-4000}" # MiB a convolution may use
export FLAGS_cudnn_exhaustive_search="${FLAGS_cudnn_exhaustive_search:-1}"        # all algorithms, on the first step
export FLAGS_cudnn_batchnorm_spatial_persistent="${FLAGS_cudnn_batchnorm_spatial_persistent:-1}"

## Container
export CONT_GPUS="${CONT_GPUS:-all}"
export CONT_SHM_SIZE="${CONT_SHM_SIZE:-8g}" # NCCL's buffers between GPUs without a direct link
export CONT_MEMLOCK="${CONT_MEMLOCK:--1}" # RDMA and GPU copies lock memory
export CONT_IPC="${CONT_IPC:-private}"
