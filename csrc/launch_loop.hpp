// Runs one function a thread, all let go at the same moment, and times each.
#pragma once

#include <functional>
#include <vector>

namespace collbench {

using LaunchLoop = std::function<void()>;

// Returns the wall seconds of each function from the common start to its return. The first exception is rethrown
// after all threads have ended.
std::vector<double> run_together(const std::vector<LaunchLoop>& loops);

}  // namespace collbench
