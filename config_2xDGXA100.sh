# shellcheck shell=bash
# 2 DGX A100, 16 x A100:  CONT=paddle-reference DGXSYSTEM=2xDGXA100 DATADIR=/data/imagenet launch/mpirun.sh --hosts node1,node2
# Throughput to expect: not measured; a published figure of Paddle is not known here.
export DGXNNODES="${DGXNNODES:-2}"

## Network: gradients by NCCL over the eight compute ports (mlx5_4 and mlx5_5 are storage's); start-up and host values by
## Open MPI over Ethernet, without UCX
export NCCL_IB_HCA="${NCCL_IB_HCA:-mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9}"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-^lo,docker}"
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,sm,tcp}"
export OMPI_MCA_btl_tcp_if_exclude="${OMPI_MCA_btl_tcp_if_exclude:-lo,docker0}" # docker0 has one address on all hosts
export CONT_DEVICES="${CONT_DEVICES-/dev/infiniband}"

# shellcheck source=config_DGXA100.sh
source "$(dirname "${BASH_SOURCE[0]}")/config_DGXA100.sh"
