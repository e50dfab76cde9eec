#include "core_copies.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "polling.hpp"

namespace collbench::host {
namespace {

// A cache line on every x86 and most ARM cores: slots of a message start on one, so no two share a line.
constexpr std::size_t kLineBytes = 64;

// Where `parties` threads meet before each batch, until it is cancelled.
class Barrier {
 public:
  explicit Barrier(int parties) : parties_(parties) {}

  // Returns false, for every waiting and later thread, once cancelled.
  bool wait() {
    const int meeting = meetings_.load();
    if (arrived_.fetch_add(1) + 1 == parties_) {
      arrived_.store(0);
      meetings_.fetch_add(1);
      return !cancelled_;
    }
    poll([&] { return meetings_ != meeting || cancelled_; });
    return !cancelled_;
  }

  void cancel() { cancelled_ = true; }

 private:
  const int parties_;
  std::atomic<int> arrived_{0};
  std::atomic<int> meetings_{0};  // so far
  std::atomic<bool> cancelled_{false};
};

void pin(int core) {
  int error = EINVAL;
  if (core >= 0 && core < CPU_SETSIZE) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(core, &mask);
    error = pthread_setaffinity_np(pthread_self(), sizeof mask, &mask);
  }
  if (error != 0)
    throw std::runtime_error("cannot pin a thread to CPU" + std::to_string(core) + ": " + strerror(error));
}

// Runs work(i) on a thread pinned to cores[i], for all i at once; joins them and rethrows the first failure. A failure
// calls `cancel`, so that no thread waits for the one that failed.
void run_pinned(
    const std::vector<int>& cores, const std::function<void(std::size_t)>& work,
    const std::function<void()>& cancel = [] {}) {
  std::vector<std::exception_ptr> failures(cores.size() + 1);
  std::vector<std::thread> threads;
  threads.reserve(cores.size());
  auto guarded = [&](std::size_t slot, const auto& body) {
    try {
      body();
    } catch (...) {
      failures[slot] = std::current_exception();
      cancel();
    }
  };
  guarded(cores.size(), [&] {
    for (std::size_t i = 0; i < cores.size(); ++i)
      threads.emplace_back([&, i] {
        guarded(i, [&] {
          pin(cores[i]);
          work(i);
        });
      });
  });
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// splitmix64 [Steele, Lea, Flood 2014]: a bijection of 64 bits, so that no two words of a pattern are equal.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The cores' patterns begin 2^40 words (8 TiB) apart, so they share no word.
std::uint64_t pattern_word(int core, std::size_t index) {
  return mix((static_cast<std::uint64_t>(core) + 1) << 40 | index);
}

// Where the messages of one size lie in a buffer: iteration i uses slot i mod count. Rotating over the whole buffer,
// which the caller makes larger than a core's own caches, keeps small messages from being copied within L1.
struct Slots {
  Slots(std::size_t buffer_bytes, std::size_t size)
      : stride((size + kLineBytes - 1) / kLineBytes * kLineBytes),
        count(std::max<std::size_t>(1, buffer_bytes / stride)) {}
  std::size_t stride;
  std::size_t count;
};

// Copies `iterations` messages, from slot `next` on, and moves `next` behind the last.
void copy_batch(unsigned char* destination, const unsigned char* source, const Slots& slots, std::size_t size,
                int iterations, std::size_t& next) {
  for (int i = 0; i < iterations; ++i) {
    std::memcpy(destination + next * slots.stride, source + next * slots.stride, size);
    asm volatile("" ::: "memory");  // or the compiler might merge repeated copies
    if (++next == slots.count) next = 0;
  }
}

// At least 1 ns, never zero: twenty small copies can take less than one step of a coarse clock.
double seconds_since(std::chrono::steady_clock::time_point start) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return std::max(elapsed.count(), 1e-9);
}

// Writes the pattern of `core` into bytes [0, bytes): 64-bit words that depend on core and position, never repeating.
void fill_pattern(unsigned char* data, std::size_t bytes, int core) {
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = pattern_word(core, at / 8);
    std::memcpy(data + at, &word, std::min<std::size_t>(8, bytes - at));
  }
}

