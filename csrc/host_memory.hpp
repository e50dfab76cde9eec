// Pinned host memory for each GPU's host copies, on a NUMA node of the caller's choice.
#pragma once

#include <array>
#include <string>

#include "gpus.hpp"

namespace collbench {

// The position of host memory on any node; that of NUMA node n is kNodePosition - n.
constexpr int kHostPosition = -1;
constexpr int kNodePosition = -2;
inline bool is_host(int position) { return position <= kHostPosition; }
// NUMA nodes have numbers below this: the most that a kernel is built for (CONFIG_NODES_SHIFT is 10 at most).
constexpr int kMostNodes = 1024;

// Why this process may not bind memory to the node; "" where it may.
std::string node_memory_refusal(int node);

// Bytes of each host buffer at a position: as much as the device buffers have, at most what messages of 1 GiB need, and
// on a node less (host_memory.cpp). Each GPU has its own, so that several can be timed at once.
std::size_t host_bytes(const Gpus& gpus, int position);
// Sets the GPU's host data apart from every GPU's.
inline std::uint64_t host_seed(const Gpu& gpu) { return ~gpu.seed; }

// The GPU's host buffers at a position: what it reads, filled with the pattern of host_seed, and where it writes. One
// address for host and devices. Made on first use, for pinning takes some 0.3 s/GiB, by the calling thread: on the NUMA
// node where that thread runs, unless a memory policy or the position says otherwise. Throws CudaError, PolicyError,
// std::invalid_argument before Gpus::allocate.
CUdeviceptr host_source(Gpus& gpus, Gpu& gpu, int position);
CUdeviceptr host_target(Gpus& gpus, Gpu& gpu, int position);

}  // namespace collbench
