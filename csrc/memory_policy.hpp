// Where the kernel puts the memory that this process takes: on which NUMA node.
#pragma once

#include <array>
#include <string>

namespace collbench {

// NUMA nodes have numbers below this: the most that a kernel is built for (CONFIG_NODES_SHIFT is 10 at most).
constexpr int kMostNodes = 1024;
constexpr int kNodeWordBits = 8 * static_cast<int>(sizeof(unsigned long));
using NodeMask = std::array<unsigned long, kMostNodes / kNodeWordBits>;

// Binds what the calling thread takes to one node's memory while it lives; then what held before holds again. Memory is
// placed when it is first used, and pinned memory when it is made. Throws PolicyError.
class OnNode {
 public:
  explicit OnNode(int node);
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;
  ~OnNode();

 private:
  int mode_ = 0;
  NodeMask nodes_{};
};

// Why this process may not bind memory to the node; "" where it may.
std::string node_memory_refusal(int node);

}  // namespace collbench
