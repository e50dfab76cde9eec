#include "host_memory.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>

namespace collbench {
namespace {

constexpr int kBind = 2;  // MPOL_BIND [linux/mempolicy.h]
constexpr int kWordBits = 8 * static_cast<int>(sizeof(unsigned long));
// Pinned memory is taken from all other processes, and larger messages would not be faster.
constexpr std::size_t kMaxMessage = std::size_t{1} << 30;
// Every GPU has two such buffers on each node, and keeps them: trials come in random order, and pinning the buffers
// again for each would take 0.15 s. Eight GPUs and two nodes take 8 GiB. Four messages of 64 MiB (measurement/plan.py)
// fit into one. On some hosts the caches keep a part of that, but on every node the same part.
constexpr std::size_t kMaxOnNode = std::size_t{256} << 20;

[[noreturn]] void refuse(const char* call, int node) {
  const int error = errno;
  const char* advice = "";
  if (error == EPERM) advice = "; in a container it needs CAP_SYS_NICE (docker run --cap-add SYS_NICE)";
  if (error == EINVAL) advice = "; there is no such node, or this process may not use its memory (cpuset)";
  throw PolicyError("cannot take memory on NUMA node " + std::to_string(node) + ": " + call + ": " +
                    std::strerror(error) + advice);
}

// While it lives, the memory that the calling thread takes comes from one node; afterwards the old policy applies
// again. Memory is placed when it is first used, pinned memory when it is made. A system call, because libnuma, which
// wraps it, is not installed everywhere. Throws PolicyError.
class OnNode {
 public:
  explicit OnNode(int node) {
    NodeMask nodes{};
    nodes.at(static_cast<std::size_t>(node / kWordBits)) = 1ul << (node % kWordBits);
    if (syscall(SYS_get_mempolicy, &mode_, nodes_.data(), kMaxNodes, nullptr, 0) != 0) refuse("get_mempolicy", node);
    if (set_policy(kBind, nodes) != 0) refuse("set_mempolicy", node);
  }
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;
  ~OnNode() { set_policy(mode_, nodes_); }

 private:
  using NodeMask = std::array<unsigned long, kMaxNodes / kWordBits>;
  // The kernel reads one bit less than this number [mm/mempolicy.c, get_nodes].
  static long set_policy(int mode, const NodeMask& nodes) {
    return syscall(SYS_set_mempolicy, mode, nodes.data(), kMaxNodes + 1);
  }
  int mode_ = 0;
  NodeMask nodes_{};
};

CUdeviceptr address(const PinnedMemory& memory) { return reinterpret_cast<CUdeviceptr>(memory.get()); }

PinnedMemory make_buffer(const Gpus& gpus, const Gpu& gpu, int position) {
  if (gpus.buffer_bytes() == 0) throw std::invalid_argument("host memory is sized like the buffers: allocate() first");
  std::optional<OnNode> bound;
  if (position != kHostPosition) bound.emplace(kNodePosition - position);
  return make_pinned(gpu.context.get(), host_bytes(gpus, position));
}

}  // namespace

std::string node_memory_refusal(int node) try {
  const OnNode bound(node);
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

}  // namespace collbench
