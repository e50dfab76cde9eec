// One rank's share of a round of collectives: its NCCL calls and the data that proves them. Everything here is called
// with the rank's context current.
#pragma once

#include <vector>

#include "registered_memory.hpp"

namespace collbench {

// The captured collectives of one group. Slots are the same on all its ranks.
struct CapturedGroup {
  Slots slots;
  std::vector<GraphExec> graphs;  // by rank; empty for ranks of other processes
};

// One rank of a round that lives in this process.
struct LocalRank {
  std::size_t group;  // in CollectiveRound::groups
  Gpu* gpu;
  Communicator communicator;
  Layout layout;
  Buffers buffers;
  const CapturedGroup* captured;
};

// Queues the rank's call on the message of this iteration, and where NCCL queues it in the background, waits for that.
void queue_collective(Gpus& gpus, const Nccl& nccl, const CollectiveRound& round, const LocalRank& local,
                      int iteration);
// Queues an all-reduce of four spare bytes: what is queued behind it starts together on all ranks of the group, even
// where they live in several processes, which no blocking kernel spans.
void queue_barrier(Gpus& gpus, const Nccl& nccl, const LocalRank& local, double deadline_seconds);

// Queues the writing of contributions to the first `slots` messages that the rank sends from; they differ by slot and
// by `seed`, which is the same on all ranks.
void queue_fill(const CollectiveRound& round, const LocalRank& local, unsigned slots, std::uint64_t seed);
// Queues the poisoning of the first `slots` messages that the rank receives: it makes every byte wrong. In place it
// comes before the filling.
void queue_poison(const CollectiveRound& round, const LocalRank& local, unsigned slots);
// Elements of a rank's received messages: `count` of each from element `first` on, in `slots` messages from `slot` on.
struct Elements {
  std::uint64_t first, count;
  unsigned slot, slots;
};
// Queues the verification of these elements, of messages that were filled with `seed`. Byte offsets in the GPU's report
// count from the start of what was received in the first of these messages.
void queue_verify(const CollectiveRound& round, const LocalRank& local, const Elements& elements, std::uint64_t seed);

}  // namespace collbench
