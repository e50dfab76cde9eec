// Times one collective on one or many disjoint communicators at once.
#pragma once

#include <vector>

#include "chains.hpp"
#include "gate.hpp"

namespace collbench {

// Seconds per collective. `seconds[group][block]` is device time: replays of a captured chain between events, the
// maximum over the ranks. `launch_seconds[group]` is wall time of a plain launch loop, one thread a GPU, the mean over
// the ranks as nccl-tests has it; empty without a loop. Both speak of this process's ranks; a group without any has no
// blocks, and not-a-number for its loop.
struct CollectiveTimes {
  std::vector<std::vector<double>> seconds;
  std::vector<double> launch_seconds;
};

class CollectiveTimer {
 public:
  CollectiveTimer(Communicators& communicators, Gpus& gpus)
      : communicators_(communicators), gpus_(gpus), crew_(gpus.crew()), chains_(gpus, crew_, communicators) {}

  // Checks what arrives on the GPU, outside the timed region: every block's, but in place, where a chain changes its
  // own input, one collective's before the blocks. Throws DataError, CudaError, NcclError, HangError. After any but a
  // DataError streams may be stuck: end the process.
  CollectiveTimes time(const CollectiveRound& round);
  // Forgets the chains; call before the communicators are closed.
  void close() { chains_.clear(); }

 private:
  struct Outcome {
    double seconds;
    Report report;
  };
  using Parts = std::vector<Part>;

  Parts parts_of(const CollectiveRound& round);
  void check_once(const CollectiveRound& round, const Parts& parts);
  std::vector<Outcome> time_block(const CollectiveRound& round, const Parts& parts, bool first);
  void queue_block(const Part& part, Gate& gate);
  void check_data(const CollectiveRound& round, const Parts& parts, const std::vector<Outcome>& outcomes);
  void time_launches(const CollectiveRound& round, const Parts& parts, CollectiveTimes& times);
  double launch_loop(const CollectiveRound& round, const Part& part, Meeting& start);

  Communicators& communicators_;
  Gpus& gpus_;
  Crew& crew_;
  Chains chains_;
};

}  // namespace collbench
