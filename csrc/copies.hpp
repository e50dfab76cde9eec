// Times one round of copies: disjoint groups of transfers, all at once.
#pragma once

#include <utility>
#include <vector>

#include "gpus.hpp"
#include "times.hpp"

namespace collbench {

enum class Engine { copy_engine, multiprocessors };

// Source and destination: positions in Gpus, or those of host_memory.hpp for host memory. A GPU may copy to itself.
using Link = std::pair<int, int>;

struct CopyRound {
  // The transfers of a group run at the same time and may share GPUs: both ways, one to all, all to one. Two groups
  // share no GPU.
  std::vector<std::vector<Link>> groups;
  Engine engine;
  bool pull;          // true: the destination reads; false: the source writes; ignored for host memory
  std::size_t bytes;  // one message
  int iterations;     // messages of each transfer in a batch, at most 29
  int batches;        // timed ones
  int warmup;         // batches before them
  double deadline;    // seconds, the longest wait for a batch
  // Times only each group's first transfer, while all others of the round run. Every transfer then copies its messages
  // twice, as nvbandwidth's interfering copies have twice the size: others that share links with the first transfer and
  // are up to twice as fast still run when it ends. A batch holds at most 14 messages then. One of 0.1 ms or more in
  // which a transfer was faster is repeated, three times in all; then Times::uncovered names the GPU.
  bool covered;
};

// Returns seconds per message of each group, [group][batch]: from the common start of its transfers to their common end
// (of a covered round to the end of the first transfer's messages; of both directions of a link, the longer direction's
// time between its own events), divided by the messages that each of them sends.
// What a batch leaves in its slots is verified on the GPU, outside the timed region. Throws DataError, CudaError,
// HangError; std::invalid_argument for a round that cannot be timed. Copies between GPUs without peer access are staged
// in host memory by the driver; those of a link whose peer access was refused (Gpus::peer_refusals) throw CudaError.
Times time_copies(Gpus& gpus, const CopyRound& round);

}  // namespace collbench
