// Functions of libraries that are opened at run time, and what to do with a call of one that never returns.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "errors.hpp"

namespace collbench {

// Returns the symbol's address, or throws LibraryError that names the library and the symbol.
template <class Function>
Function symbol(void* library, const char* library_name, const char* name) {
  void* address = dlsym(library, name);
  if (address == nullptr)
    throw LibraryError(std::string(library_name) + " has no function " + name + ": it is too old for collbench");
  return reinterpret_cast<Function>(address);
}

// The text of the last dlopen failure.
inline std::string open_failure() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

// A thread that sits in a library's call cannot be interrupted. Its job may be abandoned without it: then what the job
// refers to is freed when the call returns, and the thread must not continue. This is the thread's own flag, which
// outlives its job; null on threads whose jobs are never abandoned.
inline thread_local const std::atomic<bool>* abandoned = nullptr;

// Never returns on a thread whose job was abandoned.
inline void stay_if_abandoned() {
  while (abandoned != nullptr && *abandoned) pause();
}

// The result of a call that may have taken for ever.
template <class Result>
Result returned(Result result) {
  stay_if_abandoned();
  return result;
}

}  // namespace collbench
