#include "host_memory.hpp"

#include <algorithm>
#include <stdexcept>

namespace collbench {
namespace {

// Pinned memory is taken from everybody; larger messages would not be any faster.
constexpr std::size_t kMostMessage = std::size_t{1} << 30;

CUdeviceptr address(const PinnedMemory& memory) { return reinterpret_cast<CUdeviceptr>(memory.get()); }

PinnedMemory make_buffer(const Gpus& gpus, const Gpu& gpu) {
  if (gpus.buffer_bytes() == 0) throw std::invalid_argument("host memory is sized like the buffers: allocate() first");
  return make_pinned(gpu.context.get(), host_bytes(gpus));
}

}  // namespace

std::size_t host_bytes(const Gpus& gpus) { return std::min(gpus.buffer_bytes(), Gpus::buffer_for(kMostMessage)); }

CUdeviceptr host_source(Gpus& gpus, Gpu& gpu) {
  if (gpu.host.source.get() == nullptr) {
    PinnedMemory made = make_buffer(gpus, gpu);
    gpus.fill(gpu, address(made), host_bytes(gpus), host_seed(gpu));
    gpus.wait(gpu, kSetupSeconds);
    gpu.host.source = std::move(made);
  }
  return address(gpu.host.source);
}

CUdeviceptr host_target(Gpus& gpus, Gpu& gpu) {
  if (gpu.host.target.get() == nullptr) gpu.host.target = make_buffer(gpus, gpu);
  return address(gpu.host.target);
}

}  // namespace collbench
