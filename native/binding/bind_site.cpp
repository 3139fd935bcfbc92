// Where Python has called: frames of the calling thread, for error texts only.
#include <pybind11/gil_safe_call_once.h>

#include <unordered_map>

#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

// What is shown of a file, by the object that all its code has for its name. The object is held,
// so that no other can come to lie there; cells make new ones, so there is a bound.
struct Files {
    static constexpr std::size_t kMost = 256;
    py::object prefix_of;
    std::unordered_map<PyObject*, std::pair<py::object, std::string>> known;

    const std::string& prefix(const py::object& filename) {
        const auto found = known.find(filename.ptr());
        if (found != known.end()) return found->second.second;
        if (known.size() >= kMost) known.clear();
        auto text = prefix_of(filename).cast<std::string>();
        return known.emplace(filename.ptr(), std::pair(filename, std::move(text)))
            .first->second.second;
    }
};

Files& files() {
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Files> storage;
    return storage
        .call_once_and_store_result([] {
            return Files{py::module_::import("phalanx.distributed._site").attr("prefix_of"), {}};
        })
        .get_stored();
}

std::string site_of_this_thread() {
    auto* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != nullptr) {
        const auto held = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(frame));
        const auto code =
            py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
        const auto filename = py::reinterpret_borrow<py::object>(
            reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
        const std::string& prefix = files().prefix(filename);
        if (!prefix.empty()) return prefix + std::to_string(PyFrame_GetLineNumber(frame));
        frame = PyFrame_GetBack(frame);
    }
    return "";
}

}  // namespace

// An error on the way to another error must not hide that one: without a site, the text is short.
std::string current_site() noexcept {
    const py::error_scope kept;
    try {
        return site_of_this_thread();
    } catch (const std::exception&) {
        PyErr_Clear();
        return "";
    }
}

std::string current_site_of_thread() noexcept {
    const py::gil_scoped_acquire acquired;
    return current_site();
}

}  // namespace phalanx::binding
