// Times the latency of one access: a ring of addresses is followed through memory that is not the reading GPU's.
#pragma once

#include "copies.hpp"

namespace collbench {

struct ChaseRound {
  std::vector<Link> links;  // reader and owner of the memory; of one with host memory the GPU reads. No GPU reads twice
  int accesses;             // dependent loads of 8 bytes in a batch, shared out to the multiprocessors in turn
  int batches;              // timed ones
  int warmup;               // batches before them
  double deadline;          // seconds, the longest wait for a batch
};

// Returns seconds per access, [link][batch], the mean over the reader's multiprocessors. Before the first batch the
// ring is followed once, untimed: the first reader of a line waits for its owner's memory (1010 ns), the next for its
// L2 cache (852 ns) [2 × H200]. The ring takes 2 MiB, as nvbandwidth's latency tests do: its owner's L2 cache holds it,
// the reader's caches are passed by. Where each batch ends is compared with the host's arithmetic. Throws DataError,
// CudaError, HangError; std::invalid_argument for a round that cannot be timed.
std::vector<std::vector<double>> time_chase(Gpus& gpus, const ChaseRound& round);

}  // namespace collbench
