#include "collectives.hpp"

#include <exception>
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
  communicators_.prepare(groups);
}

void Collectives::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_.clear();  // before the communicators that they use
  registered_.deregister();
  communicators_.close();
  registered_.free();
}

CollectiveTimes Collectives::time(const CollectiveRound& round) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check(round);
  communicators_.prepare(round.groups);
  if (round.launch_iterations > 0 || round.single_launches > 0) communicators_.prepare_launches(round.groups);
  std::exception_ptr seen;
  try {
    return CollectiveTimer(*this, round).run();
  } catch (const DeviceError&) {
    seen = std::current_exception();
  }
  try {
    throw_cause(round, seen);
  } catch (const DeviceError&) {
    seen = std::current_exception();
  }
  abort(round);
  std::rethrow_exception(seen);
}

// Throws `seen`. Where that is only a consequence of another rank's failure (nothing arrived, or the other rank has
// exited), throws what that rank's communicator reports.
void Collectives::throw_cause(const CollectiveRound& round, const std::exception_ptr& seen) const {
  try {
    std::rethrow_exception(seen);
  } catch (const CudaError&) {
    throw;
  } catch (const NcclError& error) {
    if (error.code == kNcclRemoteError) communicators_.check(round.groups);
    throw;
  } catch (const DeviceError&) {
    communicators_.check(round.groups);
    throw;
  }
}

// Aborts the round's communicators, so that ranks which wait for a failed one end, here and in other processes. NCCL
// may hang while it aborts; then only the end of the process helps. Communicators that a stuck thread may use stay as
// they are.
void Collectives::abort(const CollectiveRound& round) {
  if (gpus_.threads().stuck() || communicators_.threads().stuck()) return;
  const std::vector<ncclComm_t> released = communicators_.release(round.groups);
  registered_.forget(released);
  auto aborts = [graphs = std::exchange(graphs_, {}), handles = released, end = nccl_.ncclCommAbort]() mutable {
    graphs.clear();
    for (const ncclComm_t handle : handles) end(handle);
  };
  std::packaged_task<void()> task(std::move(aborts));
  const std::future<void> ended = task.get_future();
  std::thread(std::move(task)).detach();
  ended.wait_for(kAbort);
}

}  // namespace collbench
