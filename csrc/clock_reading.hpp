// The GPUs' own clocks (%globaltimer), each related to the host's: so times of different GPUs can be compared.
#pragma once

#include <cstdint>

#include "gpus.hpp"

namespace collbench {

// A GPU's clock when the host's steady clock read `host`, within `uncertainty`; `step` is the smallest
// step by which the GPU's clock was seen to move. Nanoseconds.
struct ClockReading {
  std::int64_t gpu = 0;
  std::int64_t host = 0;
  std::int64_t uncertainty = 0;
  std::int64_t step = 0;
};

// Asks the GPU for the time some hundred times, on its own stream, and returns the answer that came quickest: the GPU
// read its clock somewhere between the host's question and the answer's arrival. On the GPU's own thread. Throws
// CudaError, HangError past the deadline.
ClockReading read_clock(Gpus& gpus, Gpu& gpu, double deadline_seconds);

// The host's time at the GPU's time `gpu`, between two readings: the drift between the clocks is taken as even.
std::int64_t on_host(const ClockReading& before, const ClockReading& after, std::int64_t gpu);

}  // namespace collbench
