// Source lines of Python calls: frames of the calling thread, for error texts only. All in C:
// Python code would run signal handlers here, and their exceptions belong to the operation.
#include <string_view>

#include "base/call_site.hpp"
#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

// The folder of the package, with a trailing slash; written once, when the module is made.
std::string& own_folder() {
    static std::string folder;
    return folder;
}

std::string describe(std::string_view file, int line) {
    std::string text = is_cell_file(file)
                           ? std::string("cell line ")
                           : std::string(file.substr(file.rfind('/') + 1)).append(":");
    return text.append(std::to_string(line));
}

}  // namespace

// An error here must not hide the error that is being reported: then the text is shorter.
std::string current_site() noexcept try {
    const py::error_scope kept;
    std::string site;
    auto* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != nullptr && site.empty()) {
        const auto held = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(frame));
        const auto code =
            py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
        Py_ssize_t size = 0;
        const char* name = PyUnicode_AsUTF8AndSize(
            reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename, &size);
        const std::string_view file(name, name == nullptr ? 0 : static_cast<std::size_t>(size));
        if (name == nullptr) {
            PyErr_Clear();
        } else if (!file.starts_with(own_folder())) {
            site = describe(file, PyFrame_GetLineNumber(frame));
        }
        frame = site.empty() ? PyFrame_GetBack(frame) : nullptr;
    }
    return site;
} catch (const std::exception&) {
    return "";
}

std::string current_site_of_thread() noexcept {
    if (is_finalizing()) return "";  // a thread that asks for the GIL now would be ended
    const TakenGil taken;
    return current_site();
}

// Not by an import: that would call a user's replacement of __import__.
bool may_others_act() {
    const auto name = py::str("phalanx.distributed.bootstrap.supervised");
    const auto room = py::reinterpret_steal<py::object>(PyImport_GetModule(name.ptr()));
    if (!room) {
        PyErr_Clear();
        return true;
    }
    return room.attr("may_others_act")().cast<bool>();
}

// Not __path__: in an editable install it also contains the folder above.
void register_site(py::module_& module) {
    const auto file = py::module_::import("phalanx").attr("__file__").cast<std::string>();
    own_folder() = file.substr(0, file.rfind('/') + 1);
    module.def("is_cell_file", &is_cell_file, py::arg("file"), py::pos_only());
}

}  // namespace phalanx::binding
