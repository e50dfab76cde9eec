#include "launch_loop.hpp"

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

namespace collbench {

std::vector<double> run_together(const std::vector<LaunchLoop>& loops) {
  std::atomic<std::size_t> waiting{loops.size()};
  std::vector<double> seconds(loops.size());
  std::vector<std::exception_ptr> failures(loops.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < loops.size(); ++i)
    threads.emplace_back([&, i] {
      --waiting;
      while (waiting > 0) std::this_thread::yield();  // yield: there may be fewer cores than threads
      const auto begin = std::chrono::steady_clock::now();
      try {
        loops[i]();
      } catch (...) {
        failures[i] = std::current_exception();
      }
      seconds[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return seconds;
}

}  // namespace collbench
