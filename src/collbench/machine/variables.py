"""Environment variables of NCCL, CUDA and torch: which a run records, which make a figure false, who reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from collbench import annexes
from collbench.model.errors import UsageError, nearest

# Their values are numbers and words, nothing private [CUDA Programming Guide, "CUDA Environment Variables"].
OF_CUDA = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
)
# [PyTorch, "CUDA Environment Variables"]. Only torch's allocator reads them.
OF_TORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def recorded(environment: Mapping[str, str] = os.environ, *, torch: bool = False) -> dict[str, str]:
    """Return the variables that are set and change figures, NCCL's and CUDA's, and no others: the rest is private."""
    names = (*OF_CUDA, *(OF_TORCH if torch else ()))
    return {name: value for name, value in environment.items() if name.startswith("NCCL_") or name in names}


# Where a figure would be false (docs/method/measuring.md 5).


@dataclass(frozen=True, slots=True)
class Falsified:
    """A variable as it is set, why it makes figures false, and by which annexes' commands; () for whatever measures."""

    name: str
    value: str
    why: str
    commands: tuple[str, ...] = ()


# With which value, "" for any, it makes figures of annexes false that name it, and why.
_FOR_SOME = {
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        "1",
        "all streams of a GPU share one queue, in which the compute would wait behind the collective",
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (
        "",
        "torch takes and returns memory by calls that wait for the GPU, so nothing can be queued",
    ),
}


def falsified(environment: Mapping[str, str]) -> Iterator[Falsified]:
    """Yield each variable that makes figures false."""
    if switched_on(launches := environment.get("CUDA_LAUNCH_BLOCKING")):
        why = "every launch waits until its kernel has ended, so nothing can be queued, and NCCL may hang"
        yield Falsified("CUDA_LAUNCH_BLOCKING", launches or "", why)
    for name, (false, why) in _FOR_SOME.items():
        value = environment.get(name)
        commands = tuple(command for command, names in annexes.SPOILED.items() if name in names)
        if commands and value is not None and false in ("", value.strip()):
            yield Falsified(name, value, why, commands)


