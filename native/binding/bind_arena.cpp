// phalanx._native.Arena
#include "binding/binding.hpp"

namespace phalanx::binding {

const Arena& PyArena::get() const {
    if (arena == nullptr) raise_distributed_error("the arena is closed");
    return *arena;
}

void register_arena(py::module_& module) {
    auto arena = py::class_<PyArena>(module, "Arena", py::is_final())
                     .def_static("format", &Arena::format, py::arg("fd"), py::arg("nbytes"))
                     .def_static("give_back", &Arena::give_back, py::arg("fd"))
                     .def(py::init([](const std::vector<int>& fds, int own) {
                              return PyArena{std::make_shared<Arena>(fds, own)};
                          }),
                          py::arg("fds"), py::kw_only(), py::arg("own"))
                     .def_property_readonly("nbytes",
                                            [](const PyArena& self) { return self.get().nbytes(); })
                     .def("close", [](PyArena& self) { self.arena.reset(); });
    arena.attr("DEFAULT_NBYTES") = Arena::kDefaultBytes;
    module.def(
        "make_memory_file",
        [](const std::string& name) { return make_memory_file(name.c_str()).release(); },
        py::arg("name"));
    module.def("keep_size", &keep_size, py::arg("fd"));
}

}  // namespace phalanx::binding
