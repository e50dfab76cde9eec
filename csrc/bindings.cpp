// The interface to Python: enums, a struct for each kind of round, exceptions, and the GIL, which every call that
// touches a device or a library releases.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "collectives.hpp"
#include "copies.hpp"
#include "core_copies.hpp"
#include "host_memory.hpp"
#include "pointer_chase.hpp"

namespace py = pybind11;
using namespace collbench;
using namespace pybind11::literals;
using Unlocked = py::call_guard<py::gil_scoped_release>;

namespace {

void set_attributes(py::object& instance, const DeviceError& error) { instance.attr("position") = error.position; }

void set_attributes(py::object& instance, const NcclError& error) {
  instance.attr("position") = error.position;
  instance.attr("code") = error.code;
}

void set_attributes(py::object& instance, const DataError& error) {
  instance.attr("group") = error.group;
  instance.attr("rank") = error.rank;
  instance.attr("offset") = error.offset;
  instance.attr("wrong") = error.wrong;
  instance.attr("expected") = error.expected;
  instance.attr("found") = error.found;
}

// An exception with the error's members as attributes.
template <class Error>
void register_error(py::module_& module, const char* name) {
  static PyObject* type =
      PyErr_NewException(("collbench._native." + std::string(name)).c_str(), PyExc_RuntimeError, nullptr);
  module.attr(name) = py::handle(type);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      py::object instance = py::reinterpret_borrow<py::object>(type)(error.what());
      set_attributes(instance, error);
      PyErr_SetObject(type, instance.ptr());
    }
  });
}

void bind_errors(py::module_& module) {
  py::register_exception<LibraryError>(module, "LibraryError", PyExc_RuntimeError);
  register_error<CudaError>(module, "CudaError");
  register_error<NcclError>(module, "NcclError");
  register_error<HangError>(module, "HangError");
  register_error<PolicyError>(module, "PolicyError");
  register_error<DataError>(module, "DataError");
}

