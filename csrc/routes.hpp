// From a round of copies to what each of its transfers uses: GPUs, a lane, addresses.
#pragma once

#include "copy.hpp"

namespace collbench {

// One end of a transfer: its buffer, and whose it is; null for host memory.
struct Place {
  CUdeviceptr buffer;
  CUcontext context;
};

struct Route {
  int group;    // in the round
  int index;    // in the group
  Gpu* issuer;  // copies
  Gpu* keeper;  // poisons and verifies what arrives: the destination, or for host memory the GPU beside it
  Lane* lane;   // of the issuer
  Lane* first;  // of the group's first transfer: carries the common start and end
  Place source;
  Place target;
  std::uint64_t seed;  // of what the source holds
  unsigned way;        // among the transfers to this destination: each writes slots of its own
  unsigned sharing;    // transfers that the issuer copies at once
  bool staged;         // the issuer cannot address the other end
};

// Transfers whose timed copies must all have ended before anything that they brought is verified: a group's, or those
// of all groups where host memory, which all GPUs share, takes part.
struct Scope {
  std::vector<Route> routes;
  std::vector<Gpu*> keepers;
};

// Makes the lanes and host buffers that are missing. Throws std::invalid_argument for a round that cannot be timed.
std::vector<Scope> plan_routes(Gpus& gpus, const CopyRound& round);

// Most transfers to one destination.
unsigned most_ways(const std::vector<Scope>& scopes);

// Bytes of the smallest buffer that the round uses: those in host memory may be smaller than the GPUs'.
std::size_t smallest_buffer(const Gpus& gpus, const CopyRound& round);

}  // namespace collbench
