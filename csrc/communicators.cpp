#include "communicators.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "polling.hpp"

namespace collbench {
namespace {

// NCCL's start takes seconds, about ten where it searches for networks. The parent process waits for 60.
constexpr double kStartSeconds = 50.0;

// A failure of one rank; its text names the rank.
NcclError of_rank(int rank, int ranks, int position, int code, const std::string& text) {
  NcclError named(code, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": " + text);
  named.position = position;
  return named;
}

// Removes disjoint groups from `groups` and returns them: each, from the front, that shares no rank with earlier ones.
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

void finish(const Nccl& nccl, ncclComm_t communicator, ncclResult_t result, const DeviceThreads& threads,
            double deadline_seconds) {
  if (result != kNcclInProgress) return;
  const auto done = [&] {
    NCCL_CHECK(nccl, ncclCommGetAsyncError, communicator, &result);
    return nccl.checked(result, "ncclCommGetAsyncError(communicator)", __FILE__, __LINE__) != kNcclInProgress;
  };
  if (!poll(done, deadline_seconds, [&](Clock::time_point) { threads.throw_if_failed(); }))
    throw HangError("NCCL is still in progress with a call of " + std::to_string(deadline_seconds) + " s ago");
}

Communicators::Communicators(Gpus& gpus, const Nccl& nccl, World world)
    : gpus_(gpus),
      nccl_(nccl),
      world_(std::move(world)),
      everyone_(distributed() ? static_cast<std::size_t>(world_.size) : gpus.size()),
      threads_(new DeviceThreads(gpus)) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
  if (!distributed()) return;
  if (gpus.size() != 1)
    throw std::invalid_argument("a rank of a world of processes has one GPU, not " + std::to_string(gpus.size()));
  if (world_.rank < 0 || world_.rank >= world_.size)
    throw std::invalid_argument("rank " + std::to_string(world_.rank) + " of a world of " +
                                std::to_string(world_.size));
  if (world_.unique_id.size() != sizeof(NcclUniqueId))
    throw std::invalid_argument("an NCCL id has 128 bytes, not " + std::to_string(world_.unique_id.size()) +
                                ": pass what Nccl.unique_id() gave to one rank");
}

// The position in Gpus of a rank of the world, -1 where it lives in another process.
int Communicators::position_of(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(everyone_.size()))
    throw std::invalid_argument("a group names rank " + std::to_string(rank) + " of a world of " +
                                std::to_string(everyone_.size()));
  if (!distributed()) return rank;
  return rank == world_.rank ? 0 : -1;
}

// Makes one communicator for each of our GPUs, each by a thread of its own: then a failure belongs to one rank, and
// threads that NCCL makes wait for that rank can be abandoned. Null where `make` returns null.
std::vector<ncclComm_t> Communicators::make_all(const char* action,
                                                const std::function<ncclComm_t(int position)>& make) {
  std::vector<ncclComm_t> made(gpus_.size(), nullptr);
  threads_->run_on_all([&](std::size_t i) {
    const int position = static_cast<int>(i);
    try {
      made[i] = make(position);
    } catch (const NcclError& error) {
      throw of_rank(distributed() ? world_.rank : position, static_cast<int>(everyone_.size()), position, error.code,
                    std::string(action) + " failed: " + error.what());
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
  const auto rank = [this](int position) { return distributed() ? world_.rank : position; };
  const std::vector<ncclComm_t> handles = make_all("NCCL's start", [&](int position) {
    ncclComm_t handle = nullptr;  // on this thread's stack: NCCL may still write it after the job was abandoned
    const ncclResult_t result = NCCL_CHECK(nccl_, ncclCommInitRank, &handle, ranks, id, rank(position));
    finish(nccl_, handle, result, *threads_, kStartSeconds);
    return handle;
  });
  std::vector<Communicator>& world = made_[everyone_];
  for (int position = 0; position < static_cast<int>(handles.size()); ++position)
    world.push_back({handles[static_cast<std::size_t>(position)], rank(position), ranks, position});
}

void Communicators::split(const std::vector<Group>& groups, ByGroup& made) {
  std::vector<int> color(everyone_.size(), kSplitNoColor), key(everyone_.size(), 0);
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (std::size_t rank = 0; rank < groups[i].size(); ++rank) {
      color.at(static_cast<std::size_t>(groups[i][rank])) = static_cast<int>(i);
      key[static_cast<std::size_t>(groups[i][rank])] = static_cast<int>(rank);
    }
  const std::vector<Communicator>& world = made_.at(everyone_);  // by position
  const std::vector<ncclComm_t> handles = make_all("a split of NCCL's world", [&](int position) {
    const Communicator& whole = world[static_cast<std::size_t>(position)];
    const auto rank = static_cast<std::size_t>(whole.rank);
    ncclComm_t handle = nullptr;
    const ncclResult_t result =
        NCCL_CHECK(nccl_, ncclCommSplit, whole.handle, color[rank], key[rank], &handle, nullptr);
    finish(nccl_, whole.handle, result, *threads_, kStartSeconds);  // only then does `handle` exist
    if (handle != nullptr) finish(nccl_, handle, result, *threads_, kStartSeconds);
    return handle;
  });
  for (const Group& group : groups) {
    std::vector<Communicator>& ours = made[group];
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      const int position = position_of(group[rank]);
      if (position >= 0)
        ours.push_back({handles[static_cast<std::size_t>(position)], static_cast<int>(rank),
                        static_cast<int>(group.size()), position});
    }
  }
}

void Communicators::split_missing(const std::vector<Group>& groups, ByGroup& made) {
  std::vector<Group> missing;  // in the caller's order, so that the groups of a round share one split
  std::set<Group> seen;
  for (const Group& group : groups)
    if (made.count(group) == 0 && seen.insert(group).second) missing.push_back(group);
  while (!missing.empty()) split(take_disjoint(missing), made);
}

void Communicators::prepare(const std::vector<Group>& groups) {
  for (const Group& group : groups)
    for (const int rank : group) position_of(rank);  // throws for a rank that the world lacks
  make_world();
  split_missing(groups, made_);
}

void Communicators::check(const Communicator& communicator) const {
  ncclResult_t state = kNcclSuccess;
  NCCL_CHECK(nccl_, ncclCommGetAsyncError, communicator.handle, &state);
  try {
    nccl_.checked(state, "failed in the background", __FILE__, __LINE__);
  } catch (const NcclError& error) {
    throw of_rank(communicator.rank, communicator.ranks, communicator.position, error.code, error.what());
  }
}

void Communicators::check(const std::vector<Group>& groups) const {
  std::exception_ptr lost;
  for (const ByGroup* made : {&made_, &for_launches_}) {
    for (const Group& group : groups) {
      const auto found = made->find(group);
      if (found == made->end()) continue;
      for (const Communicator& communicator : found->second) {
        try {
          check(communicator);
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
  for (ByGroup* made : {&made_, &for_launches_}) {
    for (const Group& group : groups) {
      for (const Communicator& communicator : (*made)[group]) released.push_back(communicator.handle);
      made->erase(group);
    }
  }
  return released;
}

void Communicators::close() {
  const bool stuck = threads_->stuck() || gpus_.threads().stuck();  // a thread may still use a communicator
  for (ByGroup* made : {&made_, &for_launches_}) {
    for (const auto& [group, communicators] : *made)
      for (const Communicator& communicator : communicators)
        if (!stuck) library_call(nccl_.ncclCommAbort)(communicator.handle);
    made->clear();
  }
}

}  // namespace collbench
