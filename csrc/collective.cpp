#include "collective.hpp"

#include <algorithm>
#include <stdexcept>

#include "gate.hpp"
#include "launch_loop.hpp"

namespace collbench {
namespace {

constexpr int kLongestChain = 32;
constexpr int kAverage = 4;              // ncclAvg
constexpr int kCopyOfRoot = 5;           // kernels.cu
constexpr unsigned char kPoison = 0xa5;  // as no dtype writes a small whole number

std::uint32_t reduction_of(const CollectiveRound& round) {
  return static_cast<std::uint32_t>(round.operation == Collective::broadcast ? kCopyOfRoot : round.reduction);
}

// How far a floating average over `world` ranks may miss: NCCL scales by a rounded 1/world, then rounds every sum.
// The average is at most 7; world roundings of half a unit in the last place each, and one for the scale.
double tolerance_of(const CollectiveRound& round, std::size_t world) {
  const bool exact = reduction_of(round) != kAverage || (world & (world - 1)) == 0;
  if (exact) return 0;
  const double largest = 8.0 * static_cast<double>(world + 1);
  switch (round.dtype) {
    case 6:
      return largest / 2048;  // float16: 11 significant bits
    case 9:
      return largest / 256;  // bfloat16: 8
    case 7:
      return largest / 16777216;  // float32: 24
    case 8:
      return largest / 9007199254740992;  // float64: 53
    default:
      return 0;
  }
}

std::uint64_t seed_of(const CollectiveRound& round) { return 0x72616e6b73756dull ^ round.count; }

void* at(const DeviceMemory& memory, std::uint64_t offset) { return reinterpret_cast<void*>(memory.get() + offset); }

void check(const CollectiveRound& round) {
  if (round.iterations < 1 || round.iterations > kLongestChain)
    throw std::invalid_argument("a chain holds 1 to 32 collectives");
  if (round.count == 0) throw std::invalid_argument("a collective of no elements");
}

}  // namespace

CollectiveTimer::Key CollectiveTimer::key(const CollectiveRound& round, const Group& group) {
  return {group,
          {static_cast<std::uint64_t>(round.operation), static_cast<std::uint64_t>(round.dtype), reduction_of(round),
           static_cast<std::uint64_t>(round.root), round.count, static_cast<std::uint64_t>(round.iterations)}};
}

void CollectiveTimer::enqueue(const CollectiveRound& round, const Group& group, std::size_t rank,
                              std::uint64_t offset) {
  const Nccl& nccl = communicators_.nccl();
  Gpu& gpu = gpus_[group[rank]];
  const ncclComm_t communicator = communicators_[group][rank];
  const void* send = at(gpu.send, offset);
  void* receive = at(gpu.target, offset);
  if (round.operation == Collective::allreduce)
    NCCL_CHECK(nccl, ncclAllReduce, send, receive, round.count, round.dtype, round.reduction, communicator,
               gpu.stream.get());
  else
    NCCL_CHECK(nccl, ncclBroadcast, send, receive, round.count, round.dtype, round.root, communicator,
               gpu.stream.get());
}

void CollectiveTimer::enqueue_all(const CollectiveRound& round, const Group& group, std::uint64_t offset) {
  NcclGroup calls(communicators_.nccl());
  for (std::size_t rank = 0; rank < group.size(); ++rank) enqueue(round, group, rank, offset);
  calls.end();
}

CollectiveTimer::Chain CollectiveTimer::capture(const CollectiveRound& round, const Group& group) {
  Chain chain{gpus_.next_slots(round.bytes(), round.iterations, 0), {}};
  // Once without a graph: NCCL connects and loads its kernels on first use, which must not happen behind a gate.
  enqueue_all(round, group, chain.slots.offset(0));
  wait(group);
  // Every capture ends before the first graph is instantiated: the driver refuses that while this thread captures.
  std::vector<Capture> captures;
  for (const int member : group) captures.emplace_back(gpus_[member].context.get(), gpus_[member].stream.get());
  for (int i = 0; i < round.iterations; ++i) enqueue_all(round, group, chain.slots.offset(i));
  std::vector<Graph> graphs;
  for (Capture& capture : captures) graphs.push_back(capture.end());
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    Gpu& gpu = gpus_[group[rank]];
    CUgraphExec executable = nullptr;
    gpu.context.make_current();
    CUDA_CHECK(cuGraphInstantiateWithFlags, &executable, graphs[rank].get(), 0ull);
    chain.graphs.emplace_back(gpu.context.get(), executable);
    CUDA_CHECK(cuGraphUpload, executable, gpu.stream.get());
  }
  wait(group);
  return chain;
}

CollectiveTimer::Chain& CollectiveTimer::chain(const CollectiveRound& round, const Group& group) {
  const Key wanted = key(round, group);
  const auto found = chains_.find(wanted);
  if (found != chains_.end()) return found->second;
  return chains_.emplace(wanted, capture(round, group)).first->second;
}

void CollectiveTimer::wait(const Group& group) {
  for (const int member : group) gpus_.wait(gpus_[member], kDeadlineSeconds);
}

void CollectiveTimer::fill(const CollectiveRound& round, const Group& group) {
  const Slots slots = chain(round, group).slots;
  std::uint64_t stride = slots.stride, count = round.count, seed = seed_of(round);
  std::uint32_t dtype = static_cast<std::uint32_t>(round.dtype), reduction = reduction_of(round),
                world = static_cast<std::uint32_t>(group.size());
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    Gpu& gpu = gpus_[group[rank]];
    CUdeviceptr send = gpu.send.get() + slots.base;
    void* arguments[] = {&send, &stride, &count, &dtype, &reduction, &world, &rank, &seed};
    gpus_.launch(gpu, Kernel::fill_elements, gpus_.grid(gpu, Kernel::fill_elements, count), slots.count, arguments);
  }
}

