#include "communicators.hpp"

#include <numeric>

namespace collbench {

Group Communicators::everyone() const {
  Group all(gpus_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void Communicators::make_world() {
  if (made_.count(everyone()) != 0) return;
  Communicator world(gpus_.size());
  std::vector<int> ordinals;
  for (const int position : everyone()) ordinals.push_back(gpus_[position].ordinal);
  NCCL_CHECK(nccl_, ncclCommInitAll, world.data(), static_cast<int>(world.size()), ordinals.data());
  made_[everyone()] = world;
}

void Communicators::prepare(const std::vector<Group>& groups) {
  make_world();
  std::vector<int> color(gpus_.size(), kSplitNoColor), key(gpus_.size(), 0);
  std::vector<Group> missing;
  for (const Group& group : groups) {
    if (made_.count(group) != 0) continue;
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      color.at(static_cast<std::size_t>(group[rank])) = static_cast<int>(missing.size());
      key[static_cast<std::size_t>(group[rank])] = static_cast<int>(rank);
    }
    missing.push_back(group);
  }
  if (missing.empty()) return;
  const Communicator& world = made_.at(everyone());
  Communicator part(gpus_.size(), nullptr);
  NcclGroup calls(nccl_);
  for (std::size_t i = 0; i < world.size(); ++i)
    NCCL_CHECK(nccl_, ncclCommSplit, world[i], color[i], key[i], &part[i], nullptr);
  calls.end();
  for (const Group& group : missing)
    for (const int position : group) made_[group].push_back(part[static_cast<std::size_t>(position)]);
}

void Communicators::check(const Group& group) const {
  for (ncclComm_t communicator : made_.at(group)) {
    ncclResult_t state = kNcclSuccess;
    NCCL_CHECK(nccl_, ncclCommGetAsyncError, communicator, &state);
    if (state != kNcclSuccess && state != kNcclInProgress)
      nccl_.fail(state, "ncclCommGetAsyncError(communicator)", __FILE__, __LINE__);
  }
}

void Communicators::close() {
  for (auto& [group, communicator] : made_)
    for (ncclComm_t rank : communicator) nccl_.ncclCommAbort(rank);
  made_.clear();
}

}  // namespace collbench
