// Times the latency of one access: a thread follows a ring of addresses through memory that is not its GPU's.
#pragma once

#include "copy.hpp"

namespace collbench {

struct ChaseRound {
  std::vector<Link> links;  // reader and owner of the memory; of one with host memory the GPU reads. No GPU reads twice
  int accesses;             // dependent loads of 8 bytes in a block
  int blocks;
  int warmup;       // blocks before the timed ones
  double deadline;  // seconds, the longest wait for a block
};

// Returns seconds per access, [link][block]. The ring takes 2 MiB, as nvbandwidth's latency tests do: its owner's L2
// cache holds it, the reader's caches are passed by. Where each block ends is compared with the host's arithmetic.
// Throws DataError, CudaError, HangError; std::invalid_argument for a round that cannot be timed.
std::vector<std::vector<double>> time_chase(Gpus& gpus, const ChaseRound& round);

}  // namespace collbench
