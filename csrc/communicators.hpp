// NCCL communicators over subsets of the world's ranks, made once and kept.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collective_layout.hpp"
#include "device_threads.hpp"
#include "nccl.hpp"
#include "nccl_config.hpp"

namespace collbench {

// Waits where `result`, of a call on the communicator, is ncclInProgress: until NCCL has done in the background what
// was asked, for it takes no other call before. Throws NcclError, HangError past the deadline, Abandoned when another
// thread of the job has failed.
void finish(const Nccl& nccl, ncclComm_t communicator, ncclResult_t result, const DeviceThreads& threads,
            double deadline_seconds);

// This process's ranks. Size 0: it holds all of them, one for each of its GPUs, in their order.
// Otherwise it is one rank with one GPU, and `unique_id` is what one rank's Nccl::unique_id() gave to all.
struct World {
  int rank = 0;
  int size = 0;
  std::string unique_id;
};

// One rank of a group that lives in this process.
struct Communicator {
  ncclComm_t handle;
  int rank;      // in the group
  int ranks;     // of the group
  int position;  // in Gpus
};

// The world, and every group split from it. Tearing them down takes 0.5-1.0 s a round [docs/method.md 4.1, 4×H200],
// so it happens in close() alone: a process that ends leaves them to the driver.
class Communicators {
 public:
  // `options` are the communicators' own, none for NCCL's; a split's too. Throws std::invalid_argument for a world that
  // this process cannot be part of, and for options that NCCL does not have.
  Communicators(Gpus& gpus, const Nccl& nccl, World world, const NcclOptions& options);
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // Makes what is missing for these groups: one ncclCommSplit of the world for each set of disjoint ones. Every process
  // of the world calls it with the same groups, and waits here for the others. A rank that fails is reported at once,
  // also where NCCL lets the others wait for it. Reads nothing of Gpus but ordinals and contexts, so that copies may be
  // timed meanwhile.
  void prepare(const std::vector<Group>& groups);
  // The same for plain launches, after the groups' own: a second communicator for each, the world too, which nobody
  // captures. One that was captured once pays at every plain launch from then on for the order between both: an event
  // to wait for, one to record, and one to ask for while a graph lives. Each has its own streams, unless
  // NCCL_COMM_SPLIT_SHARE_RESOURCES=1 [NCCL 2.28.9, strongstream.cc: ncclStrongStreamAcquire, ncclStrongStreamRelease,
  // everCaptured; enqueue.cc: ncclLaunchPrepare, persistentRefs].
  void prepare_launches(const std::vector<Group>& groups) { split_missing(groups, for_launches_); }
  // This process's ranks of a prepared group, none perhaps.
  const std::vector<Communicator>& operator[](const Group& group) const { return made_.at(group); }
  // The same ranks in the same order, prepared for plain launches.
  const std::vector<Communicator>& for_launches(const Group& group) const { return for_launches_.at(group); }
  const Nccl& nccl() const { return nccl_; }
  // For what else ranks wait for each other.
  DeviceThreads& threads() { return *threads_; }
  // Whether ranks live in other processes.
  bool distributed() const { return world_.size > 0; }
  // Throws NcclError, which names the rank, if this one has failed in the background.
  void check(const Communicator& communicator) const;
  // The same for all of ours in these groups. A rank that only lost another one is not reported before that one.
  void check(const std::vector<Group>& groups) const;
  // Forgets the groups and returns all their communicators, which are the caller's to abort.
  std::vector<ncclComm_t> release(const std::vector<Group>& groups);
  void close();

 private:
  using ByGroup = std::map<Group, std::vector<Communicator>>;

  int position_of(int rank) const;
  ncclResult_t start(ncclComm_t* made, int ranks, NcclUniqueId id, int rank) const;
  std::vector<ncclComm_t> make_all(const char* doing, const std::function<ncclComm_t(int position)>& make);
  void make_world();
  void split_missing(const std::vector<Group>& groups, ByGroup& made);
  void split(const std::vector<Group>& groups, ByGroup& made);

  Gpus& gpus_;
  const Nccl& nccl_;
  const World world_;
  const bool configured_;
  const NcclConfig config_;
  Group everyone_;
  ByGroup made_, for_launches_;
  // For the start, where ranks wait for each other; the threads of Gpus may be timing copies meanwhile.
  OwnedThreads threads_;
};

}  // namespace collbench
