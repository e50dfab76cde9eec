#include "chains.hpp"

namespace collbench {

std::vector<int> positions_of(const std::vector<Part>& parts) {
  std::vector<int> positions;
  for (const Part& part : parts) positions.push_back(part.member.position);
  return positions;
}

Chains::Key Chains::key(const CollectiveRound& round, const Part& part) {
  return {round.groups[part.group],
          {static_cast<std::uint64_t>(round.operation), static_cast<std::uint64_t>(round.dtype), reduction_of(round),
           static_cast<std::uint64_t>(round.root), round.count, static_cast<std::uint64_t>(round.in_place),
           static_cast<std::uint64_t>(round.iterations)}};
}

GraphExec Chains::capture(const CollectiveRound& round, const Part& part) {
  Gpu& gpu = gpus_[part.member.position];
  const Nccl& nccl = communicators_.nccl();
  const Slots& slots = part.chain->slots;
  const Crew::Look look = [&] { communicators_.check(part.member); };
  // Once without a graph: NCCL connects and loads its kernels on first use, which must not happen behind a gate, and
  // would be captured in a graph.
  queue_collective(gpus_, nccl, round, part, slots.offset(0));
  if (communicators_.distributed()) queue_barrier(gpus_, nccl, part, round.deadline);
  crew_.wait(gpu, round.deadline, look);
  Capture recording(gpu.context.get(), gpu.stream.get());
  for (int i = 0; i < round.iterations; ++i) queue_collective(gpus_, nccl, round, part, slots.offset(i));
  const Graph graph = recording.end();
  CUgraphExec executable = nullptr;
  CUDA_CHECK(cuGraphInstantiateWithFlags, &executable, graph.get(), 0ull);
  GraphExec owner(gpu.context.get(), executable);
  CUDA_CHECK(cuGraphUpload, executable, gpu.stream.get());
  crew_.wait(gpu, round.deadline);
  return owner;
}

void Chains::attach(const CollectiveRound& round, std::vector<Part>& parts) {
  std::map<Key, Chain> made;
  std::vector<Part> missing;
  for (Part& part : parts) {
    const Key wanted = key(round, part);
    const auto known = chains_.find(wanted);
    if (known != chains_.end()) {
      part.chain = &known->second;
      continue;
    }
    Chain& chain = made[wanted];
    if (chain.graphs.empty()) {
      chain.slots = gpus_.next_slots(round.bytes(), round.iterations, 0);
      chain.graphs.resize(static_cast<std::size_t>(part.ranks));
    }
    part.chain = &chain;
    missing.push_back(part);
  }
  if (missing.empty()) return;
  crew_.run(positions_of(missing), [&](std::size_t i) {
    const auto rank = static_cast<std::size_t>(missing[i].member.rank);
    made.at(key(round, missing[i])).graphs[rank] = capture(round, missing[i]);
  });
  chains_.merge(made);  // moves nodes: the parts' pointers stay good
}

}  // namespace collbench
