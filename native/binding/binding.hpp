// Shared declarations of the binding. No logic: convert, release the GIL, call, convert back.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>

#include "binding/gil.hpp"
#include "group/group.hpp"
#include "shm/arena.hpp"
#include "shm/control_page.hpp"

namespace phalanx::binding {

namespace py = pybind11;

void register_site(py::module_& module);
void register_errors(py::module_& module);
void register_page(py::module_& module);
void register_trace(py::module_& module);
void register_spans(py::module_& module);
void register_arena(py::module_& module);
void register_group(py::module_& module);
void register_fast_path(py::module_& module);
void register_mlx(py::module_& module);
void register_convert(py::module_& module);

// Holders with close(): it drops the binding's share; a group in use keeps its own.
struct PyPage {
    std::shared_ptr<ControlPage> page;
    [[nodiscard]] ControlPage& get() const;
};
// For the rank in a slot: packed records and the number dropped; counters.
py::tuple trace_of(const PyPage& self, int slot, std::uint64_t since);
py::tuple counters_of(const PyPage& self, int slot);
struct PyArena {
    std::shared_ptr<Arena> arena;
    [[nodiscard]] const Arena& get() const;
};

// A numpy array that was checked: C-contiguous, aligned, of a supported dtype. `dtype` names the
// dtype of its bytes if numpy has none for it; empty: numpy's dtype.
struct View {
    const std::byte* data = nullptr;
    std::byte* writable = nullptr;
    Dtype dtype = Dtype::none;
    std::uint64_t count = 0;
    std::vector<std::uint64_t> shape;
};
View view_of(const py::handle& array, const char* name, bool is_output,
             std::string_view dtype = {});

// Returns `none` for dtypes that the engine does not support, including swapped byte order.
Dtype dtype_of(const py::dtype& dtype);

std::optional<Clock::duration> to_duration(const std::optional<double>& timeout);
// Runs `body(interrupt)` without the GIL and raises the Python exception for its errors;
// `interrupt` runs Python's signal handlers. Safe: the caller holds the arrays, only their memory
// is touched, and Python is entered again only through the signal check, with the GIL.
void run_released(Group& group, FunctionRef<void(const std::function<bool()>&)> body);

// Runs a checked operation or message and raises the Python exception for its errors.
void run_call(Group& group, Call& call);

// The first frame of the calling thread outside of this package: "train.py:31", "cell line 2"; ""
// if there is none.
std::string current_site() noexcept;
// The same for a thread without the GIL.
std::string current_site_of_thread() noexcept;
// Whether threads other than this one may act for the user. Runs Python code, and so signal
// handlers. True if unknown.
bool may_others_act();
// Whether the interpreter is shutting down: Python ends a thread that asks for the GIL then.
bool is_finalizing() noexcept;

// Sets the Python exception for a reason and throws py::error_already_set.
[[noreturn]] void raise_reason(const AbortReason& reason, int culprit_rank,
                               const std::string& host);
[[noreturn]] void raise_distributed_error(const std::string& text);
// Converts a C++ exception to the current Python exception, for functions without pybind11's
// wrapper.
void set_python_error(const std::exception_ptr& thrown);

// Text from another process may be cut or corrupt: it must not raise a UnicodeError.
py::object to_text(const std::string& text);
// (kind, culprit, message) or None.
py::object to_tuple(const std::optional<AbortReason>& reason);

}  // namespace phalanx::binding
