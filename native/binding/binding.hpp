// Shared declarations of the binding. No logic: convert, release the GIL, call, convert back.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
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
void register_monitoring(py::module_& module);
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

using Api = py::detail::npy_api;
using Array = py::detail::PyArray_Proxy;
inline constexpr std::size_t kMostDims = 64;  // NPY_MAXDIMS of numpy 2

struct NamedKind {
    OpKind kind;
    bool keeps_shape;
    PyObject* name;  // interned: the same object as a literal of the caller's
};
// Null for any object but the interned name of an operation.
const NamedKind* kind_of(PyObject* name);

// A call on C-contiguous, aligned arrays of supported dtypes, which the caller holds. Cannot be
// copied, because `call` refers to the copy of the shape: numpy frees the original if another
// thread reshapes the array meanwhile. `dtype` is "bfloat16" for such bits in uint16, else "".
class ArrayCall {
  public:
    Call call;
    bool is_apart = true;  // x and out share no memory

    ArrayCall() = default;
    ArrayCall(const ArrayCall&) = delete;
    ArrayCall& operator=(const ArrayCall&) = delete;

    // Reads x; with `is_written` the array that a recv writes. False: the engine cannot use it.
    [[nodiscard]] bool read_input(PyObject* x, std::string_view dtype, bool is_written = false);
    // After read_input and `call.kind`: reads out. False: it does not fit x, or overlaps it
    // wrongly.
    [[nodiscard]] bool read_output(PyObject* out, std::string_view dtype, const Group& group);
    [[nodiscard]] const Array& input() const noexcept { return *input_; }
    [[nodiscard]] const Array& output() const noexcept { return *output_; }

  private:
    const Array* input_ = nullptr;
    const Array* output_ = nullptr;
    std::array<std::uint64_t, kMostDims> dims_;
};

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
