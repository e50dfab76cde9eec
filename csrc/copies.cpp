#include "copies.hpp"

#include <algorithm>
#include <stdexcept>

#include "blocking_kernel.hpp"
#include "device_threads.hpp"
#include "host_memory.hpp"
#include "numa_node.hpp"

namespace collbench {
namespace {

// With the two waking copies and the verification, 32 operations behind the blocking kernel [method/measuring.md 6].
constexpr int kMaxIterations = 29;
// Copies before the start event, because an engine's first copy starts late [method/measuring.md 7]. Two, because the
// source's engine sends what the destination issues, and the first copy does not wake that engine in time [2 × H200].
constexpr int kEngineWakingCopies = 2;
constexpr std::uint64_t kEngineWakingBytes = 16;
// Larger staged batches start without a blocking kernel [method/measuring.md 10]. The sample p2pBandwidthLatencyTest
// queues 5 × 40 MB behind one [4 × H200]; more was not tried.
constexpr std::uint64_t kMaxStaged = 200'000'000;
// A kernel's launch costs 8 to 10 us of ramp and tail. From this size on one launch copies a batch's messages in a
// loop, by one thread block on each multiprocessor [method/measuring.md 2]: 64 MiB are read at 365 GB/s by loops over 2
// messages (361 by 2 launches), at 374.6 over 16 [4 × H200].
constexpr std::uint64_t kLooped = 16 << 20;
// How often a covered batch is timed before it counts as not covered, and the shortest one that can: smaller messages
// do not fill a link, and their launches vary.
constexpr int kCoverAttempts = 3;
constexpr double kShortestCovered = 100e-6;  // seconds

// One end of a transfer: its buffer, and the context that the buffer belongs to; null for host memory.
struct Memory {
  CUdeviceptr buffer;
  CUcontext context;
};

struct Transfer {
  int group;            // in the round
  int index;            // in the group
  Gpu* issuer;          // the GPU that copies
  Gpu* verifier;        // poisons and verifies the target: the destination, or the issuer where that is host memory
  TimedStream* stream;  // of the issuer. Its first transfer uses the issuer's own stream: a single transfer then needs
                        // no event between its copies and the GPU's poisoning and verification
  TimedStream* first;   // of the group's first transfer: has the common start and end
  Memory source;
  Memory target;
  std::uint64_t seed;   // of what the source holds
  unsigned sender;      // index among the transfers to this destination: each writes its own slots
  unsigned concurrent;  // transfers that the issuer copies at the same time
  bool staged;          // the issuer cannot address the other end
  bool own_times;       // timed between events of its own, see CopyTimer::queue_ends
};

// Transfers that one thread queues, and that are all timed before any of them is verified: those of one group, or of
// all groups where host memory, which all GPUs share, takes part.
struct TransferSet {
  std::vector<Transfer> transfers;
  std::vector<Gpu*> verifiers;
};

void check(std::size_t gpus, const CopyRound& round) {
  std::vector<const std::vector<Link>*> users(gpus, nullptr);
  for (const std::vector<Link>& group : round.groups) {
    if (group.empty()) throw std::invalid_argument("a group without transfers");
    for (const Link& link : group) {
      if (is_host(link.first) && is_host(link.second)) throw std::invalid_argument("a transfer within host memory");
      const int node = kNodePosition - std::min(link.first, link.second);
      if (node >= kMaxNodes) throw std::invalid_argument("no NUMA node " + std::to_string(node));
      for (const int end : {link.first, link.second}) {
        if (is_host(end)) continue;
        if (static_cast<std::size_t>(end) >= gpus)
          throw std::invalid_argument("no GPU at position " + std::to_string(end));
        const std::vector<Link>*& user = users[static_cast<std::size_t>(end)];
        if (user != nullptr && user != &group) throw std::invalid_argument("groups of a round share a GPU");
        user = &group;
      }
    }
  }
  const int most = kMaxIterations / (round.covered ? 2 : 1);
  if (round.iterations < 1 || round.iterations > most)
    throw std::invalid_argument("a batch holds 1 to " + std::to_string(most) + " messages");
}

Transfer make_transfer(Gpus& gpus, const CopyRound& round, const Link& link) {
  const bool from_host = is_host(link.first), to_host = is_host(link.second);
  const bool pull = from_host || (!to_host && round.pull);
  const int far = pull ? link.first : link.second;
  Gpu& issuer = gpus[pull ? link.second : link.first];
  Transfer transfer{};
  transfer.issuer = &issuer;
  transfer.verifier = &gpus[to_host ? link.first : link.second];
  if (!is_host(far) && far != issuer.position)
    transfer.staged = !gpus.peer_access()[static_cast<std::size_t>(issuer.position)][static_cast<std::size_t>(far)];
  // If it were staged, the link would be timed under a name that promises peer access.
  const auto refusal = gpus.peer_refusals().find({issuer.position, far});
  if (refusal != gpus.peer_refusals().end()) {
    CudaError error(refusal->second);
    error.position = issuer.position;
    throw error;
  }
  if (transfer.staged && round.engine == Engine::multiprocessors)
    throw std::invalid_argument("a kernel cannot copy between GPUs without peer access");
  transfer.source = from_host ? Memory{host_source(gpus, issuer, link.first), nullptr}
                              : Memory{gpus[link.first].source.get(), gpus[link.first].context.get()};
  transfer.target = to_host ? Memory{host_target(gpus, issuer, link.second), nullptr}
                            : Memory{gpus[link.second].target.get(), gpus[link.second].context.get()};
  transfer.seed = from_host ? host_seed(issuer) : gpus[link.first].seed;
  return transfer;
}

// Whether a group is both directions of a link between two GPUs: each GPU sends one message at a time and receives one.
bool is_both_ways(const std::vector<Link>& group) {
  return group.size() == 2 && !is_host(group[0].first) && !is_host(group[0].second) &&
         group[0] == Link(group[1].second, group[1].first) && group[0] != group[1];
}

std::vector<Transfer> make_group(Gpus& gpus, const CopyRound& round, int group) {
  std::vector<Transfer> transfers;
  for (const Link& link : round.groups[static_cast<std::size_t>(group)]) {
    Transfer made = make_transfer(gpus, round, link);
    std::size_t streams = 0;  // of the issuer, used by earlier transfers
    for (const Transfer& earlier : transfers) {
      if (earlier.target.buffer == made.target.buffer) ++made.sender;
      if (earlier.issuer == made.issuer) ++streams;
    }
    std::deque<TimedStream>& own = made.issuer->streams;
    // A deque: pointers to its other elements stay valid.
    if (own.size() <= streams) own.emplace_back(made.issuer->context.get());
    made.stream = &own[streams];
    made.first = transfers.empty() ? made.stream : transfers.front().stream;
    made.group = group;
    made.index = static_cast<int>(transfers.size());
    made.own_times = !round.covered && is_both_ways(round.groups[static_cast<std::size_t>(group)]);
    transfers.push_back(made);
  }
  for (Transfer& transfer : transfers)
    for (const Transfer& other : transfers) transfer.concurrent += other.issuer == transfer.issuer ? 1 : 0;
  return transfers;
}

// Times the batches of one round. Each is verified before the next one is queued, because a batch takes a different
// time with another one queued behind it [docs/method/measuring.md 7].
class CopyTimer {
 public:
  // Makes the streams and host buffers that are missing. Throws std::invalid_argument for a round that cannot be timed.
  CopyTimer(Gpus& gpus, const CopyRound& round)
      : gpus_(gpus), round_(round), smallest_buffer_(gpus.buffer_bytes()), times_(round.groups.size()) {
    check(gpus.size(), round);
    bool host = false;
    for (const std::vector<Link>& group : round.groups)
      for (const Link& link : group)
        for (const int end : {link.first, link.second}) {
          if (!is_host(end)) continue;
          host = true;
          smallest_buffer_ = std::min(smallest_buffer_, host_bytes(gpus, end));
        }
    for (int group = 0; group < static_cast<int>(round.groups.size()); ++group) {
      if (sets_.empty() || !host) sets_.emplace_back();
      TransferSet& set = sets_.back();
      for (const Transfer& transfer : make_group(gpus, round, group)) {
        set.transfers.push_back(transfer);
        senders_ = std::max(senders_, transfer.sender + 1);
        if (std::find(set.verifiers.begin(), set.verifiers.end(), transfer.verifier) == set.verifiers.end())
          set.verifiers.push_back(transfer.verifier);
      }
    }
  }

