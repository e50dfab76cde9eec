// Memory copies between CPU cores: the copy round of the host backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "errors.hpp"

namespace collbench::host {

// One link of a round: bytes go from core `src_core`'s source buffer to core `dst_core`'s destination buffer.
struct Link {
  int src_core;
  int dst_core;
};

// Zeroed pages that no thread has touched yet, so that the first one to write decides their NUMA node.
class Pages {
 public:
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&&) = delete;

  unsigned char* data() const { return data_; }

 private:
  unsigned char* data_;
  std::size_t bytes_;
};

// What a core owns: a source filled with that core's pattern, and a destination.
struct Buffers {
  explicit Buffers(std::size_t bytes) : source(bytes), destination(bytes) {}
  Pages source;
  Pages destination;
};

// A source and a destination buffer per core, both first touched by a thread pinned to that core.
class HostSession {
 public:
  // Allocates and fills 2 × buffer_bytes per core. Throws std::runtime_error where a core cannot be used or memory
  // is refused, std::invalid_argument for a repeated core.
  HostSession(const std::vector<int>& cores, std::size_t buffer_bytes);

  // Copies `size` bytes over all links at once and returns the seconds per iteration, [link][block], after `warmup`
  // untimed blocks. `pull`: the destination's thread reads; otherwise the source's thread writes. Every byte is
  // verified afterwards: the first wrong one throws DataError (group = link, rank 1 = the destination).
  // Also throws std::runtime_error for a failed pinning and std::invalid_argument for links that share a thread or a
  // destination, unknown cores and sizes that do not fit.
  std::vector<std::vector<double>> time_copies(const std::vector<Link>& links, bool pull, std::size_t size,
                                               int iterations, int blocks, int warmup);

 private:
  void check(const std::vector<int>& drivers, const std::vector<int>& targets, std::size_t size) const;

  std::size_t buffer_bytes_;
  std::map<int, Buffers> buffers_;
};

// Writes the pattern of `core` into bytes [0, bytes): 64-bit words that depend on core and position, never repeating.
void fill_pattern(unsigned char* data, std::size_t bytes, int core);

// Compares `data` with bytes [offset, offset + bytes) of core's pattern; `offset` is a multiple of 8.
// Throws DataError at the first difference, as a fault of `link` at that byte of the message.
void verify_pattern(const unsigned char* data, std::size_t offset, std::size_t bytes, int core, int link);

}  // namespace collbench::host
