// Converts the engine's errors to the classes of phalanx.errors, which are imported once.
#include <pybind11/gil_safe_call_once.h>

#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

struct Classes {
    py::object base, rank_failure, timeout, mismatch;
};

// Leaked on purpose (gil_safe_call_once_and_store does that): no destructor runs after the
// interpreter has shut down.
const Classes& classes() {
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Classes> storage;
    return storage
        .call_once_and_store_result([] {
            const auto errors = py::module_::import("phalanx.errors");
            return Classes{errors.attr("DistributedError"), errors.attr("RankFailure"),
                           errors.attr("CollectiveTimeout"), errors.attr("CollectiveMismatch")};
        })
        .get_stored();
}

[[noreturn]] void raise(const py::object& type, const py::object& value) {
    PyErr_SetObject(type.ptr(), value.ptr());
    throw py::error_already_set();
}

// Raises the Python class for an error of the engine; rethrows any other error.
void translate(const std::exception_ptr& thrown) {
    try {
        std::rethrow_exception(thrown);
    } catch (const UsageError& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const SystemError& error) {
        PyErr_SetString(PyExc_OSError, error.what());
    } catch (const Error& error) {
        PyErr_SetObject(classes().base.ptr(), py::str(error.what()).ptr());
    }
}

}  // namespace

void set_python_error(const std::exception_ptr& thrown) {
    try {
        translate(thrown);
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
}

py::object to_text(const std::string& text) {
    auto decoded = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    if (!decoded) throw py::error_already_set();
    return decoded;
}

void raise_reason(const AbortReason& reason, int culprit_rank, const std::string& host) {
    const Classes& known = classes();
    const py::object text = to_text(reason.message);
    switch (reason.kind) {
        case AbortKind::kRankFailure:
        case AbortKind::kLinkBroken:
        case AbortKind::kClosed:  // a rank that has closed will not come, like a dead one
            raise(known.rank_failure, known.rank_failure(culprit_rank, host, text));
        case AbortKind::kMismatch:
            raise(known.mismatch, known.mismatch(text));
        case AbortKind::kTimeout:
            raise(known.timeout, known.timeout(text));
        case AbortKind::kInterrupted:
        case AbortKind::kError:
            break;
    }
    raise(known.base, known.base(text));
}

void raise_distributed_error(const std::string& text) {
    raise(classes().base, classes().base(text));
}

void register_errors(py::module_& module) {
    const auto add = [&](const char* name, AbortKind kind) {
        module.attr(name) = static_cast<int>(kind);
    };
    add("ABORT_RANK_FAILURE", AbortKind::kRankFailure);
    add("ABORT_MISMATCH", AbortKind::kMismatch);
    add("ABORT_TIMEOUT", AbortKind::kTimeout);
    add("ABORT_INTERRUPTED", AbortKind::kInterrupted);
    add("ABORT_ERROR", AbortKind::kError);
    add("ABORT_CLOSED", AbortKind::kClosed);
    add("ABORT_LINK_BROKEN", AbortKind::kLinkBroken);
    py::register_exception_translator([](std::exception_ptr thrown) {
        if (thrown) translate(thrown);
    });
}

py::object to_tuple(const std::optional<AbortReason>& reason) {
    if (!reason) return py::none();
    return py::make_tuple(static_cast<int>(reason->kind), reason->culprit,
                          to_text(reason->message));
}

}  // namespace phalanx::binding
