// Gpus: opening, buffers, copies and the pointer chase. Every call that touches a device releases the GIL.
#include <pybind11/stl.h>

#include "bindings.hpp"
#include "chase.hpp"
#include "copy.hpp"
#include "memory_policy.hpp"

namespace py = pybind11;
using Unlocked = py::call_guard<py::gil_scoped_release>;

namespace collbench {
namespace {

void bind_identity(py::module_& module) {
  py::class_<GpuIdentity>(module, "GpuIdentity")
      .def_readonly("ordinal", &GpuIdentity::ordinal)
      .def_readonly("uuid", &GpuIdentity::uuid)
      .def_readonly("pci_bus_id", &GpuIdentity::pci_bus_id)
      .def_readonly("name", &GpuIdentity::name)
      .def_readonly("memory_bytes", &GpuIdentity::memory_bytes);
  module.def("list_gpus", &list_gpus, Unlocked());
}

void bind_times(py::module_& module) {
  py::class_<Coverage>(module, "Coverage")
      .def_readonly("moved", &Coverage::moved)
      .def_readonly("verified", &Coverage::verified);
  py::class_<Times>(module, "Times")
      .def_readonly("seconds", &Times::seconds)
      .def_readonly("coverage", &Times::coverage);
}

Times copies(Gpus& gpus, std::vector<Transfers> groups, bool multiprocessors, bool pull, std::size_t bytes,
             std::uint64_t shift, int iterations, int blocks, int warmup, double deadline) {
  const Engine engine = multiprocessors ? Engine::multiprocessors : Engine::copy_engine;
  return time_copies(gpus, {std::move(groups), engine, pull, bytes, shift, iterations, blocks, warmup, deadline});
}

std::vector<std::vector<double>> chase(Gpus& gpus, std::vector<Link> links, int accesses, int blocks, int warmup,
                                       double deadline) {
  return time_chase(gpus, {std::move(links), accesses, blocks, warmup, deadline});
}

}  // namespace

void bind_copies(py::module_& module) {
  bind_identity(module);
  bind_times(module);
  module.def("node_memory_refusal", &node_memory_refusal, py::arg("node"));
  py::class_<Gpus>(module, "Gpus")
      .def(py::init<const std::vector<int>&, const std::vector<std::string>&, bool>(), py::arg("ordinals"),
           py::arg("images"), py::arg("peers") = true, Unlocked())
      .def("free_bytes", &Gpus::free_bytes, Unlocked())
      .def("allocate", &Gpus::allocate, py::arg("bytes"), Unlocked())
      .def_property_readonly("image", &Gpus::image)
      .def_property_readonly("cache_bytes", &Gpus::cache_bytes)
      .def_property_readonly("multicast_supported", &Gpus::multicast_supported)
      .def("peer_access", &Gpus::peer_access)
      .def("time_copies", &copies, py::arg("groups"), py::arg("multiprocessors"), py::arg("pull"), py::arg("bytes"),
           py::arg("shift"), py::arg("iterations"), py::arg("blocks"), py::arg("warmup"), py::arg("deadline"),
           Unlocked())
      .def("time_chase", &chase, py::arg("links"), py::arg("accesses"), py::arg("blocks"), py::arg("warmup"),
           py::arg("deadline"), Unlocked());
}

}  // namespace collbench
