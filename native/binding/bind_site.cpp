// Where Python has called: frames of the calling thread, for error texts only. All of it is C:
// Python code would run the handlers of signals here, whose exceptions are an operation's to see.
#include <string_view>

#include "base/site_text.hpp"
#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

// The folder of the package, with a slash at its end; written once, with the module.
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

// An error on the way to another error must not hide that one: then the text is shorter.
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
    if (is_finalizing()) return "";  // its GIL is not given any more: a thread that asks is ended
    const TakenGil taken;
    return current_site();
}

// Not __path__, which where the package is edited in place also has the folder above it.
void register_site(py::module_& module) {
    const auto file = py::module_::import("phalanx").attr("__file__").cast<std::string>();
    own_folder() = file.substr(0, file.rfind('/') + 1);
    module.def("is_cell_file", &is_cell_file, py::arg("file"), py::pos_only());
}

}  // namespace phalanx::binding
