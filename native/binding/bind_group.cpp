// phalanx._native.Group
#include <cmath>

#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

void check_same(const View& x, const View& out, OpKind kind, int size) {
    if (x.dtype != out.dtype) {
        throw py::type_error("out has dtype " + std::string(name_of(out.dtype)) + ", x has " +
                             std::string(name_of(x.dtype)));
    }
    const std::uint64_t needed = out_count(kind, x.count, size);
    if (out.count != needed) {
        throw py::value_error("out has " + std::to_string(out.count) + " elements; " +
                              std::to_string(needed) + " are needed");
    }
}

// A shifted overlap would be overwritten while it is read. Where every element stays in its place
// x and out may be the same; where every rank gets another block of x they may not.
void check_overlap(const View& x, const View& out, OpKind kind, int rank) {
    const auto size = size_of(x.dtype);
    const bool is_apart =
        x.data + x.count * size <= out.data || out.data + out.count * size <= x.data;
    if (is_apart) return;
    if (has_blocks(kind)) {
        throw py::value_error("x and out of " + name_of(kind) +
                              " overlap; they must be apart: leave out away, or give another");
    }
    const auto own_block = static_cast<std::uint64_t>(kind == OpKind::kAllGather ? rank : 0);
    if (x.data != out.data + own_block * x.count * size) {
        throw py::value_error("x and out overlap; they must be the same memory or apart");
    }
}

void run_on(Group& group, OpKind kind, const py::handle& x, const py::handle& out, int root,
            const std::optional<double>& timeout, std::string_view dtype) {
    Prepared prepared = prepare(group, kind, x, out, root, timeout, dtype);
    run_call(group, prepared.call);
}

// A message, to or from rank `peer`.
void pass(Group& group, const py::handle& array, int peer, bool is_recv,
          const std::optional<double>& timeout, const std::string& dtype) {
    const View view = view_of(array, is_recv ? "out" : "x", is_recv, dtype);
    Call call;
    call.kind = is_recv ? OpKind::kRecv : OpKind::kSend;
    call.dtype = view.dtype;
    call.count = view.count;
    call.shape = view.shape;
    call.root = peer;
    call.x = view.data;
    call.out = view.writable;
    call.timeout = to_duration(timeout);
    run_call(group, call);
}

using Sockets = std::map<int, std::vector<int>>;  // by peer, in the same order at both ends

std::shared_ptr<Group> make_group(
    int rank, int size, std::uint64_t epoch, int channel, std::uint64_t tag,
    std::vector<int> members, std::vector<int> hosts, std::vector<int> slots,
    std::vector<std::string> host_names, const PyArena* arena, const Sockets& links,
    const PyPage* page, int wake_fd, const std::map<int, int>& pair_links, int ranks_here,
    std::vector<int> page_slots, const std::optional<double>& silence_s,
    std::shared_ptr<Recorder> recorder, const SelectorTable& selector) {
    // Beyond a day of silence (inf is one) nobody is watched.
    constexpr double kDay = 86400;
    const bool is_watched = silence_s && *silence_s > 0 && *silence_s < kDay;
    const std::chrono::milliseconds silence(
        is_watched ? std::max<std::int64_t>(std::llround(*silence_s * 1000), 1) : 0);
    GroupOptions options;
    for (const auto& [peer, fds] : links)
        options.links.emplace(peer, make_striped_link(peer, fds, silence));
    for (const auto& [peer, fd] : pair_links) {
        options.pair_links.emplace(peer, make_pair_wire(peer, fd, silence));
    }
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
    options.ranks_here = ranks_here;
    options.page_slots = std::move(page_slots);
    options.site = &current_site_of_thread;
    options.recorder = std::move(recorder);
    options.tuning = tuned_by(selector);
    return std::make_shared<Group>(std::move(options));
}

