#include "nccl_config.hpp"

#include <stdexcept>

namespace collbench {
namespace {

constexpr unsigned kMagic = 0xcafebeef;  // NCCL_CONFIG_INITIALIZER
constexpr int kNewest = 22899;           // what is newer has further fields, which it leaves alone

struct Field {
  const char* name;
  int NcclConfig::* member;
};
// By nccl.h's names. Which NCCL has them is known to model/nccl_options.py, which refuses them for older ones.
constexpr Field kFields[] = {
    {"cgaClusterSize", &NcclConfig::cga_cluster_size},
    {"minCTAs", &NcclConfig::min_ctas},
    {"maxCTAs", &NcclConfig::max_ctas},
    {"splitShare", &NcclConfig::split_share},
    {"trafficClass", &NcclConfig::traffic_class},
    {"collnetEnable", &NcclConfig::collnet_enable},
    {"CTAPolicy", &NcclConfig::cta_policy},
    {"nvlsCTAs", &NcclConfig::nvls_ctas},
    {"nChannelsPerNetPeer", &NcclConfig::channels_per_net_peer},
    {"nvlinkCentricSched", &NcclConfig::nvlink_centric_sched},
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
    if (found == nullptr) throw std::invalid_argument("ncclConfig_t has no field " + name);
    config.*(found->member) = value;
  }
  return config;
}

}  // namespace collbench
