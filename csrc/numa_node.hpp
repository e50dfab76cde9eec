// Memory on a NUMA node of the caller's choice.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace collbench {

// Node numbers are smaller: no kernel is built for more nodes (CONFIG_NODES_SHIFT is at most 10).
constexpr int kMaxNodes = 1024;
// No kernel is built for more CPUs (CONFIG_NR_CPUS).
constexpr int kMaxCpus = 8192;

// While it lives, the memory that the calling thread takes comes from one node. Memory is placed when it is first used,
// pinned memory when it is made.
//
// A memory policy binds it. Containers may forbid policies (Docker's seccomp profile does without CAP_SYS_NICE); there
// the thread runs on the node's CPUs meanwhile, because the kernel takes memory from the node of the CPU that first
// uses it, if enough is free there. nvbandwidth places its memory in this way, too.
class OnNode {
 public:
  // `bytes` will be taken. Throws PolicyError if neither way can work.
  OnNode(int node, std::size_t bytes);
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;
  // The thread's old policy and CPUs apply again.
  ~OnNode();
  // Throws PolicyError if a part of the memory, which was taken meanwhile, is known to lie on other nodes.
  void verify(const void* memory, std::size_t bytes) const;

 private:
  template <int bits>
  using Mask = std::array<unsigned long, static_cast<std::size_t>(bits) / (8 * sizeof(unsigned long))>;
  static long set_policy(int mode, const Mask<kMaxNodes>& nodes);
  static Mask<kMaxCpus> cpus_of(int node);
  void move_to_its_cpus(std::size_t bytes);
  [[noreturn]] void refuse(const std::string& why, const std::string& remedy) const;

  int node_;
  bool by_policy_ = true;
  std::string forbidden_;  // the call that was, and the kernel's words
  int mode_ = 0;
  Mask<kMaxNodes> nodes_{};
  Mask<kMaxCpus> cpus_{};
};

}  // namespace collbench
