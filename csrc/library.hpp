// Functions of libraries that are opened at run time, and what happens on a thread whose call never returns.
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

// A thread that is blocked in a library call cannot be interrupted. DeviceThreads may therefore abandon it: the job
// ends without the thread, and what the job refers to may be freed before the call returns. So the thread must not
// continue after the call. This points to the thread's own flag, which outlives the job; null on threads that are never
// abandoned.
inline thread_local const std::atomic<bool>* abandoned = nullptr;

// Never returns on a thread that was abandoned.
inline void sleep_forever_if_abandoned() {
  while (abandoned != nullptr && *abandoned) pause();
}

// Returns the result of a library call, unless the thread was abandoned during that call.
template <class Result>
Result unless_abandoned(Result result) {
  sleep_forever_if_abandoned();
  return result;
}

}  // namespace collbench