py::dict describe(const Group& group, const std::vector<std::uint64_t>& sizes) {
    std::vector<std::uint64_t> told{8, 1U << 10, 1U << 14, 1U << 20, 1U << 26};
    told.insert(told.end(), sizes.begin(), sizes.end());
    const auto algorithms_of = [&](std::initializer_list<OpKind> kinds, Dtype dtype) {
        py::dict algorithms;
        for (const OpKind kind : kinds) {
            py::dict by_size;
            for (const std::uint64_t nbytes : told) {
                by_size[py::int_(nbytes)] = group.algorithm(kind, nbytes, dtype);
            }
            algorithms[name_of(kind).c_str()] = by_size;
        }
        return algorithms;
    };
    const Counters counters = group.counters();
    py::dict result;
    result["rank"] = group.rank();
    result["size"] = group.size();
    result["epoch"] = group.epoch();
    result["channel"] = group.channel();
    result["members"] = group.members();
    result["nodes"] = group.formation().nodes;
    result["stripes"] = group.stripes();
    result["algorithms"] = algorithms_of(
        {OpKind::kBarrier, OpKind::kAllSum, OpKind::kAllMax, OpKind::kAllMin, OpKind::kAllGather,
         OpKind::kSumScatter, OpKind::kAllToAll, OpKind::kBroadcast},
        Dtype::none);
    // Only sums of halves are done in another way: in float32, as which they may have to travel.
    result["algorithms_of_halves"] =
        algorithms_of({OpKind::kAllSum, OpKind::kSumScatter}, Dtype::float16);
    result["selector"] = table_of(group.tuning());
    result["operations"] = counters.operations;
    result["bytes"] = counters.bytes;
    result["link_bytes_sent"] = counters.link_bytes_sent;
    result["messages_sent"] = counters.messages_sent;
    result["message_bytes_sent"] = counters.message_bytes_sent;
    result["messages_received"] = counters.messages_received;
    result["message_bytes_received"] = counters.message_bytes_received;
    return result;
}

}  // namespace

bool is_finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

std::optional<Clock::duration> to_duration(const std::optional<double>& timeout) {
    if (!timeout) return std::nullopt;
    if (!(*timeout >= 0.0)) throw py::value_error("timeout must be None or at least 0 seconds");
    constexpr double kForever = 3e9;  // a century: beyond it the clock's range ends
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(*timeout, kForever)));
}

void run_released(Group& group, FunctionRef<void(const std::function<bool()>&)> body) {
    std::optional<py::error_already_set> raised;
    const std::function<bool()> interrupt = [&raised] {
        // Of an interpreter that is ending nobody gets it any more: the operation goes on instead,
        // as its peers may wait for this rank's part.
        if (is_finalizing()) return false;
        const TakenGil taken;
        if (PyErr_CheckSignals() == 0) return false;
        raised.emplace();
        return true;
    };
    try {
        const ReleasedGil released;
        body(interrupt);
    } catch (const Interrupted&) {
        if (raised) throw std::move(*raised);
        throw;
    } catch (const Aborted& error) {
        const int accused = group.accused_by(error.reason);
        raise_reason(error.reason, accused, group.host_of(accused));
    }
}

void run_call(Group& group, Call& call) {
    std::optional<std::string> site;
    if (group.has_submitted()) {
        if (group.has_finished()) group.drop_finished();
        // It will run on the group's thread, which has no frames.
        if (!group.is_idle()) call.site = &site.emplace(current_site());
    }
    run_released(group, [&](const std::function<bool()>& interrupt) {
        call.interrupt = interrupt;
        switch (call.kind) {
            case OpKind::kSend:
                group.send(call);
                break;
            case OpKind::kRecv:
                group.recv(call);
                break;
            default:
                group.run(call);
        }
    });
}

Prepared prepare(const Group& group, OpKind kind, const py::handle& x_array,
                 const py::handle& out_array, int root, const std::optional<double>& timeout,
                 std::string_view dtype) {
    Prepared prepared;
    View& x = prepared.x = view_of(x_array, "x", false, dtype);
    const View out = view_of(out_array, "out", true, dtype);
    Call& call = prepared.call;
    call.kind = kind;
    call.dtype = x.dtype;
    call.count = x.count;
    call.shape = x.shape;
    call.root = root;
    call.x = x.data;
    call.out = out.writable;
    call.timeout = to_duration(timeout);
    group.check_call(call);  // before the size of out, which follows from a right x
    check_same(x, out, kind, group.size());
    check_overlap(x, out, kind, group.rank());
    return prepared;
}

