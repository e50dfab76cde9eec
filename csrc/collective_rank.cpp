#include "collective_rank.hpp"

#include <algorithm>

namespace collbench {
namespace {

constexpr unsigned char kPoison = 0xff;  // not a number in every float, and larger than any of our whole numbers

// Any constant does: the data must differ from count to count.
std::uint64_t seed_of(const CollectiveRound& round) { return 0x72616e6b73756dull ^ round.count; }

// Where the rank's data of the message at `offset` begins. In place, both lie in the buffer that receives.
CUdeviceptr send_address(const CollectiveRound& round, const LocalRank& local, std::uint64_t offset) {
  return (round.in_place ? local.buffers.target : local.buffers.send) + offset +
         local.layout.send_at * bytes_of(round.dtype);
}

CUdeviceptr receive_address(const CollectiveRound& round, const LocalRank& local, std::uint64_t offset) {
  return local.buffers.target + offset + local.layout.receive_at * bytes_of(round.dtype);
}

// What NCCL's functions take, ready.
struct Call {
  const Nccl& nccl;
  const std::vector<PeerBlocks>& peers;
  const void* send;
  void* receive;
  std::size_t count;
  int dtype, root, rank, ranks;
  std::size_t block_bytes;
  ncclComm_t communicator;
  CUstream stream;

