#include "pointer_chase.hpp"

#include <stdexcept>

#include "blocking_kernel.hpp"
#include "host_memory.hpp"

namespace collbench {
namespace {

constexpr std::uint64_t kLineBytes = 128;  // of L2; one word of each is read
constexpr int kLines = 2 << 20 >> 7;       // 2 MiB of them, a power of two
// A full cycle over any power of two: the multiplier is 1 more than a multiple of 4, the increment odd [Hull, Dobell
// 1962]. The numbers are Numerical Recipes'.
constexpr std::uint64_t kMultiplier = 1664525;
constexpr std::uint64_t kIncrement = 1013904223;

// Where a reader is in its ring.
struct Chase {
  Gpu* reader;
  CUdeviceptr ring;
  std::uint64_t line;
};

std::uint64_t follow(std::uint64_t line, int accesses) {
  for (int i = 0; i < accesses; ++i) line = (line * kMultiplier + kIncrement) % kLines;
  return line;
}

// The ring that `kept` holds; on first use made by `make` and written by `writer`, which can address it.
template <class Memory, class Make>
CUdeviceptr ring_in(Gpus& gpus, Gpu& writer, Memory& kept, const Make& make) {
  if (!kept.get()) {
    Memory made = make(writer.context.get(), kLines * kLineBytes);
    auto ring = (CUdeviceptr)made.get();
    std::uint64_t lines = kLines, multiplier = kMultiplier, increment = kIncrement;
    void* arguments[] = {&ring, &lines, &multiplier, &increment};
    writer.context.make_current();
    Gpus::launch(writer, writer.stream(), Kernel::write_ring, Gpus::grid(writer, Kernel::write_ring, kLines), 1,
                 arguments);
    gpus.wait(writer, kSetupSeconds);
    kept = std::move(made);
  }
  return (CUdeviceptr)kept.get();
}

void check(const Gpus& gpus, const ChaseRound& round) {
  if (round.accesses < 1) throw std::invalid_argument("a batch holds at least one access");
  std::vector<bool> reads(gpus.size(), false);
  for (const auto& [reader, owner] : round.links) {
    if (reader == owner) throw std::invalid_argument("a reader and its own memory");
    const int first = reader == kHostPosition ? owner : reader, second = first == reader ? owner : reader;
    for (const int position : {first, second})
      if (position != kHostPosition && (position < 0 || static_cast<std::size_t>(position) >= gpus.size()))
        throw std::invalid_argument("no GPU at position " + std::to_string(position));
    const auto at = static_cast<std::size_t>(first);
    if (reads[at]) throw std::invalid_argument("links of a round share a reader");
    reads[at] = true;
    if (second != kHostPosition && !gpus.peer_access()[at][static_cast<std::size_t>(second)])
      throw std::invalid_argument("a kernel cannot read from a GPU without peer access");
  }
}

Chase make_chase(Gpus& gpus, const Link& link) {
  const bool host = link.first == kHostPosition || link.second == kHostPosition;
  Gpu& reader = gpus[link.first == kHostPosition ? link.second : link.first];
  if (host) return {&reader, ring_in(gpus, reader, reader.chase.host_ring, make_pinned), 0};
  Gpu& owner = gpus[link.second];
  return {&reader, ring_in(gpus, owner, owner.chase.ring, make_memory), 0};
}

void make_order(Gpus& gpus, Gpu& reader) {
  if (reader.chase.order.get() != 0) return;
  DeviceMemory made = make_memory(reader.context.get(), 2 * sizeof(std::uint64_t));
  CUDA_CHECK(cuMemsetD8Async, made.get(), static_cast<unsigned char>(0), 2 * sizeof(std::uint64_t), reader.stream());
  gpus.wait(reader, kSetupSeconds);
  reader.chase.order = std::move(made);
}

void queue(const Chase& chase, int accesses, BlockingKernel& blocking) {
  Gpu& reader = *chase.reader;
  const TimedStream& own = reader.own();
  CUdeviceptr start = chase.ring + chase.line * kLineBytes, order = reader.chase.order.get();
  std::uint64_t all = static_cast<std::uint64_t>(accesses), first_turn = reader.chase.turns;
  std::uint64_t* end = &own.clear_report()->first;
  void* arguments[] = {&start, &all, &order, &first_turn, &end};
  reader.context.make_current();
  blocking.block(reader, reader.stream());
  CUDA_CHECK(cuEventRecord, own.start.get(), reader.stream());
  Gpus::launch(reader, reader.stream(), Kernel::chase, reader.multiprocessors, 1, arguments);
  reader.chase.turns += reader.multiprocessors;
  CUDA_CHECK(cuEventRecord, own.end.get(), reader.stream());
}

// Moves the chase to where the batch must have ended.
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
  for (const Chase& chase : chases) gpus.wait(*chase.reader, deadline);
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
  for (const Chase& chase : chases) make_order(gpus, *chase.reader);
  std::vector<std::vector<double>> seconds(chases.size());
  time_batch(gpus, kLines, round.deadline, chases);
  for (int batch = -round.warmup; batch < round.batches; ++batch) {
    const std::vector<double> times = time_batch(gpus, round.accesses, round.deadline, chases);
    for (std::size_t i = 0; batch >= 0 && i < seconds.size(); ++i) seconds[i].push_back(times[i]);
  }
  return seconds;
}

}  // namespace collbench
