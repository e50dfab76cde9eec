// Holds streams back until the host has queued all their work, so that launch time stays out of the measurement.
#pragma once

#include "gpus.hpp"

namespace collbench {

// One closed gate in front of any number of streams. It opens in open() and, if anything throws, on destruction:
// a gate that nobody opens would hang the device until its timeout.
class Gate {
 public:
  explicit Gate(Gpus& gpus) : gpus_(gpus), ticket_(gpus.next_ticket()) {}
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }

  // Queues the gate on the GPU's stream: what is queued after it waits.
  void hold(Gpu& gpu) {
    gpu.context.make_current();
    hold(gpu, gpu.stream.get());
  }
  // The same on any stream of the GPU, whose context is current.
  void hold(const Gpu& gpu, CUstream stream) {
    volatile std::uint32_t* latch = gpus_.latch();  // one address on host and device, by unified addressing
    volatile std::uint32_t* expired = latch + 1;
    std::uint64_t timeout = kTimeoutNanoseconds;
    void* arguments[] = {&latch, &ticket_, &timeout, &expired};
    Gpus::launch_on(gpu, stream, Kernel::gate, 1, 1, arguments);
  }
  void open() { gpus_.latch()[0] = ticket_; }
  // Throws HangError when a gate let go before it was opened: the block's time then contains launch time.
  void check() { check(gpus_); }
  static void check(Gpus& gpus) {
    if (gpus.latch()[1] == 0) return;
    gpus.latch()[1] = 0;
    throw HangError("the work behind a gate took more than 4 s to queue: the driver waits for the device");
  }

 private:
  // Queueing 32 operations takes about 0.1 ms; a driver that blocks in the middle would otherwise never return.
  static constexpr std::uint64_t kTimeoutNanoseconds = 4'000'000'000;
  Gpus& gpus_;
  std::uint32_t ticket_;
};

}  // namespace collbench
