#include "collective_layout.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>

namespace collbench {
namespace {

constexpr int kMaxIterations = 32;

struct CollectiveRow {
  bool reduces, has_blocks;
};
#define COLLBENCH_ROW(name, reduces, has_blocks) {reduces, has_blocks},
constexpr CollectiveRow kCollectives[] = {COLLBENCH_COLLECTIVES(COLLBENCH_ROW)};
#undef COLLBENCH_ROW
const CollectiveRow& row_of(Collective operation) { return kCollectives[static_cast<std::size_t>(operation)]; }

struct DtypeRow {
  std::size_t bytes;
  double rounding, smallest;
};
#define COLLBENCH_ROW(name, bytes, rounding, smallest) {bytes, rounding, smallest},
constexpr DtypeRow kDtypes[] = {COLLBENCH_DTYPES(COLLBENCH_ROW)};
#undef COLLBENCH_ROW
const DtypeRow& row_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }

// Blocks lie in the order of ranks, without gaps, in what is sent and in what is received.
Layout irregular_layout(const CollectiveRound& round, std::size_t me, std::size_t all) {
  Layout layout{0, 0, 0, 0, {0, 1, 0, 0}, std::vector<PeerBlocks>(all)};
  std::uint64_t received = 0;
  for (std::size_t peer = 0; peer < all; ++peer) {
    std::uint64_t before = 0;
    for (std::size_t other = 0; other < me; ++other) before += round.blocks[peer * all + other];
    const std::uint64_t out = round.blocks[me * all + peer], in = round.blocks[peer * all + me];
    layout.peers[peer] = {out, layout.sent, in, received, before};
    layout.sent += out;
    received += in;
  }
  layout.expected.count = round.in_place ? 0 : received;
  return layout;
}

void check_blocks(const CollectiveRound& round, std::size_t ranks) {
  if (round.blocks.size() != ranks * ranks)
    throw std::invalid_argument(std::to_string(round.blocks.size()) + " blocks are not those of " +
                                std::to_string(ranks) + " ranks");
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::uint64_t sent = 0, received = 0;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      const std::uint64_t out = round.blocks[rank * ranks + peer], in = round.blocks[peer * ranks + rank];
      if (out > round.count - sent || in > round.count - received)
        throw std::invalid_argument("rank " + std::to_string(rank) + " sends or receives more than " +
                                    std::to_string(round.count) + " elements");
      sent += out;
      received += in;
    }
  }
}

}  // namespace

std::size_t bytes_of(Dtype dtype) { return row_of(dtype).bytes; }

Reduction reduction_of(const CollectiveRound& round) {
  return row_of(round.operation).reduces ? round.reduction : Reduction::copied;
}

// Layouts and in-place offsets as in nccl-tests 2.19.6, *GetCollByteCount and *InitData of each operation's file. Like
// nccl-tests, collbench times an all-to-all and a send/recv in place but verifies neither, because their ranks
// overwrite what others still read.
Layout layout_of(const CollectiveRound& round, int rank, int ranks) {
  const auto me = static_cast<std::uint32_t>(rank), all = static_cast<std::uint32_t>(ranks),
             root = static_cast<std::uint32_t>(round.root);
  const std::uint64_t whole = round.count, block = whole / all, mine = me * block;
  const std::uint64_t inside = round.in_place ? mine : 0, unchecked_in_place = round.in_place ? 0 : whole;
  switch (round.operation) {
    case Collective::allreduce:
      return {whole, whole, 0, 0, {whole, whole, 0, 0}};
    case Collective::broadcast:
      return {whole, whole, 0, 0, {whole, whole, 0, root}};
    case Collective::reduce:
      return {whole, whole, 0, 0, {me == root ? whole : 0, whole, 0, 0}};
    case Collective::allgather:
      return {block, block, inside, 0, {whole, block, 0, kEachBlock}};
    case Collective::reducescatter:
      return {block, whole, 0, inside, {block, block, mine, 0}};
    case Collective::alltoall:
      return {block, whole, 0, 0, {unchecked_in_place, block, mine, kEachBlock}};
    case Collective::alltoallv:
      return irregular_layout(round, me, all);
    case Collective::sendrecv:
      return {whole, whole, 0, 0, {unchecked_in_place, whole, 0, (me + all - 1) % all}};
    case Collective::gather:
      return {block, block, inside, 0, {me == root ? whole : 0, block, 0, kEachBlock}};
    case Collective::scatter:
      return {block, whole, 0, inside, {block, block, mine, root}};
  }
  throw std::logic_error("a collective without a layout");
}

// In floating point, because the product of two counts overflows an integer. Rounding down keeps sums below `count`.
std::vector<std::uint64_t> scaled_blocks(const CollectiveRound& round, std::uint64_t count) {
  std::vector<std::uint64_t> blocks = round.blocks;
  const double share = static_cast<double>(count) / static_cast<double>(round.count);
  for (std::uint64_t& block : blocks) block = static_cast<std::uint64_t>(static_cast<double>(block) * share);
  return blocks;
}

std::uint64_t received_elements(const CollectiveRound& round, int rank, int ranks) {
  CollectiveRound out_of_place = round;
  out_of_place.in_place = false;
  return layout_of(out_of_place, rank, ranks).expected.count;
}

// NCCL rounds 1/ranks, each contribution times that, and every sum; adding zero is exact. So an average to which n
// ranks add has n + 1 roundings, in any order of the ranks. Tiny numbers are rounded to a multiple of the smallest one.
double tolerance_of(const CollectiveRound& round, int ranks) {
  const DtypeRow& row = row_of(round.dtype);
  if (reduction_of(round) != Reduction::avg || row.rounding == 0) return 0;
  if ((ranks & (ranks - 1)) == 0 && 1.0 / ranks >= row.smallest) return 0;
  const int adding = row.bytes == 1 ? 1 : row.bytes == 2 ? 8 : 112;  // as in elements.cuh's contribution
  const double rounding = std::max(row.rounding, row.smallest / 2 * ranks);
  const double own = 0x1p-52;  // of the expected average itself, which is a double
  return std::expm1((std::min(ranks, adding) + 1) * std::log1p(rounding)) + own;
}

void check(const CollectiveRound& round) {
  if (round.iterations < 1 || round.iterations > kMaxIterations)
    throw std::invalid_argument("a batch holds 1 to 32 collectives");
  if (round.count == 0) throw std::invalid_argument("a collective of no elements");
  std::set<int> seen;
  for (const Group& group : round.groups) {
    if (group.empty()) throw std::invalid_argument("a group of no ranks");
    for (const int rank : group)
      if (!seen.insert(rank).second)
        throw std::invalid_argument("groups of a round share rank " + std::to_string(rank) + ": time them in turn");
    if (round.operation == Collective::alltoallv) check_blocks(round, group.size());
    if (row_of(round.operation).has_blocks && round.count % group.size() != 0)
      throw std::invalid_argument("a message of " + std::to_string(round.count) + " elements does not split into " +
                                  std::to_string(group.size()) + " equal blocks");
  }
}

}  // namespace collbench
