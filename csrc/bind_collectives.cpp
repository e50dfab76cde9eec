// Python's view of NCCL: the library and one session of communicators.
#include <pybind11/stl.h>

#include <mutex>

#include "bindings.hpp"
#include "collective.hpp"

namespace py = pybind11;
using Unlocked = py::call_guard<py::gil_scoped_release>;

namespace collbench {
namespace {

// One NCCL session on one set of GPUs: what Python holds as a single object. Its calls come from any thread, one at a
// time: `prepare` in the background holds up a `time`, but no copies, with which it shares nothing that changes.
class CollectiveSession {
 public:
  CollectiveSession(Gpus& gpus, const Nccl& nccl, int rank, int world_size, const std::string& unique_id)
      : communicators_(gpus, nccl, {rank, world_size, unique_id}), timer_(communicators_, gpus) {}

  void prepare(const std::vector<Group>& groups) {
    const std::lock_guard<std::mutex> lock(mutex_);
    communicators_.prepare(groups);
  }

  CollectiveTimes time(std::vector<Group> groups, int operation, int dtype, int reduction, int root, std::size_t count,
                       std::size_t width, bool in_place, bool verify, int iterations, int blocks, int warmup,
                       int launch_iterations, int launch_warmup, double deadline) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return timer_.time({std::move(groups), static_cast<Collective>(operation), dtype, reduction, root, count, width,
                        in_place, verify, iterations, blocks, warmup, launch_iterations, launch_warmup, deadline});
  }

  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    timer_.close();
    communicators_.close();
  }

 private:
  std::mutex mutex_;
  Communicators communicators_;
  CollectiveTimer timer_;
};

py::bytes unique_id(const Nccl& nccl) {
  std::string id;
  {
    py::gil_scoped_release unlocked;
    id = nccl.unique_id();
  }
  return id;
}

}  // namespace

void bind_collectives(py::module_& module) {
  py::class_<Nccl>(module, "Nccl")
      .def(py::init<const std::string&>(), py::arg("path"), Unlocked())
      .def_property_readonly("version", &Nccl::version)
      .def_property_readonly("path", &Nccl::path)
      .def("unique_id", &unique_id);
  py::class_<CollectiveTimes, Times>(module, "CollectiveTimes")
      .def_readonly("launch_seconds", &CollectiveTimes::launch_seconds);
  py::class_<CollectiveSession>(module, "Collectives")
      .def(py::init<Gpus&, const Nccl&, int, int, const std::string&>(), py::arg("gpus"), py::arg("nccl"),
           py::arg("rank") = 0, py::arg("world_size") = 0, py::arg("unique_id") = py::bytes(), py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def("prepare", &CollectiveSession::prepare, py::arg("groups"), Unlocked())
      .def("time", &CollectiveSession::time, py::arg("groups"), py::arg("operation"), py::arg("dtype"),
           py::arg("reduction"), py::arg("root"), py::arg("count"), py::arg("width"), py::arg("in_place"),
           py::arg("verify"), py::arg("iterations"), py::arg("blocks"), py::arg("warmup"), py::arg("launch_iterations"),
           py::arg("launch_warmup"), py::arg("deadline"), Unlocked())
      .def("close", &CollectiveSession::close, Unlocked());
}

}  // namespace collbench
