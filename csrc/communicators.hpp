// NCCL communicators over subsets of the world's ranks, made once and kept.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collective_round.hpp"
#include "gpus.hpp"
#include "nccl.hpp"

namespace collbench {

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

// Where this process stands among the ranks. Size 0: it holds all of them, one for each of its GPUs, in their order.
// Otherwise it is one rank with one GPU, and `unique_id` is what one rank's Nccl::unique_id() gave to all.
struct World {
  int rank = 0;
  int size = 0;
  std::string unique_id;
};

// One rank of a group that lives in this process.
struct Member {
  int rank;      // in the group
  int position;  // in Gpus
  ncclComm_t communicator;
};

// The world, and every group split from it. Tearing communicators down takes 0.5-1.0 s a round [METHOD.md §3, 4×H200],
// so it happens in close() alone: a process that ends leaves them to the driver.
class Communicators {
 public:
  // Throws std::invalid_argument for a world that this process cannot be part of.
  Communicators(Gpus& gpus, const Nccl& nccl, World world);
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // Makes what is missing for these groups: one ncclCommSplit of the world for each set of disjoint ones. Every process
  // of the world calls it with the same groups, and waits here for the others. Reads nothing of Gpus but ordinals and
  // contexts, so that copies may be timed meanwhile.
  void prepare(const std::vector<Group>& groups);
  // This process's ranks of a prepared group, none perhaps.
  const std::vector<Member>& operator[](const Group& group) const { return made_.at(group); }
  const Nccl& nccl() const { return nccl_; }
  // Whether ranks live in other processes.
  bool distributed() const { return world_.size > 0; }
  // Throws NcclError if one of our ranks of the group has failed in the background.
  void check(const Group& group) const;
  void close();

 private:
  int position_of(int rank) const;
  void make_world();
  void split(const std::vector<Group>& groups);

  Gpus& gpus_;
  const Nccl& nccl_;
  const World world_;
  Group everyone_;
  std::map<Group, std::vector<Member>> made_;
};

}  // namespace collbench
