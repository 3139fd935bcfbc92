// phalanx._native.Work, and Group.submit which makes it.
#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

// The arrays lie in the native record, not here: a Work that nobody holds any more goes on, and
// its arrays are dropped at a later call, with the GIL (Group::drop_finished).
struct PyWork {
    std::shared_ptr<Group> group;
    std::shared_ptr<Work> work;
};

OpKind kind_of(const std::string& name) {
    for (std::uint32_t number = 1; number < static_cast<std::uint32_t>(OpKind::kSplit); ++number) {
        const auto kind = static_cast<OpKind>(number);
        if (name_of(kind) == name) return kind;
    }
    throw py::value_error("no operation is called '" + name + "'");
}

PyWork submit(const std::shared_ptr<Group>& group, const std::string& op, const py::object& x,
              const py::object& out, int root, const std::optional<double>& timeout,
              std::string_view dtype) {
    Prepared prepared;
    const OpKind kind = kind_of(op);
    if (kind == OpKind::kBarrier) {
        prepared.call.timeout = to_duration(timeout);
    } else {
        prepared = prepare(*group, kind, x, out, root, timeout, dtype);
    }
    const auto arrays = std::make_shared<std::pair<py::object, py::object>>(x, out);
    if (group->has_finished()) group->drop_finished();
    // Now or never: when it runs, its caller is elsewhere.
    const std::string site = current_site();
    prepared.call.site = &site;
    PyWork result{group, nullptr};
    run_released(*group, [&](const std::function<bool()>& interrupt) {
        prepared.call.interrupt = interrupt;
        result.work = group->submit(prepared.call, arrays);
    });
    return result;
}

void wait(const PyWork& self, const std::optional<double>& timeout) {
    const auto limit = to_duration(timeout);
    if (self.group->has_finished()) self.group->drop_finished();
    // Also when it raises, if the work is over: a shared error must not keep arrays alive.
    const auto drop = [&] {
        if (self.work->is_done()) self.work->drop_owner();
    };
    try {
        run_released(*self.group, [&](const std::function<bool()>& interrupt) {
            self.group->wait(*self.work, limit, interrupt);
        });
    } catch (...) {
        drop();
        throw;
    }
    drop();
}

}  // namespace

void register_work(py::module_& module) {
    py::class_<PyWork>(module, "Work", py::is_final())
        .def("wait", &wait, py::arg("timeout") = py::none())
        .def_property_readonly("done", [](const PyWork& self) {
            if (!self.work->is_done()) return false;
            self.work->drop_owner();
            return true;
        });
    module.attr("Group").attr("submit") =
        py::cpp_function(&submit, py::name("submit"), py::is_method(module.attr("Group")),
                         py::arg("op"), py::arg("x"), py::arg("out"), py::arg("root") = 0,
                         py::arg("timeout") = py::none(), py::arg("dtype") = "");
}

}  // namespace phalanx::binding
