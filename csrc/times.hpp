// What timing a round of copies or collectives returns.
#pragma once

#include <cstdint>
#include <vector>

namespace collbench {

// Bytes that all batches of a group delivered, timed or not, and how many of them were compared where they arrived. Of
// several messages in the same slot only the last one is still there to be compared.
struct Coverage {
  std::uint64_t moved = 0;
  std::uint64_t verified = 0;
};

// `seconds[group][batch]` is the time of one message; `coverage` has one entry for each group.
struct Times {
  explicit Times(std::size_t groups) : seconds(groups), coverage(groups) {}
  std::vector<std::vector<double>> seconds;
  std::vector<Coverage> coverage;
};

}  // namespace collbench
