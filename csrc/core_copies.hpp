// Memory copies between CPU cores, for the host backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace collbench::host {

// Bytes are copied from the first core's source buffer to the second core's destination buffer.
using Link = std::pair<int, int>;

// Zeroed pages that no thread has touched yet, so that the first one to write decides their NUMA node.
class Pages {
 public:
  explicit Pages(std::size_t bytes);
  unsigned char* data() const { return data_.get(); }

 private:
  struct Unmap {
    void operator()(unsigned char* data) const;
    std::size_t bytes;
  };
  std::unique_ptr<unsigned char, Unmap> data_;
};

// A core's buffers: the source holds that core's pattern.
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

  // Copies `size` bytes over all links at once and returns seconds per iteration, [link][batch], after `warmup` untimed
  // batches. With `pull` the destination's thread reads; otherwise the source's thread writes. Afterwards every byte is
  // verified: the first wrong one throws DataError (group = link, rank 1 = the destination). Throws std::runtime_error
  // where a thread cannot be pinned, std::invalid_argument for links that share a source or a destination, unknown
  // cores and sizes that do not fit.
  std::vector<std::vector<double>> time_copies(const std::vector<Link>& links, bool pull, std::size_t size,
                                               int iterations, int batches, int warmup);

 private:
  void check(const std::vector<int>& sources, const std::vector<int>& targets, std::size_t size) const;

  std::size_t buffer_bytes_;
  std::map<int, Buffers> buffers_;
};

}  // namespace collbench::host
