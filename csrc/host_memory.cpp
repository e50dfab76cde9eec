#include "host_memory.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "memory_policy.hpp"

namespace collbench {
namespace {

// Pinned memory is taken from everybody; larger messages would not be any faster.
constexpr std::size_t kMostMessage = std::size_t{1} << 30;
// On each node every GPU has two of these, and they stay: visits come in random order, and pinning them anew for each
// would take 0.15 s. Eight GPUs and two nodes take 8 GiB. Four messages of 64 MiB (planning.py) follow one another in
// them; a node's caches keep part of that on some hosts, but the same part on every node of it.
constexpr std::size_t kMostOnNode = std::size_t{256} << 20;

CUdeviceptr address(const PinnedMemory& memory) { return reinterpret_cast<CUdeviceptr>(memory.get()); }

PinnedMemory make_buffer(const Gpus& gpus, const Gpu& gpu, int position) {
  if (gpus.buffer_bytes() == 0) throw std::invalid_argument("host memory is sized like the buffers: allocate() first");
  std::optional<OnNode> bound;
  if (position != kHostPosition) bound.emplace(kNodePosition - position);
  return make_pinned(gpu.context.get(), host_bytes(gpus, position));
}

}  // namespace

std::size_t host_bytes(const Gpus& gpus, int position) {
  return std::min(gpus.buffer_bytes(), Gpus::buffer_for(position == kHostPosition ? kMostMessage : kMostOnNode));
}

CUdeviceptr host_source(Gpus& gpus, Gpu& gpu, int position) {
  PinnedMemory& source = gpu.host.buffers[position].source;
  if (source.get() == nullptr) {
    PinnedMemory made = make_buffer(gpus, gpu, position);
    gpus.fill(gpu, address(made), host_bytes(gpus, position), host_seed(gpu));
    gpus.wait(gpu, kSetupSeconds);
    source = std::move(made);
  }
  return address(source);
}

CUdeviceptr host_target(Gpus& gpus, Gpu& gpu, int position) {
  PinnedMemory& target = gpu.host.buffers[position].target;
  if (target.get() == nullptr) target = make_buffer(gpus, gpu, position);
  return address(target);
}

}  // namespace collbench
