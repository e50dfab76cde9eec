// Times one round of copies: disjoint directed links, all at once.
#pragma once

#include <utility>
#include <vector>

#include "gpus.hpp"

namespace collbench {

enum class Engine { copy_engine, multiprocessors };

// Positions in Gpus.
using Link = std::pair<int, int>;

struct CopyRound {
  std::vector<Link> links;
  Engine engine;
  bool pull;            // true: the destination reads; false: the source writes
  std::size_t bytes;    // one message
  std::uint64_t shift;  // bytes by which source and destination miss their natural alignment
  int iterations;       // messages in a block, at most 31 (the gated queue is kept shallow)
  int blocks;
  int warmup;  // blocks before the timed ones
};

// Returns seconds per message, [link][block]. Every byte of every block is checked on the GPU, outside the timed
// region. Throws DataError, CudaError, HangError.
std::vector<std::vector<double>> time_copies(Gpus& gpus, const CopyRound& round);

}  // namespace collbench