void register_group(py::module_& module) {
    auto group =
        py::class_<Group, std::shared_ptr<Group>>(module, "Group", py::is_final())
            .def(py::init(&make_group), py::kw_only(), py::arg("rank"), py::arg("size"),
                 py::arg("epoch"), py::arg("channel") = 0, py::arg("tag") = 0,
                 py::arg("members") = py::tuple(), py::arg("hosts"), py::arg("slots") = py::tuple(),
                 py::arg("host_names") = py::tuple(), py::arg("arena") = py::none(),
                 py::arg("links") = py::dict(), py::arg("page") = py::none(),
                 py::arg("wake_fd") = -1, py::arg("pair_links") = py::dict(),
                 py::arg("ranks_here") = 0, py::arg("page_slots") = py::tuple(),
                 py::arg("silence_s") = py::none(), py::arg("recorder") = py::none(),
                 py::arg("selector") = SelectorTable())
            .def_property_readonly("rank", &Group::rank)
            .def_property_readonly("size", &Group::size)
            .def_property_readonly("epoch", &Group::epoch)
            .def_property_readonly("is_closed", &Group::is_closed)
            .def_property(
                "timeout",
                [](const Group& self) -> std::optional<double> {
                    const auto limit = self.timeout();
                    if (!limit) return std::nullopt;
                    return std::chrono::duration<double>(*limit).count();
                },
                [](Group& self, const std::optional<double>& timeout) {
                    self.set_timeout(to_duration(timeout));
                })
            .def_property_readonly("failure",
                                   [](const Group& self) { return to_tuple(self.failure()); })
            .def(
                "broadcast",
                [](Group& self, const py::object& x, const py::object& out, int root,
                   const std::optional<double>& timeout, std::string_view dtype) {
                    run_on(self, OpKind::kBroadcast, x, out, root, timeout, dtype);
                },
                py::arg("x"), py::arg("out"), py::arg("root"), py::arg("timeout") = py::none(),
                py::arg("dtype") = "")
            .def(
                "send",
                [](Group& self, const py::object& x, int dst, const std::optional<double>& timeout,
                   const std::string& dtype) { pass(self, x, dst, false, timeout, dtype); },
                py::arg("x"), py::arg("dst"), py::arg("timeout") = py::none(),
                py::arg("dtype") = "")
            .def(
                "recv",
                [](Group& self, const py::object& out, int src,
                   const std::optional<double>& timeout,
                   const std::string& dtype) { pass(self, out, src, true, timeout, dtype); },
                py::arg("out"), py::arg("src"), py::arg("timeout") = py::none(),
                py::arg("dtype") = "")
            .def(
                "barrier",
                [](Group& self, const std::optional<double>& timeout) {
                    Call call;
                    call.timeout = to_duration(timeout);
                    run_call(self, call);
                },
                py::arg("timeout") = py::none())
            .def(
                "abort",
                [](Group& self, int kind, int culprit, const std::string& message) {
                    const ReleasedGil released;  // touches nothing of Python
                    return self.abort({checked_kind(kind), culprit, message});
                },
                py::arg("kind"), py::arg("culprit"), py::arg("message"))
            .def(
                "settle",
                [](Group& self, double timeout) {
                    const ReleasedGil released;  // waits for running operations
                    const std::chrono::duration<double> time(timeout);
                    return self.settle(std::chrono::ceil<std::chrono::milliseconds>(time));
                },
                py::arg("timeout"))
            .def("close",
                 [](Group& self) {
                     {
                         const ReleasedGil released;  // waits for a running operation
                         self.close();
                     }
                     self.drop_finished();
                 })
            .def_property_readonly("is_idle", &Group::is_idle)
            .def("is_left_by_all", &Group::is_left_by_all)
            .def("describe", &describe, py::arg("sizes") = std::vector<std::uint64_t>{});
    for (const OpKind kind : {OpKind::kAllSum, OpKind::kAllMax, OpKind::kAllMin, OpKind::kAllGather,
                              OpKind::kSumScatter, OpKind::kAllToAll, OpKind::kSplit}) {
        group.def(
            name_of(kind).c_str(),
            [kind](Group& self, const py::object& x, const py::object& out,
                   const std::optional<double>& timeout,
                   std::string_view dtype) { run_on(self, kind, x, out, 0, timeout, dtype); },
            py::arg("x"), py::arg("out"), py::arg("timeout") = py::none(), py::arg("dtype") = "");
    }
    group.attr("CHANNELS") = Arena::kChannels;
}

}  // namespace phalanx::binding
