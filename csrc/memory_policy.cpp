#include "memory_policy.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "errors.hpp"

namespace collbench {
namespace {

constexpr int kBind = 2;  // MPOL_BIND [linux/mempolicy.h]

// By system call: libnuma, which wraps it, is not everywhere. The kernel counts one bit less than it is told here
// [mm/mempolicy.c, get_nodes].
long set_policy(int mode, const NodeMask& nodes) {
  return syscall(SYS_set_mempolicy, mode, nodes.data(), kMostNodes + 1);
}

long get_policy(int& mode, NodeMask& nodes) {
  return syscall(SYS_get_mempolicy, &mode, nodes.data(), kMostNodes, nullptr, 0);
}

const char* advice(int error) {
  if (error == EPERM) return "; in a container it needs CAP_SYS_NICE (docker run --cap-add SYS_NICE)";
  if (error == EINVAL) return "; there is no such node, or this process may not use its memory (cpuset)";
  return "";
}

[[noreturn]] void refuse(const char* call, int node) {
  const int error = errno;
  throw PolicyError("cannot take memory on NUMA node " + std::to_string(node) + ": " + call + ": " +
                    std::strerror(error) + advice(error));
}

}  // namespace

OnNode::OnNode(int node) {
  NodeMask nodes{};
  nodes.at(static_cast<std::size_t>(node / kNodeWordBits)) = 1ul << (node % kNodeWordBits);
  if (get_policy(mode_, nodes_) != 0) refuse("get_mempolicy", node);
  if (set_policy(kBind, nodes) != 0) refuse("set_mempolicy", node);
}

OnNode::~OnNode() { set_policy(mode_, nodes_); }

std::string node_memory_refusal(int node) try {
  const OnNode bound(node);
  return "";
} catch (const PolicyError& error) {
  return error.what();
}

}  // namespace collbench
