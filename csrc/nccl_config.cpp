#include "nccl_config.hpp"

#include <stdexcept>

namespace collbench {
namespace {

constexpr unsigned kMagic = 0xcafebeef;  // NCCL_CONFIG_INITIALIZER
constexpr int kNewest = 22899;           // what is newer has further fields, which it leaves alone

struct Field {
  const char* name;
  int NcclConfig::* member;
  int since;
};
// `since` as the field stands in nccl.h.
constexpr Field kFields[] = {
    {"cgaClusterSize", &NcclConfig::cga_cluster_size, 21700},
    {"minCTAs", &NcclConfig::min_ctas, 21700},
    {"maxCTAs", &NcclConfig::max_ctas, 21700},
    {"splitShare", &NcclConfig::split_share, 21800},
    {"trafficClass", &NcclConfig::traffic_class, 22600},
    {"collnetEnable", &NcclConfig::collnet_enable, 22700},
    {"CTAPolicy", &NcclConfig::cta_policy, 22700},
    {"nvlsCTAs", &NcclConfig::nvls_ctas, 22700},
    {"nChannelsPerNetPeer", &NcclConfig::channels_per_net_peer, 22800},
    {"nvlinkCentricSched", &NcclConfig::nvlink_centric_sched, 22800},
};

// sizeof(ncclConfig_t) of that nccl.h.
std::size_t size_of(int version) {
  if (version < 22700) return offsetof(NcclConfig, comm_name);
  return version < 22800 ? offsetof(NcclConfig, channels_per_net_peer) : sizeof(NcclConfig);
}

}  // namespace

NcclConfig config_of(const NcclOptions& options, int version) {
  NcclConfig config{size_of(version), kMagic, static_cast<unsigned>(version < kNewest ? version : kNewest)};
  for (const auto& [name, value] : options) {
    const Field* found = nullptr;
    for (const Field& field : kFields)
      if (name == field.name) found = &field;
    if (found == nullptr || version < found->since)
      throw std::invalid_argument("ncclConfig_t of NCCL " + std::to_string(version) + " has no field " + name);
    config.*(found->member) = value;
  }
  return config;
}

}  // namespace collbench
