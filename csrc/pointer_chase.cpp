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

// `writer` can address the ring, which is its own or host memory.
void write_ring(Gpus& gpus, Gpu& writer, CUdeviceptr ring) {
  std::uint64_t lines = kLines, multiplier = kMultiplier, increment = kIncrement;
  void* arguments[] = {&ring, &lines, &multiplier, &increment};
  writer.context.make_current();
  Gpus::launch(writer, writer.stream(), Kernel::write_ring, Gpus::grid(writer, Kernel::write_ring, kLines), 1,
               arguments);
  gpus.wait(writer, kSetupSeconds);
}

CUdeviceptr device_ring(Gpus& gpus, Gpu& owner) {
  if (owner.ring.get() == 0) {
    DeviceMemory made = make_memory(owner.context.get(), kLines * kLineBytes);
    write_ring(gpus, owner, made.get());
    owner.ring = std::move(made);
  }
  return owner.ring.get();
}

CUdeviceptr host_ring(Gpus& gpus, Gpu& reader) {
  if (reader.host_ring.get() == nullptr) {
    PinnedMemory made = make_pinned(reader.context.get(), kLines * kLineBytes);
    write_ring(gpus, reader, reinterpret_cast<CUdeviceptr>(made.get()));
    reader.host_ring = std::move(made);
  }
  return reinterpret_cast<CUdeviceptr>(reader.host_ring.get());
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
  if (link.first == kHostPosition || link.second == kHostPosition) {
    Gpu& reader = gpus[link.first == kHostPosition ? link.second : link.first];
    return {&reader, host_ring(gpus, reader), 0};
  }
  return {&gpus[link.first], device_ring(gpus, gpus[link.second]), 0};
}

// The words by which a reader's multiprocessors take turns.
void make_turns(Gpus& gpus, Gpu& reader) {
  if (reader.turns.get() != 0) return;
  DeviceMemory made = make_memory(reader.context.get(), 2 * sizeof(std::uint64_t));
  CUDA_CHECK(cuMemsetD8Async, made.get(), static_cast<unsigned char>(0), 2 * sizeof(std::uint64_t), reader.stream());
  gpus.wait(reader, kSetupSeconds);
  reader.turns = std::move(made);
}

void queue(const Chase& chase, int accesses, BlockingKernel& blocking) {
  Gpu& reader = *chase.reader;
  const TimedStream& own = reader.own();
  CUdeviceptr start = chase.ring + chase.line * kLineBytes, turns = reader.turns.get();
  std::uint64_t all = static_cast<std::uint64_t>(accesses), first_turn = reader.turns_taken;
  std::uint64_t* end = &own.clear_report()->first;
  void* arguments[] = {&start, &all, &turns, &first_turn, &end};
  reader.context.make_current();
  blocking.block(reader, reader.stream());
  CUDA_CHECK(cuEventRecord, own.start.get(), reader.stream());
  Gpus::launch(reader, reader.stream(), Kernel::chase, reader.multiprocessors, 1, arguments);
  reader.turns_taken += reader.multiprocessors;
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
  for (const Chase& chase : chases) make_turns(gpus, *chase.reader);
  std::vector<std::vector<double>> seconds(chases.size());
  time_batch(gpus, kLines, round.deadline, chases);
  for (int batch = -round.warmup; batch < round.batches; ++batch) {
    const std::vector<double> times = time_batch(gpus, round.accesses, round.deadline, chases);
    for (std::size_t i = 0; batch >= 0 && i < seconds.size(); ++i) seconds[i].push_back(times[i]);
  }
  return seconds;
}

}  // namespace collbench
