// Captured chains of collectives: made at the first visit of a cell, replayed at once at every later one.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "collective_part.hpp"
#include "crew.hpp"

namespace collbench {

class Chains {
 public:
  Chains(Gpus& gpus, Crew& crew, const Communicators& communicators)
      : gpus_(gpus), crew_(crew), communicators_(communicators) {}

  // Gives every part its chain. Captures what is missing, all ranks at once: NCCL's ranks wait for each other when they
  // connect. A capture that fails leaves nothing behind.
  void attach(const CollectiveRound& round, std::vector<Part>& parts);
  // Forgets all; call before the communicators are closed.
  void clear() { chains_.clear(); }
  // Forgets all and returns them, whose end may take long where they still run.
  auto release() { return std::exchange(chains_, {}); }

 private:
  using Key = std::pair<Group, std::vector<std::uint64_t>>;

  static Key key(const CollectiveRound& round, const Part& part);
  GraphExec capture(const CollectiveRound& round, const Part& part);

  Gpus& gpus_;
  Crew& crew_;
  const Communicators& communicators_;
  std::map<Key, Chain> chains_;
};

// Their GPUs, in order.
std::vector<int> positions_of(const std::vector<Part>& parts);

}  // namespace collbench
