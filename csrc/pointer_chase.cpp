#include "pointer_chase.hpp"

#include <stdexcept>

#include "blocking_kernel.hpp"
#include "host_memory.hpp"

namespace collbench {
namespace {

constexpr std::uint64_t kLineBytes = 128;                 // of L2; one word of each is read
constexpr std::uint64_t kLines = (2 << 20) / kLineBytes;  // a power of two
// The ring visits every line, because the multiplier is 1 more than a multiple of 4 and the increment odd [Hull, Dobell
// 1962]. Both are those of Numerical Recipes.
constexpr std::uint64_t kMultiplier = 1664525;
constexpr std::uint64_t kIncrement = 1013904223;

// A reader, its ring, and the line of the ring where the last batch ended.
struct Chase {
  Gpu* reader;
  CUdeviceptr ring;
  std::uint64_t line;
};

std::uint64_t follow(std::uint64_t line, int accesses) {
  for (int i = 0; i < accesses; ++i) line = (line * kMultiplier + kIncrement) % kLines;
  return line;
}

// Returns the ring in `kept`. On first use `make` makes it, and `writer`, which can address it, writes it.
template <class Memory, class Make>
CUdeviceptr ring_in(const Gpu& writer, Memory& kept, const Make& make) {
  if (!kept.get()) {
    Memory made = make(writer.context.get(), kLines * kLineBytes);
    writer.context.make_current();
    writer.launch(writer.stream(), Kernel::write_ring, writer.grid(Kernel::write_ring, kLines), 1,
                  (CUdeviceptr)made.get(), kLines, kMultiplier, kIncrement);
    writer.wait(kSetupSeconds);
    kept = std::move(made);
  }
  return (CUdeviceptr)kept.get();
}

// The reader and the owner of the memory: a GPU reads host memory, never the other way.
Link reader_first(const Link& link) { return link.first == kHostPosition ? Link{link.second, link.first} : link; }

void check(const Gpus& gpus, const ChaseRound& round) {
  if (round.accesses < 1) throw std::invalid_argument("a batch holds at least one access");
  std::vector<bool> reads(gpus.size(), false);
  for (const Link& link : round.links) {
    const auto [reader, owner] = reader_first(link);
    if (reader == owner) throw std::invalid_argument("a reader and its own memory");
    for (const int position : {reader, owner})
      if (position != kHostPosition && (position < 0 || static_cast<std::size_t>(position) >= gpus.size()))
        throw std::invalid_argument("no GPU at position " + std::to_string(position));
    const auto at = static_cast<std::size_t>(reader);
    if (reads[at]) throw std::invalid_argument("links of a round share a reader");
    reads[at] = true;
    if (owner != kHostPosition && !gpus.peer_access()[at][static_cast<std::size_t>(owner)])
      throw std::invalid_argument("a kernel cannot read from a GPU without peer access");
  }
}

Chase make_chase(Gpus& gpus, const Link& link) {
  const auto [reader, owner] = reader_first(link);
  Gpu& gpu = gpus[reader];
  if (owner == kHostPosition) return {&gpu, ring_in(gpu, gpu.chase.host_ring, make_pinned), 0};
  return {&gpu, ring_in(gpus[owner], gpus[owner].chase.ring, make_memory), 0};
}

void make_order(Gpu& reader) {
  if (reader.chase.order.get() != 0) return;
  DeviceMemory made = make_memory(reader.context.get(), 2 * sizeof(std::uint64_t));
  CUDA_CHECK(cuMemsetD8Async, made.get(), static_cast<unsigned char>(0), 2 * sizeof(std::uint64_t), reader.stream());
  reader.wait(kSetupSeconds);
  reader.chase.order = std::move(made);
}

void queue(const Chase& chase, int accesses, BlockingKernel& blocking) {
  Gpu& reader = *chase.reader;
  const TimedStream& own = reader.own();
  reader.context.make_current();
  blocking.block(reader, own.get());
  CUDA_CHECK(cuEventRecord, own.start.get(), own.get());
  reader.launch(own.get(), Kernel::chase, reader.multiprocessors, 1, chase.ring + chase.line * kLineBytes,
                static_cast<std::uint64_t>(accesses), reader.chase.order.get(), reader.chase.turns,
                &own.clear_report()->first);
  reader.chase.turns += reader.multiprocessors;
  CUDA_CHECK(cuEventRecord, own.end.get(), own.get());
}

// Moves the chase to the line where the batch must have ended, and compares.
void check_end(Chase& chase, int accesses, int link) {
  chase.line = follow(chase.line, accesses);
  const std::uint64_t expected = chase.line * kLineBytes, found = chase.reader->own().report().first - chase.ring;
  if (found != expected)
    throw DataError(link, 0, expected, 1, static_cast<double>(expected), static_cast<double>(found));
}

std::vector<double> time_batch(Gpus& gpus, int accesses, double deadline, std::vector<Chase>& chases) {
  BlockingKernel blocking(gpus);
  for (const Chase& chase : chases) queue(chase, accesses, blocking);
  blocking.unblock();
  for (const Chase& chase : chases) chase.reader->wait(deadline);
  BlockingKernel::check_timeout(gpus);
  std::vector<double> seconds;
  for (Chase& chase : chases) {
    check_end(chase, accesses, static_cast<int>(seconds.size()));
    seconds.push_back(elapsed_seconds(chase.reader->own().start, chase.reader->own().end) / accesses);
  }
  return seconds;
}

}  // namespace

std::vector<std::vector<double>> time_chase(Gpus& gpus, const ChaseRound& round) {
  check(gpus, round);
  std::vector<Chase> chases;
  for (const Link& link : round.links) chases.push_back(make_chase(gpus, link));
  for (const Chase& chase : chases) make_order(*chase.reader);
  std::vector<std::vector<double>> seconds(chases.size());
  time_batch(gpus, static_cast<int>(kLines), round.deadline, chases);
  for (int batch = -round.warmup; batch < round.batches; ++batch) {
    const std::vector<double> times = time_batch(gpus, round.accesses, round.deadline, chases);
    for (std::size_t i = 0; batch >= 0 && i < seconds.size(); ++i) seconds[i].push_back(times[i]);
  }
  return seconds;
}

}  // namespace collbench
