// ncclConfig_t, what a communicator is made with. NCCL takes the `size` bytes that its caller knows of, and by
// `version` leaves fields alone that came later [NCCL 2.28.9, init.cc, parseCommConfig]; so newer libraries take this
// one, too.
#pragma once

#include <climits>
#include <cstddef>
#include <map>
#include <string>

namespace collbench {

// As nccl.h 2.28.3 declares it. Fields were only ever added at the end.
struct NcclConfig {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking = INT_MIN;  // NCCL_CONFIG_UNDEF_INT: NCCL's own choice, or its environment's
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;      // 2.26, where older libraries have padding
  const char* comm_name = nullptr;  // this and the next four 2.27
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
  int channels_per_net_peer = INT_MIN;  // this and the next 2.28
  int nvlink_centric_sched = INT_MIN;
};

// By nccl.h's names of the fields.
using NcclOptions = std::map<std::string, int>;

// Returns the config for an NCCL of this version. Throws std::invalid_argument for a field that none has.
NcclConfig config_of(const NcclOptions& options, int version);

}  // namespace collbench
