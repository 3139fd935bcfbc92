// Bind phalanx._native.MlxCommunicator: a group as the library that MLX loads as its MPI sees it.
#include <atomic>
#include <mutex>

#include "binding/binding.hpp"
#include "mlx_mpi/interface.hpp"

namespace phalanx {

// Concurrency. MLX's stream threads run operations; Python's main thread makes, renews and ends
// communicators and raises errors. `mutex` guards `group` and `error`. The callables belong to the
// holder of the GIL.
struct mlx_mpi::Communicator {
    std::mutex mutex;
    std::shared_ptr<Group> group;
    std::exception_ptr error;  // first failure that was not raised yet
    std::atomic<bool> has_script_ended = false;
    std::atomic<bool> is_cut = false;  // operations that wait are interrupted
    pybind11::function split;
    pybind11::function report_failure;
};

namespace binding {

namespace {

using mlx_mpi::Communicator;

// Python's holder. The adapter keeps it until the process ends, so that its address stays valid.
struct MlxCommunicator {
    std::shared_ptr<Communicator> communicator;
    mlx_mpi::MlxWorld world{};
};

std::shared_ptr<Group> group_of(Communicator& comm) {
    const std::lock_guard held(comm.mutex);
    return comm.group;
}

int rank_of(Communicator& comm) noexcept { return group_of(comm)->rank(); }
int size_of_group(Communicator& comm) noexcept { return group_of(comm)->size(); }

int raise_error(void* argument);

// Keeps the first failure for the main thread.
void keep_error(Communicator& comm, const std::exception_ptr& error) noexcept {
    const std::lock_guard held(comm.mutex);
    if (comm.error != nullptr) return;
    // The queue of pending calls may be full: the next operation tries again.
    if (Py_AddPendingCall(&raise_error, &comm) == 0) comm.error = error;
}

// Runs on the main thread with the GIL, as a pending call: the error appears at its next
// instruction.
int raise_error(void* argument) {
    auto& comm = *static_cast<Communicator*>(argument);
    std::exception_ptr error;
    std::shared_ptr<Group> group;
    {
        const std::lock_guard held(comm.mutex);
        error = std::exchange(comm.error, nullptr);
        group = comm.group;
    }
    if (error == nullptr) return 0;
    try {
        try {
            std::rethrow_exception(error);
        } catch (const Aborted& aborted) {
            const int culprit_rank = group->culprit_seen_by(aborted.reason);
            raise_reason(aborted.reason, culprit_rank, group->host_of(culprit_rank));
        }
    } catch (...) {
        set_python_error(std::current_exception());
    }
    try {
        py::error_already_set raised;  // takes the error that was set above
        const py::object chosen = comm.report_failure(raised.value());
        if (chosen.is_none()) return 0;
        PyErr_SetObject(py::type::handle_of(chosen).ptr(), chosen.ptr());
    } catch (py::error_already_set& interrupt) {
        // A stop may come in the report of what the stop before it has ended.
        if (interrupt.matches(PyExc_KeyboardInterrupt)) keep_error(comm, error);
        interrupt.restore();
    } catch (...) {
        set_python_error(std::current_exception());
    }
    return -1;
}

bool run(Communicator& comm, OpKind kind, Dtype dtype, std::uint64_t count, int peer, const void* x,
         void* out) noexcept {
    std::uint64_t n_out = 0;
    try {
        if (kind == OpKind::kBarrier) {  // a reduction that mlx_mpi/mpi.cpp did not recognise
            throw UsageError(
                "this version of MLX reduces with an operation that phalanx does not know; "
                "use px.all_sum, px.all_max and px.all_min");
        }
        const std::shared_ptr<Group> group = group_of(comm);
        const std::uint64_t shape[]{count};
        Call call;
        call.kind = kind;
        call.dtype = dtype;
        call.count = count;
        call.shape = shape;
        call.root = peer;
        call.x = static_cast<const std::byte*>(x);
        call.out = static_cast<std::byte*>(out);
        call.is_for_main_thread = true;
        // Shows the wait. The main thread may act meanwhile, until its script ends: it need not
        // wait for this evaluation.
        call.interrupt = [&group, &comm] {
            group->tell_threads(!comm.has_script_ended.load());
            return comm.is_cut.load();
        };
        if (out != nullptr) n_out = out_count(kind, count, group->size());
        group->run(call);
        return true;
    } catch (...) {
        // MLX goes on with the array: it must not look valid.
        if (out != nullptr) invalidate(dtype, static_cast<std::byte*>(out), n_out);
        keep_error(comm, std::current_exception());
        return false;
    }
}

Communicator* split(Communicator& comm, int color, int key) noexcept {
    const TakenGil taken;
    try {
        const py::object part = comm.split(color, key);
        return part.cast<MlxCommunicator&>().communicator.get();
    } catch (...) {
        keep_error(comm, std::current_exception());
        return nullptr;
    }
}

// The Python side keeps a split until the process ends: MLX frees it while the interpreter may be
// gone, and operations of another stream may still use it.
void release(Communicator& /*comm*/) noexcept {}

constexpr mlx_mpi::Functions kFunctions{&rank_of, &size_of_group, &run, &split, &release};

}  // namespace

void register_mlx(py::module_& module) {
    py::class_<MlxCommunicator>(module, "MlxCommunicator", py::is_final())
        .def(py::init([](std::shared_ptr<Group> group, py::function split_group,
                         py::function report_failure) {
                 auto communicator = std::make_shared<Communicator>();
                 communicator->group = std::move(group);
                 communicator->split = std::move(split_group);
                 communicator->report_failure = std::move(report_failure);
                 return MlxCommunicator{communicator, {&kFunctions, communicator.get()}};
             }),
             py::kw_only(), py::arg("group"), py::arg("split"), py::arg("report_failure"))
        .def(
            "renew",
            [](MlxCommunicator& self, std::shared_ptr<Group> group) {
                const std::lock_guard held(self.communicator->mutex);
                self.communicator->group.swap(group);
            },
            py::arg("group"))
        .def("end_script",
             [](const MlxCommunicator& self) { self.communicator->has_script_ended.store(true); })
        .def(
            "set_cut",
            [](const MlxCommunicator& self, bool is_cut) {
                self.communicator->is_cut.store(is_cut);
            },
            py::arg("is_cut"))
        .def("capsule", [](const MlxCommunicator& self) {
            return py::capsule(&self.world, mlx_mpi::MlxWorld::kCapsule);
        });
}

}  // namespace binding
}  // namespace phalanx
