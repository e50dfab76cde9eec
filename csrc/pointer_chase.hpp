// Times the latency of one access: a GPU follows a ring of addresses through memory that is not its own.
#pragma once

#include "copies.hpp"

namespace collbench {

struct ChaseRound {
  // Reader and owner of the memory; where one of them is host memory, the other, a GPU, reads. No GPU reads twice.
  std::vector<Link> links;
  int accesses;     // dependent loads of 8 bytes in a batch; each multiprocessor in turn makes an equal share of them
  int batches;      // timed ones
  int warmup;       // batches before them
  double deadline;  // seconds, the longest wait for a batch
};

// Returns seconds per access, [link][batch], the mean over the reader's multiprocessors. Before the first batch the
// ring is followed once, untimed: the first reader of a line waits for its owner's memory (1010 ns), the next for its
// L2 cache (852 ns) [2 × H200]. The ring takes 2 MiB, as in nvbandwidth's latency tests, so the owner's L2 cache holds
// it; the loads bypass the reader's caches. Where each batch ends is compared with the host's arithmetic. Throws
// DataError, CudaError, HangError; std::invalid_argument for a round that cannot be timed.
std::vector<std::vector<double>> time_chase(Gpus& gpus, const ChaseRound& round);

}  // namespace collbench