// Compares `data` with bytes [offset, offset + bytes) of core's pattern; `offset` is a multiple of 8.
// Throws DataError at the first difference, as a fault of `link` at that byte of the message.
void verify_pattern(const unsigned char* data, std::size_t offset, std::size_t bytes, int core, int link) {
  std::uint64_t wrong = 0, first = 0;
  int expected = 0, found = 0;
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = pattern_word(core, (offset + at) / 8);
    const std::size_t length = std::min<std::size_t>(8, bytes - at);
    if (std::memcmp(data + at, &word, length) == 0) continue;
    const auto* right = reinterpret_cast<const unsigned char*>(&word);
    for (std::size_t i = 0; i < length; ++i) {
      if (data[at + i] == right[i]) continue;
      if (wrong++ == 0) first = at + i, expected = right[i], found = data[at + i];
    }
  }
  if (wrong != 0) throw DataError(link, 1, first, wrong, expected, found);
}

}  // namespace

Pages::Pages(std::size_t bytes) : data_(nullptr, Unmap{bytes}) {
  // mmap, not malloc: malloc hands out pages that another thread may have placed before.
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    throw std::runtime_error("cannot allocate " + std::to_string(bytes) + " B of host memory: " + strerror(errno));
  data_.reset(static_cast<unsigned char*>(address));
}

void Pages::Unmap::operator()(unsigned char* data) const { munmap(data, bytes); }

HostSession::HostSession(const std::vector<int>& cores, std::size_t buffer_bytes) : buffer_bytes_(buffer_bytes) {
  for (const int core : cores)
    if (!buffers_.emplace(core, Buffers(buffer_bytes)).second)
      throw std::invalid_argument("CPU" + std::to_string(core) + " is named twice");
  run_pinned(cores, [&](std::size_t i) {
    const Buffers& own = buffers_.at(cores[i]);
    fill_pattern(own.source.data(), buffer_bytes_, cores[i]);
    std::memset(own.destination.data(), 0, buffer_bytes_);
  });
}

void HostSession::check(const std::vector<int>& sources, const std::vector<int>& targets, std::size_t size) const {
  if (size == 0 || size > buffer_bytes_)
    throw std::invalid_argument("a copy of " + std::to_string(size) + " B does not fit a buffer of " +
                                std::to_string(buffer_bytes_) + " B");
  for (const auto& cores : {sources, targets}) {
    if (std::set<int>(cores.begin(), cores.end()).size() != cores.size())
      throw std::invalid_argument("two links of one round share a CPU");
    for (const int core : cores)
      if (buffers_.count(core) == 0) throw std::invalid_argument("CPU" + std::to_string(core) + " has no buffers");
  }
}

std::vector<std::vector<double>> HostSession::time_copies(const std::vector<Link>& links, bool pull, std::size_t size,
                                                          int iterations, int batches, int warmup) {
  std::vector<int> sources, targets;
  for (const auto& [source, target] : links) sources.push_back(source), targets.push_back(target);
  check(sources, targets, size);
  if (iterations < 1 || batches < 0 || warmup < 0) throw std::invalid_argument("iterations must be 1 or more");

  const Slots slots(buffer_bytes_, size);
  const std::size_t copies = static_cast<std::size_t>(iterations) * static_cast<std::size_t>(warmup + batches);
  const std::size_t used = std::min(slots.count, copies);
  auto source = [&](std::size_t link) { return buffers_.at(sources[link]).source.data(); };
  auto target = [&](std::size_t link) { return buffers_.at(targets[link]).destination.data(); };

  // The destination's own core clears and verifies it, so that the writer's caches do not hold its lines beforehand.
  run_pinned(targets,
             [&](std::size_t link) { std::memset(target(link), 0, std::min(buffer_bytes_, used * slots.stride)); });
  std::vector<std::vector<double>> seconds(links.size());
  Barrier barrier(static_cast<int>(links.size()));
  auto time_link = [&](std::size_t link) {
    std::size_t next = 0;
    for (int batch = 0; batch < warmup + batches && barrier.wait(); ++batch) {
      const auto start = std::chrono::steady_clock::now();
      copy_batch(target(link), source(link), slots, size, iterations, next);
      if (batch >= warmup) seconds[link].push_back(seconds_since(start) / iterations);
    }
  };
  run_pinned(pull ? targets : sources, time_link, [&] { barrier.cancel(); });
  run_pinned(targets, [&](std::size_t link) {
    for (std::size_t slot = 0; slot < used; ++slot)
      verify_pattern(target(link) + slot * slots.stride, slot * slots.stride, size, sources[link],
                     static_cast<int>(link));
  });
  return seconds;
}

}  // namespace collbench::host
