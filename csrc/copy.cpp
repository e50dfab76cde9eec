#include "copy.hpp"

#include <stdexcept>

#include "gate.hpp"

namespace collbench {
namespace {

constexpr int kQueueDepth = 31;  // messages, behind the waking copy
constexpr std::uint64_t kWakingBytes = 16;

Gpu& issuer(Gpus& gpus, const CopyRound& round, const Link& link) {
  return gpus[round.pull ? link.second : link.first];
}

void issue(Gpus& gpus, const CopyRound& round, const Link& link, std::uint64_t offset, std::uint64_t bytes) {
  Gpu& from = gpus[link.first];
  Gpu& to = gpus[link.second];
  Gpu& by = issuer(gpus, round, link);
  CUdeviceptr source = from.source.get() + offset, target = to.target.get() + offset;
  if (round.engine == Engine::copy_engine) {
    CUDA_CHECK(cuMemcpyPeerAsync, target, to.context.get(), source, from.context.get(), bytes, by.stream.get());
    return;
  }
  void* arguments[] = {&target, &source, &bytes};
  gpus.launch(by, Kernel::copy, gpus.grid(by, Kernel::copy, bytes / 16), 1, arguments);
}

// Makes every byte that the block will write wrong.
void poison(Gpus& gpus, const Link& link, const Slots& slots) {
  Gpu& to = gpus[link.second];
  CUdeviceptr target = to.target.get();
  std::uint64_t base = slots.base, stride = slots.stride, bytes = slots.bytes, seed = gpus[link.first].seed;
  std::uint32_t invert = 1;
  void* arguments[] = {&target, &base, &stride, &bytes, &seed, &invert};
  gpus.launch(to, Kernel::fill, gpus.grid(to, Kernel::fill, bytes / 8), slots.count, arguments);
}

void queue_verify(Gpus& gpus, const Link& link, const Slots& slots) {
  Gpu& to = gpus[link.second];
  CUdeviceptr target = to.target.get();
  Report* report = to.clear_report();
  std::uint64_t base = slots.base, stride = slots.stride, bytes = slots.bytes, seed = gpus[link.first].seed;
  void* arguments[] = {&target, &base, &stride, &bytes, &seed, &report};
  gpus.launch(to, Kernel::verify, gpus.grid(to, Kernel::verify, bytes / 8), slots.count, arguments);
}

// Throws DataError where the block's data is wrong.
void finish_verify(Gpus& gpus, const Link& link, const Slots& slots, int group) {
  Gpu& to = gpus[link.second];
  gpus.wait(to, kDeadlineSeconds);
  const Report found = to.read_report();
  if (found.wrong == 0) return;
  queue_verify(gpus, link, {found.first, slots.stride, 1, 1});  // that byte alone: expected and found belong to it
  gpus.wait(to, kDeadlineSeconds);
  const Report byte = to.read_report();
  throw DataError(group, 1, (found.first - slots.base) % slots.stride, found.wrong, byte.expected, byte.found);
}

void wait_all(Gpus& gpus, const CopyRound& round) {
  for (const Link& link : round.links) {
    gpus.wait(gpus[link.first], kDeadlineSeconds);
    gpus.wait(gpus[link.second], kDeadlineSeconds);
  }
}

// Times one block on every link; returns seconds per message, by link.
std::vector<double> time_block(Gpus& gpus, const CopyRound& round, const Slots& slots) {
  Gate gate(gpus);
  for (const Link& link : round.links) {
    Gpu& by = issuer(gpus, round, link);
    gate.hold(by);
    // An engine's first copy starts some 7 us late [4 × H200]: let that be one that nobody times.
    issue(gpus, round, link, gpus.spare_offset(), kWakingBytes);
    by.context.make_current();
    CUDA_CHECK(cuEventRecord, by.start.get(), by.stream.get());
    for (int i = 0; i < round.iterations; ++i) issue(gpus, round, link, slots.offset(i), round.bytes);
    by.context.make_current();
    CUDA_CHECK(cuEventRecord, by.end.get(), by.stream.get());
  }
  gate.open();
  wait_all(gpus, round);
  gate.check();
  std::vector<double> seconds;
  for (const Link& link : round.links) {
    const Gpu& by = issuer(gpus, round, link);
    seconds.push_back(elapsed_seconds(by.start, by.end) / round.iterations);
  }
  return seconds;
}

void check(const Gpus& gpus, const CopyRound& round) {
  std::vector<bool> busy(gpus.size(), false);
  for (const Link& link : round.links)
    for (const int member : {link.first, link.second}) {
      if (busy.at(static_cast<std::size_t>(member))) throw std::invalid_argument("links of a round share a GPU");
      busy[static_cast<std::size_t>(member)] = true;
    }
  if (round.iterations < 1 || round.iterations > kQueueDepth)
    throw std::invalid_argument("a block holds 1 to 31 messages");
}

}  // namespace

std::vector<std::vector<double>> time_copies(Gpus& gpus, const CopyRound& round) {
  check(gpus, round);
  std::vector<std::vector<double>> seconds(round.links.size());
  for (int block = -round.warmup; block < round.blocks; ++block) {
    const Slots slots = gpus.next_slots(round.bytes, round.iterations, round.shift);
    for (const Link& link : round.links) poison(gpus, link, slots);
    wait_all(gpus, round);
    const std::vector<double> times = time_block(gpus, round, slots);
    for (const Link& link : round.links) queue_verify(gpus, link, slots);
    for (std::size_t i = 0; i < round.links.size(); ++i) {
      finish_verify(gpus, round.links[i], slots, static_cast<int>(i));
      if (block >= 0) seconds[i].push_back(times[i]);
    }
  }
  return seconds;
}

}  // namespace collbench
