// Arguments, the GIL and exceptions; nothing else. Every call that touches a device or a library releases the GIL.
#include "bindings.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "errors.hpp"
#include "host.hpp"

namespace py = pybind11;
using namespace collbench;
using Unlocked = py::call_guard<py::gil_scoped_release>;

namespace {

// DataError carries its numbers as attributes.
void register_data_error(py::module_& module) {
  static PyObject* type = PyErr_NewException("collbench._native.DataError", PyExc_RuntimeError, nullptr);
  module.attr("DataError") = py::handle(type);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const DataError& error) {
      py::object instance = py::reinterpret_borrow<py::object>(type)(error.what());
      instance.attr("group") = error.group;
      instance.attr("rank") = error.rank;
      instance.attr("offset") = error.offset;
      instance.attr("wrong") = error.wrong;
      instance.attr("expected") = error.expected;
      instance.attr("found") = error.found;
      PyErr_SetObject(type, instance.ptr());
    }
  });
}

// A DeviceError carries the position of its GPU.
template <class Error>
void register_device_error(py::module_& module, const char* name) {
  static PyObject* type =
      PyErr_NewException(("collbench._native." + std::string(name)).c_str(), PyExc_RuntimeError, nullptr);
  module.attr(name) = py::handle(type);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      py::object instance = py::reinterpret_borrow<py::object>(type)(error.what());
      instance.attr("position") = error.position;
      if constexpr (std::is_same_v<Error, NcclError>) instance.attr("code") = error.code;
      PyErr_SetObject(type, instance.ptr());
    }
  });
}

void bind_errors(py::module_& module) {
  py::register_exception<LibraryError>(module, "LibraryError", PyExc_RuntimeError);
  register_device_error<CudaError>(module, "CudaError");
  register_device_error<NcclError>(module, "NcclError");
  register_device_error<HangError>(module, "HangError");
  register_device_error<PolicyError>(module, "PolicyError");
  register_data_error(module);
}

void bind_host(py::module_& module) {
  py::class_<host::HostSession>(module, "HostSession")
      .def(py::init<const std::vector<int>&, std::size_t>(), py::arg("cores"), py::arg("buffer_bytes"), Unlocked())
      .def(
          "time_copies",
          [](host::HostSession& session, const std::vector<std::pair<int, int>>& links, bool pull, std::size_t size,
             int iterations, int blocks, int warmup) {
            std::vector<host::Link> round;
            for (const auto& [source, target] : links) round.push_back({source, target});
            return session.time_copies(round, pull, size, iterations, blocks, warmup);
          },
          py::arg("links"), py::arg("pull"), py::arg("size"), py::arg("iterations"), py::arg("blocks"),
          py::arg("warmup"), Unlocked());
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "Raw seconds from GPUs, NCCL and CPU cores. No policy, no printing; see collbench.backends.";
  bind_errors(module);
  bind_copies(module);
  bind_collectives(module);
  bind_host(module);
}
