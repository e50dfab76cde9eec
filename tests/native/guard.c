// A malloc, to be preloaded, whose blocks end at a page that may not be touched and are never used again: code that
// writes behind a block, or into one that was freed, crashes at once. guard_on() starts it, after the program's start.
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

// The C library's functions, for all that is not guarded.
extern void* __libc_malloc(size_t size);
extern void __libc_free(void* block);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* block, size_t size);

enum { kAlign = 16, kPage = 4096, kPadding = 0xA5, kFresh = 0xCB };
static const uint64_t kArena = 1ull << 37;  // of addresses: none is used twice
static const uint64_t kLargest = 1ull << 24;
static const long kMaxAlive = 25000;  // two mappings each; Linux allows a process 65,530

typedef struct Head {
  uint64_t size, span;
} Head;

static char* arena;
static uint64_t used;
static bool on;
static long alive, guarded;

EXPORT void guard_on(void) {
  if (arena == NULL) {
    char* found = mmap(NULL, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) abort();
    arena = found;
  }
  on = true;
}

// How many blocks have been guarded so far.
EXPORT long guard_count(void) { return guarded; }

static bool is_guarded(const void* block) {
  const char* at = block;
  return arena != NULL && at >= arena && at < arena + kArena;
}

static uint64_t rounded(uint64_t size, uint64_t to) { return (size + to - 1) / to * to; }

static void* take(size_t size) {
  const uint64_t whole = rounded(size, kAlign), span = rounded(whole + sizeof(Head), kPage);
  const uint64_t at = __atomic_fetch_add(&used, span + kPage, __ATOMIC_RELAXED);
  if (at + span + kPage > kArena || mprotect(arena + at, span, PROT_READ | PROT_WRITE) != 0) return NULL;
  __atomic_add_fetch(&alive, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch(&guarded, 1, __ATOMIC_RELAXED);
  char* block = arena + at + span - whole;
  ((Head*)block)[-1] = (Head){size, span};
  memset(block, kFresh, size);
  memset(block + size, kPadding, whole - size);
  return block;
}

EXPORT void* malloc(size_t size) {
  void* block = on && size > 0 && size < kLargest && alive < kMaxAlive ? take(size) : NULL;
  return block != NULL ? block : __libc_malloc(size);
}

EXPORT void free(void* block) {
  if (!is_guarded(block)) {
    __libc_free(block);
    return;
  }
  const int kept = errno;
  const Head head = ((Head*)block)[-1];
  const uint64_t whole = rounded(head.size, kAlign);
  for (uint64_t i = head.size; i < whole; ++i)
    if (((unsigned char*)block)[i] != kPadding) abort();
  char* begin = (char*)block + whole - head.span;
  __atomic_sub_fetch(&alive, 1, __ATOMIC_RELAXED);
  madvise(begin, head.span, MADV_DONTNEED);
  mprotect(begin, head.span, PROT_NONE);
  errno = kept;
}

EXPORT void* calloc(size_t count, size_t size) {
  if (!on) return __libc_calloc(count, size);
  void* block = malloc(count * size);
  return block == NULL ? NULL : memset(block, 0, count * size);
}

EXPORT void* realloc(void* block, size_t size) {
  if (block == NULL) return malloc(size);
  if (!is_guarded(block)) return __libc_realloc(block, size);
  void* other = size > 0 ? malloc(size) : NULL;
  const size_t old = (size_t)((Head*)block)[-1].size;
  if (other != NULL) memcpy(other, block, old < size ? old : size);
  free(block);
  return other;
}
