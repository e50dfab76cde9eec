// The kernels of kernels.cu, written again for one thread: the same arguments, other patterns.
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_engine.h"
#include "fake_numbers.h"

enum { kPiece = 4096 };  // bytes that are checked at once

typedef struct Report {
  uint64_t wrong, first;
  double expected, found;
} Report;

static const char* const kernels[][2] = {{"block_stream", "\10\4\10\10"},
                                         {"stamp", "\10\10"},
                                         {"tell_time", "\10\10\4\10\10"},
                                         {"fill", "\10\10\10\10\10\4"},
                                         {"verify", "\10\10\10\10\10\10"},
                                         {"copy", "\10\10\10\10\4\4"},
                                         {"write_ring", "\10\10\10\10"},
                                         {"chase", "\10\10\10\10\10"},
                                         {"fill_elements", "\10\10\10\4\4\4\4\10"},
                                         {"verify_elements", "\10\10\10\10\10\10\4\4\4\4\10\10\10"}};

const char* kernel_widths(const char* name) {
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; ++i)
    if (strcmp(kernels[i][0], name) == 0) return kernels[i][1];
  return NULL;
}

static uint64_t scramble(uint64_t x) {
  x *= 0xd6e8feb86659fd93ull;
  return (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
}

// Writes the pattern of bytes [at, at + count) of a buffer.
static void write_pattern(unsigned char* to, uint64_t seed, uint64_t at, uint64_t count) {
  for (; count > 0 && (at & 7) != 0; ++at, --count)
    *to++ = (unsigned char)(scramble(seed + (at >> 3)) >> (8 * (at & 7)));
  for (; count >= 8; at += 8, count -= 8, to += 8) {
    const uint64_t word = scramble(seed + (at >> 3));
    memcpy(to, &word, 8);  // little-endian
  }
  const uint64_t word = scramble(seed + (at >> 3));
  memcpy(to, &word, count);
}

// As in kernels.cu, expected and found are meaningful only where one unit was checked.
static void wrong(Report* report, uint64_t at, double expected, double found) {
  const bool first = ++report->wrong == 1;
  report->first = at < report->first ? at : report->first;
  report->expected = first ? expected : NAN;
  report->found = first ? found : NAN;
}

static void fill(const uint64_t* a, unsigned slots, int gpu) {
  for (unsigned slot = 0; slot < slots; ++slot) {
    const uint64_t begin = a[1] + slot * a[2];
    unsigned char* buffer = touch(a[0] + begin, a[3], gpu);
    if (buffer == NULL) return;
    write_pattern(buffer, a[4], begin, a[3]);
    for (uint64_t i = 0, bytes = a[5] ? a[3] : 0; i < bytes; ++i) buffer[i] = (unsigned char)~buffer[i];
  }
}

static void verify_piece(const unsigned char* found, uint64_t seed, uint64_t at, uint64_t count, Report* report) {
  unsigned char expected[kPiece];
  write_pattern(expected, seed, at, count);
  if (memcmp(expected, found, count) == 0) return;
  for (uint64_t i = 0; i < count; ++i)
    if (found[i] != expected[i]) {
      const uint64_t packed = (at + i) << 16 | (uint64_t)expected[i] << 8 | found[i];
      ++report->wrong;
      report->first = packed < report->first ? packed : report->first;
    }
}

static void verify(const uint64_t* a, unsigned slots, int gpu) {
  Report* report = touch(a[5], sizeof *report, gpu);
  for (unsigned slot = 0; slot < slots; ++slot) {
    const uint64_t begin = a[1] + slot * a[2];
    const unsigned char* buffer = touch(a[0] + begin, a[3], gpu);
    if (report == NULL || buffer == NULL) return;
    for (uint64_t at = 0; at < a[3]; at += kPiece)
      verify_piece(buffer + at, a[4], begin + at, a[3] - at < kPiece ? a[3] - at : kPiece, report);
  }
}

// As in elements.cuh: values up to 7, sums that int8 and float8e5m2 hold, factors of two from at most six ranks; one
// rank adds to an average of bytes, and at most eight to one of halves.
static unsigned contribution(uint64_t seed, unsigned rank, uint64_t index, unsigned reduction, unsigned world,
                             unsigned dtype) {
  const unsigned noise = (unsigned)(scramble(seed + scramble(index * kMaxRanks + rank)) >> 40);
  const bool any = reduction != kProduct && (reduction != kAverage || number_width(dtype) > 2);
  if (any && (dtype < kFloat8e4m3 || reduction != kSum)) return noise % 8;  // of most elements: divisions take longer
  const unsigned place = (unsigned)((index + rank + seed % world) % world);
  if (reduction == kProduct) return place < 6 ? 1 + noise % 2 : 1;
  if (reduction == kAverage && number_width(dtype) == 1)
    return place != 0 ? 0 : dtype < kFloat8e4m3 ? noise % 128 : 1u << noise % 4;
  if (dtype >= kFloat8e4m3 && reduction == kSum) return place < 8 ? noise % 2 : 0;
  if (number_width(dtype) == 2 && reduction == kAverage) return place < 8 ? noise % 2 : 0;
  return noise % 8;
}

// As in elements.cuh: the seed of a slot, given that of the first.
static uint64_t seed_of(uint64_t seed, unsigned slot) { return seed + slot * 0xd1342543de82ef95ull; }

typedef struct Check {
  uint64_t at, stride, first, count, block, offset, dtype, reduction, sender, world, seed;
  double tolerance;
  uint64_t report;
} Check;

static double expected_element(const Check* check, uint64_t i) {
  const unsigned dtype = (unsigned)check->dtype, reduction = (unsigned)check->reduction, world = (unsigned)check->world;
  const uint64_t index = check->offset + i % check->block;
  const unsigned sender = check->sender == 0xffffffff ? (unsigned)(i / check->block) : (unsigned)check->sender;
  if (reduction == kCopied) return contribution(check->seed, sender, index, kCopied, world, dtype);
  double values[kMaxRanks];
  for (unsigned rank = 0; rank < world; ++rank)
    values[rank] = contribution(check->seed, rank, index, reduction, world, dtype);
  return reduce_numbers(values, (int)world, dtype, reduction);
}

static void fill_elements(const uint64_t* a, unsigned slots, int gpu) {
  const unsigned dtype = (unsigned)a[3], size = number_width(dtype);
  for (unsigned slot = 0; slot < slots; ++slot) {
    unsigned char* message = touch(a[0] + slot * a[1], a[2] * size, gpu);
    for (uint64_t i = 0; message != NULL && i < a[2]; ++i)
      store_number(message + i * size, dtype,
                   contribution(seed_of(a[7], slot), (unsigned)a[6], i, (unsigned)a[4], (unsigned)a[5], dtype));
  }
}

// What the last verification of this slot expected: those of an all-reduce's other ranks expect the same.
static const double* expected_elements(const Check* check, unsigned slot) {
  static struct Expectation {
    Check check;
    double* elements;
  } of_slots[kDeepestQueue];
  struct Expectation* known = &of_slots[slot % kDeepestQueue];
  Check wanted = *check;
  wanted.at = wanted.stride = wanted.report = 0, wanted.tolerance = 0;
  if (known->elements != NULL && memcmp(&wanted, &known->check, sizeof wanted) == 0) return known->elements;
  free(known->elements);
  known->elements = malloc((check->count + 1) * sizeof *known->elements);
  for (uint64_t i = 0; known->elements != NULL && i < check->count; ++i)
    known->elements[i] = expected_element(check, check->first + i);
  known->check = wanted;
  return known->elements;
}

static void verify_elements(const uint64_t* a, unsigned slots, int gpu) {
  Check check;
  _Static_assert(sizeof check == kMaxArguments * sizeof *a, "one word for each argument");
  memcpy(&check, a, sizeof check);
  const unsigned dtype = (unsigned)check.dtype, size = number_width(dtype);
  Report* report = touch(check.report, sizeof *report, gpu);
  for (unsigned slot = 0; slot < slots; ++slot) {
    const uint64_t begin = slot * check.stride + check.first * size;
    const unsigned char* message = touch(check.at + begin, check.count * size, gpu);
    check.seed = seed_of(a[10], slot);
    const double* expected = expected_elements(&check, slot);
    for (uint64_t i = 0; report != NULL && message != NULL && expected != NULL && i < check.count; ++i) {
      const double found = load_number(message + i * size, dtype);
      if (signbit(found) || !(fabs(found - expected[i]) <= check.tolerance * expected[i]))
        wrong(report, begin + i * size, expected[i], found);
    }
  }
}

static void write_ring(const uint64_t* a, int gpu) {
  uint64_t* lines = touch(a[0], a[1] * 128, gpu);
  for (uint64_t i = 0; lines != NULL && i < a[1]; ++i) lines[i * 16] = a[0] + (i * a[2] + a[3]) % a[1] * 128;
}

double run_chase(const Op* op, int gpu) {
  static int chases;
  const bool lost = ++chases == (int)by_gpu("FAKE_LOSE_HOP", -1, 0);
  const uint64_t* a = op->arguments;
  uint64_t* end = touch(a[4], sizeof *end, gpu);
  uint64_t* turns = touch(a[2], 2 * sizeof *turns, gpu);
  if (turns == NULL) return 0;
  if (turns[0] != a[3])
    fault("a chase on GPU %d waits for turn %d at %d, which never comes", gpu, (int)a[3], (int)turns[0]);
  turns[0] += op->blocks;
  uint64_t at = a[0];
  for (uint64_t i = lost ? 1 : 0; i < a[1]; ++i) {
    const uint64_t* line = touch(at, 8, gpu);
    if (line == NULL) return 0;
    at = *line;
  }
  if (end != NULL) *end = at;
  note("chase by %d in %d accesses %llu", gpu, owner_of(a[0]), (unsigned long long)a[1]);
  return (double)a[1] * by_pair("FAKE_HOP", gpu, owner_of(a[0]), 7e-7);
}

// Nanoseconds of the host's steady clock.
static int64_t host_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// A GPU's own clock at a moment of virtual time: ahead of the host's, and faster or slower.
static uint64_t gpu_time(int64_t begin, double now, int gpu) {
  const double passed = now * 1e9 * (1 + by_gpu("FAKE_CLOCK_DRIFT", gpu, 0));
  return (uint64_t)(begin + (int64_t)passed + (int64_t)(by_gpu("FAKE_CLOCK_AHEAD", gpu, 0) * 1e9));
}

static int64_t begin_of_time(void) {
  static int64_t begin;
  if (begin == 0) begin = host_time();
  return begin;
}

double run_stamp(const Op* op, int gpu, double now) {
  uint64_t* slot = touch(op->arguments[0], sizeof *slot, gpu);
  const double hold_s = (double)op->arguments[1] * 1e-9;
  if (slot != NULL) *slot = gpu_time(begin_of_time(), now + hold_s, gpu);
  return hold_s + by_gpu("FAKE_STAMP", gpu, 1e-6);
}

bool run_tell_time(const Op* op, int gpu, double* now) {
  const uint64_t* a = op->arguments;
  const volatile uint32_t* questions = touch(a[0], sizeof *questions, gpu);
  volatile uint64_t* answers = touch(a[1], a[2] * sizeof *answers, gpu);
  uint64_t* least = touch(a[4], sizeof *least, gpu);
  if (questions == NULL || answers == NULL || least == NULL) return true;
  *least = (uint64_t)by_gpu("FAKE_CLOCK_STEP", gpu, 32);
  uint64_t answered = 0;
  while (answered < a[2] && answers[answered] != 0) ++answered;
  for (; answered < a[2] && *questions > answered; ++answered) {
    // Virtual time is behind the host's; after work that would have taken longer, it waits for the host's.
    const int64_t begin = begin_of_time();
    while (host_time() < begin + (int64_t)(*now * 1e9)) {
    }
    *now = (double)(host_time() - begin) * 1e-9;
    answers[answered] = gpu_time(begin, *now, gpu);
  }
  return answered == a[2];
}

static void set(const uint64_t* a, int gpu) {
  void* memory = touch(a[0], a[2], gpu);
  if (memory != NULL) memset(memory, (int)a[1], a[2]);
}

void run_kernel(const Op* op, int gpu) {
  if (strcmp(op->name, "fill") == 0) fill(op->arguments, op->slots, gpu);
  if (strcmp(op->name, "verify") == 0) verify(op->arguments, op->slots, gpu);
  if (strcmp(op->name, "write_ring") == 0) write_ring(op->arguments, gpu);
  if (strcmp(op->name, "fill_elements") == 0) fill_elements(op->arguments, op->slots, gpu);
  if (strcmp(op->name, "verify_elements") == 0) verify_elements(op->arguments, op->slots, gpu);
  if (strcmp(op->name, "memset") == 0) set(op->arguments, gpu);
}