  Times run() {
    try {
      run_batches();
    } catch (const HangError&) {
      throw;  // waiting again would take as long
    } catch (...) {
      wait_for_all();
      throw;
    }
    return std::move(times_);
  }

 private:
  void run_batches() {
    // This thread queries events, perhaps without having queued any: such calls may need a context.
    if (!sets_.empty()) sets_.front().verifiers.front()->context.make_current();
    int attempt = 1;
    for (int batch = -round_.warmup; batch < round_.batches; ++batch) {
      const Slots slots = gpus_.next_slots(round_.bytes, round_.iterations, senders_, smallest_buffer_);
      displacement_ = gpus_.next_displacement();
      if (batch == -round_.warmup) wake_links();
      BlockingKernel blocking(gpus_);
      queue(slots, blocking);
      for (const TransferSet& set : sets_)  // or one transfer would start while another's memory is being poisoned
        for (const Gpu* verifier : set.verifiers) verifier->wait(verifier->poisoned, round_.deadline);
      blocking.unblock();
      await_end();
      if (round_.covered)  // or the second half of the copies would write into the next batch
        each([&](const Transfer& transfer) { transfer.issuer->wait(transfer.stream->get(), round_.deadline); });
      for (const TransferSet& set : sets_)
        for (const Gpu* verifier : set.verifiers) verifier->wait(round_.deadline);
      each([&](const Transfer& transfer) { check_data(transfer, slots); });
      if (round_.covered && batch >= 0 && !is_covered() && attempt++ < kCoverAttempts) {
        --batch;
        continue;
      }
      attempt = 1;
      each([&](const Transfer& transfer) {
        if (batch < 0 || transfer.index > 0) return;
        const double seconds = group_seconds(transfer) / round_.iterations;
        times_.seconds[static_cast<std::size_t>(transfer.group)].push_back(seconds);
        const Gpu* ended_first = round_.covered ? ended_before(transfer) : nullptr;
        if (ended_first != nullptr) times_.uncovered[static_cast<std::size_t>(transfer.group)] = ended_first->position;
      });
    }
  }

