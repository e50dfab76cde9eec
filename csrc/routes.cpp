#include "routes.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "host_memory.hpp"
#include "memory_policy.hpp"

namespace collbench {
namespace {

// Behind the gate, beside the waking copies and the verification: 32 in all.
constexpr int kMostIterations = 29;

// The GPUs of a link: one where the other end is host memory.
std::vector<int> gpus_of(const Link& link) {
  std::vector<int> positions;
  for (const int end : {link.first, link.second})
    if (!is_host(end)) positions.push_back(end);
  return positions;
}

void check_host(const Link& link) {
  if (is_host(link.first) && is_host(link.second)) throw std::invalid_argument("a transfer within host memory");
  const int node = kNodePosition - std::min(link.first, link.second);
  if (node >= kMostNodes) throw std::invalid_argument("no NUMA node " + std::to_string(node));
}

void check_links(std::size_t gpus, const CopyRound& round) {
  for (const Transfers& group : round.groups) {
    if (group.empty()) throw std::invalid_argument("a group without transfers");
    for (const Link& link : group) {
      if (link.first == link.second) throw std::invalid_argument("a transfer from a place to itself");
      check_host(link);
      for (const int position : gpus_of(link))
        if (static_cast<std::size_t>(position) >= gpus)
          throw std::invalid_argument("no GPU at position " + std::to_string(position));
    }
  }
}

void check_groups(std::size_t gpus, const CopyRound& round) {
  std::vector<const Transfers*> users(gpus, nullptr);
  for (const Transfers& group : round.groups)
    for (const Link& link : group)
      for (const int position : gpus_of(link)) {
        const Transfers*& user = users[static_cast<std::size_t>(position)];
        if (user != nullptr && user != &group) throw std::invalid_argument("groups of a round share a GPU");
        user = &group;
      }
}

void check(std::size_t gpus, const CopyRound& round) {
  check_links(gpus, round);
  check_groups(gpus, round);
  if (round.iterations < 1 || round.iterations > kMostIterations)
    throw std::invalid_argument("a block holds 1 to 29 messages");
}

int issuer_of(const CopyRound& round, const Link& link) {
  if (is_host(link.first)) return link.second;
  if (is_host(link.second)) return link.first;
  return round.pull ? link.second : link.first;
}

Lane& lane(Gpu& gpu, std::size_t index) {
  while (gpu.lanes.size() <= index)
    gpu.lanes.emplace_back(gpu.context.get(), gpu.lanes.empty() ? gpu.stream.get() : nullptr);
  return gpu.lanes[index];
}

bool reaches(const Gpus& gpus, int issuer, const Link& link) {
  const int other = issuer == link.first ? link.second : link.first;
  return is_host(other) || gpus.peer_access()[static_cast<std::size_t>(issuer)][static_cast<std::size_t>(other)];
}

Route make_route(Gpus& gpus, const CopyRound& round, const Link& link, int group, int index) {
  const int issuer = issuer_of(round, link), keeper = is_host(link.second) ? link.first : link.second;
  Gpu& beside = gpus[issuer];
  Route route{group, index, &beside, &gpus[keeper], nullptr, nullptr, {}, {}, 0, 0, 0, !reaches(gpus, issuer, link)};
  if (route.staged && round.engine == Engine::multiprocessors)
    throw std::invalid_argument("a kernel cannot copy between GPUs without peer access");
  route.source = is_host(link.first) ? Place{host_source(gpus, beside, link.first), nullptr}
                                     : Place{gpus[link.first].source.get(), gpus[link.first].context.get()};
  route.target = is_host(link.second) ? Place{host_target(gpus, beside, link.second), nullptr}
                                      : Place{gpus[link.second].target.get(), gpus[link.second].context.get()};
  route.seed = is_host(link.first) ? host_seed(beside) : gpus[link.first].seed;
  return route;
}

std::vector<Route> make_group(Gpus& gpus, const CopyRound& round, int group) {
  const Transfers& links = round.groups[static_cast<std::size_t>(group)];
  std::vector<Route> routes;
  for (std::size_t i = 0; i < links.size(); ++i)
    routes.push_back(make_route(gpus, round, links[i], group, static_cast<int>(i)));
  for (Route& route : routes)
    for (const Route& other : routes) {
      const bool earlier = other.index < route.index;
      if (other.target.buffer == route.target.buffer && earlier) ++route.way;
      if (other.issuer == route.issuer) ++route.sharing;
    }
  return routes;
}

// All lanes first: to make one moves those that were there.
void assign_lanes(std::vector<Route>& routes) {
  std::vector<std::size_t> lanes;
  for (const Route& route : routes) {
    const auto same = [&](const Route& other) { return other.issuer == route.issuer && other.index < route.index; };
    lanes.push_back(static_cast<std::size_t>(std::count_if(routes.begin(), routes.end(), same)));
    lane(*route.issuer, lanes.back());
  }
  for (std::size_t i = 0; i < routes.size(); ++i) routes[i].lane = &lane(*routes[i].issuer, lanes[i]);
  for (Route& route : routes) route.first = routes.front().lane;
}

void add(Scope& scope, const std::vector<Route>& routes) {
  for (const Route& route : routes) {
    scope.routes.push_back(route);
    if (std::find(scope.keepers.begin(), scope.keepers.end(), route.keeper) == scope.keepers.end())
      scope.keepers.push_back(route.keeper);
  }
}

bool uses_host(const CopyRound& round) {
  for (const Transfers& group : round.groups)
    for (const Link& link : group)
      if (is_host(link.first) || is_host(link.second)) return true;
  return false;
}

}  // namespace

std::vector<Scope> plan_routes(Gpus& gpus, const CopyRound& round) {
  check(gpus.size(), round);
  const bool together = uses_host(round);
  std::vector<Scope> scopes;
  for (std::size_t group = 0; group < round.groups.size(); ++group) {
    std::vector<Route> routes = make_group(gpus, round, static_cast<int>(group));
    assign_lanes(routes);
    if (scopes.empty() || !together) scopes.emplace_back();
    add(scopes.back(), routes);
  }
  return scopes;
}

unsigned most_ways(const std::vector<Scope>& scopes) {
  unsigned most = 1;
  for (const Scope& scope : scopes)
    for (const Route& route : scope.routes) most = std::max(most, route.way + 1);
  return most;
}

std::size_t smallest_buffer(const Gpus& gpus, const CopyRound& round) {
  std::size_t bytes = gpus.buffer_bytes();
  for (const Transfers& group : round.groups)
    for (const Link& link : group)
      for (const int end : {link.first, link.second})
        if (is_host(end)) bytes = std::min(bytes, host_bytes(gpus, end));
  return bytes;
}

}  // namespace collbench
