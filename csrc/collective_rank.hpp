// One rank's share of a round of collectives: its NCCL calls and the data that proves them. All of it runs on the
// rank's own thread, where its context is current.
#pragma once

#include <vector>

#include "registered_memory.hpp"

namespace collbench {

// A round's collectives of one group, captured. Slots are the same on all its ranks.
struct CapturedGroup {
  Slots slots;
  std::vector<GraphExec> graphs;  // by rank; empty for ranks of other processes
};

// One rank of a round that lives in this process.
struct LocalRank {
  std::size_t group;  // in CollectiveRound::groups
  Communicator communicator;
  Layout layout;
  Buffers buffers;
  const CapturedGroup* captured;
};

// Where the ranks live: positions in Gpus.
std::vector<int> positions_of(const std::vector<LocalRank>& ranks);

// Queues the rank's call on the message that begins `offset` bytes into the buffers. Where NCCL goes on with it in the
// background, waits until it is queued.
void queue_collective(Gpus& gpus, const Nccl& nccl, const CollectiveRound& round, const LocalRank& local,
                      std::uint64_t offset);
// Queues an all-reduce of four spare bytes: what is queued behind it starts together on all the group's ranks, also
// where they live in several processes, which no blocking kernel spans.
void queue_barrier(Gpus& gpus, const Nccl& nccl, const LocalRank& local, double deadline_seconds);

// Queues the writing of fresh contributions to the first `slots` messages that the rank sends from.
void queue_fill(Gpus& gpus, const CollectiveRound& round, const LocalRank& local, unsigned slots);
// Makes every byte of the first `slots` messages that the rank receives wrong.
void queue_poison(Gpus& gpus, const CollectiveRound& round, const LocalRank& local, unsigned slots);
// Elements of a rank's received messages: `count` of each from element `first` on, in `slots` messages from `slot` on.
struct Elements {
  std::uint64_t first, count;
  unsigned slot, slots;
};
// Queues the check of these elements; afterwards the GPU's report counts byte offsets from where the first of these
// messages was received.
void queue_verify(Gpus& gpus, const CollectiveRound& round, const LocalRank& local, const Elements& elements);

}  // namespace collbench
