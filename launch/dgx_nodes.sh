# shellcheck shell=bash
# What DGX systems of several nodes share; a config_<N>x<SYSTEM>.sh sources it and names its own InfiniBand ports.
# Network: gradients by NCCL over InfiniBand; start-up and host values by Open MPI over Ethernet, without UCX. Both
# meet on the interface by which the other nodes of HOSTS reach this one (harness/network.py), unless NCCL_SOCKET_IFNAME or
# OMPI_MCA_btl_tcp_if_include names another.
# SPDX-License-Identifier: Apache-2.0
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,sm,tcp}"
export CONT_DEVICES="${CONT_DEVICES-/dev/infiniband}"
