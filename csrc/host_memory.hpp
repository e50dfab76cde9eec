// Pinned host memory beside each GPU, for copies between the two. Made on first use, for pinning takes some 0.3 s/GiB,
// by the calling thread: its pages lie on the NUMA node where that thread runs, unless a memory policy or the position
// says otherwise.
#pragma once

#include "gpus.hpp"

namespace collbench {

// The position that stands for host memory anywhere; that of NUMA node n is kNodePosition - n.
constexpr int kHostPosition = -1;
constexpr int kNodePosition = -2;
inline bool is_host(int position) { return position <= kHostPosition; }

// Bytes of each host buffer at a position: as much as the device buffers have, at most what messages of 1 GiB need, and
// on a node less (host_memory.cpp). Each GPU has its own, so that several can be timed at once.
std::size_t host_bytes(const Gpus& gpus, int position);
// Sets the GPU's host data apart from every GPU's.
inline std::uint64_t host_seed(const Gpu& gpu) { return ~gpu.seed; }

// The GPU's host buffers at a position: what it reads, filled with the pattern of host_seed, and where it writes. One
// address for host and devices. Throws CudaError, PolicyError, std::invalid_argument before Gpus::allocate.
CUdeviceptr host_source(Gpus& gpus, Gpu& gpu, int position);
CUdeviceptr host_target(Gpus& gpus, Gpu& gpu, int position);

}  // namespace collbench
