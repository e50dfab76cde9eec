// Arguments, the GIL and exceptions; nothing else. Every call that touches a device or a library releases the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "collective.hpp"
#include "copy.hpp"
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

void bind_errors(py::module_& module) {
  py::register_exception<LibraryError>(module, "LibraryError", PyExc_RuntimeError);
  py::register_exception<CudaError>(module, "CudaError", PyExc_RuntimeError);
  py::register_exception<NcclError>(module, "NcclError", PyExc_RuntimeError);
  py::register_exception<HangError>(module, "HangError", PyExc_RuntimeError);
  register_data_error(module);
}

void bind_gpus(py::module_& module) {
  py::class_<GpuIdentity>(module, "GpuIdentity")
      .def_readonly("ordinal", &GpuIdentity::ordinal)
      .def_readonly("uuid", &GpuIdentity::uuid)
      .def_readonly("pci_bus_id", &GpuIdentity::pci_bus_id)
      .def_readonly("name", &GpuIdentity::name)
      .def_readonly("memory_bytes", &GpuIdentity::memory_bytes);
  module.def("list_gpus", &list_gpus, Unlocked());
  py::class_<Gpus>(module, "Gpus")
      .def(py::init<const std::vector<int>&, const std::vector<std::string>&>(), py::arg("ordinals"), py::arg("images"),
           Unlocked())
      .def("free_bytes", &Gpus::free_bytes, Unlocked())
      .def("allocate", &Gpus::allocate, py::arg("bytes"), Unlocked())
      .def_property_readonly("image", &Gpus::image)
      .def("peer_access", &Gpus::peer_access)
      .def(
          "time_copies",
          [](Gpus& gpus, std::vector<Link> links, bool multiprocessors, bool pull, std::size_t bytes,
             std::uint64_t shift, int iterations, int blocks, int warmup) {
            const Engine engine = multiprocessors ? Engine::multiprocessors : Engine::copy_engine;
            return time_copies(gpus, {std::move(links), engine, pull, bytes, shift, iterations, blocks, warmup});
          },
          py::arg("links"), py::arg("multiprocessors"), py::arg("pull"), py::arg("bytes"), py::arg("shift"),
          py::arg("iterations"), py::arg("blocks"), py::arg("warmup"), Unlocked());
}

// One NCCL session on one set of GPUs: what Python holds as a single object.
struct CollectiveSession {
  CollectiveSession(Gpus& gpus, const Nccl& nccl) : communicators(gpus, nccl), timer(communicators, gpus) {}
  void close() {
    timer.close();
    communicators.close();
  }
  Communicators communicators;
  CollectiveTimer timer;
};

void bind_collectives(py::module_& module) {
  py::class_<Nccl>(module, "Nccl")
      .def(py::init<const std::string&>(), py::arg("path"), Unlocked())
      .def_property_readonly("version", &Nccl::version)
      .def_property_readonly("path", &Nccl::path);
  py::class_<CollectiveSession>(module, "Collectives")
      .def(py::init<Gpus&, const Nccl&>(), py::arg("gpus"), py::arg("nccl"), py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def(
          "time",
          [](CollectiveSession& session, std::vector<Group> groups, bool broadcast, int dtype, int reduction, int root,
             std::size_t count, std::size_t width, int iterations, int blocks, int warmup, int launch_iterations) {
            const Collective operation = broadcast ? Collective::broadcast : Collective::allreduce;
            CollectiveTimes times = session.timer.time({std::move(groups), operation, dtype, reduction, root, count,
                                                        width, iterations, blocks, warmup, launch_iterations});
            return std::make_pair(std::move(times.seconds), std::move(times.launch_seconds));
          },
          py::arg("groups"), py::arg("broadcast"), py::arg("dtype"), py::arg("reduction"), py::arg("root"),
          py::arg("count"), py::arg("width"), py::arg("iterations"), py::arg("blocks"), py::arg("warmup"),
          py::arg("launch_iterations"), Unlocked())
      .def("close", &CollectiveSession::close, Unlocked());
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
  bind_gpus(module);
  bind_collectives(module);
  bind_host(module);
}
