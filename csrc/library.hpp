// dlopen and dlsym, with errors that say which file and which symbol.
#pragma once

#include <dlfcn.h>

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

}  // namespace collbench