void CollectiveTimer::poison(const CollectiveRound& round, const Group& group) {
  const Slots slots = chain(round, group).slots;
  for (const int member : group) {
    Gpu& gpu = gpus_[member];
    gpu.context.make_current();
    CUDA_CHECK(cuMemsetD8Async, gpu.target.get() + slots.base, kPoison, slots.stride * (slots.count - 1) + slots.bytes,
               gpu.stream.get());
  }
}

void CollectiveTimer::verify_elements(const CollectiveRound& round, const Group& group, std::size_t rank,
                                      std::uint64_t first, std::uint64_t count, unsigned slot, unsigned slots) {
  const Slots places = chain(round, group).slots;
  Gpu& gpu = gpus_[group[rank]];
  CUdeviceptr target = gpu.target.get() + places.base + slot * places.stride;
  std::uint64_t stride = places.stride, seed = seed_of(round);
  std::uint32_t dtype = static_cast<std::uint32_t>(round.dtype), reduction = reduction_of(round),
                world = static_cast<std::uint32_t>(group.size()), root = static_cast<std::uint32_t>(round.root);
  double tolerance = tolerance_of(round, group.size());
  Report* report = gpu.clear_report();
  void* arguments[] = {&target, &stride, &first, &count, &dtype, &reduction, &world, &root, &seed, &tolerance, &report};
  gpus_.launch(gpu, Kernel::verify_elements, gpus_.grid(gpu, Kernel::verify_elements, count), slots, arguments);
}

void CollectiveTimer::queue_verify(const CollectiveRound& round, const Group& group) {
  const unsigned slots = chain(round, group).slots.count;
  for (std::size_t rank = 0; rank < group.size(); ++rank) verify_elements(round, group, rank, 0, round.count, 0, slots);
}

void CollectiveTimer::finish_verify(const CollectiveRound& round, const Group& group, int index) {
  wait(group);
  const std::uint64_t stride = chain(round, group).slots.stride;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    Gpu& gpu = gpus_[group[rank]];
    const Report all = gpu.read_report();
    if (all.wrong == 0) continue;
    // That element alone: expected and found belong to it.
    const std::uint64_t offset = all.first % stride;
    verify_elements(round, group, rank, offset / round.width, 1, static_cast<unsigned>(all.first / stride), 1);
    gpus_.wait(gpu, kDeadlineSeconds);
    const Report one = gpu.read_report();
    throw DataError(index, static_cast<int>(rank), offset, all.wrong, one.expected, one.found);
  }
}

std::vector<double> CollectiveTimer::time_block(const CollectiveRound& round) {
  Gate gate(gpus_);
  for (const Group& group : round.groups)
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      Gpu& gpu = gpus_[group[rank]];
      gate.hold(gpu);
      CUDA_CHECK(cuEventRecord, gpu.start.get(), gpu.stream.get());
      CUDA_CHECK(cuGraphLaunch, chain(round, group).graphs[rank].get(), gpu.stream.get());
      CUDA_CHECK(cuEventRecord, gpu.end.get(), gpu.stream.get());
    }
  gate.open();
  for (const Group& group : round.groups) wait(group);
  gate.check();
  std::vector<double> seconds;
  for (const Group& group : round.groups) {
    double slowest = 0;
    for (const int member : group) slowest = std::max(slowest, elapsed_seconds(gpus_[member].start, gpus_[member].end));
    seconds.push_back(slowest / round.iterations);
  }
  return seconds;
}

std::vector<double> CollectiveTimer::time_launches(const CollectiveRound& round) {
  std::vector<LaunchLoop> loops;
  for (const Group& group : round.groups)
    for (std::size_t rank = 0; rank < group.size(); ++rank)
      loops.push_back([this, &round, &group, rank] {
        Gpu& gpu = gpus_[group[rank]];
        const Slots& slots = chains_.at(key(round, group)).slots;
        gpu.context.make_current();
        for (int i = 0; i < round.launch_iterations; ++i) enqueue(round, group, rank, slots.offset(i));
        gpus_.wait(gpu, kDeadlineSeconds);
      });
  const std::vector<double> seconds = run_together(loops);
  std::vector<double> slowest;
  auto rank = seconds.begin();
  for (const Group& group : round.groups) {
    const auto next = rank + static_cast<std::ptrdiff_t>(group.size());
    slowest.push_back(*std::max_element(rank, next) / round.launch_iterations);
    rank = next;
  }
  return slowest;
}

CollectiveTimes CollectiveTimer::time(const CollectiveRound& round) {
  check(round);
  communicators_.prepare(round.groups);
  CollectiveTimes times;
  times.seconds.resize(round.groups.size());
  for (const Group& group : round.groups) fill(round, group);
  for (const Group& group : round.groups) wait(group);
  for (int block = -round.warmup; block < round.blocks; ++block) {
    for (const Group& group : round.groups) poison(round, group);
    for (const Group& group : round.groups) wait(group);
    const std::vector<double> seconds = time_block(round);
    for (const Group& group : round.groups) queue_verify(round, group);
    for (std::size_t i = 0; i < round.groups.size(); ++i) {
      finish_verify(round, round.groups[i], static_cast<int>(i));
      if (block >= 0) times.seconds[i].push_back(seconds[i]);
    }
  }
  if (round.launch_iterations > 0) times.launch_seconds = time_launches(round);
  for (const Group& group : round.groups) communicators_.check(group);
  return times;
}

}  // namespace collbench