  void send_block(int block, int peer) const {
    const void* from = static_cast<const char*>(send) + static_cast<std::size_t>(block) * block_bytes;
    NCCL_CHECK(nccl, ncclSend, from, count, dtype, peer, communicator, stream);
  }
  void receive_block(int block, int peer) const {
    void* to = static_cast<char*>(receive) + static_cast<std::size_t>(block) * block_bytes;
    NCCL_CHECK(nccl, ncclRecv, to, count, dtype, peer, communicator, stream);
  }
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
ncclResult_t all_to_all_v(const Call& call, std::size_t width) {
  NcclGroup calls(call.nccl);
  for (int peer = 0; peer < call.ranks; ++peer) {
    const PeerBlocks& blocks = call.peers[static_cast<std::size_t>(peer)];
    const void* from = static_cast<const char*>(call.send) + blocks.send_at * width;
    void* to = static_cast<char*>(call.receive) + blocks.receive_at * width;
    if (blocks.sent > 0)
      NCCL_CHECK(call.nccl, ncclSend, from, blocks.sent, call.dtype, peer, call.communicator, call.stream);
    if (blocks.received > 0)
      NCCL_CHECK(call.nccl, ncclRecv, to, blocks.received, call.dtype, peer, call.communicator, call.stream);
  }
  return calls.end();
}

// A ring: everybody sends to the next rank and receives from the one before.
ncclResult_t send_and_receive(const Call& call) {
  NcclGroup calls(call.nccl);
  call.send_block(0, (call.rank + 1) % call.ranks);
  call.receive_block(0, (call.rank + call.ranks - 1) % call.ranks);
  return calls.end();
}

ncclResult_t dispatch(const Call& c, Collective operation, int reduction) {
  switch (operation) {
    case Collective::allreduce:
      return NCCL_CHECK(c.nccl, ncclAllReduce, c.send, c.receive, c.count, c.dtype, reduction, c.communicator,
                        c.stream);
    case Collective::broadcast:
      return NCCL_CHECK(c.nccl, ncclBroadcast, c.send, c.receive, c.count, c.dtype, c.root, c.communicator, c.stream);
    case Collective::reduce:
      return NCCL_CHECK(c.nccl, ncclReduce, c.send, c.receive, c.count, c.dtype, reduction, c.root, c.communicator,
                        c.stream);
    case Collective::allgather:
      return NCCL_CHECK(c.nccl, ncclAllGather, c.send, c.receive, c.count, c.dtype, c.communicator, c.stream);
    case Collective::reducescatter:
      return NCCL_CHECK(c.nccl, ncclReduceScatter, c.send, c.receive, c.count, c.dtype, reduction, c.communicator,
                        c.stream);
    case Collective::alltoall:
      return all_to_all(c);
    case Collective::alltoallv:
      return all_to_all_v(c, bytes_of(static_cast<Dtype>(c.dtype)));
    case Collective::sendrecv:
      return send_and_receive(c);
    case Collective::gather:
      return gather(c);
    case Collective::scatter:
      return scatter(c);
  }
  return kNcclSuccess;
}

// Queues one launch of the check: of elements that all come from where `expected` says.
void queue_check(Gpus& gpus, const CollectiveRound& round, const LocalRank& local, Elements checked, Expected expected,
                 Report* report) {
  const Gpu& gpu = gpus[local.communicator.position];
  std::uint64_t stride = local.captured->slots.stride, seed = seed_of(round);
  CUdeviceptr received = receive_address(round, local, local.captured->slots.base + checked.slot * stride);
  auto dtype = static_cast<std::uint32_t>(round.dtype), reduction = static_cast<std::uint32_t>(reduction_of(round)),
       ranks = static_cast<std::uint32_t>(local.communicator.ranks);
  double tolerance = tolerance_of(round, local.communicator.ranks);
  void* arguments[] = {&received, &stride,    &checked.first,   &checked.count, &expected.block, &expected.offset,
                       &dtype,    &reduction, &expected.sender, &ranks,         &seed,           &tolerance,
                       &report};
  Gpus::launch(gpu, gpu.stream(), Kernel::verify_elements, Gpus::grid(gpu, Kernel::verify_elements, checked.count),
               checked.slots, arguments);
}

}  // namespace

std::vector<int> positions_of(const std::vector<LocalRank>& ranks) {
  std::vector<int> positions;
  for (const LocalRank& rank : ranks) positions.push_back(rank.communicator.position);
  return positions;
}

void queue_collective(Gpus& gpus, const Nccl& nccl, const CollectiveRound& round, const LocalRank& local,
                      std::uint64_t offset) {
  const Gpu& gpu = gpus[local.communicator.position];
  const Call call{nccl,
                  local.layout.peers,
                  reinterpret_cast<const void*>(send_address(round, local, offset)),
                  reinterpret_cast<void*>(receive_address(round, local, offset)),
                  local.layout.count,
                  static_cast<int>(round.dtype),
                  round.root,
                  local.communicator.rank,
                  local.communicator.ranks,
                  local.layout.count * bytes_of(round.dtype),
                  local.communicator.handle,
                  gpu.stream()};
  const ncclResult_t result = dispatch(call, round.operation, static_cast<int>(round.reduction));
  finish(nccl, call.communicator, result, gpus.threads(), round.deadline);
}

void queue_barrier(Gpus& gpus, const Nccl& nccl, const LocalRank& local, double deadline_seconds) {
  const Gpu& gpu = gpus[local.communicator.position];
  void* spare = reinterpret_cast<void*>(gpu.target.get() + gpus.spare_offset());
  const ncclComm_t communicator = local.communicator.handle;
  const ncclResult_t result = NCCL_CHECK(nccl, ncclAllReduce, spare, spare, 1, static_cast<int>(Dtype::int32),
                                         static_cast<int>(Reduction::sum), communicator, gpu.stream());
  finish(nccl, communicator, result, gpus.threads(), deadline_seconds);
}

void queue_fill(Gpus& gpus, const CollectiveRound& round, const LocalRank& local, unsigned slots) {
  const Gpu& gpu = gpus[local.communicator.position];
  CUdeviceptr send = send_address(round, local, local.captured->slots.base);
  std::uint64_t stride = local.captured->slots.stride, count = local.layout.sent, seed = seed_of(round);
  auto dtype = static_cast<std::uint32_t>(round.dtype), reduction = static_cast<std::uint32_t>(reduction_of(round)),
       ranks = static_cast<std::uint32_t>(local.communicator.ranks),
       rank = static_cast<std::uint32_t>(local.communicator.rank);
  void* arguments[] = {&send, &stride, &count, &dtype, &reduction, &ranks, &rank, &seed};
  Gpus::launch(gpu, gpu.stream(), Kernel::fill_elements, Gpus::grid(gpu, Kernel::fill_elements, count), slots,
               arguments);
}

void queue_poison(Gpus& gpus, const CollectiveRound& round, const LocalRank& local, unsigned slots) {
  const Gpu& gpu = gpus[local.communicator.position];
  const Slots& used = local.captured->slots;
  const std::uint64_t bytes = used.stride * (slots - 1) + round.bytes();
  CUDA_CHECK(cuMemsetD8Async, local.buffers.target + used.base, kPoison, bytes, gpu.stream());
}

void queue_verify(Gpus& gpus, const CollectiveRound& round, const LocalRank& local, const Elements& elements) {
  Gpu& gpu = gpus[local.communicator.position];
  Report* report = gpu.own().clear_report();
  if (local.layout.peers.empty()) {
    queue_check(gpus, round, local, elements, local.layout.expected, report);
    return;
  }
  // Each peer's elements are a check of their own. Element i of the message is the peer's `offset + i - receive_at`:
  // that wraps around, as unsigned numbers do.
  const std::uint64_t end = elements.first + elements.count;
  for (std::size_t peer = 0; peer < local.layout.peers.size(); ++peer) {
    const PeerBlocks& blocks = local.layout.peers[peer];
    const std::uint64_t first = std::max(elements.first, blocks.receive_at),
                        last = std::min(end, blocks.receive_at + blocks.received);
    if (first >= last) continue;
    const Expected expected{blocks.received, last, blocks.offset - blocks.receive_at, static_cast<std::uint32_t>(peer)};
    queue_check(gpus, round, local, {first, last - first, elements.slot, elements.slots}, expected, report);
  }
}

}  // namespace collbench
