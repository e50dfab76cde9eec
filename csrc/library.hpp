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

// Where a thread of DeviceThreads is. One that is blocked in a library call cannot be interrupted, so its job may end
// without it, and what the job refers to is then freed. A thread that runs our code may be about to use that, however
// long it has been descheduled: it is waited for, and only one in a call is abandoned.
enum class Whereabouts { our_code, library_call, abandoned };

// The thread's own, which outlives the job; null on threads that are never abandoned.
inline thread_local std::atomic<Whereabouts>* whereabouts = nullptr;

// A library's function, callable with its arguments, which are evaluated before the thread counts as being in the call.
// The call never returns on a thread that was abandoned meanwhile.
template <class Result, class... Parameters>
struct LibraryCall {
  Result operator()(Parameters... arguments) const {
    if (whereabouts == nullptr) return function(arguments...);
    *whereabouts = Whereabouts::library_call;
    const Result result = function(arguments...);
    auto expected = Whereabouts::library_call;
    if (!whereabouts->compare_exchange_strong(expected, Whereabouts::our_code))
      for (;;) pause();
    return result;
  }
  Result (*function)(Parameters...);
};

template <class Result, class... Parameters>
LibraryCall<Result, Parameters...> library_call(Result (*function)(Parameters...)) {
  return {function};
}

}  // namespace collbench
