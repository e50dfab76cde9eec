#include "communicators.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

namespace collbench {
namespace {

void check_world(const World& world, std::size_t gpus) {
  if (world.size == 0) return;
  if (gpus != 1) throw std::invalid_argument("a rank of a world of processes has one GPU, not " + std::to_string(gpus));
  if (world.rank < 0 || world.rank >= world.size)
    throw std::invalid_argument("rank " + std::to_string(world.rank) + " of a world of " + std::to_string(world.size));
  if (world.unique_id.size() != sizeof(NcclUniqueId))
    throw std::invalid_argument("an NCCL id has 128 bytes, not " + std::to_string(world.unique_id.size()) +
                                ": pass what Nccl.unique_id() gave to one rank");
}

// Takes as many disjoint groups out of `groups` as it finds from the front.
std::vector<Group> take_disjoint(std::vector<Group>& groups) {
  std::set<int> used;
  std::vector<Group> taken, left;
  for (Group& group : groups) {
    const bool free = std::none_of(group.begin(), group.end(), [&](int rank) { return used.count(rank) != 0; });
    if (free) used.insert(group.begin(), group.end());
    (free ? taken : left).push_back(std::move(group));
  }
  groups = std::move(left);
  return taken;
}

}  // namespace

Communicators::Communicators(Gpus& gpus, const Nccl& nccl, World world)
    : gpus_(gpus), nccl_(nccl), world_(std::move(world)) {
  check_world(world_, gpus.size());
  everyone_.resize(distributed() ? static_cast<std::size_t>(world_.size) : gpus.size());
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

int Communicators::position_of(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(everyone_.size()))
    throw std::invalid_argument("a group names rank " + std::to_string(rank) + " of a world of " +
                                std::to_string(everyone_.size()));
  if (!distributed()) return rank;
  return rank == world_.rank ? 0 : -1;
}

void Communicators::make_world() {
  if (made_.count(everyone_) != 0) return;
  std::vector<ncclComm_t> ranks(gpus_.size(), nullptr);
  std::vector<Member> members;
  if (distributed()) {
    NcclUniqueId id{};
    std::copy(world_.unique_id.begin(), world_.unique_id.end(), id.internal);
    gpus_[0].context.make_current();  // NCCL takes the thread's device
    NCCL_CHECK(nccl_, ncclCommInitRank, &ranks[0], world_.size, id, world_.rank);
    members.push_back({world_.rank, 0, ranks[0]});
  } else {
    std::vector<int> ordinals;
    for (const int position : everyone_) ordinals.push_back(gpus_[position].ordinal);
    NCCL_CHECK(nccl_, ncclCommInitAll, ranks.data(), static_cast<int>(ranks.size()), ordinals.data());
    for (const int rank : everyone_) members.push_back({rank, rank, ranks[static_cast<std::size_t>(rank)]});
  }
  made_[everyone_] = members;
}

void Communicators::split(const std::vector<Group>& groups) {
  std::vector<int> color(everyone_.size(), kSplitNoColor), key(everyone_.size(), 0);
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (std::size_t rank = 0; rank < groups[i].size(); ++rank) {
      color.at(static_cast<std::size_t>(groups[i][rank])) = static_cast<int>(i);
      key[static_cast<std::size_t>(groups[i][rank])] = static_cast<int>(rank);
    }
  std::vector<ncclComm_t> part(gpus_.size(), nullptr);  // by position
  NcclGroup calls(nccl_);
  for (const Member& world : made_.at(everyone_)) {
    const auto rank = static_cast<std::size_t>(world.rank);
    NCCL_CHECK(nccl_, ncclCommSplit, world.communicator, color[rank], key[rank],
               &part[static_cast<std::size_t>(world.position)], nullptr);
  }
  calls.end();
  for (const Group& group : groups) {
    std::vector<Member>& members = made_[group];
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      const int position = position_of(group[rank]);
      if (position >= 0)
        members.push_back({static_cast<int>(rank), position, part[static_cast<std::size_t>(position)]});
    }
  }
}

void Communicators::prepare(const std::vector<Group>& groups) {
  std::vector<Group> missing;  // in the caller's order, so that rounds stay together
  std::set<Group> seen{everyone_};
  for (const Group& group : groups) {
    for (const int rank : group) position_of(rank);  // throws for a rank that is not there
    if (made_.count(group) == 0 && seen.insert(group).second) missing.push_back(group);
  }
  make_world();
  while (!missing.empty()) split(take_disjoint(missing));
}

void Communicators::check(const Group& group) const {
  for (const Member& member : made_.at(group)) {
    ncclResult_t state = kNcclSuccess;
    NCCL_CHECK(nccl_, ncclCommGetAsyncError, member.communicator, &state);
    if (state == kNcclSuccess || state == kNcclInProgress) continue;
    try {
      nccl_.fail(state, "ncclCommGetAsyncError(communicator)", __FILE__, __LINE__);
    } catch (DeviceError& error) {
      error.position = member.position;
      throw;
    }
  }
}

void Communicators::close() {
  for (auto& [group, members] : made_)
    for (const Member& member : members) nccl_.ncclCommAbort(member.communicator);
  made_.clear();
}

}  // namespace collbench
