# shellcheck shell=bash
# What DGX systems of several nodes share; a config_<N>x<SYSTEM>.sh sources it and names its own InfiniBand ports.
# Network: gradients by NCCL over InfiniBand; start-up and host values by Open MPI over Ethernet, without UCX
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-^lo,docker}"
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,sm,tcp}"
export OMPI_MCA_btl_tcp_if_exclude="${OMPI_MCA_btl_tcp_if_exclude:-lo,docker0}" # docker0 has one address on all hosts
export CONT_DEVICES="${CONT_DEVICES-/dev/infiniband}"
