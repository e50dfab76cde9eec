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

constexpr int kCovered = -1;

// `seconds[group][batch]` is the time of one message; `coverage` has one entry for each group. In a covered round of
// copies `uncovered[group]` is the position of a GPU whose copies ended before those that are timed, else kCovered.
struct Times {
  explicit Times(std::size_t groups) : seconds(groups), coverage(groups), uncovered(groups, kCovered) {}
  std::vector<std::vector<double>> seconds;
  std::vector<Coverage> coverage;
  std::vector<int> uncovered;
};

}  // namespace collbench
