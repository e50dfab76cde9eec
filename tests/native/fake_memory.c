// Device memory is host memory with an owner; every access by a kernel or a copy is checked against it.
#include <stdlib.h>

#include "fake_engine.h"

typedef struct Block {
  struct Block* next;
  uint64_t at, bytes;
  int gpu;
} Block;

static Block* blocks;
static bool enabled[kMaxGpus][kMaxGpus];
static int errors[kMaxGpus];

void add_memory(void* at, uint64_t bytes, int gpu) {
  Block* block = malloc(sizeof *block);
  *block = (Block){blocks, (uint64_t)(uintptr_t)at, bytes, gpu};
  blocks = block;
}

bool remove_memory(const void* at, size_t* bytes) {
  for (Block** pointer = &blocks; *pointer != NULL; pointer = &(*pointer)->next)
    if ((*pointer)->at == (uint64_t)(uintptr_t)at) {
      Block* block = *pointer;
      *pointer = block->next;
      *bytes = block->bytes;
      free(block);
      return true;
    }
  return false;
}

static const Block* block_of(uint64_t at) {
  for (const Block* block = blocks; block != NULL; block = block->next)
    if (at >= block->at && at < block->at + block->bytes) return block;
  return NULL;
}

uint64_t memory_in_use(int gpu) {
  uint64_t sum = 0;
  for (const Block* block = blocks; block != NULL; block = block->next) sum += block->gpu == gpu ? block->bytes : 0;
  return sum;
}

int owner_of(uint64_t at) {
  const Block* block = block_of(at);
  return block == NULL ? kHost : block->gpu;
}

void* touch(uint64_t at, uint64_t bytes, int user) {
  const Block* block = block_of(at);
  const bool inside = block != NULL && at + bytes <= block->at + block->bytes;
  if (inside && (block->gpu == kHost || block->gpu == user || enabled[user][block->gpu])) return (void*)(uintptr_t)at;
  set_error(user, kIllegalAddress);
  return NULL;
}

void enable_peer(int user, int owner) { enabled[user][owner] = true; }
bool peer_enabled(int user, int owner) { return enabled[user][owner]; }

int sticky_error(int gpu) { return errors[gpu]; }

void set_error(int gpu, int error) {
  if (errors[gpu] == kSuccess) errors[gpu] = error;
}
