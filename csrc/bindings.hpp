// The parts of the Python module, one a file; bindings.cpp registers them in order.
#pragma once

#include <pybind11/pybind11.h>

namespace collbench {

// Gpus, with copies and the pointer chase.
void bind_copies(pybind11::module_& module);
// Nccl and Collectives.
void bind_collectives(pybind11::module_& module);

}  // namespace collbench
