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
PyObject* register_error(py::module_& module, const char* name, PyObject* base = PyExc_RuntimeError) {
  static PyObject* type = PyErr_NewException(("collbench._native." + std::string(name)).c_str(), base, nullptr);
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
  return type;
}

void bind_errors(py::module_& module) {
  py::register_exception<LibraryError>(module, "LibraryError", PyExc_RuntimeError);
  register_error<CudaError>(module, "CudaError");
  register_error<NcclError>(module, "NcclError");
  PyObject* hang = register_error<HangError>(module, "HangError");
  register_error<LateError>(module, "LateError", hang);  // after it: the last registered one is tried first
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

// A member of a struct, and its name in Python.
template <class Bound, class Type>
struct Member {
  const char* name;
  Type Bound::* pointer;
};
template <class Bound, class Type>
Member(const char*, Type Bound::*) -> Member<Bound, Type>;
#define MEMBER(Bound, name) \
  Member { #name, &Bound::name }

// A struct that Python makes from the values of these members, by name; _native.pyi says which may be left out.
template <class Bound, class... Types>
void bind_round(py::module_& module, const char* name, Member<Bound, Types>... members) {
  const auto make = [members...](Types... values) {
    Bound round{};
    ((round.*members.pointer = std::move(values)), ...);
    return round;
  };
  py::class_<Bound>(module, name)
      .def(py::init(make), py::kw_only(), (py::arg(members.name) = Bound{}.*members.pointer)...);
}

// A struct whose members Python reads.
template <class Bound, class... Bases, class... Types>
void bind_result(py::class_<Bound, Bases...> bound, Member<Bound, Types>... members) {
  (bound.def_readonly(members.name, members.pointer), ...);
}

void bind_rounds(py::module_& module) {
  using Copy = CopyRound;
  bind_round(module, "CopyRound", MEMBER(Copy, groups), MEMBER(Copy, engine), MEMBER(Copy, pull), MEMBER(Copy, bytes),
             MEMBER(Copy, iterations), MEMBER(Copy, batches), MEMBER(Copy, warmup), MEMBER(Copy, deadline),
             MEMBER(Copy, covered));
  using Chase = ChaseRound;
  bind_round(module, "ChaseRound", MEMBER(Chase, links), MEMBER(Chase, accesses), MEMBER(Chase, batches),
             MEMBER(Chase, warmup), MEMBER(Chase, deadline));
  using Round = CollectiveRound;
  bind_round(module, "CollectiveRound", MEMBER(Round, groups), MEMBER(Round, operation), MEMBER(Round, dtype),
             MEMBER(Round, reduction), MEMBER(Round, root), MEMBER(Round, count), MEMBER(Round, in_place),
             MEMBER(Round, verify), MEMBER(Round, iterations), MEMBER(Round, batches), MEMBER(Round, warmup),
             MEMBER(Round, launch_iterations), MEMBER(Round, launch_warmup), MEMBER(Round, deadline),
             MEMBER(Round, single_launches), MEMBER(Round, hold_rank), MEMBER(Round, hold_nanoseconds),
             MEMBER(Round, registration), MEMBER(Round, blocks), MEMBER(Round, plain));
  bind_result(py::class_<Coverage>(module, "Coverage"), MEMBER(Coverage, moved), MEMBER(Coverage, verified));
  bind_result(py::class_<Times>(module, "Times"), MEMBER(Times, seconds), MEMBER(Times, coverage),
              MEMBER(Times, uncovered));
  using Launches = RankLaunches;
  bind_result(py::class_<Launches>(module, "RankLaunches"), MEMBER(Launches, group), MEMBER(Launches, rank),
              MEMBER(Launches, arrived), MEMBER(Launches, left), MEMBER(Launches, uncertainty), MEMBER(Launches, step),
              MEMBER(Launches, cost));
  using All = CollectiveTimes;
  bind_result(py::class_<All, Times>(module, "CollectiveTimes"), MEMBER(All, launch_seconds), MEMBER(All, waits),
              MEMBER(All, singles));
}

void bind_gpus(py::module_& module) {
  module.def("list_gpus", &list_gpus, Unlocked());
  module.def("node_memory_refusal", &node_memory_refusal, "node"_a, "gpus"_a);
  py::class_<Gpus>(module, "Gpus")
      .def(py::init<const std::vector<int>&, const std::string&, bool>(), "ordinals"_a, "ptx"_a, "peers"_a = true,
           Unlocked())
      .def("free_bytes", &Gpus::free_bytes, Unlocked())
      .def("allocate", &Gpus::allocate, "bytes"_a, "host_bytes"_a = Gpus::kNoLimit, Unlocked())
      .def("pin_host", &pin_host, "links"_a, Unlocked())
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
      .def(py::init([](Gpus& gpus, const Nccl& nccl, int rank, int world_size, const std::string& unique_id) {
             return std::make_unique<Collectives>(gpus, nccl, World{rank, world_size, unique_id});
           }),
           "gpus"_a, "nccl"_a, "rank"_a = 0, "world_size"_a = 0, "unique_id"_a = py::bytes(), py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
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
  module.doc() =
      "Raw seconds from GPUs, NCCL and CPU cores. No policy, no printing; see collbench.measurement.backends.";
  bind_errors(module);
  bind_enums(module);
  bind_rounds(module);
  bind_gpus(module);
  bind_nccl(module);
  bind_cores(module);
}
