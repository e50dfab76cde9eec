#include "host_memory.hpp"

#include <algorithm>
#include <stdexcept>

#include "numa_node.hpp"

namespace collbench {
namespace {

// Pinned memory is taken from all other processes, and larger messages would not be faster.
constexpr std::size_t kMaxMessage = std::size_t{1} << 30;
// Every GPU has two such buffers on each node, and keeps them: trials come in random order, and pinning the buffers
// again for each would take 0.15 s. Eight GPUs and two nodes take 8 GiB. Four messages of 64 MiB (measurement/plan.py)
// fit into one. On some hosts the caches keep a part of that, but on every node the same part.
constexpr std::size_t kMaxOnNode = std::size_t{256} << 20;
constexpr std::size_t kBuffersOnNode = 2;

CUdeviceptr address(const PinnedMemory& memory) { return reinterpret_cast<CUdeviceptr>(memory.get()); }

PinnedMemory make_buffer(const Gpus& gpus, const Gpu& gpu, int position) {
  if (gpus.buffer_bytes() == 0) throw std::invalid_argument("host memory is sized like the buffers: allocate() first");
  const std::size_t bytes = host_bytes(gpus, position);
  if (position == kHostPosition) return make_pinned(gpu.context.get(), bytes);
  const OnNode there(kNodePosition - position, bytes);
  PinnedMemory made = make_pinned(gpu.context.get(), bytes);
  there.verify(made.get(), bytes);
  return made;
}

}  // namespace

std::string node_memory_refusal(int node, int gpus) try {
  const OnNode there(node, static_cast<std::size_t>(gpus) * kBuffersOnNode * Gpus::buffer_for(kMaxOnNode));
  return "";
} catch (const PolicyError& error) {
  return error.what();
}

std::size_t host_bytes(const Gpus& gpus, int position) {
  return std::min(gpus.host_buffer_bytes(), Gpus::buffer_for(position == kHostPosition ? kMaxMessage : kMaxOnNode));
}

CUdeviceptr host_source(Gpus& gpus, Gpu& gpu, int position) {
  PinnedMemory& source = gpu.host[position].source;
  if (source.get() == nullptr) {
    PinnedMemory made = make_buffer(gpus, gpu, position);
    gpu.fill(address(made), {0, 0, host_bytes(gpus, position), 1}, host_seed(gpu), 0);
    gpu.wait(kSetupSeconds);
    source = std::move(made);
  }
  return address(source);
}

CUdeviceptr host_target(Gpus& gpus, Gpu& gpu, int position) {
  PinnedMemory& target = gpu.host[position].target;
  if (target.get() == nullptr) target = make_buffer(gpus, gpu, position);
  return address(target);
}

void pin_host(Gpus& gpus, const std::vector<std::pair<int, int>>& links) {
  for (const auto& [from, to] : links) {
    if (is_host(from))
      host_source(gpus, gpus[to], from);
    else
      host_target(gpus, gpus[from], to);
  }
}

}  // namespace collbench