  // How long the group of that first transfer took.
  double group_seconds(const Transfer& first) const {
    double longest = elapsed_seconds(first.stream->start, first.stream->end);
    each([&](const Transfer& other) {
      if (other.own_times && other.group == first.group)
        longest = std::max(longest, elapsed_seconds(other.stream->start, other.stream->end));
    });
    return longest;
  }

  // Whether all other transfers lasted as long as each group's first one was timed. Events of different GPUs cannot be
  // compared, but all transfers start together.
  bool is_covered() const {
    bool covered = true;
    each([&](const Transfer& timed) { covered = covered && (timed.index > 0 || ended_before(timed) == nullptr); });
    return covered;
  }

  // The issuer of the shortest transfer, null where none ended before the timed copies of a group's first transfer.
  const Gpu* ended_before(const Transfer& timed) const {
    const Gpu* first = nullptr;
    double shortest = elapsed_seconds(timed.stream->start, timed.stream->end);
    if (shortest < kShortestCovered) return nullptr;
    each([&](const Transfer& other) {
      const double lasted = elapsed_seconds(other.first->start, all_copied(other));
      if (other.stream == timed.stream || lasted >= shortest) return;
      shortest = lasted;
      first = other.issuer;
    });
    return first;
  }

  // The event after all messages of a transfer of a covered round; the first transfer's `end` is in their middle.
  static const Event& all_copied(const Transfer& transfer) {
    return transfer.index == 0 ? transfer.stream->arrived : transfer.stream->end;
  }

  template <class Action>
  void each(const Action& action) const {
    for (const TransferSet& set : sets_)
      for (const Transfer& transfer : set.transfers) action(transfer);
  }

  std::uint64_t batch_bytes() const { return round_.bytes * static_cast<std::uint64_t>(round_.iterations) * senders_; }

  void wake_links() {
    const std::uint64_t bytes = std::min<std::uint64_t>(kLinkWakingBytes, spare_offset());
    each([&](const Transfer& transfer) {
      if (!transfer.staged) transfer.issuer->with_context([&] { copy(transfer, 0, bytes); });
    });
    each([&](const Transfer& transfer) { transfer.issuer->wait(transfer.stream->get(), round_.deadline); });
  }

  std::uint64_t spare_offset() const { return gpus_.spare_offset(smallest_buffer_); }

  // Each set has a thread of its own: on one thread, the 18 driver calls of each link took longer than a small batch's
  // copies (two batches on two links 140 to 250 us [4 × H200]). A single set is queued by this thread.
  void queue(const Slots& slots, BlockingKernel& blocking) {
    if (sets_.size() == 1) return queue(sets_.front(), slots, blocking);
    std::vector<int> positions;  // no GPU is in two sets
    for (const TransferSet& set : sets_) positions.push_back(set.transfers.front().issuer->position);
    gpus_.threads().run(positions, [&](std::size_t i) { queue(sets_[i], slots, blocking); });
  }

