// One rank's share of a round: its NCCL calls and the data that proves them. All of it runs on the rank's own thread,
// where its context is current.
#pragma once

#include <vector>

#include "communicators.hpp"

namespace collbench {

// A captured chain of one group. Slots are the same on all its ranks.
struct Chain {
  Slots slots;
  std::vector<GraphExec> graphs;  // by rank; empty for ranks of other processes
};

// One rank of a round that lives in this process.
struct Part {
  std::size_t group;  // in CollectiveRound::groups
  int ranks;          // of the group
  Member member;
  Shape shape;
  const Chain* chain;
};

// Queues the rank's call on the message that begins `offset` bytes into the buffers. Where NCCL goes on with it in the
// background, waits until it is queued.
void queue_collective(Gpus& gpus, const Nccl& nccl, const CollectiveRound& round, const Part& part,
                      std::uint64_t offset);
// Queues an all-reduce of four bytes in the spare place: what is queued behind it starts together on all the group's
// ranks, also where they live in several processes, which no gate spans.
void queue_barrier(Gpus& gpus, const Nccl& nccl, const Part& part, double deadline_seconds);

// Queues the writing of fresh contributions to the first `slots` messages that the rank sends from.
void queue_fill(Gpus& gpus, const CollectiveRound& round, const Part& part, unsigned slots);
// Makes every byte of the first `slots` messages that the rank receives wrong.
void queue_poison(Gpus& gpus, const CollectiveRound& round, const Part& part, unsigned slots);
// Elements of a rank's received messages: `count` of each from element `first` on, in `slots` messages from `slot` on.
struct Elements {
  std::uint64_t first, count;
  unsigned slot, slots;
};
Elements all_elements(const Part& part, unsigned slots);
// Queues the check of these elements; afterwards the GPU's report counts byte offsets from where the first of these
// messages was received.
void queue_verify(Gpus& gpus, const CollectiveRound& round, const Part& part, const Elements& elements);

}  // namespace collbench
