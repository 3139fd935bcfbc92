// phalanx._native.Group
#include <cmath>

#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

void check_same(const View& x, const View& out, std::uint64_t blocks) {
    if (x.dtype != out.dtype) {
        throw py::type_error("out has dtype " + std::string(name_of(out.dtype)) + ", x has " +
                             std::string(name_of(x.dtype)));
    }
    if (out.count != x.count * blocks) {
        throw py::value_error("out has " + std::to_string(out.count) + " elements; " +
                              std::to_string(x.count * blocks) + " are needed");
    }
}

// The same memory or none in common; a shifted overlap would be overwritten while it is read.
void check_overlap(const View& x, const View& out, const std::byte* allowed) {
    const auto size = size_of(x.dtype);
    const bool is_apart =
        x.data + x.count * size <= out.data || out.data + out.count * size <= x.data;
    if (!is_apart && x.data != allowed) {
        throw py::value_error("x and out overlap; they must be the same memory or apart");
    }
}

void run(Group& group, Call& call) {
    run_released(group, [&](const std::function<bool()>& interrupt) {
        call.interrupt = interrupt;
        group.run(call);
    });
}

void run_on(Group& group, OpKind kind, const py::handle& x, const py::handle& out, int root,
            const std::optional<double>& timeout) {
    Prepared prepared = prepare(group, kind, x, out, root, timeout);
    run(group, prepared.call);
}

std::shared_ptr<Group> make_group(int rank, int size, std::uint64_t epoch, int channel,
                                  std::uint64_t tag, std::vector<int> members,
                                  std::vector<int> hosts, std::vector<int> slots,
                                  std::vector<std::string> host_names, const PyArena* arena,
                                  const std::map<int, int>& links, const PyPage* page,
                                  int wake_fd) {
    GroupOptions options;
    for (const auto& [peer, fd] : links) options.links.emplace(peer, make_socket_link(peer, fd));
    options.rank = rank;
    options.size = size;
    options.epoch = epoch;
    options.channel = channel;
    options.tag = tag;
    options.members = std::move(members);
    options.hosts = std::move(hosts);
    options.slots = std::move(slots);
    options.host_names = std::move(host_names);
    if (arena != nullptr) {
        if (arena->arena == nullptr) raise_distributed_error("the arena is closed");
        options.arena = arena->arena;
    }
    if (page != nullptr) {
        if (page->page == nullptr) raise_distributed_error("the abort page is closed");
        options.page = page->page;
    }
    options.wake_fd = wake_fd;
    return std::make_shared<Group>(std::move(options));
}

py::dict describe(const Group& group) {
    py::dict algorithms;
    for (const OpKind kind :
         {OpKind::kBarrier, OpKind::kAllSum, OpKind::kAllGather, OpKind::kBroadcast}) {
        py::dict by_size;
        for (std::uint64_t nbytes : {8ULL, 1ULL << 10, 1ULL << 14, 1ULL << 20, 1ULL << 26}) {
            by_size[py::int_(nbytes)] = group.algorithm(kind, nbytes);
        }
        algorithms[name_of(kind).c_str()] = by_size;
    }
    const Counters counters = group.counters();
    py::dict result;
    result["rank"] = group.rank();
    result["size"] = group.size();
    result["epoch"] = group.epoch();
    result["channel"] = group.channel();
    result["members"] = group.members();
    result["nodes"] = group.formation().nodes;
    result["algorithms"] = algorithms;
    result["operations"] = counters.operations;
    result["bytes"] = counters.bytes;
    result["link_bytes_sent"] = counters.link_bytes_sent;
    return result;
}

}  // namespace

std::optional<Clock::duration> to_duration(const std::optional<double>& timeout) {
    if (!timeout) return std::nullopt;
    if (!(*timeout >= 0.0)) throw py::value_error("timeout must be None or at least 0 seconds");
    constexpr double kForever = 3e9;  // a century: beyond it the clock's range ends
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(*timeout, kForever)));
}

