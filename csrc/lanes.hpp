// What one transfer needs on the GPU that issues it: a stream, its marks in time, a place for what was found.
#pragma once

#include <array>
#include <cstdint>

#include "handles.hpp"

namespace collbench {

// Mirrors kernels.cu's Report.
struct Report {
  std::uint64_t wrong;
  std::uint64_t first;
  double expected;
  double found;
};

// Blocks in flight: one is queued while the one before it runs. Each has its own turn of everything.
constexpr std::size_t kTurns = 2;
using EventTurns = std::array<Event, kTurns>;

inline EventTurns make_events(CUcontext context, unsigned flags = 0) {
  return {make_event(context, flags), make_event(context, flags)};
}

// Transfers that one GPU issues at the same time each have a lane. The first uses the GPU's own stream (`shared`): a
// transfer alone then needs no event between its copies and what the GPU does before and after.
struct Lane {
  Lane(CUcontext context, CUstream shared)
      : own(shared == nullptr ? make_stream(context) : Stream()),
        stream(shared == nullptr ? own.get() : shared),
        start(make_events(context)),
        end(make_events(context)),
        reports(make_pinned(context, kTurns * sizeof(Report))) {}
  Report* report(std::size_t turn) const { return static_cast<Report*>(reports.get()) + turn; }

  Stream own;
  CUstream stream;
  EventTurns start;      // of a group's first lane: the common start of all of them
  EventTurns end;        // of its copies; of a group's first lane: the common end of all of them
  PinnedMemory reports;  // one address for host and every device
};

}  // namespace collbench