def refuse(command: str = "", environment: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError for the first variable that makes the figures of a command false."""
    for variable in falsified(environment):
        if not variable.commands or command in variable.commands:
            raise UsageError(f"{variable.name}={variable.value}: {variable.why}", f"unset {variable.name}")


def switched_on(value: str | None) -> bool:
    """Return whether CUDA reads a variable that is 0 or 1 as 1."""
    return (value or "").strip() not in ("", "0")


# All names that NCCL reads, to distinguish a typo from a rare one.

# Names are without "NCCL_". [NCCL 2.30.7, src/: NCCL_PARAM, DEFINE_NCCL_PARAM, ncclGetEnv, getenv]
_READ_BY_2_30 = """
ALGO ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECK_MODE CHECK_POINTERS CHUNK_SIZE
COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES
CONF_FILE CONNECT_ROUND_MAX_PEERS CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS
DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DEV_API_JIT DISABLE_MEM_MANAGER DMABUF_ENABLE ELASTIC_BUFFER_REGISTER
ENABLE_VERSION_CHECK ENV_PLUGIN GDAKI_USE_RELIABLE_DB GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE
GDRCOPY_SYNC_ENABLE GDR_FLUSH_DISABLE GIN_CONNECTION_RAIL GIN_ENABLE GIN_ERROR_QUERY_SEC
GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_TC
GIN_NCONNECTIONS GIN_PLUGIN GIN_PLUGIN_REF_COUNT GIN_PROXY_QUEUE_SIZE GIN_TYPE GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK
GRAPH_FILE GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER GRAPH_STREAM_ORDERING GROUP_CUDA_STREAM HOSTID
IBVERBS_LIB IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE IB_AR_THRESHOLD IB_DATA_DIRECT IB_DEVICE_PCI_ORDER
IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL
IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_OOO_RQ IB_PCI_RELAXED_ORDERING IB_PKEY IB_PREPOST_RECEIVE_WORK_REQUESTS
IB_QPS_PER_CONNECTION IB_QUERY_PORT_SPEED IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER
IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY IB_RESILIENCY_PORT_RECOVERY
IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX
IB_RESILIENCY_PORT_RECOVERY_START_DELAY IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM
IB_ROUTABLE_FLID_GID_INDEX IB_SL IB_SPLIT_DATA_ON_QPS IB_SUBNET_AWARE_ROUTING IB_SUBNET_PREFIX_LEN IB_TC IB_TIMEOUT
IB_USE_INLINE IB_WARN_RAIL_LOCAL IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P
IGNORE_NET_MISMATCH IPC_USE_ABSTRACT_SOCKET L1_SHARED_MEMORY_CARVEOUT LAUNCH_MODE LAUNCH_ORDER_IMPLICIT
LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LL128_BUFFSIZE LL128_C2C LL128_NTHREADS LL_BUFFSIZE LOCAL_REGISTER
LSA_TEAM_SIZE MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS
MIN_P2P_NCHANNELS MLOPART_RDMA_ENABLE MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE MNNVL_ENABLE MNNVL_RAIL_PER_HOST
MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE MULTI_SEGMENT_REGISTER NCHANNELS_PER_NET_PEER NET
NETDEVS_POLICY NET_DISABLE_INTRA NET_FORCE_FLUSH NET_FORCE_MERGE NET_GDR_C2C NET_GDR_LEVEL NET_GDR_MLOPART
NET_GDR_READ NET_MERGE_LEVEL NET_MERGE_POLICY NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NET_PLUGIN
NET_PLUGIN_REF_COUNT NET_SHARED_BUFFERS NET_SHARED_COMMS NO_CACHE NSOCKS_PERTHREAD NTHREADS NUM_RMA_CTX NVB_DISABLE
NVB_PRECONNECT NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_ENABLE NVLS_NCHANNELS
NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_EPOCH_ENABLE P2P_LEVEL
P2P_LL_THRESHOLD P2P_MAX_PEERS P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PER_CHANNEL_NET_BW
P2P_PXN_LEVEL P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE P2P_USE_CUDA_MEMCPY PARAM_DUMP_ALL PAT_ENABLE PROFILER_PLUGIN
PROGRESS_APPENDOP_FREQ PROTO PROXY_APPEND_BATCH_SIZE PROXY_CPUSET PROXY_DUMP_SIGNAL PXN_C2C PXN_DISABLE RAS_ADDR
RAS_ENABLE RAS_TIMEOUT_FACTOR REPORT_CONNECT_PROGRESS RMA_DISABLE RMA_PLUGIN RMA_PLUGIN_REF_COUNT
RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE RUNTIME_CONNECT SET_CPU_STACK_SIZE SET_STACK_SIZE SET_THREAD_NAME
SHADOW_MEMPOOL_MAX_SIZE SHM_DISABLE SHM_LOCALITY SINGLE_PROC_MEM_REG_ENABLE SOCKET_FAMILY SOCKET_IFNAME
SOCKET_INLINE SOCKET_MAGIC SOCKET_MIN_TASKSIZE SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC SOCKET_RCVBUF
SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_SNDBUF SYM_CE_THRESHOLD SYM_CTAS SYM_GIN_KERNELS_ENABLE SYM_KERNEL
SYM_NOWIN_ENABLE SYM_REUSE_SYSMEM_HANDLES SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE THREAD_THRESHOLDS TOPO_DUMP_FILE
TOPO_DUMP_FILE_RANK TOPO_FILE TOPO_SPLIT_MLOPART TUNER_CONFIG_FILE TUNER_PLUGIN UID_STAGGER_RATE
UID_STAGGER_THRESHOLD UNPACK_DOUBLE_NCHANNELS WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES
WORK_FIFO_BYTES
"""
# [NCCL 2.18 to 2.29, the same places; user guide, "Environment Variables"]
_READ_BEFORE = """
AGG_CHANNEL_SIZE CHECKS_DISABLE COLLNET_SHARED_BUFFERS DEBUG_FILE DEBUG_SUBSYS GDRCOPY_SYNC_ENABLE IB_CUDA_SUPPORT
IB_GDR_LEVEL LL_THRESHOLD NVLS_NCHANNELS RINGS SINGLE_RING_THRESHOLD TREE_THRESHOLD WORK_FIFO_DEPTH
"""
# Set by people and images, read by programs that build, start or extend NCCL: not by the library.
_READ_BY_OTHERS = """
ASYNC_ERROR_HANDLING BLOCKING_WAIT DESYNC_DEBUG HOME INCLUDE_DIR INCLUDE_DIRS LIBRARIES LIB_DIR LIBRARY ROOT ROOT_DIR
USE_COMM_NONBLOCKING VERSION
"""

NCCL_NAMES = frozenset(f"NCCL_{name}" for name in f"{_READ_BY_2_30} {_READ_BEFORE}".split())
OTHERS_NAMES = frozenset(f"NCCL_{name}" for name in _READ_BY_OTHERS.split())
# Variables of these parts do nothing between GPUs of one host.
_BETWEEN_HOSTS = ("NCCL_IB_", "NCCL_SOCKET_", "NCCL_OOB_", "NCCL_PXN", "NCCL_CROSS_NIC")


def reader(name: str) -> str:
    """Return who reads a variable, as a clause; "" for a name that nobody reads."""
    if name in OTHERS_NAMES:
        return "read not by NCCL but by programs that build, ship or start it"
    if name not in NCCL_NAMES:
        return ""
    return f"read by NCCL{' between hosts only' if name.startswith(_BETWEEN_HOSTS) else ''}"


def meant(name: str) -> str:
    """Return the variable that was probably meant by a name that nobody reads; "" for none."""
    return nearest(name, sorted(NCCL_NAMES), cutoff=0.85)