  void queue(const TransferSet& set, const Slots& slots, BlockingKernel& blocking) {
    for (const Gpu* verifier : set.verifiers) verifier->with_context([&] { queue_poison(*verifier, set, slots); });
    for (const Transfer& transfer : set.transfers)
      transfer.issuer->with_context([&] { queue_copies(transfer, slots, blocking); });
    queue_ends(set);
    for (const Gpu* verifier : set.verifiers) verifier->with_context([&] { queue_verify(*verifier, set, slots); });
  }

  // Makes every byte that the batch will write wrong.
  void queue_poison(const Gpu& verifier, const TransferSet& set, const Slots& slots) {
    for (const Transfer& transfer : set.transfers)
      if (transfer.verifier == &verifier)
        verifier.fill(transfer.target.buffer, slots.of_sender(transfer.sender), displaced_seed(transfer), 1);
    CUDA_CHECK(cuEventRecord, verifier.poisoned.get(), verifier.stream());
  }

  void queue_copies(const Transfer& transfer, const Slots& slots, BlockingKernel& blocking) {
    const CUstream stream = transfer.stream->get();
    if (stream != transfer.verifier->stream())
      CUDA_CHECK(cuStreamWaitEvent, stream, transfer.verifier->poisoned.get(), 0u);
    if (transfer.staged) {
      // Before blocking: for its first staged copy the driver allocates buffers, and may wait for the device.
      copy(transfer, spare_offset(), kEngineWakingBytes);
      if (batch_bytes() > kMaxStaged) blocking.unblock();
    }
    blocking.block(*transfer.issuer, stream);
    for (int i = 0; i < kEngineWakingCopies && !transfer.staged; ++i)
      copy(transfer, spare_offset(), kEngineWakingBytes);
    if (transfer.index == 0)
      CUDA_CHECK(cuEventRecord, transfer.first->start.get(), stream);
    else
      CUDA_CHECK(cuStreamWaitEvent, stream, transfer.first->start.get(), 0u);
    if (transfer.index > 0 && transfer.own_times) CUDA_CHECK(cuEventRecord, transfer.stream->start.get(), stream);
    queue_messages(transfer, slots);
    if (!round_.covered) return;
    if (transfer.index == 0) CUDA_CHECK(cuEventRecord, transfer.first->end.get(), stream);
    queue_messages(transfer, slots);
    if (transfer.index == 0) CUDA_CHECK(cuEventRecord, all_copied(transfer).get(), stream);
  }

  void queue_messages(const Transfer& transfer, const Slots& slots) {
    const Slots own = slots.of_sender(transfer.sender);
    if (round_.engine == Engine::multiprocessors && own.bytes >= kLooped)
      return launch_copy(transfer, own, displacement_, static_cast<std::uint32_t>(round_.iterations));
    for (int i = 0; i < round_.iterations; ++i) copy(transfer, own.offset(i), own.bytes, displacement_);
  }

  // The seed of what the batch writes into its slots: it reads the source `displacement_` bytes further on.
  std::uint64_t displaced_seed(const Transfer& transfer) const { return transfer.seed + displacement_ / 8; }

  // A group is timed from one common start to one common end, as nvbandwidth's totals are. With a start event of its
  // own, each of three messages that one copy engine sends in turn seems to take a third of the time: its waking copy,
  // and so its start, waits behind the other messages [1187 GB/s over a port of 450, 4 × H200]. Both ways no engine
  // sends two messages, and each direction is timed by its own events, as nvbandwidth's are: a wait for another GPU's
  // event takes microseconds, in which nothing is copied.
  void queue_ends(const TransferSet& set) {
    for (const Transfer& transfer : set.transfers) {
      if (transfer.index == 0) continue;
      transfer.issuer->with_context(
          [&] { CUDA_CHECK(cuEventRecord, transfer.stream->end.get(), transfer.stream->get()); });
    }
    if (round_.covered) return;  // the end was recorded in the middle of the first transfer's messages
    for (const Transfer& transfer : set.transfers) {
      if (transfer.index > 0) continue;
      transfer.issuer->with_context([&] {
        const CUstream stream = transfer.stream->get();
        for (const Transfer& other : set.transfers)
          if (other.first == transfer.stream && other.index > 0 && !other.own_times)
            CUDA_CHECK(cuStreamWaitEvent, stream, other.stream->end.get(), 0u);
        CUDA_CHECK(cuEventRecord, transfer.stream->end.get(), stream);
      });
    }
  }

