// Times one collective on one or many disjoint communicators at once.
#pragma once

#include <map>
#include <vector>

#include "communicators.hpp"

namespace collbench {

enum class Collective { allreduce, broadcast };

struct CollectiveRound {
  std::vector<Group> groups;
  Collective operation;
  int dtype;              // ncclDataType_t
  int reduction;          // ncclRedOp_t; without meaning for broadcast
  int root;               // rank within each group
  std::size_t count;      // elements in a message
  std::size_t width;      // bytes of an element
  int iterations;         // collectives in a chain, at most 32
  int blocks;             // timed replays of the chain
  int warmup;             // untimed replays first
  int launch_iterations;  // collectives in the launch loop, 0 for none
  std::size_t bytes() const { return count * width; }
};

// Seconds per collective, the maximum over a group's ranks. `seconds[group][block]` is device time: replays of a
// captured chain between events. `launch_seconds[group]` is wall time of a plain launch loop, one thread a GPU.
struct CollectiveTimes {
  std::vector<std::vector<double>> seconds;
  std::vector<double> launch_seconds;
};

// Keeps the captured chains of every cell, so that a later visit replays them at once.
class CollectiveTimer {
 public:
  explicit CollectiveTimer(Communicators& communicators, Gpus& gpus) : communicators_(communicators), gpus_(gpus) {}

  // Every element of every block is checked on the GPU, outside the timed region.
  // Throws DataError, CudaError, NcclError, HangError.
  CollectiveTimes time(const CollectiveRound& round);
  // Forgets the chains; call before the communicators are closed.
  void close() { chains_.clear(); }

 private:
  struct Chain {
    Slots slots;
    std::vector<GraphExec> graphs;  // one a rank
  };
  using Key = std::pair<Group, std::vector<std::uint64_t>>;

  static Key key(const CollectiveRound& round, const Group& group);
  Chain& chain(const CollectiveRound& round, const Group& group);
  Chain capture(const CollectiveRound& round, const Group& group);
  void enqueue(const CollectiveRound& round, const Group& group, std::size_t rank, std::uint64_t offset);
  void enqueue_all(const CollectiveRound& round, const Group& group, std::uint64_t offset);
  std::vector<double> time_block(const CollectiveRound& round);
  std::vector<double> time_launches(const CollectiveRound& round);
  void wait(const Group& group);
  void fill(const CollectiveRound& round, const Group& group);
  void poison(const CollectiveRound& round, const Group& group);
  void queue_verify(const CollectiveRound& round, const Group& group);
  void finish_verify(const CollectiveRound& round, const Group& group, int index);
  void verify_elements(const CollectiveRound& round, const Group& group, std::size_t rank, std::uint64_t first,
                       std::uint64_t count, unsigned slot, unsigned slots);

  Communicators& communicators_;
  Gpus& gpus_;
  std::map<Key, Chain> chains_;
};

}  // namespace collbench
