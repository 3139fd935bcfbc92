// What the files of the binding share. No logic lives here: convert, release, call, convert back.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>

#include "binding/gil.hpp"
#include "group/group.hpp"
#include "transport/abort_page.hpp"
#include "transport/arena.hpp"

namespace phalanx::binding {

namespace py = pybind11;

void register_site(py::module_& module);
void register_errors(py::module_& module);
void register_page(py::module_& module);
void register_trace(py::module_& module);
void register_spans(py::module_& module);
void register_arena(py::module_& module);
void register_group(py::module_& module);
void register_short_way(py::module_& module);
void register_work(py::module_& module);
void register_convert(py::module_& module);

// Closable holders: close() drops the binding's share; a group at work keeps its own.
struct PyPage {
    std::shared_ptr<AbortPage> page;
    [[nodiscard]] AbortPage& get() const;
};
// Of the rank in a slot: its records packed and how many were dropped; its counters.
py::tuple trace_of(const PyPage& self, int slot, std::uint64_t since);
py::tuple counters_of(const PyPage& self, int slot);
struct PyArena {
    std::shared_ptr<Arena> arena;
    [[nodiscard]] const Arena& get() const;
};

// A numpy array, looked at and found right: C-contiguous, aligned, of a supported dtype. `dtype`
// says how to read its bytes where numpy has no name for it; empty: as numpy does.
struct View {
    const std::byte* data = nullptr;
    std::byte* writable = nullptr;
    Dtype dtype = Dtype::none;
    std::uint64_t count = 0;
    std::vector<std::uint64_t> shape;
};
View view_of(const py::handle& array, const char* name, bool is_output,
             std::string_view dtype = {});

// `none` for what the engine does not know, or not with its bytes swapped.
Dtype dtype_of(const py::dtype& dtype);

// An operation as Python has called it; `call.shape` lies in `x`, which may be moved.
struct Prepared {
    View x;
    Call call;
};
Prepared prepare(const Group& group, OpKind kind, const py::handle& x, const py::handle& out,
                 int root, const std::optional<double>& timeout, std::string_view dtype);
std::optional<Clock::duration> to_duration(const std::optional<double>& timeout);
// Runs `body(interrupt)` without the GIL and raises what it throws; `interrupt` runs Python's
// signal handlers. Safe: arrays are held by the caller, only their memory is touched, and Python is
// entered again only through the signal check, with the GIL.
void run_released(Group& group, FunctionRef<void(const std::function<bool()>&)> body);

// An operation that was called and found right: runs it (or the message), and raises what it
// throws.
void run_call(Group& group, Call& call);

// The first frame of the calling thread that is not ours: "train.py:31", "cell line 2"; ""
// where there is none.
std::string current_site() noexcept;
// The same for a thread without the GIL.
std::string current_site_of_thread() noexcept;
// Whether the interpreter ends: a thread that asks for the GIL is ended by Python then.
bool is_finalizing() noexcept;

// Sets the Python exception for a reason and throws py::error_already_set.
[[noreturn]] void raise_reason(const Reason& reason, int accused, const std::string& host);
[[noreturn]] void raise_distributed_error(const std::string& text);
// What C++ has thrown as Python's current exception, for functions that pybind11 does not wrap.
void set_python_error(const std::exception_ptr& thrown);

// Text from another process may have been cut or torn: it must not raise a UnicodeError.
py::object to_text(const std::string& text);
// (kind, culprit, message) or None.
py::object to_tuple(const std::optional<Reason>& reason);

}  // namespace phalanx::binding
