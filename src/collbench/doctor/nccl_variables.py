"""What the well-known NCCL_* variables do, one line each, and what a value that is set costs. Pure.

[NCCL user guide, "Environment Variables", 2.18 to 2.29; where it is silent, the source of NCCL 2.30.7]
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from collbench.doctor.nccl_names import NCCL_NAMES, OTHERS_NAMES

# Names without "NCCL_". What each does, in words that hold for any value.
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
HOSTID                  | names the host, to decide who shares one
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
P2P_PXN_LEVEL           | when send and receive go through a GPU beside the network card
P2P_READ_ENABLE         | the receiver reads over NVLink instead of the sender writing
P2P_USE_CUDA_MEMCPY     | copy engines instead of kernels between GPUs
PAT_ENABLE              | allows the PAT algorithm
PROFILER_PLUGIN         | library that is told of every operation
PROTO                   | restricts the protocols: LL, LL128, Simple
PXN_DISABLE             | no way through a GPU beside the network card
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

# Variables of these parts do nothing between GPUs of one host.
_BETWEEN_HOSTS = ("NCCL_IB_", "NCCL_SOCKET_", "NCCL_OOB_", "NCCL_PXN", "NCCL_CROSS_NIC")

# (name, value or "" for any, what it costs). The value as NCCL reads it: numbers by strtoll, words in any case.
_COSTS = (
    ("P2P_DISABLE", "1", "all data between GPUs goes through host memory"),
    ("P2P_LEVEL", "LOC", "all data between GPUs goes through host memory"),
    ("P2P_LEVEL", "0", "all data between GPUs goes through host memory"),
    ("CUMEM_ENABLE", "0", "NVLS and memory windows are off"),
    ("SHM_DISABLE", "1", "GPUs without peer access talk through the network, even on one host"),
    ("CHECK_POINTERS", "1", "each call takes longer"),
    ("DEBUG", "TRACE", "every call gets slower"),
    ("ALGO", "", "NCCL cannot take its best for each size and operation"),
    ("PROTO", "", "NCCL cannot take its best for each size; LL128 forced where it is unsafe corrupts data"),
    ("GRAPH_FILE", "", "rings of another machine would be taken as they are"),
    ("TOPO_FILE", "", "a file of another machine misleads NCCL: compare with NCCL_TOPO_DUMP_FILE"),
    ("MAX_NCHANNELS", "", "fewer channels than NCCL would take lower bandwidth"),
    ("MAX_CTAS", "", "fewer thread blocks than NCCL would take lower bandwidth"),
    ("NTHREADS", "", "fewer threads than NCCL would take lower bandwidth"),
    ("BUFFSIZE", "", "smaller buffers than 4 MiB lower bandwidth"),
    ("NVB_DISABLE", "1", "GPUs without a link of their own use PCIe"),
    ("IB_DISABLE", "1", "between hosts everything goes over sockets"),
    ("IB_CUDA_SUPPORT", "", "it is read no more"),
    ("CHECKS_DISABLE", "", "it is read no more"),
    ("SINGLE_RING_THRESHOLD", "", "it is read no more"),
    ("TREE_THRESHOLD", "", "it is read no more"),
)

# Read as whole numbers: any other text counts as 0 [src/misc/param.cc, ncclLoadParam: strtoll].
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
    """What is known of one variable with its value. `does` is "" for a name that NCCL does not read.

    `cost` says what this value costs here, "" where nothing; `near` is the name that was probably meant.
    """

    does: str
    cost: str = ""
    near: str = ""


def meaning(name: str, value: str) -> Meaning:
    """Return what a variable does in NCCL, and what its value costs."""
    short = name.removeprefix("NCCL_")
    if name in OTHERS_NAMES:
        return Meaning("not read by NCCL itself, but by programs that build, ship or start it")
    if name not in NCCL_NAMES and short not in _described():
        near = difflib.get_close_matches(name, _candidates(), n=1, cutoff=0.85)
        return Meaning("", near=near[0] if near else "")
    does = _described().get(short, "read by NCCL, and not in its documentation")
    between = " (between hosts only)" if name.startswith(_BETWEEN_HOSTS) else ""
    return Meaning(does + between, cost=_not_a_number(short, value) or _cost(short, value))


def _described() -> dict[str, str]:
    rows = (line.partition("|") for line in _DOES.strip().splitlines())
    return {name.strip(): does.strip() for name, _, does in rows}


def _candidates() -> list[str]:
    """Return the names to suggest, the described ones first: a typo is rather of a well-known name."""
    described = [f"NCCL_{name}" for name in _described()]
    return [*described, *sorted(NCCL_NAMES.difference(described))]


def _cost(short: str, value: str) -> str:
    given = value.strip().upper()
    return next((cost for name, costly, cost in _COSTS if name == short and costly in ("", given)), "")


def _not_a_number(short: str, value: str) -> str:
    text = value.strip()
    if short not in _NUMBERS or not text or text.removeprefix("-").removeprefix("0x")[:1].isdigit():
        return ""
    return "NCCL reads a whole number here, and takes this text for 0"
