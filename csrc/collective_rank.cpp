#include "collective_rank.hpp"

#include <algorithm>

namespace collbench {
namespace {

constexpr unsigned char kPoison = 0xff;  // not a number in every float, and larger than any of our whole numbers

// The seed of a slot, given that of the first: as in elements.cuh.
std::uint64_t seed_of(std::uint64_t seed, unsigned slot) { return seed + slot * 0xd1342543de82ef95ull; }

// Where the rank's data in the message at `offset` begins. In place, it lies in the buffer that receives.
CUdeviceptr send_address(const CollectiveRound& round, const LocalRank& local, std::uint64_t offset) {
  return (round.in_place ? local.buffers.target : local.buffers.send) + offset +
         local.layout.send_at * bytes_of(round.dtype);
}

CUdeviceptr receive_address(const CollectiveRound& round, const LocalRank& local, std::uint64_t offset) {
  return local.buffers.target + offset + local.layout.receive_at * bytes_of(round.dtype);
}

// The arguments of NCCL's functions.
struct Call {
  const Nccl& nccl;
  const std::vector<PeerBlocks>& peers;
  const void* send;
  void* receive;
  std::size_t count, element_bytes;
  int dtype, reduction, root, rank, ranks;
  ncclComm_t communicator;
  CUstream stream;

