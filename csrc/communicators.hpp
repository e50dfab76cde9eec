// NCCL communicators over subsets of the GPUs, made once and kept.
#pragma once

#include <map>
#include <vector>

#include "gpus.hpp"
#include "nccl.hpp"

namespace collbench {

// Positions in Gpus, in rank order.
using Group = std::vector<int>;
// One ncclComm_t a rank.
using Communicator = std::vector<ncclComm_t>;

// An open group of NCCL calls. Leaving its scope by an exception closes it, so that the thread can use NCCL again.
class NcclGroup {
 public:
  explicit NcclGroup(const Nccl& nccl) : nccl_(nccl) { NCCL_CHECK(nccl_, ncclGroupStart); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() {
    if (open_) nccl_.ncclGroupEnd();
  }
  void end() {
    open_ = false;
    NCCL_CHECK(nccl_, ncclGroupEnd);
  }

 private:
  const Nccl& nccl_;
  bool open_ = true;
};

// The world of all GPUs, and every group split from it. Tearing communicators down takes 0.5-1.0 s a round
// [METHOD.md §3, 4×H200], so it happens in close() alone: a process that ends leaves them to the driver.
class Communicators {
 public:
  Communicators(Gpus& gpus, const Nccl& nccl) : gpus_(gpus), nccl_(nccl) {}
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // Makes what is missing for these disjoint groups: all of it in one ncclCommSplit of the world.
  void prepare(const std::vector<Group>& groups);
  // A prepared group's communicator.
  const Communicator& operator[](const Group& group) const { return made_.at(group); }
  const Nccl& nccl() const { return nccl_; }
  // Throws NcclError if a rank of the group has failed in the background.
  void check(const Group& group) const;
  void close();

 private:
  Group everyone() const;
  void make_world();

  Gpus& gpus_;
  const Nccl& nccl_;
  std::map<Group, Communicator> made_;
};

}  // namespace collbench
