#include "communicators.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

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

// NCCL's start takes seconds, where it first looks for networks some ten; whoever watches this process waits for 60.
constexpr double kStartSeconds = 50.0;

// The failure of one rank, named.
NcclError of_rank(const Member& member, const NcclError& error) {
  NcclError named(error.code,
                  "rank " + std::to_string(member.rank) + " of " + std::to_string(member.ranks) + ": " + error.what());
  named.position = member.position;
  return named;
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

void finish(const Nccl& nccl, ncclComm_t communicator, ncclResult_t result, const Crew& crew, double deadline_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  while (result == kNcclInProgress) {
    if (crew.failed()) throw Abandoned();
    if (std::chrono::duration<double>(Clock::now() - begin).count() > deadline_seconds)
      throw HangError("NCCL is still in progress with a call of " + std::to_string(deadline_seconds) + " s ago");
    std::this_thread::yield();
    NCCL_CHECK(nccl, ncclCommGetAsyncError, communicator, &result);
    nccl.checked(result, "ncclCommGetAsyncError(communicator)", __FILE__, __LINE__);
  }
}

Communicators::Communicators(Gpus& gpus, const Nccl& nccl, World world)
    : gpus_(gpus), nccl_(nccl), world_(std::move(world)), crew_(new Crew(gpus)) {
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

// Makes one communicator for each of our ranks, each by a thread of its own: so a failure is its rank's, and the
// threads that NCCL lets wait for that rank can be left behind. Null where `rank` makes none.
std::vector<ncclComm_t> Communicators::start(const char* doing, const std::function<ncclComm_t(int position)>& rank) {
  std::vector<int> positions(gpus_.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<ncclComm_t> made(gpus_.size(), nullptr);
  crew_->run(positions, [&](std::size_t i) {
    const int position = static_cast<int>(i);
    try {
      made[i] = rank(position);
    } catch (const NcclError& error) {
      const int number = distributed() ? world_.rank : position;
      throw of_rank({number, position, nullptr, static_cast<int>(everyone_.size())},
                    NcclError(error.code, std::string(doing) + " failed: " + error.what()));
    }
  });
  return made;
}

void Communicators::make_world() {
  if (made_.count(everyone_) != 0) return;
  const std::string shared = distributed() ? world_.unique_id : nccl_.unique_id();
  NcclUniqueId id{};
  std::copy(shared.begin(), shared.end(), id.internal);
  const int ranks = static_cast<int>(everyone_.size());
  const auto number = [this](int position) { return distributed() ? world_.rank : position; };
  const std::vector<ncclComm_t> made = start("NCCL's start", [&](int position) {
    ncclComm_t communicator = nullptr;  // on this thread's own stack, where a late NCCL may still write
    const ncclResult_t result = NCCL_CHECK(nccl_, ncclCommInitRank, &communicator, ranks, id, number(position));
    finish(nccl_, communicator, result, *crew_, kStartSeconds);
    return communicator;
  });
  std::vector<Member>& members = made_[everyone_];
  for (int position = 0; position < static_cast<int>(made.size()); ++position)
    members.push_back({number(position), position, made[static_cast<std::size_t>(position)], ranks});
}

void Communicators::split(const std::vector<Group>& groups, Made& made) {
  std::vector<int> color(everyone_.size(), kSplitNoColor), key(everyone_.size(), 0);
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (std::size_t rank = 0; rank < groups[i].size(); ++rank) {
      color.at(static_cast<std::size_t>(groups[i][rank])) = static_cast<int>(i);
      key[static_cast<std::size_t>(groups[i][rank])] = static_cast<int>(rank);
    }
  const std::vector<Member>& world = made_.at(everyone_);  // by position
  const std::vector<ncclComm_t> part = start("a split of NCCL's world", [&](int position) {
    const Member& member = world[static_cast<std::size_t>(position)];
    const auto rank = static_cast<std::size_t>(member.rank);
    ncclComm_t one = nullptr;
    // Of a communicator that does not block, the new one is there once the world is done with it.
    const ncclResult_t result =
        NCCL_CHECK(nccl_, ncclCommSplit, member.communicator, color[rank], key[rank], &one, nullptr);
    finish(nccl_, member.communicator, result, *crew_, kStartSeconds);
    if (one != nullptr) finish(nccl_, one, result, *crew_, kStartSeconds);
    return one;
  });
  for (const Group& group : groups) {
    std::vector<Member>& members = made[group];
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      const int position = position_of(group[rank]);
      if (position >= 0)
        members.push_back({static_cast<int>(rank), position, part[static_cast<std::size_t>(position)],
                           static_cast<int>(group.size())});
    }
  }
}

void Communicators::split_missing(const std::vector<Group>& groups, Made& made) {
  std::vector<Group> missing;  // in the caller's order, so that rounds stay together
  std::set<Group> seen;
  for (const Group& group : groups)
    if (made.count(group) == 0 && seen.insert(group).second) missing.push_back(group);
  while (!missing.empty()) split(take_disjoint(missing), made);
}

void Communicators::prepare(const std::vector<Group>& groups) {
  for (const Group& group : groups)
    for (const int rank : group) position_of(rank);  // throws for a rank that is not there
  make_world();
  split_missing(groups, made_);
}

void Communicators::prepare_launches(const std::vector<Group>& groups) { split_missing(groups, for_launches_); }

void Communicators::check(const Member& member) const {
  ncclResult_t state = kNcclSuccess;
  NCCL_CHECK(nccl_, ncclCommGetAsyncError, member.communicator, &state);
  try {
    nccl_.checked(state, "failed in the background", __FILE__, __LINE__);
  } catch (const NcclError& error) {
    throw of_rank(member, error);
  }
}

void Communicators::check(const std::vector<Group>& groups) const {
  std::exception_ptr lost;
  for (const Made* made : {&made_, &for_launches_}) {
    for (const Group& group : groups) {
      const auto found = made->find(group);
      if (found == made->end()) continue;
      for (const Member& member : found->second) {
        try {
          check(member);
        } catch (const NcclError& error) {
          if (error.code != kNcclRemoteError) throw;
          if (!lost) lost = std::current_exception();
        }
      }
    }
  }
  if (lost) std::rethrow_exception(lost);
}

std::vector<ncclComm_t> Communicators::release(const std::vector<Group>& groups) {
  std::vector<ncclComm_t> released;
  for (Made* made : {&made_, &for_launches_}) {
    for (const Group& group : groups) {
      for (const Member& member : (*made)[group]) released.push_back(member.communicator);
      made->erase(group);
    }
  }
  return released;
}

void Communicators::close() {
  const bool stuck = crew_->stuck() || gpus_.crew().stuck();  // a thread may still use one of them
  for (Made* made : {&made_, &for_launches_}) {
    for (const auto& [group, members] : *made)
      for (const Member& member : members)
        if (!stuck) nccl_.ncclCommAbort(member.communicator);
    made->clear();
  }
}

}  // namespace collbench
