#include "stream.hpp"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

extern char** environ;

namespace recorder {
namespace {

constexpr uint64_t BASE = 0x9E3779B97F4A7C15ull;  // odd; of a polynomial hash mod 2^64, whose matches are compared

uint64_t aligned(uint64_t offset) { return (offset + 63) / 64 * 64; }

// Stores in program order, for readers of the file after a kill.
template <class T>
void store(T& place, T value) {
  __atomic_store_n(&place, value, __ATOMIC_RELEASE);
}

int32_t number_in(const char* name) {
  const char* text = getenv(name);
  return text && *text ? atoi(text) : NONE;
}

void keep_environment(char* room, size_t bytes) {
  size_t used = 0;
  for (char** variable = environ; *variable; ++variable) {
    const size_t length = strlen(*variable) + 1;
    if (strncmp(*variable, "NCCL_", 5) || used + length + 1 > bytes) continue;
    memcpy(room + used, *variable, length);
    used += length;
  }
}

}  // namespace

int Stream::open(const char* folder, uint32_t index, int device, int abi, int nccl, bool wants_gpu_times) {
  const bool gpu_times = wants_gpu_times && abi >= GPU_CLOCK_ABI;
  const uint64_t bytes = FILE_BYTES + (gpu_times ? GPU_TIMES_BYTES : 0);
  char host[256] = "host", path[4096];
  gethostname(host, sizeof host - 1);
  const uint64_t monotonic = nanoseconds(CLOCK_MONOTONIC), realtime = nanoseconds(CLOCK_REALTIME);
  const int written = snprintf(path, sizeof path, "%s/%s-%d-%u-%llx.stream", folder, host, getpid(), index,
                               static_cast<unsigned long long>(realtime));
  if (written < 0 || written >= static_cast<int>(sizeof path)) return ENAMETOOLONG;
  const int file = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  // Allocates all blocks now: a disk that is full later would end the job with SIGBUS.
  int error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  void* mapped = error ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (!error && mapped == MAP_FAILED) error = errno;
  ::close(file);
  if (error) {
    unlink(path);
    return error;
  }
  header_ = static_cast<Header*>(mapped);
  header_->version = VERSION;
  header_->index = index;
  header_->file_bytes = bytes;
  header_->gpu_times = static_cast<uint32_t>(!wants_gpu_times ? GpuTimes::NONE
                                             : gpu_times      ? GpuTimes::RECORDED
                                                              : GpuTimes::TOO_OLD);
  uint64_t place = aligned(sizeof(Header));
  const auto area = [&place](uint64_t& at, uint32_t& most, uint32_t count, uint64_t bytes) {
    at = place;
    most = count;
    place = aligned(place + count * bytes);
  };
  area(header_->communicators_at, header_->communicators_max, COMMUNICATORS, sizeof(Communicator));
  area(header_->calls_at, header_->calls_max, CALLS, sizeof(Call));
  area(header_->phases_at, header_->phases_max, PHASES, sizeof(Phase));
  area(header_->runs_at, header_->runs_max, RUNS, sizeof(Run));
  area(header_->tail_at, header_->tail_max, TAIL, sizeof(TailCall));
  area(header_->pending_at, header_->pending_max, PENDING, sizeof(PendingCall));
  header_->arena_at = place;
  communicators_ = at<Communicator>(header_->communicators_at);
  calls_ = at<Call>(header_->calls_at);
  phases_ = at<Phase>(header_->phases_at);
  runs_ = at<Run>(header_->runs_at);
  tail_ = at<TailCall>(header_->tail_at);
  pending_ = at<PendingCall>(header_->pending_at);
  header_->pid = getpid();
  header_->device = device;
  header_->abi = abi;
  header_->nccl = nccl;
  header_->env_rank = number_in("RANK");
  header_->env_world = number_in("WORLD_SIZE");
  header_->monotonic_ns = monotonic;
  header_->realtime_ns = realtime;
  memcpy(header_->host, host, sizeof host);
  keep_environment(header_->environment, sizeof header_->environment);
  table_.assign(CALLS * 2, 0);
  symbols_.assign(TAIL, 0);
  hashes_.assign(TAIL + 1, 0);
  powers_.assign(TAIL + 1, 1);
  for (uint32_t power = 1; power <= TAIL; ++power) powers_[power] = powers_[power - 1] * BASE;
  borders_.assign(TAIL + 1, 0);
  known_.reserve(256);
  launched_before_.assign(COMMUNICATORS, 0);
  if (gpu_times) {
    kernels_.assign(PENDING, {});
    running_.assign(MOST_RUNNING, {});
    channels_.resize(COMMUNICATORS);
    sent_to_itself_.assign(COMMUNICATORS, false);
  }
  memcpy(header_->magic, "CBSTREAM", 8);  // last: now the file can be read
  return 0;
}

void Stream::close_at_exit() {
  if (header_) store(header_->exited, 1u);
}

int Stream::communicator(uint64_t hash, int rank, int ranks, int nodes, const char* name) {
  const char* called = name ? name : "";
  const uint32_t count = header_->communicators;
  for (uint32_t known = count; known-- > 0;) {
    const Communicator& one = communicators_[known];
    if (one.hash == hash && one.rank == rank && one.ranks == ranks && !strncmp(one.name, called, sizeof one.name - 1)) {
      return static_cast<int>(known);
    }
  }
  if (count == COMMUNICATORS) return NONE;
  Communicator& made = communicators_[count];
  made.hash = hash;
  made.rank = rank;
  made.ranks = ranks;
  made.nodes = nodes;
  strncpy(made.name, called, sizeof made.name - 1);
  store(header_->communicators, count + 1);
  return static_cast<int>(count);
}

bool Stream::holds_another_rank(uint64_t hash, int rank) const {
  return std::any_of(communicators_, communicators_ + header_->communicators,
                     [=](const Communicator& one) { return one.hash == hash && one.rank != rank; });
}

void Stream::finalized(int communicator) {
  if (header_->open > 1) {
    --header_->open;
    for (uint64_t number = header_->pending_first; number < header_->pending_next; ++number) {
      if (pending(number).call.communicator == communicator) give_up_time(number, Lack::MISSING);
    }
    release(header_->pending_first);
    return;
  }
  release(header_->pending_next);
  store(header_->open, 0u);
}

void Stream::unplaced() { store(header_->unplaced, header_->unplaced + 1); }

void Stream::drop() { store(header_->dropped, header_->dropped + 1); }

uint64_t Stream::add(const Call& call, uint64_t start, uint64_t group, bool needs_peer) {
  const uint64_t number = header_->pending_next;
  if (number - header_->pending_first == PENDING) release(header_->pending_first + 1);
  PendingCall& waiting = pending(number);
  waiting = {call, start, group, 0, 0, needs_peer ? PEER : 0u, 0};
  if (!kernels_.empty()) {
    kernel(number) = {UINT64_MAX, 0, 0, 0, false, Lack::MISSING};
    waiting.needs |= GPU_TIME;
    if (call.captured) give_up_time(number, Lack::CAPTURED);
    if (sent_to_itself_[call.communicator]) give_up_time(number, Lack::SELF);
  }
  if (header_->pending_first == number && !waiting.needs) {
    // Nothing to wait for. A kill between these two stores loses only this call, the last one.
    header_->pending_first = number + 1;
    store(header_->pending_next, number + 1);
    commit(number);
  } else {
    store(header_->pending_next, number + 1);
  }
  return number;
}

void Stream::launched(uint64_t number, int peer, uint32_t channels) {
  if (!is_pending(number)) return;
  PendingCall& call = pending(number);
  const auto function = static_cast<Function>(call.call.function);
  if (function == Function::SEND || function == Function::RECEIVE) call.call.peer = peer;
  call.needs &= ~static_cast<uint32_t>(PEER);
  // NCCL launches groups in order: calls of earlier groups that were not launched (a send to oneself, in place) never
  // are.
  const uint16_t communicator = call.call.communicator;
  uint64_t earlier = std::max(launched_before_[communicator], header_->pending_first);
  for (; earlier < number && pending(earlier).group != call.group; ++earlier) {
    PendingCall& other = pending(earlier);
    other.needs &= ~static_cast<uint32_t>(PEER);
    const bool same = other.call.communicator == communicator;  // another thread may be launching those of others
    if (same && !kernels_.empty() && !kernel(earlier).launched) give_up_time(earlier, Lack::MISSING);
  }
  launched_before_[communicator] = earlier;
  if (!kernels_.empty()) {
    Kernel& own = kernel(number);
    own.launched = true;
    own.channels += channels;
    if (!own.channels) give_up_time(number, Lack::MISSING);
  }
  release(header_->pending_first);
}

void Stream::give_up_time(uint64_t number, Lack why) {
  PendingCall& call = pending(number);
  if (!(call.needs & GPU_TIME)) return;
  call.needs &= ~static_cast<uint32_t>(GPU_TIME);
  kernel(number).lack = why;
}

// NCCL's kernels count a send to oneself, but NCCL itself does not [enqueue.cc, addP2pToPlan]: from then on it reads
// the times at too low a count, which are those of an earlier call.
void Stream::sends_to_itself(int communicator, uint64_t number) {
  if (kernels_.empty()) return;
  sent_to_itself_[static_cast<size_t>(communicator)] = true;
  const uint64_t group = is_pending(number) ? pending(number).group : 0;
  for (uint64_t other = header_->pending_first; other < header_->pending_next; ++other) {
    const bool touched = other >= number || (group && pending(other).group == group);
    if (touched && pending(other).call.communicator == communicator) give_up_time(other, Lack::SELF);
  }
  release(header_->pending_first);
}

// Forgets what is known of the clocks when it is too old: they drift.
void Stream::forget_old_clocks(uint64_t now) {
  if (now <= window_ || now - window_ <= CLOCK_WINDOW) return;
  least_[1] = now - window_ > 2 * CLOCK_WINDOW ? INT64_MAX : least_[0];
  least_[0] = INT64_MAX;
  window_ = now;
}

// Every report of a GPU time arrives with some delay, so the smallest difference between the clocks is the best
// estimate.
void Stream::compare_clocks(int64_t ahead, uint64_t now) {
  forget_old_clocks(now);
  least_[0] = std::min(least_[0], ahead);
}

Stream::Channel* Stream::channel_of(uint16_t communicator, uint32_t channel) {
  if (kernels_.empty() || channel >= 2 * CHANNELS || communicator >= channels_.size()) return nullptr;
  std::unique_ptr<Channel[]>& own = channels_[communicator];
  if (!own) own.reset(new (std::nothrow) Channel[2 * CHANNELS]());
  return own ? &own[channel] : nullptr;
}

uint64_t Stream::began(uint64_t number, uint32_t channel, uint64_t timer, uint64_t now) {
  if (!is_pending(number)) return 0;
  const PendingCall& call = pending(number);
  Channel* ran = call.needs & GPU_TIME ? channel_of(call.call.communicator, channel) : nullptr;
  if (!ran) return 0;
  if (!call.group || ran->group != call.group) ran->before = ran->end;  // calls of one group share a kernel
  ran->group = call.group;
  // A call cannot begin before the host made it, nor before the end of what its channel ran before.
  forget_old_clocks(now);
  const auto ahead = static_cast<int64_t>(now - timer);
  const int64_t least = std::min({ahead, least_[0], least_[1]});
  const auto late = static_cast<int64_t>(timer - call.start + static_cast<uint64_t>(least));
  const bool plausible = timer && timer >= ran->before && late >= -CLOCK_TOLERANCE;
  if (plausible) ran->end = std::max(ran->end, timer + 1);  // in case its end is never reported
  const uint64_t run = ++runs_begun_;
  running_[run % MOST_RUNNING] = {run, number, timer, ahead, ran, plausible};
  return run;
}

void Stream::ended(uint64_t run, uint64_t timer, uint64_t now) {
  if (running_.empty()) return;
  Running& one = running_[run % MOST_RUNNING];
  if (one.run != run || !is_pending(one.call)) return;
  one.run = 0;  // so that a second report of its end is ignored
  const uint64_t number = one.call;
  PendingCall& call = pending(number);
  if (!(call.needs & GPU_TIME)) return;
  Kernel& whole = kernel(number);
  // It ran between the host's call and now. The clocks' rates differ by less than a thousandth.
  const uint64_t host = now - call.start, most = host + host / 1000 + CLOCK_TOLERANCE;
  const bool lasted = timer >= one.begin && timer - one.begin <= most;
  if (lasted) {
    compare_clocks(one.ahead, now);
    compare_clocks(static_cast<int64_t>(now - timer), now);
  }
  if (one.plausible && lasted) {
    one.channel->end = std::max(one.channel->end, timer);
    whole.begin = std::min(whole.begin, one.begin);
    whole.end = std::max(whole.end, timer);
  } else {
    whole.lack = Lack::IMPLAUSIBLE;
  }
  if (++whole.ended < whole.channels) return;
  const uint64_t took = whole.end > whole.begin ? whole.end - whole.begin : 0;
  const uint64_t units = (took + GPU_UNIT / 2) / GPU_UNIT;
  if (whole.lack == Lack::IMPLAUSIBLE || !units || units > UINT32_MAX || took > most) {
    give_up_time(number, Lack::IMPLAUSIBLE);
  } else {
    call.gpu = static_cast<uint32_t>(units);
    call.begin = whole.begin;
    call.ahead = std::min(least_[0], least_[1]);
    call.needs &= ~static_cast<uint32_t>(GPU_TIME);
  }
  release(header_->pending_first);
}

// Commits pending calls in order: all before `upto`, and those after it up to the first that is incomplete.
void Stream::release(uint64_t upto) {
  while (header_->pending_first < header_->pending_next) {
    const uint64_t first = header_->pending_first;
    if (first >= upto && pending(first).needs) return;
    store(header_->pending_first, first + 1);
    commit(first);
  }
}

// The call is no longer pending, but its entry has not been used again yet: after a kill before the call was counted, a
// reader finds it there.
void Stream::commit(uint64_t number) {
  const PendingCall& ended = pending(number);
  if (!kernels_.empty() && !ended.gpu) ++header_->lacks[static_cast<int>(kernel(number).lack)];
  const int64_t call = full_ ? NONE : intern(ended.call);
  if (call == NONE) {
    full_ = true;
    drop();
    return;
  }
  const bool grouped = ended.group && ended.group == group_;
  group_ = ended.group;
  header_->last_group = group_;
  append(static_cast<uint32_t>(call) * 2 + grouped, ended);
}

int64_t Stream::intern(const Call& call) {
  uint64_t words[3];
  memcpy(words, &call, sizeof words);
  uint64_t hash = (words[0] ^ words[1] * BASE ^ (words[2] + 1) * 0xC2B2AE3D27D4EB4Full) * BASE;
  for (uint64_t slot = hash >> 40;; ++slot) {
    uint32_t& known = table_[slot % table_.size()];
    if (known && !memcmp(&calls_[known - 1], &call, sizeof call)) return known - 1;
    if (known) continue;
    if (header_->calls == CALLS) return NONE;
    const uint32_t number = header_->calls;
    calls_[number] = call;
    known = number + 1;
    store(header_->calls, number + 1);
    return number;
  }
}

void Stream::set_tail(uint32_t first, uint32_t count) {
  first_ = first % TAIL;
  count_ = count;
  store(header_->tail, static_cast<uint64_t>(first_) << 32 | count_);
}

void Stream::append(uint32_t symbol, const PendingCall& ended) {
  if (count_ == TAIL) consume(TAIL / 2, NONE, 0, false);
  if (full_) {
    drop();
    return;
  }
  tail(count_) = {ended.start, ended.begin, ended.ahead, symbol, ended.gpu};
  header_->kept++;
  set_tail(first_, count_ + 1);
  if (phase_ == NONE) {
    look_for_phase();
  } else {
    follow_phase(symbol);
  }
}

// A phase repeats: compares the call with the one that comes next in the phase.
void Stream::follow_phase(uint32_t symbol) {
  const Phase& phase = phases_[phase_];
  if (at<uint32_t>(phase.symbols)[count_ - 1] != symbol) {
    phase_ = NONE;
    hash_from(0);
    since_ = count_;
    resume();
  } else if (count_ == phase.length) {
    consume(0, phase_, 1, true);
  }
}

// No phase repeats: resumes a known one, or finds a new one.
void Stream::look_for_phase() {
  hash_from(count_ - 1);
  if (resume()) return;
  if (++since_ < SEARCH_EVERY) return;
  since_ = 0;
  find_period();
}

void Stream::hash_from(uint32_t place) {
  for (; place < count_; ++place) {
    symbols_[place] = tail(place).symbol;
    hashes_[place + 1] = hashes_[place] * BASE + symbols_[place] + 1;
  }
}

uint64_t Stream::hash_of(uint32_t from, uint32_t length) const {
  return hashes_[from + length] - hashes_[from] * powers_[length];
}

bool Stream::resume() {
  const uint32_t last = symbols_[count_ - 1];
  for (const Known& known : known_) {
    if (known.last != last || known.length > count_) continue;
    const uint32_t from = count_ - known.length;
    if (hash_of(from, known.length) != known.hash) continue;
    const Phase& phase = phases_[known.phase];
    const uint32_t* symbols = at<uint32_t>(phase.symbols);
    uint32_t same = 0;
    while (same < known.length && symbols_[from + same] == symbols[same % phase.length]) ++same;
    if (same == known.length) return consume(from, known.phase, known.repetitions, true);
  }
  return false;
}

// Finds the longest end of the tail that consists of repetitions, by its borders (Knuth, Morris and Pratt).
void Stream::find_period() {
  const auto reversed = [this](uint32_t place) { return symbols_[count_ - 1 - place]; };
  uint32_t covered = 0, period = 0;
  borders_[0] = borders_[1] = 0;
  for (uint32_t length = 2, border = 0; length <= count_; ++length) {
    while (border && reversed(border) != reversed(length - 1)) border = borders_[border];
    if (reversed(border) == reversed(length - 1)) ++border;
    borders_[length] = border;
    if (length >= EVIDENCE && 2 * (length - border) <= length) {
      covered = length;
      period = length - border;
    }
  }
  if (!covered) return;
  const uint32_t from = count_ - covered;
  const int64_t phase = phase_of(&symbols_[from], period, true);
  if (phase != NONE) consume(from, phase, covered / period, true);
}

// Moves the tail's first calls into phases: `literal` of them into a phase of their own, then `repetitions` of a known
// one, which with `locks` is then the phase that repeats.
bool Stream::consume(uint32_t literal, int64_t phase, uint32_t repetitions, bool locks) {
  const int64_t once = literal ? phase_of(symbols_.data(), literal, false) : NONE;
  if ((literal && once == NONE) || header_->runs + 2 > RUNS) {
    full_ = true;
    return false;
  }
  header_->moving_runs = header_->runs;
  header_->moving_repetitions = header_->runs ? runs_[header_->runs - 1].repetitions : 0;
  header_->moving_before_tail = header_->before_tail;
  header_->moving_tail = header_->tail;
  store(header_->moving, 1u);
  uint32_t from = 0;
  if (literal) {
    repeat(phases_[once], from);
    add_run(static_cast<uint32_t>(once), 1);
    from += literal;
  }
  for (uint32_t one = 0; one < repetitions; ++one) {
    repeat(phases_[phase], from);
    from += phases_[phase].length;
  }
  if (repetitions) add_run(static_cast<uint32_t>(phase), repetitions);
  set_tail(first_ + from, count_ - from);
  store(header_->moving, 0u);
  if (locks) {
    phase_ = phase;
  } else {
    hash_from(0);
  }
  return true;
}

void Stream::add_run(uint32_t phase, uint32_t repetitions) {
  if (header_->runs && runs_[header_->runs - 1].phase == phase &&
      runs_[header_->runs - 1].repetitions < UINT32_MAX - repetitions) {
    runs_[header_->runs - 1].repetitions += repetitions;
    return;
  }
  runs_[header_->runs] = {phase, repetitions};
  store(header_->runs, header_->runs + 1);
}

// Adds one repetition to the phase, whose calls begin at index `from` of the tail.
void Stream::repeat(Phase& phase, uint32_t from) {
  sample(phase, from);
  const TailCall& last = tail(from + phase.length - 1);
  header_->before_tail = last.start;
  last_ = {last.begin, last.gpu * GPU_UNIT};
  ++phase.repetitions;
}

// Keeps this repetition whole if the number of its block is a multiple of the stride. Repetitions of a block follow one
// another, because a step may be several of them. Only the number decides, so that all ranks keep the same repetitions.
void Stream::sample(Phase& phase, uint32_t from) {
  const uint64_t number = phase.repetitions, block = std::max(phase.slots / 4, 1u);
  if (!phase.slots || number / block % phase.stride) return;
  const uint64_t words = 2 + phase.length;
  uint64_t* samples = at<uint64_t>(phase.samples);
  uint32_t* gpu_samples = phase.gpu_samples ? at<uint32_t>(phase.gpu_samples) : nullptr;
  char* gpu_begins = phase.gpu_begins ? at<char>(phase.gpu_begins) : nullptr;
  const uint64_t begin_bytes = sizeof(Begins) + phase.length * sizeof(uint64_t);
  while (phase.used == phase.slots) {
    if (phase.stride > UINT32_MAX / 2) return;
    phase.stride *= 2;
    uint32_t kept = 0;
    for (uint32_t slot = 0; slot < phase.used; ++slot) {
      if (samples[slot * words] / block % phase.stride) continue;
      memmove(samples + kept * words, samples + slot * words, words * sizeof *samples);
      const uint64_t length = phase.length;
      if (gpu_samples) memmove(gpu_samples + kept * length, gpu_samples + slot * length, length * sizeof *gpu_samples);
      if (gpu_begins) memmove(gpu_begins + kept * begin_bytes, gpu_begins + slot * begin_bytes, begin_bytes);
      ++kept;
    }
    const bool stuck = kept == phase.used;
    store(phase.used, kept);
    if (stuck || number / block % phase.stride) return;
  }
  uint64_t* slot = samples + phase.used * words;
  uint64_t* begins = nullptr;
  const auto ahead = static_cast<uint64_t>(tail(from + phase.length - 1).ahead);
  if (gpu_begins) {
    const Begins before{last_.before ? last_.before + ahead : 0, last_.before_took};
    memcpy(gpu_begins + phase.used * begin_bytes, &before, sizeof before);
    begins = reinterpret_cast<uint64_t*>(gpu_begins + phase.used * begin_bytes + sizeof before);
  }
  slot[1] = header_->before_tail;
  for (uint32_t place = 0; place < phase.length; ++place) {
    slot[2 + place] = tail(from + place).start;
    if (gpu_samples) gpu_samples[uint64_t{phase.used} * phase.length + place] = tail(from + place).gpu;
    const uint64_t begin = tail(from + place).begin;
    if (begins) begins[place] = begin ? begin + ahead : 0;
  }
  slot[0] = number;
  store(phase.used, phase.used + 1);
}

void* Stream::allocate(uint64_t bytes, uint64_t* offset) {
  const uint64_t place = header_->arena_at + header_->arena_used;
  if (place + bytes > header_->file_bytes) return nullptr;
  header_->arena_used += (bytes + 7) / 8 * 8;
  *offset = place;
  return at<char>(place);
}

// Returns the phase of these symbols, made if it is new; NONE where the file is full. One that repeats keeps more
// samples.
int64_t Stream::phase_of(const uint32_t* symbols, uint32_t length, bool repeats) {
  uint64_t hash = 0;
  for (uint32_t place = 0; place < length; ++place) hash = hash * BASE + symbols[place] + 1;
  for (uint32_t known = 0; known < header_->phases; ++known) {
    const Phase& one = phases_[known];
    if (one.hash == hash && one.length == length && (one.repeats || !repeats) &&
        !memcmp(at<uint32_t>(one.symbols), symbols, length * sizeof *symbols)) {
      return known;
    }
  }
  if (header_->phases == PHASES) return NONE;
  const uint32_t most = repeats ? SAMPLES : 4;
  const uint32_t slots = std::clamp((repeats ? SAMPLED_CALLS : SAMPLED_CALLS / 8) / length, 1u, most);
  const uint64_t sample_bytes = static_cast<uint64_t>(slots) * (2 + length) * sizeof(uint64_t);
  const bool gpu = !kernels_.empty();
  const uint64_t gpu_bytes = gpu ? uint64_t{slots} * length * sizeof(uint32_t) : 0;
  const uint64_t begin_bytes = gpu ? slots * (sizeof(Begins) + length * sizeof(uint64_t)) : 0;
  const uint64_t all = length * sizeof *symbols + sample_bytes + gpu_bytes + begin_bytes;
  if (header_->arena_at + header_->arena_used + all + 64 > header_->file_bytes) return NONE;
  const uint32_t number = header_->phases;
  Phase& made = phases_[number];
  made = {};
  made.hash = hash;
  made.length = length;
  made.slots = slots;
  made.stride = 1;
  made.repeats = repeats;
  memcpy(allocate(length * sizeof *symbols, &made.symbols), symbols, length * sizeof *symbols);
  allocate(sample_bytes, &made.samples);
  if (gpu) allocate(gpu_bytes, &made.gpu_samples);
  if (gpu) allocate(begin_bytes, &made.gpu_begins);
  store(header_->phases, number + 1);
  if (repeats) {
    Known known{number, symbols[length - 1], 0, (RELOCK + length - 1) / length, 0};
    known.length = known.repetitions * length;
    for (uint32_t one = 0; one < known.repetitions; ++one) known.hash = known.hash * powers_[length] + hash;
    if (known_.size() == 256) known_.erase(known_.begin());
    known_.push_back(known);
  }
  return number;
}

}  // namespace recorder
