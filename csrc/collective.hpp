// Times one collective on one or many disjoint communicators at once.
#pragma once

#include <vector>

#include "chains.hpp"
#include "gate.hpp"
#include "times.hpp"

namespace collbench {

// Seconds per collective. `seconds[group][block]` is device time: replays of a captured chain between events, the
// maximum over the ranks. `launch_seconds[group]` is wall time of a plain launch loop, one thread a GPU, on a
// communicator that was never captured, the mean over the ranks as nccl-tests has it; empty without a loop. Both speak
// of this process's ranks; a group without any has no blocks, and not-a-number for its loop. The launch loop's bytes
// are in no coverage.
struct CollectiveTimes : Times {
  using Times::Times;
  std::vector<double> launch_seconds;
};

class CollectiveTimer {
 public:
  CollectiveTimer(Communicators& communicators, Gpus& gpus)
      : communicators_(communicators), gpus_(gpus), crew_(gpus.crew()), chains_(gpus, crew_, communicators) {}

  // Checks what arrives on the GPU, outside the timed region, and counts it: what every block leaves in its slots, but
  // in place, where a chain changes its own input, one collective before the blocks. Throws DataError, CudaError,
  // NcclError, HangError. After any but a DataError the round's communicators are aborted, and streams or threads may
  // be stuck: end the process.
  CollectiveTimes time(const CollectiveRound& round);
  // Forgets the chains; call before the communicators are closed.
  void close() { chains_.clear(); }

 private:
  struct Outcome {
    double seconds;
    Report report;
  };
  using Parts = std::vector<Part>;

  CollectiveTimes time_all(const CollectiveRound& round);
  Crew::Look look_at(const Part& part) const;
  void tell_cause(const CollectiveRound& round, const std::exception_ptr& seen) const;
  void abandon(const CollectiveRound& round);
  Parts parts_of(const CollectiveRound& round);
  Parts for_launches(const CollectiveRound& round, Parts parts) const;
  void wake(const CollectiveRound& round, const Parts& parts);
  void check_once(const CollectiveRound& round, const Parts& parts);
  static void count(const CollectiveRound& round, const Parts& parts, int collectives, bool checked,
                    std::vector<Coverage>& coverage);
  std::vector<Outcome> time_block(const CollectiveRound& round, const Parts& parts, bool first);
  void queue_block(const CollectiveRound& round, const Part& part, Gate& gate);
  void check_data(const CollectiveRound& round, const Parts& parts, const std::vector<Outcome>& outcomes);
  void time_launches(const CollectiveRound& round, const Parts& captured, CollectiveTimes& times);
  double launch_loop(const CollectiveRound& round, const Part& part, Meeting& start);

  Communicators& communicators_;
  Gpus& gpus_;
  Crew& crew_;
  Chains chains_;
};

}  // namespace collbench