  void copy(const Transfer& transfer, std::uint64_t offset, std::uint64_t bytes, std::uint64_t displacement = 0) {
    if (round_.engine == Engine::multiprocessors) return launch_copy(transfer, {offset, 0, bytes, 1}, displacement, 1);
    const CUstream stream = transfer.stream->get();
    const CUdeviceptr source = transfer.source.buffer + offset + displacement, target = transfer.target.buffer + offset;
    if (transfer.source.context == nullptr) {
      CUDA_CHECK(cuMemcpyHtoDAsync_v2, target, reinterpret_cast<const void*>(source), bytes, stream);
    } else if (transfer.target.context == nullptr) {
      CUDA_CHECK(cuMemcpyDtoHAsync_v2, reinterpret_cast<void*>(target), source, bytes, stream);
    } else if (transfer.source.context == transfer.target.context) {
      CUDA_CHECK(cuMemcpyDtoDAsync_v2, target, source, bytes, stream);
    } else {
      CUDA_CHECK(cuMemcpyPeerAsync, target, transfer.target.context, source, transfer.source.context, bytes, stream);
    }
  }

  void launch_copy(const Transfer& transfer, const Slots& slots, std::uint64_t displacement, std::uint32_t messages) {
    const Gpu& issuer = *transfer.issuer;
    const unsigned all = slots.bytes >= kLooped ? issuer.multiprocessors : issuer.grid(Kernel::copy, slots.bytes / 16);
    const unsigned blocks = std::max(1u, all / transfer.concurrent);
    issuer.launch(transfer.stream->get(), Kernel::copy, blocks, 1, transfer.target.buffer + slots.base,
                  transfer.source.buffer + slots.base + displacement, slots.bytes, slots.stride, slots.count, messages);
  }

  // After all copies of the set: an earlier verification would slow down what is still timed.
  void queue_verify(const Gpu& verifier, const TransferSet& set, const Slots& slots) {
    const CUstream stream = verifier.stream();
    for (const Transfer& transfer : set.transfers)
      if (transfer.stream->get() != stream) CUDA_CHECK(cuStreamWaitEvent, stream, transfer.stream->end.get(), 0u);
    for (const Transfer& transfer : set.transfers) {
      if (transfer.verifier != &verifier) continue;
      const Slots own = slots.of_sender(transfer.sender);
      verifier.launch(stream, Kernel::verify, verifier.grid(Kernel::verify, own.bytes / 8), own.count,
                      transfer.target.buffer, own.base, own.stride, own.bytes, displaced_seed(transfer),
                      transfer.stream->clear_report());
    }
  }

  void await_end() {
    for (const TransferSet& set : sets_)
      // Last transfer first: the first transfer's end waits for the others, whose issuers' failures it would hide.
      for (auto transfer = set.transfers.rbegin(); transfer != set.transfers.rend(); ++transfer)
        transfer->issuer->wait(transfer->stream->end, round_.deadline);
    BlockingKernel::check_timeout(gpus_);
  }

  void check_data(const Transfer& transfer, const Slots& slots) {
    const Report found = transfer.stream->report();
    if (found.wrong == 0) {
      Coverage& coverage = times_.coverage[static_cast<std::size_t>(transfer.group)];
      coverage.moved += slots.bytes * static_cast<std::uint64_t>(round_.iterations) * (round_.covered ? 2 : 1);
      coverage.verified += slots.bytes * slots.count;
      return;
    }
    // Packed by kernels.cu's verify: offset in the buffer, expected byte, found byte.
    const std::uint64_t offset = (found.first >> 16) - slots.of_sender(transfer.sender).base;
    throw DataError(transfer.group, transfer.index, offset % slots.stride, found.wrong,
                    static_cast<double>(found.first >> 8 & 0xff), static_cast<double>(found.first & 0xff));
  }

  // After a failure: what is still queued must not write into a later round.
  void wait_for_all() noexcept {
    try {
      each([&](const Transfer& transfer) {
        transfer.issuer->wait(transfer.stream->get(), round_.deadline);
        transfer.verifier->wait(round_.deadline);
      });
    } catch (const DeviceError&) {
      // A GPU that fails here stays unusable; the first failure is the one that run() throws.
    }
  }

  Gpus& gpus_;
  const CopyRound& round_;
  std::vector<TransferSet> sets_;
  unsigned senders_ = 1;            // the most transfers to one destination
  std::uint64_t displacement_ = 0;  // of the present batch, see Gpus::next_displacement
  std::size_t smallest_buffer_;     // bytes; buffers in host memory may be smaller than the GPUs'
  Times times_;
};

}  // namespace

Times time_copies(Gpus& gpus, const CopyRound& round) { return CopyTimer(gpus, round).run(); }

}  // namespace collbench
