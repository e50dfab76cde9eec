#include "collectives.hpp"

#include <future>
#include <thread>

#include "collective_timer.hpp"

namespace collbench {
namespace {

// How long to wait for NCCL to abort: it takes milliseconds, or hangs like the call that it aborts.
constexpr std::chrono::seconds kAbort{1};

}  // namespace

void Collectives::prepare(const std::vector<Group>& groups) {
  const std::lock_guard<std::mutex> lock(mutex_);
  session_.communicators.prepare(groups);
}

void Collectives::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  session_.graphs.clear();  // before the communicators that they use
  session_.registered.deregister();
  session_.communicators.close();
  session_.registered.free();
}

CollectiveTimes Collectives::time(const CollectiveRound& round) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check(round);
  session_.communicators.prepare(round.groups);
  if (round.launches()) session_.communicators.prepare_launches(round.groups);
  try {
    return CollectiveTimer(session_, round).run();
  } catch (const DeviceError&) {
    const std::exception_ptr cause = cause_of(std::current_exception(), round);
    abort(round);
    std::rethrow_exception(cause);
  }
}

// Returns what the communicator of a failed rank reports, where `failure` is only a consequence of that: nothing
// arrived, or another rank has exited. Otherwise returns `failure`.
std::exception_ptr Collectives::cause_of(const std::exception_ptr& failure, const CollectiveRound& round) const {
  try {
    std::rethrow_exception(failure);
  } catch (const CudaError&) {
    return failure;
  } catch (const NcclError& error) {
    if (error.code != kNcclRemoteError) return failure;
  } catch (const DeviceError&) {
  }
  try {
    session_.communicators.check(round.groups);
  } catch (const DeviceError&) {
    return std::current_exception();
  }
  return failure;
}

// Aborts the round's communicators, so that ranks which wait for a failed one end, here and in other processes. NCCL
// may hang while it aborts; then only the end of the process helps. Communicators that a stuck thread may use stay as
// they are.
void Collectives::abort(const CollectiveRound& round) {
  if (session_.gpus.threads().stuck() || session_.communicators.threads().stuck()) return;
  const std::vector<ncclComm_t> released = session_.communicators.release(round.groups);
  session_.registered.forget(released);
  auto aborts = [graphs = std::exchange(session_.graphs, {}), handles = released,
                 end = session_.nccl.ncclCommAbort]() mutable {
    graphs.clear();
    for (const ncclComm_t handle : handles) end(handle);
  };
  std::packaged_task<void()> task(std::move(aborts));
  const std::future<void> ended = task.get_future();
  std::thread(std::move(task)).detach();
  ended.wait_for(kAbort);
}

}  // namespace collbench