  // `elements` elements from element `first` on, to or from another rank.
  void send_to(int peer, std::uint64_t first, std::uint64_t elements) const {
    const void* from = static_cast<const char*>(send) + first * element_bytes;
    NCCL_CHECK(nccl, ncclSend, from, elements, dtype, peer, communicator, stream);
  }
  void receive_from(int peer, std::uint64_t first, std::uint64_t elements) const {
    void* to = static_cast<char*>(receive) + first * element_bytes;
    NCCL_CHECK(nccl, ncclRecv, to, elements, dtype, peer, communicator, stream);
  }
  // The same for a whole block of `count` elements.
  void send_block(int block, int peer) const { send_to(peer, static_cast<std::size_t>(block) * count, count); }
  void receive_block(int block, int peer) const { receive_from(peer, static_cast<std::size_t>(block) * count, count); }
};

// The order of sends and receives in each of these is nccl-tests'.
ncclResult_t all_to_all(const Call& call) {
  if (call.nccl.ncclAlltoAll != nullptr) {
    return NCCL_CHECK(call.nccl, ncclAlltoAll, call.send, call.receive, call.count, call.dtype, call.communicator,
                      call.stream);
  }
  NcclGroup calls(call.nccl);
  for (int peer = 0; peer < call.ranks; ++peer) {
    call.send_block(peer, peer);
    call.receive_block(peer, peer);
  }
  return calls.end();
}

ncclResult_t gather(const Call& call) {
  if (call.nccl.ncclGather != nullptr) {
    return NCCL_CHECK(call.nccl, ncclGather, call.send, call.receive, call.count, call.dtype, call.root,
                      call.communicator, call.stream);
  }
  NcclGroup calls(call.nccl);
  call.send_block(0, call.root);
  for (int peer = 0; call.rank == call.root && peer < call.ranks; ++peer) call.receive_block(peer, peer);
  return calls.end();
}

ncclResult_t scatter(const Call& call) {
  if (call.nccl.ncclScatter != nullptr) {
    return NCCL_CHECK(call.nccl, ncclScatter, call.send, call.receive, call.count, call.dtype, call.root,
                      call.communicator, call.stream);
  }
  NcclGroup calls(call.nccl);
  for (int peer = 0; call.rank == call.root && peer < call.ranks; ++peer) call.send_block(peer, peer);
  call.receive_block(0, call.root);
  return calls.end();
}

// A pair without data makes no call, on either side.
ncclResult_t all_to_all_v(const Call& call) {
  NcclGroup calls(call.nccl);
  for (int peer = 0; peer < call.ranks; ++peer) {
    const PeerBlocks& blocks = call.peers[static_cast<std::size_t>(peer)];
    if (blocks.sent > 0) call.send_to(peer, blocks.send_at, blocks.sent);
    if (blocks.received > 0) call.receive_from(peer, blocks.receive_at, blocks.received);
  }
  return calls.end();
}

// A ring: every rank sends to the next one and receives from the one before.
ncclResult_t send_and_receive(const Call& call) {
  NcclGroup calls(call.nccl);
  call.send_block(0, (call.rank + 1) % call.ranks);
  call.receive_block(0, (call.rank + call.ranks - 1) % call.ranks);
  return calls.end();
}

ncclResult_t dispatch(const Call& c, Collective operation) {
  switch (operation) {
    case Collective::allreduce:
      return NCCL_CHECK(c.nccl, ncclAllReduce, c.send, c.receive, c.count, c.dtype, c.reduction, c.communicator,
                        c.stream);
    case Collective::broadcast:
      return NCCL_CHECK(c.nccl, ncclBroadcast, c.send, c.receive, c.count, c.dtype, c.root, c.communicator, c.stream);
    case Collective::reduce:
      return NCCL_CHECK(c.nccl, ncclReduce, c.send, c.receive, c.count, c.dtype, c.reduction, c.root, c.communicator,
                        c.stream);
    case Collective::allgather:
      return NCCL_CHECK(c.nccl, ncclAllGather, c.send, c.receive, c.count, c.dtype, c.communicator, c.stream);
    case Collective::reducescatter:
      return NCCL_CHECK(c.nccl, ncclReduceScatter, c.send, c.receive, c.count, c.dtype, c.reduction, c.communicator,
                        c.stream);
    case Collective::alltoall:
      return all_to_all(c);
    case Collective::alltoallv:
      return all_to_all_v(c);
    case Collective::sendrecv:
      return send_and_receive(c);
    case Collective::gather:
      return gather(c);
    case Collective::scatter:
      return scatter(c);
  }
  return kNcclSuccess;
}

// Queues one launch of the verification, of elements that all follow the same rule.
void queue_check(const CollectiveRound& round, const LocalRank& local, const Elements& checked,
                 const Expected& expected, std::uint64_t seed, Report* report) {
  const Gpu& gpu = *local.gpu;
  const Slots& slots = local.captured->slots;
  gpu.launch(gpu.stream(), Kernel::verify_elements, gpu.grid(Kernel::verify_elements, checked.count), checked.slots,
             receive_address(round, local, slots.base + checked.slot * slots.stride), slots.stride, checked.first,
             checked.count, expected.block, expected.offset, static_cast<std::uint32_t>(round.dtype),
             static_cast<std::uint32_t>(reduction_of(round)), expected.sender,
             static_cast<std::uint32_t>(local.communicator.ranks), seed_of(seed, checked.slot),
             tolerance_of(round, local.communicator.ranks), report);
}

}  // namespace

void queue_collective(Gpus& gpus, const Nccl& nccl, const CollectiveRound& round, const LocalRank& local,
                      int iteration) {
  const std::uint64_t offset = local.captured->slots.offset(iteration);
  const Call call{nccl,
                  local.layout.peers,
                  reinterpret_cast<const void*>(send_address(round, local, offset)),
                  reinterpret_cast<void*>(receive_address(round, local, offset)),
                  local.layout.count,
                  bytes_of(round.dtype),
                  static_cast<int>(round.dtype),
                  static_cast<int>(round.reduction),
                  round.root,
                  local.communicator.rank,
                  local.communicator.ranks,
                  local.communicator.handle,
                  local.gpu->stream()};
  finish(nccl, call.communicator, dispatch(call, round.operation), gpus.threads(), round.deadline);
}

void queue_barrier(Gpus& gpus, const Nccl& nccl, const LocalRank& local, double deadline_seconds) {
  void* spare = reinterpret_cast<void*>(local.gpu->target.get() + gpus.spare_offset());
  const ncclComm_t communicator = local.communicator.handle;
  const ncclResult_t result = NCCL_CHECK(nccl, ncclAllReduce, spare, spare, 1, static_cast<int>(Dtype::int32),
                                         static_cast<int>(Reduction::sum), communicator, local.gpu->stream());
  finish(nccl, communicator, result, gpus.threads(), deadline_seconds);
}

void queue_fill(const CollectiveRound& round, const LocalRank& local, unsigned slots, std::uint64_t seed) {
  const Gpu& gpu = *local.gpu;
  gpu.launch(gpu.stream(), Kernel::fill_elements, gpu.grid(Kernel::fill_elements, local.layout.sent), slots,
             send_address(round, local, local.captured->slots.base), local.captured->slots.stride, local.layout.sent,
             static_cast<std::uint32_t>(round.dtype), static_cast<std::uint32_t>(reduction_of(round)),
             static_cast<std::uint32_t>(local.communicator.ranks), static_cast<std::uint32_t>(local.communicator.rank),
             seed);
}

void queue_poison(const CollectiveRound& round, const LocalRank& local, unsigned slots) {
  const Slots& used = local.captured->slots;
  const std::uint64_t bytes = used.stride * (slots - 1) + round.bytes();
  CUDA_CHECK(cuMemsetD8Async, local.buffers.target + used.base, kPoison, bytes, local.gpu->stream());
}

void queue_verify(const CollectiveRound& round, const LocalRank& local, const Elements& elements, std::uint64_t seed) {
  Report* report = local.gpu->own().clear_report();
  if (local.layout.peers.empty()) return queue_check(round, local, elements, local.layout.expected, seed, report);
  // Each peer's elements need a check of their own. Element i of the message is the peer's element
  // `offset + i - receive_at`. The difference may wrap around, as unsigned numbers do.
  const std::uint64_t end = elements.first + elements.count;
  for (std::size_t peer = 0; peer < local.layout.peers.size(); ++peer) {
    const PeerBlocks& blocks = local.layout.peers[peer];
    const std::uint64_t first = std::max(elements.first, blocks.receive_at),
                        last = std::min(end, blocks.receive_at + blocks.received);
    if (first >= last) continue;
    const Expected expected{blocks.received, last, blocks.offset - blocks.receive_at, static_cast<std::uint32_t>(peer)};
    queue_check(round, local, {first, last - first, elements.slot, elements.slots}, expected, seed, report);
  }
}

}  // namespace collbench
