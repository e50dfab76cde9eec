// Marks where a training step begins by the job's own NVTX ranges: `collbench record --step-range NAME` names this
// library in NVTX_INJECTION64_PATH, and each copy of NVTX in the job loads it as its tool. The moments go into a file
// like those of collbench.step() (src/collbench/jobs/marks.py).
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "stream.hpp"

namespace recorder {
namespace {

// What NVTX 3 gives a tool [nvtxTypes.h]: tables of the addresses of its function pointers.
enum Module : int { CORE = 1, DOMAINS = 5 };
enum CoreFunction { START_EX = 4, START = 5, END = 7, PUSH_EX = 8, PUSH = 9, PUSH_WIDE = 10, POP = 11 };
enum DomainFunction {
  DOMAIN_START_EX = 2,
  DOMAIN_END = 3,
  DOMAIN_PUSH_EX = 4,
  DOMAIN_POP = 5,
  DOMAIN_REGISTER_STRING = 10
};
constexpr uint32_t CALLBACKS = 1;
constexpr int NOT_TRACKED = -2;  // NVTX_NO_PUSH_POP_TRACKING: what a push returns without a tool
using Table = void (***)();
struct Callbacks {
  size_t size;
  int (*functions)(int module, Table* table, unsigned* count);
};

// nvtxEventAttributes_t, version 3: what a range is called.
struct Attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t name_type;
  const void* name;
};
enum NameType : int32_t { TEXT = 1, REGISTERED = 3 };

// The handles that stand for a registered name.
char step_name, other_name;

// Whether a range with this name is a step: the wanted name, with no letter after it, as in "step 12" and
// "step#12/500".
bool is_step(const char* name) {
  static const char* const wanted = getenv("COLLBENCH_RECORD_STEP_RANGE");
  if (!name || !wanted || !*wanted) return false;
  const size_t length = strlen(wanted);
  if (strncmp(name, wanted, length)) return false;
  for (const char* rest = name + length; *rest; ++rest)
    if (isalpha(static_cast<unsigned char>(*rest)) || static_cast<unsigned char>(*rest) > 127) return false;
  return true;
}

bool is_step(const Attributes* range) {
  if (!range || range->size < sizeof(Attributes)) return false;
  return range->name_type == REGISTERED ? range->name == &step_name
                                        : range->name_type == TEXT && is_step(static_cast<const char*>(range->name));
}

// Opens the file for each mark, once a step, so that a forked child, whose process id differs, writes its own file.
void mark() {
  static const uint64_t first = nanoseconds(CLOCK_MONOTONIC);
  const uint64_t begins = nanoseconds(CLOCK_MONOTONIC);
  const char* folder = getenv("COLLBENCH_RECORD_FOLDER");
  char host[256] = "host", path[4096];
  gethostname(host, sizeof host - 1);
  const int length = snprintf(path, sizeof path, "%s/%s-%d-%llx.marks", folder ? folder : "", host, getpid(),
                              static_cast<unsigned long long>(first));
  if (!folder || !*folder || length >= static_cast<int>(sizeof path)) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return;
  const ssize_t written = write(file, &begins, sizeof begins);
  static_cast<void>(written);  // a mark that cannot be written is left out
  close(file);
}

// No range within a step is a step itself. Each thread has a stack of pushed ranges; those of all domains count
// together, because a domain that a tool does not create has no handle.
thread_local int depth = 0;        // of a pushed step and the ranges above it; 0: none is open
std::atomic<uint64_t> started{0};  // the step that some thread has started and not ended; 0: none
std::atomic<uint64_t> started_ever{0};

int pushes(bool step) {
  if (!depth && step && !started) mark();
  if (depth || step) ++depth;
  return NOT_TRACKED;
}

int pop() {
  if (depth) --depth;
  return NOT_TRACKED;
}

uint64_t starts(bool step) {
  if (!step || depth) return 0;
  uint64_t none = 0;
  const uint64_t id = ++started_ever;
  if (!started.compare_exchange_strong(none, id)) return 0;
  mark();
  return id;
}

void end(uint64_t id) {
  if (id) started.compare_exchange_strong(id, 0);
}

int push(const char* name) { return pushes(is_step(name)); }
int push_wide(const wchar_t*) { return pushes(false); }
int push_ex(const Attributes* range) { return pushes(is_step(range)); }
uint64_t start(const char* name) { return starts(is_step(name)); }
uint64_t start_ex(const Attributes* range) { return starts(is_step(range)); }
int domain_push_ex(void*, const Attributes* range) { return push_ex(range); }
int domain_pop(void*) { return pop(); }
uint64_t domain_start_ex(void*, const Attributes* range) { return start_ex(range); }
void domain_end(void*, uint64_t id) { end(id); }
void* domain_register(void*, const char* name) { return is_step(name) ? &step_name : &other_name; }

template <typename Function>
void attach(Table table, unsigned count, unsigned id, Function* function) {
  if (id < count && table[id]) *table[id] = reinterpret_cast<void (*)()>(function);
}

}  // namespace
}  // namespace recorder

// What NVTX calls once for each of its copies in a process; 0 means that it is not to call us.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  using namespace recorder;
  const auto* callbacks = static_cast<const Callbacks*>(export_table(CALLBACKS));
  Table table = nullptr;
  unsigned count = 0;
  if (!callbacks || callbacks->size < sizeof(Callbacks) || !callbacks->functions(CORE, &table, &count)) return 0;
  attach(table, count, START_EX, start_ex);
  attach(table, count, START, start);
  attach(table, count, END, end);
  attach(table, count, PUSH_EX, push_ex);
  attach(table, count, PUSH, push);
  attach(table, count, PUSH_WIDE, push_wide);
  attach(table, count, POP, pop);
  if (callbacks->functions(DOMAINS, &table, &count)) {
    attach(table, count, DOMAIN_START_EX, domain_start_ex);
    attach(table, count, DOMAIN_END, domain_end);
    attach(table, count, DOMAIN_PUSH_EX, domain_push_ex);
    attach(table, count, DOMAIN_POP, domain_pop);
    attach(table, count, DOMAIN_REGISTER_STRING, domain_register);
  }
  return 1;
}
