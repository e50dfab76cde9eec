// The handles of the fake libcuda, and how each of its functions begins.
#pragma once

#include "fake_engine.h"

typedef struct Context {
  int gpu;
  int uses;
} Context;
typedef struct Module {
  int gpu;
  char* image;
} Module;
typedef const char* const* Function;  // a kernel's name

Context* current_context(void);

#define RETURN_IF(error)                   \
  do {                                     \
    const int error_ = (error);            \
    if (error_ != kSuccess) return error_; \
  } while (0)
// Takes the lock, logs the call and fails it if a test wants that.
#define CALLED          \
  take_time(__func__);  \
  LOCKED;               \
  note("%s", __func__); \
  RETURN_IF(injected(__func__))
// The same for a call that needs a current context.
#define CALLED_ON_GPU \
  CALLED;             \
  if (current_context() == NULL) return kInvalidContext
