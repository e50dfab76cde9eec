#include "numa_node.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "errors.hpp"

namespace collbench {
namespace {

constexpr int kBind = 2;  // MPOL_BIND [linux/mempolicy.h]
constexpr int kWordBits = 8 * static_cast<int>(sizeof(unsigned long));
// Of each mapping of this process the policy, which is the calling thread's unless the mapping has its own, and its
// pages by node. It needs no privilege.
constexpr const char* kMappings = "/proc/thread-self/numa_maps";
// This share of a node's memory is not given out before other nodes' is: what the kernel keeps free (the low watermark,
// 0.1%) and what it keeps for old devices (0.4%, lowmem_reserve_ratio), with room for other programs' demand.
constexpr std::size_t kReserve = 64;

template <class Mask>
void add(Mask& mask, int bit) {
  mask.at(static_cast<std::size_t>(bit / kWordBits)) |= 1ul << (bit % kWordBits);
}

std::ifstream open_file(int node, const char* name) {
  return std::ifstream("/sys/devices/system/node/node" + std::to_string(node) + "/" + name);
}

// A figure of the node's memory in bytes; 0 if it is not reported.
std::size_t memory_figure(int node, const char* name) {
  std::ifstream file = open_file(node, "meminfo");
  std::size_t kilobytes = 0;
  for (std::string word; file >> word;)
    if (word == name && file >> kilobytes) break;
  return kilobytes << 10;
}

// The calling thread's policy in the kernel's words, such as "bind:0"; "" if it is not reported.
std::string policy() {
  std::ifstream mappings(kMappings);
  std::string address, policy;
  mappings >> address >> policy;
  return policy;
}

// How many bytes of mappings lie on a node, and on all others.
struct Placed {
  std::size_t here = 0, elsewhere = 0;
};

// Of the mappings that hold these bytes. Nothing where the kernel does not count a driver's own pages.
Placed placed(const void* memory, std::size_t bytes, int node) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream mappings(kMappings);
  Placed sum;
  for (std::string line; std::getline(mappings, line);) {
    std::istringstream words(line);
    std::uintptr_t start = 0;
    words >> std::hex >> start;
    if (start >= begin + bytes) break;
    if (start <= begin) sum = {};  // the mappings so far end before
    Placed pages;
    std::size_t kilobytes = 0;
    for (std::string word; words >> word;) {
      int at = 0;
      std::size_t count = 0;
      if (std::sscanf(word.c_str(), "N%d=%zu", &at, &count) == 2) (at == node ? pages.here : pages.elsewhere) += count;
      std::sscanf(word.c_str(), "kernelpagesize_kB=%zu", &kilobytes);
    }
    sum.here += pages.here * (kilobytes << 10);
    sum.elsewhere += pages.elsewhere * (kilobytes << 10);
  }
  return sum;
}

std::string mebibytes(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

// System calls, because libnuma, which wraps them, is not installed everywhere.
OnNode::OnNode(int node, std::size_t bytes) : node_(node) {
  Mask<kMaxNodes> nodes{};
  add(nodes, node);
  const char* call = "get_mempolicy";
  if (syscall(SYS_get_mempolicy, &mode_, nodes_.data(), kMaxNodes, nullptr, 0) == 0) {
    call = "set_mempolicy";
    if (set_policy(kBind, nodes) == 0) return;
  }
  const int error = errno;
  forbidden_ = std::string(call) + ": " + std::strerror(error);
  if (error != EPERM && error != ENOSYS)
    throw PolicyError(
        "cannot take memory on NUMA node " + std::to_string(node) + ": " + forbidden_ +
        (error == EINVAL ? "; there is no such node, or this process may not use its memory (cpuset)" : ""));
  by_policy_ = false;
  move_to_its_cpus(bytes);
}

OnNode::~OnNode() {
  if (by_policy_)
    set_policy(mode_, nodes_);
  else
    syscall(SYS_sched_setaffinity, 0, sizeof cpus_, cpus_.data());
}

// The kernel reads one bit less than this number [mm/mempolicy.c, get_nodes].
long OnNode::set_policy(int mode, const Mask<kMaxNodes>& nodes) {
  return syscall(SYS_set_mempolicy, mode, nodes.data(), kMaxNodes + 1);
}

// The kernel's list, such as "0-3,8".
OnNode::Mask<kMaxCpus> OnNode::cpus_of(int node) {
  std::ifstream list = open_file(node, "cpulist");
  Mask<kMaxCpus> cpus{};
  for (int first = 0; list >> first;) {
    int last = first;
    if (list.get() == '-' && list >> last) list.get();
    for (int cpu = first; cpu <= last && cpu < kMaxCpus; ++cpu) add(cpus, cpu);
  }
  return cpus;
}

void OnNode::move_to_its_cpus(std::size_t bytes) {
  if (syscall(SYS_sched_getaffinity, 0, sizeof cpus_, cpus_.data()) < 0)
    refuse(std::string("sched_getaffinity: ") + std::strerror(errno), "allow that");
  Mask<kMaxCpus> chosen = cpus_of(node_);
  bool any = false;
  for (std::size_t word = 0; word < chosen.size(); ++word) any |= (chosen[word] &= cpus_[word]) != 0;
  if (!any) refuse("this process may use none of the node's CPUs", "let it use one (taskset, cpuset)");

  const std::string current = policy();
  if (current.empty()) refuse(std::string("no ") + kMappings + " shows where memory lies", "show it");
  if (current != "default" && current != "local")
    refuse("this process has the memory policy " + current, "start it without that (numactl)");
  const std::size_t free = memory_figure(node_, "MemFree:");
  const std::size_t needed = bytes + memory_figure(node_, "MemTotal:") / kReserve;
  if (free < needed)
    refuse("only " + mebibytes(free) + " of the node's memory are free, " + mebibytes(needed) + " needed",
           "free some (page cache counts as used)");
  if (syscall(SYS_sched_setaffinity, 0, sizeof chosen, chosen.data()) != 0)
    refuse(std::string("sched_setaffinity: ") + std::strerror(errno), "allow that");
}

void OnNode::verify(const void* memory, std::size_t bytes) const {
  if (by_policy_) return;
  // A mapping may hold more than this memory, so pages on other nodes matter only if too few are on this one.
  const Placed found = placed(memory, bytes, node_);
  if (found.elsewhere > 0 && found.here < bytes)
    refuse("the kernel put " + mebibytes(found.elsewhere) + " on other nodes", "free some of the node's memory");
}

void OnNode::refuse(const std::string& why, const std::string& remedy) const {
  throw PolicyError("cannot take memory on NUMA node " + std::to_string(node_) + ": " + forbidden_ + ", and " + why +
                    "; " + remedy + ", or in a container add CAP_SYS_NICE (docker run --cap-add SYS_NICE)");
}

}  // namespace collbench
