// NCCL communicators over subsets of the world's ranks, made once and kept.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collective_layout.hpp"
#include "device_threads.hpp"
#include "nccl.hpp"

namespace collbench {

// Waits while NCCL executes a call on the communicator in the background, where the call's `result` is ncclInProgress:
// until then the communicator accepts no other call. Throws NcclError, HangError past the deadline, Abandoned when
// another thread of the job has failed.
void finish(const Nccl& nccl, ncclComm_t communicator, ncclResult_t result, const DeviceThreads& threads,
            double deadline_seconds);

// All ranks, and this process's among them. With size 0 this process holds all ranks, one for each of its GPUs, in
// their order. Otherwise it is one rank with one GPU, and `unique_id` is what one rank got from Nccl::unique_id() for
// all.
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

// The world, and every group split from it. Destroying a round's communicators takes 0.5 to 1.0 s
// [method/collectives.md 1, 4 × H200], so only close() does it; a process that ends leaves them to the driver.
class Communicators {
 public:
  // Throws std::invalid_argument for a world that this process cannot be part of.
  Communicators(Gpus& gpus, const Nccl& nccl, World world);
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // Makes what is missing for these groups: one ncclCommSplit of the world for each set of disjoint groups. Every
  // process of the world calls it with the same groups, and waits here for the others. A rank that fails is reported at
  // once, even where NCCL makes the others wait for it. Reads only ordinals and contexts of Gpus, so copies may be
  // timed meanwhile.
  void prepare(const std::vector<Group>& groups);
  // Makes a second communicator for each of these prepared groups, also for the world: for plain launches, never
  // captured. Once a communicator was captured, NCCL orders each of its plain launches with the graphs: it waits for an
  // event, records one, and queries one while a graph lives. The second communicator has streams of its own, unless
  // NCCL_COMM_SPLIT_SHARE_RESOURCES=1 [NCCL 2.28.9, strongstream.cc: ncclStrongStreamAcquire, ncclStrongStreamRelease,
  // everCaptured; enqueue.cc: ncclLaunchPrepare, persistentRefs].
  void prepare_launches(const std::vector<Group>& groups) { split_missing(groups, for_launches_); }
  // This process's ranks of a prepared group, perhaps none.
  const std::vector<Communicator>& operator[](const Group& group) const { return made_.at(group); }
  // The same ranks in the same order, on the communicators for plain launches.
  const std::vector<Communicator>& for_launches(const Group& group) const { return for_launches_.at(group); }
  // For other calls in which ranks wait for each other.
  DeviceThreads& threads() { return *threads_; }
  // Whether ranks live in other processes.
  bool distributed() const { return world_.size > 0; }
  // Throws NcclError, which names the rank, if it has failed in the background.
  void check(const Communicator& communicator) const;
  // The same for all of this process's ranks in these groups. A rank's own failure is thrown rather than that of a rank
  // that only lost its connection to another one.
  void check(const std::vector<Group>& groups) const;
  // Forgets the groups and returns all their communicators, which the caller must abort.
  std::vector<ncclComm_t> release(const std::vector<Group>& groups);
  void close();

 private:
  using ByGroup = std::map<Group, std::vector<Communicator>>;

  int position_of(int rank) const;
  std::vector<ncclComm_t> make_all(const char* action, const std::function<ncclComm_t(int position)>& make);
  void make_world();
  void split_missing(const std::vector<Group>& groups, ByGroup& made);
  void split(const std::vector<Group>& groups, ByGroup& made);

  Gpus& gpus_;
  const Nccl& nccl_;
  const World world_;
  Group everyone_;
  ByGroup made_, for_launches_;
  // For calls in which ranks wait for each other. Where NCCL hangs in its start, these hang with it, while the threads
  // of Gpus go on timing copies.
  OwnedThreads threads_;
};

}  // namespace collbench
