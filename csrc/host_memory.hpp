// Pinned host memory for each GPU's host copies, on a NUMA node of the caller's choice.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gpus.hpp"

namespace collbench {

// The position that stands for host memory on any node; host memory on NUMA node n is at kNodePosition - n.
constexpr int kHostPosition = -1;
constexpr int kNodePosition = -2;
inline bool is_host(int position) { return position <= kHostPosition; }

// Returns why this process cannot take memory on the node for the buffers of so many GPUs; "" where it can.
std::string node_memory_refusal(int node, int gpus);

// Bytes of each host buffer at a position: as many as Gpus::allocate was told, but at most what messages of 1 GiB need,
// on a node 256 MiB (host_memory.cpp). Each GPU has its own buffers, so that several can be timed at once.
std::size_t host_bytes(const Gpus& gpus, int position);
// Seed of what the GPU's host buffer holds: unlike any GPU's own.
inline std::uint64_t host_seed(const Gpu& gpu) { return ~gpu.seed; }

// The GPU's host buffers at a position: host_source is what it reads, filled with the pattern of host_seed; host_target
// is where it writes. Host and devices see the same address. Made on first use, because pinning takes some 0.3 s/GiB.
// The memory lies on the NUMA node of the calling thread, unless a memory policy or the position says otherwise. Throws
// CudaError, PolicyError, std::invalid_argument before Gpus::allocate.
CUdeviceptr host_source(Gpus& gpus, Gpu& gpu, int position);
CUdeviceptr host_target(Gpus& gpus, Gpu& gpu, int position);
// Makes the host buffers of these transfers (as in CopyRound), one after another: four threads took as long on 2 ×
// H200. Throws as these two.
void pin_host(Gpus& gpus, const std::vector<std::pair<int, int>>& links);

}  // namespace collbench