void bind_enums(py::module_& module) {
  py::enum_<Engine>(module, "Engine")
      .value("copy_engine", Engine::copy_engine)
      .value("multiprocessors", Engine::multiprocessors);
#define COLLBENCH_VALUE(name, ...) .value(#name, Bound::name)
#define COLLBENCH_BIND(Enum, VALUES)                         \
  {                                                          \
    using Bound = Enum;                                      \
    py::enum_<Bound>(module, #Enum) VALUES(COLLBENCH_VALUE); \
  }
  COLLBENCH_BIND(Collective, COLLBENCH_COLLECTIVES)
  COLLBENCH_BIND(Dtype, COLLBENCH_DTYPES)
  COLLBENCH_BIND(Registration, COLLBENCH_REGISTRATIONS)
  COLLBENCH_BIND(Reduction, COLLBENCH_REDUCTIONS)
#undef COLLBENCH_BIND
#undef COLLBENCH_VALUE
}

// A constructor that takes these members' values in this order.
template <class Round, class... Types>
auto from_members(Types Round::*... members) {
  return [members...](Types... values) {
    Round round{};
    ((round.*members = std::move(values)), ...);
    return round;
  };
}

void bind_rounds(py::module_& module) {
  using Copy = CopyRound;
  py::class_<Copy>(module, "CopyRound")
      .def(py::init(from_members(&Copy::groups, &Copy::engine, &Copy::pull, &Copy::bytes, &Copy::iterations,
                                 &Copy::batches, &Copy::warmup, &Copy::deadline, &Copy::shift, &Copy::covered)),
           py::kw_only(), "groups"_a, "engine"_a, "pull"_a, "bytes"_a, "iterations"_a, "batches"_a, "warmup"_a,
           "deadline"_a, "shift"_a = 0, "covered"_a = false);
  using Chase = ChaseRound;
  py::class_<Chase>(module, "ChaseRound")
      .def(py::init(from_members(&Chase::links, &Chase::accesses, &Chase::batches, &Chase::warmup, &Chase::deadline)),
           py::kw_only(), "links"_a, "accesses"_a, "batches"_a, "warmup"_a, "deadline"_a);
  using Round = CollectiveRound;
  py::class_<Round>(module, "CollectiveRound")
      .def(py::init(from_members(&Round::groups, &Round::operation, &Round::dtype, &Round::reduction, &Round::root,
                                 &Round::count, &Round::in_place, &Round::verify, &Round::iterations, &Round::batches,
                                 &Round::warmup, &Round::launch_iterations, &Round::launch_warmup, &Round::deadline,
                                 &Round::single_launches, &Round::hold_rank, &Round::hold_nanoseconds,
                                 &Round::registration, &Round::blocks, &Round::plain)),
           py::kw_only(), "groups"_a, "operation"_a, "dtype"_a, "reduction"_a, "root"_a, "count"_a, "in_place"_a,
           "verify"_a, "iterations"_a, "batches"_a, "warmup"_a, "launch_iterations"_a, "launch_warmup"_a, "deadline"_a,
           "single_launches"_a = 0, "hold_rank"_a = -1, "hold_nanoseconds"_a = 0, "registration"_a = Registration::none,
           "blocks"_a = std::vector<std::uint64_t>{}, "plain"_a = std::vector<bool>{});
  py::class_<Coverage>(module, "Coverage")
      .def_readonly("moved", &Coverage::moved)
      .def_readonly("verified", &Coverage::verified);
  py::class_<Times>(module, "Times")
      .def_readonly("seconds", &Times::seconds)
      .def_readonly("coverage", &Times::coverage)
      .def_readonly("uncovered", &Times::uncovered);
  py::class_<RankLaunches>(module, "RankLaunches")
      .def_readonly("group", &RankLaunches::group)
      .def_readonly("rank", &RankLaunches::rank)
      .def_readonly("arrived", &RankLaunches::arrived)
      .def_readonly("left", &RankLaunches::left)
      .def_readonly("uncertainty", &RankLaunches::uncertainty)
      .def_readonly("step", &RankLaunches::step)
      .def_readonly("cost", &RankLaunches::cost);
  py::class_<CollectiveTimes, Times>(module, "CollectiveTimes")
      .def_readonly("launch_seconds", &CollectiveTimes::launch_seconds)
      .def_readonly("waits", &CollectiveTimes::waits)
      .def_readonly("singles", &CollectiveTimes::singles);
}

void bind_gpus(py::module_& module) {
  py::class_<GpuIdentity>(module, "GpuIdentity")
      .def_readonly("ordinal", &GpuIdentity::ordinal)
      .def_readonly("uuid", &GpuIdentity::uuid)
      .def_readonly("pci_bus_id", &GpuIdentity::pci_bus_id)
      .def_readonly("name", &GpuIdentity::name)
      .def_readonly("memory_bytes", &GpuIdentity::memory_bytes);
  module.def("list_gpus", &list_gpus, Unlocked());
  module.def("node_memory_refusal", &node_memory_refusal, "node"_a);
  py::class_<Gpus>(module, "Gpus")
      .def(py::init<const std::vector<int>&, const std::string&, bool>(), "ordinals"_a, "ptx"_a, "peers"_a = true,
           Unlocked())
      .def("free_bytes", &Gpus::free_bytes, Unlocked())
      .def("allocate", &Gpus::allocate, "bytes"_a, Unlocked())
      .def_property_readonly("cache_bytes", &Gpus::cache_bytes)
      .def_property_readonly("multicast_supported", &Gpus::multicast_supported)
      .def("peer_access", &Gpus::peer_access)
      .def("peer_refusals", &Gpus::peer_refusals)
      .def("time_copies", &time_copies, "round"_a, Unlocked())
      .def("time_chase", &time_chase, "round"_a, Unlocked());
}

void bind_nccl(py::module_& module) {
  py::class_<Nccl>(module, "Nccl")
      .def(py::init<const std::string&>(), "path"_a, Unlocked())
      .def_property_readonly("version", &Nccl::version)
      .def_property_readonly("path", &Nccl::path)
      .def("unique_id", [](const Nccl& nccl) {
        std::string id;
        {
          py::gil_scoped_release unlocked;
          id = nccl.unique_id();
        }
        return py::bytes(id);
      });
  py::class_<Collectives>(module, "Collectives")
      .def(py::init([](Gpus& gpus, const Nccl& nccl, int rank, int world_size, const std::string& unique_id,
                       const NcclOptions& options) {
             return std::make_unique<Collectives>(gpus, nccl, World{rank, world_size, unique_id}, options);
           }),
           "gpus"_a, "nccl"_a, "rank"_a = 0, "world_size"_a = 0, "unique_id"_a = py::bytes(),
           "options"_a = NcclOptions{}, py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
      .def("prepare", &Collectives::prepare, "groups"_a, Unlocked())
      .def("time", &Collectives::time, "round"_a, Unlocked())
      .def("close", &Collectives::close, Unlocked());
}

void bind_cores(py::module_& module) {
  py::class_<host::HostSession>(module, "HostSession")
      .def(py::init<const std::vector<int>&, std::size_t>(), "cores"_a, "buffer_bytes"_a, Unlocked())
      .def("time_copies", &host::HostSession::time_copies, "links"_a, "pull"_a, "size"_a, "iterations"_a, "batches"_a,
           "warmup"_a, Unlocked());
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "Raw seconds from GPUs, NCCL and CPU cores. No policy, no printing; see collbench.measurement.backends.";
  bind_errors(module);
  bind_enums(module);
  bind_rounds(module);
  bind_gpus(module);
  bind_nccl(module);
  bind_cores(module);
}
