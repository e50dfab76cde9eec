"""NCCL's variables: all names, to distinguish a typo from a rare name, and what the well-known ones do and cost."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

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


# What the well-known ones do, in words that hold for any value.
# [NCCL user guide, "Environment Variables", 2.18 to 2.29; where it is silent, the source of NCCL 2.30.7]
_DOES = """
ALGO                    | restricts the algorithms: Ring, Tree, NVLS, NVLSTree, CollnetDirect, CollnetChain, PAT
ALLOC_P2P_NET_LL_BUFFERS | allocates low-latency buffers for send and receive over the network
BUFFSIZE                | size of the buffers between two GPUs in bytes (4 MiB unless set)
CGA_CLUSTER_SIZE        | size of the thread block clusters (Hopper and newer)
CHECKS_DISABLE          | was replaced by NCCL_CHECK_POINTERS
CHECK_POINTERS          | checks every pointer of every call
COLLNET_ENABLE          | lets network switches reduce (SHARP), through a plugin
COMM_BLOCKING           | makes all communicators blocking (1) or not (0)
COMM_ID                 | address at which ranks meet without a unique id
CONF_FILE               | reads variables from this file instead of ~/.nccl.conf
CROSS_NIC               | lets rings and trees use different network cards on different hosts
CTA_POLICY              | how many thread blocks collectives may take: 0 default, 1 efficiency, 2 none where possible
CUMEM_ENABLE            | allocates with CUDA's virtual memory calls; NVLS and windows need it
CUMEM_HOST_ENABLE       | shares host memory by CUDA's calls instead of /dev/shm (on from driver CUDA 12.6)
DEBUG                   | prints what NCCL does: VERSION, WARN, INFO or TRACE
DEBUG_FILE              | file for that output
DEBUG_SUBSYS            | parts of NCCL to print of: INIT, GRAPH, ENV, TUNING, …
DMABUF_ENABLE           | network cards reach GPU memory by dma-buf, where the kernel has it
ENV_PLUGIN              | loads a library that answers what variables say
GIN_ENABLE              | lets kernels start network transfers
GRAPH_FILE              | takes rings and trees from this file instead of searching
GRAPH_DUMP_FILE         | writes the rings and trees that were found
GRAPH_MIXING_SUPPORT    | lets CUDA graphs and plain launches share a communicator at one time
GRAPH_REGISTER          | registers user buffers of CUDA graphs
HOSTID                  | names the host: ranks with one name share a host
IB_DISABLE              | leaves InfiniBand and RoCE out
IB_HCA                  | network cards to use
IB_GID_INDEX            | entry of the RoCE address table
IB_TC                   | traffic class of InfiniBand and RoCE packets
IB_TIMEOUT              | how long InfiniBand waits before it sends again
IB_RETRY_CNT            | how often InfiniBand sends again
IB_SL                   | service level of InfiniBand packets
IB_AR_THRESHOLD         | size from which adaptive routing is used
IB_ADAPTIVE_ROUTING     | lets InfiniBand choose its routes
IB_QPS_PER_CONNECTION   | queue pairs for each connection
IB_SPLIT_DATA_ON_QPS    | splits each message over the queue pairs
IB_PCI_RELAXED_ORDERING | lets network cards reorder PCIe writes; virtual machines need it
IB_CUDA_SUPPORT         | was replaced by NCCL_NET_GDR_LEVEL
IB_MERGE_NICS           | takes two ports of a card as one
IGNORE_CPU_AFFINITY     | lets NCCL's threads leave the CPUs that the job was given
IGNORE_DISABLED_P2P     | goes on where an NVLink exists and peer access is refused
LAUNCH_MODE             | how kernels of several GPUs of one process start: PARALLEL or GROUP
LOCAL_REGISTER          | registers user buffers when the program asks for it
MAX_CTAS                | most thread blocks that collectives may take
MAX_NCHANNELS           | most channels, each of them a thread block and a ring
MIN_CTAS                | fewest thread blocks that collectives take
MIN_NCHANNELS           | fewest channels
MAX_P2P_NCHANNELS       | most channels for send and receive
MIN_P2P_NCHANNELS       | fewest channels for send and receive
MEM_SYNC_DOMAIN         | memory domain of NCCL's kernels (Hopper and newer)
MNNVL_ENABLE            | uses NVLinks between hosts
NCHANNELS_PER_NET_PEER  | channels for each peer over the network
NET                     | network module to use: Socket, IB, or a plugin's name
NET_GDR_LEVEL           | how far from a network card a GPU may be for direct transfers
NET_GDR_READ            | lets network cards read GPU memory when they send
NET_GDR_C2C             | direct transfers through the CPU's own link to the GPU
NET_DISABLE_INTRA       | no network between GPUs of one host
NET_PLUGIN              | library that provides the network
NET_SHARED_BUFFERS      | shares network buffers between connections
NET_SHARED_COMMS        | shares network connections between channels
NSOCKS_PERTHREAD        | sockets for each helper thread
NTHREADS                | threads of each block
NVB_DISABLE             | no detour over another GPU's NVLinks
NVLS_ENABLE             | reductions inside the NVLink switch (NVLink SHARP): 0 off, 1 on, 2 where supported (default)
NVLS_NCHANNELS          | channels of reductions inside the NVLink switch
NVLSTREE_MAX_CHUNKSIZE  | largest piece of trees over NVLink switches
NVTX_DISABLE            | no marks for profilers
OOB_NET_ENABLE          | ranks find each other over the fast network
P2P_DISABLE             | no direct access between GPUs, over NVLink or PCIe
P2P_DIRECT_DISABLE      | no direct access to user buffers between GPUs of one process
P2P_LEVEL               | how far apart GPUs may be for direct access: LOC, NVL, PIX, PXB, PHB or SYS
P2P_NET_CHUNKSIZE       | size of pieces of send and receive over the network
P2P_NVL_CHUNKSIZE       | size of pieces of send and receive over NVLink
P2P_PCI_CHUNKSIZE       | size of pieces of send and receive over PCIe
P2P_PXN_LEVEL           | when send and receive go through a GPU near the network card
P2P_READ_ENABLE         | the receiver reads over NVLink instead of the sender writing
P2P_USE_CUDA_MEMCPY     | copy engines instead of kernels between GPUs
PAT_ENABLE              | allows the PAT algorithm
PROFILER_PLUGIN         | library that gets every operation as an event
PROTO                   | restricts the protocols: LL, LL128, Simple
PXN_DISABLE             | no way through a GPU near the network card
RAS_ENABLE              | a thread that answers questions about running jobs
RUNTIME_CONNECT         | connects when an algorithm is first used instead of at the start
SET_STACK_SIZE          | sets the CUDA stack size at the start
SET_THREAD_NAME         | names NCCL's threads
SHM_DISABLE             | no host memory between GPUs without direct access: the network instead
SHM_LOCALITY            | on whose side shared host memory lies: 1 sender, 2 receiver
SINGLE_RING_THRESHOLD   | was of old releases
SOCKET_FAMILY           | addresses to use: AF_INET or AF_INET6
SOCKET_IFNAME           | network interfaces to use
SOCKET_NTHREADS         | helper threads for each connection
TOPO_FILE               | takes the machine's topology from this file before looking itself
TOPO_DUMP_FILE          | writes the topology that was found
TREE_THRESHOLD          | was replaced by NCCL_ALGO
TUNER_PLUGIN            | library that chooses algorithms instead of NCCL
TUNER_CONFIG_FILE       | file of NCCL's example tuner
WIN_ENABLE              | allows memory windows, which symmetric kernels need
WORK_FIFO_BYTES         | memory for arguments of kernels
"""
_DESCRIBED = {name.strip(): does.strip() for name, _, does in (row.partition("|") for row in _DOES.split("\n") if row)}

# Variables of these parts do nothing between GPUs of one host.
_BETWEEN_HOSTS = ("NCCL_IB_", "NCCL_SOCKET_", "NCCL_OOB_", "NCCL_PXN", "NCCL_CROSS_NIC")

# (name, value or "" for any, what it costs). The value as NCCL reads it: numbers by strtoll, words in any case.
_COSTS = (
    ("P2P_DISABLE", "1", "all data between GPUs goes through host memory"),
    ("P2P_LEVEL", "LOC", "all data between GPUs goes through host memory"),
    ("P2P_LEVEL", "0", "all data between GPUs goes through host memory"),
    ("CUMEM_ENABLE", "0", "NVLS and memory windows are off"),
    ("SHM_DISABLE", "1", "GPUs without peer access use the network, even on one host"),
    ("CHECK_POINTERS", "1", "each call takes longer"),
    ("DEBUG", "TRACE", "every call gets slower"),
    ("ALGO", "", "NCCL cannot choose the best for each size and operation"),
    ("PROTO", "", "NCCL cannot choose the best for each size; LL128 forced where it is unsafe corrupts data"),
    ("GRAPH_FILE", "", "rings of another machine would be used unchecked"),
    ("TOPO_FILE", "", "a file of another machine misleads NCCL: compare with NCCL_TOPO_DUMP_FILE"),
    ("MAX_NCHANNELS", "", "fewer channels than NCCL would choose lower bandwidth"),
    ("MAX_CTAS", "", "fewer thread blocks than NCCL would choose lower bandwidth"),
    ("NTHREADS", "", "fewer threads than NCCL would choose lower bandwidth"),
    ("BUFFSIZE", "", "smaller buffers than 4 MiB lower bandwidth"),
    ("NVB_DISABLE", "1", "GPUs without a link of their own use PCIe"),
    ("IB_DISABLE", "1", "between hosts all traffic uses sockets"),
    ("IB_CUDA_SUPPORT", "", "NCCL no longer reads it"),
    ("CHECKS_DISABLE", "", "NCCL no longer reads it"),
    ("SINGLE_RING_THRESHOLD", "", "NCCL no longer reads it"),
    ("TREE_THRESHOLD", "", "NCCL no longer reads it"),
)

# Read as whole numbers: any other text counts as 0 [src/misc/param.cc, ncclLoadParam: strtoll].
_NUMBER = re.compile(r"[+-]?(0x[0-9a-f]|[0-9])", re.IGNORECASE | re.ASCII)
_NUMBERS = (
    *("BUFFSIZE", "CHECK_POINTERS", "COLLNET_ENABLE", "COMM_BLOCKING", "CROSS_NIC", "CUMEM_ENABLE"),
    *("CUMEM_HOST_ENABLE", "DMABUF_ENABLE", "GRAPH_REGISTER", "IB_DISABLE", "IB_GID_INDEX", "IB_TC", "IB_TIMEOUT"),
    *("IB_QPS_PER_CONNECTION", "IGNORE_CPU_AFFINITY", "LOCAL_REGISTER", "MAX_CTAS", "MAX_NCHANNELS", "MIN_CTAS"),
    *("MIN_NCHANNELS", "MNNVL_ENABLE", "NET_GDR_READ", "NTHREADS", "NVB_DISABLE", "NVLS_ENABLE", "P2P_DIRECT_DISABLE"),
    *("P2P_DISABLE", "P2P_READ_ENABLE", "P2P_USE_CUDA_MEMCPY", "PXN_DISABLE", "RAS_ENABLE", "SHM_DISABLE"),
    *("SOCKET_NTHREADS", "NSOCKS_PERTHREAD", "WIN_ENABLE"),
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is known of one variable with its value."""

    does: str  # "" for a name that NCCL does not read
    cost: str = ""  # of this value, here; "" if there is none
    near: str = ""  # the name that was probably meant


def meaning(name: str, value: str) -> Meaning:
    """Return what a variable does in NCCL, and what its value costs."""
    short = name.removeprefix("NCCL_")
    if name in OTHERS_NAMES:
        return Meaning("read not by NCCL but by programs that build, ship or start it")
    if name not in NCCL_NAMES and short not in _DESCRIBED:
        described = [f"NCCL_{known}" for known in _DESCRIBED]  # first: a typo is rather of a well-known name
        names = [*described, *sorted(NCCL_NAMES.difference(described))]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
        return Meaning("", near=near[0] if near else "")
    does = _DESCRIBED.get(short, "read by NCCL, but not documented")
    between = " (between hosts only)" if name.startswith(_BETWEEN_HOSTS) else ""
    return Meaning(does + between, cost=_not_a_number(short, value) or _cost(short, value))


def _cost(short: str, value: str) -> str:
    given = value.strip().upper()
    return next((cost for name, costly, cost in _COSTS if name == short and costly in ("", given)), "")


def _not_a_number(short: str, value: str) -> str:
    text = value.strip()
    if short not in _NUMBERS or not text or _NUMBER.match(text):
        return ""
    return "NCCL expects a whole number here and reads this text as 0"
