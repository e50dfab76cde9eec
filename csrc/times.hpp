// What timing a round brings.
#pragma once

#include <cstdint>
#include <vector>

namespace collbench {

// Bytes that a group's batches delivered, untimed ones too, and those of them that were compared where they arrived. Of
// messages that share a slot only the last one's bytes are there to be compared.
struct Coverage {
  std::uint64_t moved = 0;
  std::uint64_t verified = 0;
};

// `seconds[group][batch]` is the time of one message; `coverage` has one entry per group.
struct Times {
  explicit Times(std::size_t groups) : seconds(groups), coverage(groups) {}
  std::vector<std::vector<double>> seconds;
  std::vector<Coverage> coverage;
};

}  // namespace collbench