void run_released(Group& group, FunctionRef<void(const std::function<bool()>&)> body) {
    if (group.has_finished()) group.drop_finished();
    std::optional<py::error_already_set> raised;
    const std::function<bool()> interrupt = [&raised] {
        const py::gil_scoped_acquire acquired;
        if (PyErr_CheckSignals() == 0) return false;
        raised.emplace();
        return true;
    };
    try {
        const py::gil_scoped_release released;
        body(interrupt);
    } catch (const Interrupted&) {
        if (raised) throw std::move(*raised);
        throw;
    } catch (const Aborted& error) {
        raise_reason(error.reason, group.host_of(error.reason.culprit));
    }
}

Prepared prepare(const Group& group, OpKind kind, const py::handle& x_array,
                 const py::handle& out_array, int root, const std::optional<double>& timeout) {
    Prepared prepared;
    View& x = prepared.x = view_of(x_array, "x", false);
    const View out = view_of(out_array, "out", true);
    const bool is_gather = kind == OpKind::kAllGather || kind == OpKind::kSplit;
    check_same(x, out, is_gather ? static_cast<std::uint64_t>(group.size()) : 1);
    const auto own_block = static_cast<std::uint64_t>(is_gather ? group.rank() : 0) * x.count;
    check_overlap(x, out, out.data + own_block * size_of(x.dtype));
    Call& call = prepared.call;
    call.kind = kind;
    call.dtype = x.dtype;
    call.count = x.count;
    call.shape = x.shape;
    call.root = root;
    call.x = x.data;
    call.out = out.writable;
    call.timeout = to_duration(timeout);
    return prepared;
}

void register_group(py::module_& module) {
    const auto on = [](OpKind kind) {
        return [kind](Group& self, const py::object& x, const py::object& out,
                      const std::optional<double>& timeout) {
            run_on(self, kind, x, out, 0, timeout);
        };
    };
    auto group =
        py::class_<Group, std::shared_ptr<Group>>(module, "Group", py::is_final())
            .def(py::init(&make_group), py::kw_only(), py::arg("rank"), py::arg("size"),
                 py::arg("epoch"), py::arg("channel") = 0, py::arg("tag") = 0,
                 py::arg("members") = py::tuple(), py::arg("hosts"), py::arg("slots") = py::tuple(),
                 py::arg("host_names") = py::tuple(), py::arg("arena") = py::none(),
                 py::arg("links") = py::dict(), py::arg("page") = py::none(),
                 py::arg("wake_fd") = -1)
            .def_property_readonly("rank", &Group::rank)
            .def_property_readonly("size", &Group::size)
            .def_property_readonly("epoch", &Group::epoch)
            .def_property_readonly("is_closed", &Group::is_closed)
            .def_property_readonly("failure",
                                   [](const Group& self) { return to_tuple(self.failure()); })
            .def("all_sum", on(OpKind::kAllSum), py::arg("x"), py::arg("out"),
                 py::arg("timeout") = py::none())
            .def("all_gather", on(OpKind::kAllGather), py::arg("x"), py::arg("out"),
                 py::arg("timeout") = py::none())
            .def(
                "broadcast",
                [](Group& self, const py::object& x, const py::object& out, int root,
                   const std::optional<double>& timeout) {
                    run_on(self, OpKind::kBroadcast, x, out, root, timeout);
                },
                py::arg("x"), py::arg("out"), py::arg("root"), py::arg("timeout") = py::none())
            .def("split", on(OpKind::kSplit), py::arg("x"), py::arg("out"),
                 py::arg("timeout") = py::none())
            .def(
                "barrier",
                [](Group& self, const std::optional<double>& timeout) {
                    Call call;
                    call.timeout = to_duration(timeout);
                    run(self, call);
                },
                py::arg("timeout") = py::none())
            .def(
                "abort",
                [](Group& self, int kind, int culprit, const std::string& message) {
                    const py::gil_scoped_release released;  // touches nothing of Python
                    return self.abort({checked_kind(kind), culprit, message});
                },
                py::arg("kind"), py::arg("culprit"), py::arg("message"))
            .def("close",
                 [](Group& self) {
                     {
                         const py::gil_scoped_release released;  // waits for a running operation
                         self.close();
                     }
                     self.drop_finished();
                 })
            .def_property_readonly("is_idle", &Group::is_idle)
            .def("is_left_by_all", &Group::is_left_by_all)
            .def("describe", &describe);
    group.attr("CHANNELS") = Arena::kChannels;
}

}  // namespace phalanx::binding
