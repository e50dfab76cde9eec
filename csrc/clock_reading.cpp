#include "clock_reading.hpp"

#include <algorithm>

#include "device_threads.hpp"
#include "polling.hpp"

namespace collbench {
namespace {

constexpr std::uint32_t kReadings = 300;
// As the blocking kernel's: a host that is stopped in the middle must not hang its GPU.
constexpr std::uint64_t kTimeoutNanoseconds = 4'000'000'000;
// An answer takes 2 us; after so long the driver is asked whether the GPU has failed. A question before would slow the
// answer down.
constexpr std::chrono::microseconds kUnasked{20};

// What a GPU and the host both see, at one address.
struct Mailbox {
  std::uint32_t asked;
  std::uint64_t step;
  std::uint64_t answers[kReadings];  // 0: none yet
};

// Lets the kernel end at once, whatever becomes of its host.
struct AllAsked {
  volatile Mailbox* box;
  ~AllAsked() { box->asked = kReadings; }
};

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

ClockReading read_clock(Gpus& gpus, Gpu& gpu, double deadline_seconds) {
  const PinnedMemory memory = make_pinned(gpu.context.get(), sizeof(Mailbox));
  auto* box = static_cast<volatile Mailbox*>(memory.get());
  box->asked = 0;
  for (std::uint32_t i = 0; i < kReadings; ++i) box->answers[i] = 0;
  volatile std::uint32_t* asked = &box->asked;
  volatile std::uint64_t* answers = box->answers;
  volatile std::uint64_t* step = &box->step;
  std::uint32_t count = kReadings;
  std::uint64_t timeout = kTimeoutNanoseconds;
  void* arguments[] = {&asked, &answers, &count, &timeout, &step};
  Gpus::launch(gpu, gpu.stream(), Kernel::tell_time, 1, 1, arguments);
  const AllAsked released{box};
  ClockReading best;
  for (std::uint32_t i = 0; i < kReadings; ++i) {
    const auto begin = Clock::now();
    box->asked = i + 1;
    while (box->answers[i] == 0) {
      if (Clock::now() - begin < kUnasked) continue;
      gpus.threads().throw_if_failed();
      const CUresult result = driver().cuStreamQuery(gpu.stream());
      if (result == kCudaSuccess && box->answers[i] == 0)
        throw HangError("GPU " + std::to_string(gpu.ordinal) + " gave up before the host had asked it for the time");
      if (result != kCudaSuccess && result != kCudaNotReady)
        throw_cuda(result, "cuStreamQuery(stream)", __FILE__, __LINE__);
      if (std::chrono::duration<double>(Clock::now() - begin).count() > deadline_seconds)
        throw HangError("GPU " + std::to_string(gpu.ordinal) + " did not report its time in " +
                        std::to_string(deadline_seconds) + " s");
      std::this_thread::yield();
    }
    const std::int64_t sent = nanoseconds(begin), come = nanoseconds(Clock::now());
    const std::int64_t uncertainty = (come - sent + 1) / 2;
    if (i == 0 || uncertainty < best.uncertainty)
      best = {static_cast<std::int64_t>(box->answers[i]), sent + (come - sent) / 2, uncertainty, 0};
  }
  gpus.threads().wait(gpu, deadline_seconds);
  best.step = static_cast<std::int64_t>(box->step);
  return best;
}

std::int64_t on_host(const ClockReading& before, const ClockReading& after, std::int64_t gpu) {
  const auto passed = static_cast<double>(gpu - before.gpu);
  const auto between = static_cast<double>(after.gpu - before.gpu);
  const auto drift = static_cast<double>((after.host - before.host) - (after.gpu - before.gpu));
  const double share = between > 0 ? passed / between : 0;
  return before.host + (gpu - before.gpu) + static_cast<std::int64_t>(drift * share);
}

}  // namespace collbench
