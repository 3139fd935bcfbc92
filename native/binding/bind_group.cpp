// Bind phalanx._native.Group and the handle of an asynchronous operation.
#include <cmath>

#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

using Sockets = std::map<int, std::vector<int>>;  // by peer, in the same order at both ends

// The end of a group waits for its threads, which may be stuck: other threads need the GIL then.
void destroy(Group* group) {
    std::optional<ReleasedGil> released;
    if (PyGILState_Check() != 0) released.emplace();
    delete group;
}

std::shared_ptr<Group> make_group(int rank, int size, std::uint64_t epoch, int channel,
                                  std::uint64_t tag, std::vector<int> members,
                                  std::vector<int> hosts, std::vector<int> slots,
                                  std::vector<std::string> host_names, const PyArena* arena,
                                  const Sockets& links, const PyPage* page, int wake_fd,
                                  const std::map<int, int>& pair_links, int ranks_here,
                                  std::vector<int> page_slots,
                                  const std::optional<double>& silence_s,
                                  const SelectorTable& selector) {
    // Own the sockets until the links do, also if one of the links is refused.
    std::map<int, std::vector<Fd>> sockets;
    for (const auto& [peer, fds] : links) {
        for (const int fd : fds) sockets[peer].emplace_back(fd);
    }
    std::map<int, Fd> wires(pair_links.begin(), pair_links.end());
    // A silence limit of more than a day (inf is one) disables the check.
    constexpr double kDay = 86400;
    const bool is_watched = silence_s && *silence_s > 0 && *silence_s < kDay;
    const std::chrono::milliseconds silence(
        is_watched ? std::max<std::int64_t>(std::llround(*silence_s * 1000), 1) : 0);
    GroupOptions options;
    for (auto& [peer, fds] : sockets) {
        options.links.emplace(peer, make_striped_link(peer, std::move(fds), silence));
    }
    for (auto& [peer, fd] : wires) {
        options.pair_links.emplace(peer, make_pair_wire(peer, fd.release(), silence));
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
        if (page->page == nullptr) raise_distributed_error("the control page is closed");
        options.page = page->page;
    }
    options.wake_fd = wake_fd;
    options.ranks_here = ranks_here;
    options.page_slots = std::move(page_slots);
    options.site = &current_site_of_thread;
    options.tuning = tuned_by(selector);
    return {new Group(std::move(options)), &destroy};
}

py::dict describe(const Group& group, const std::vector<std::uint64_t>& sizes) {
    std::vector<std::uint64_t> shown{8, 1U << 10, 1U << 14, 1U << 20, 1U << 26};
    shown.insert(shown.end(), sizes.begin(), sizes.end());
    const auto algorithms_of = [&](Dtype dtype) {
        py::dict algorithms;
        for (const OpKind kind : kOpKinds) {
            const bool is_sum = kind == OpKind::kAllSum || kind == OpKind::kSumScatter;
            const bool is_shown = dtype == Dtype::none || is_sum;
            if (!is_shown || is_message(kind) || kind == OpKind::kSplit) continue;
            py::dict by_size;
            for (const std::uint64_t nbytes : shown) {
                by_size[py::int_(nbytes)] = group.algorithm(kind, nbytes, dtype);
            }
            algorithms[name_of(kind).c_str()] = by_size;
        }
        return algorithms;
    };
    py::dict result;
    result["rank"] = group.rank();
    result["size"] = group.size();
    result["epoch"] = group.epoch();
    result["channel"] = group.channel();
    result["members"] = group.members();
    result["nodes"] = group.formation().nodes;
    result["stripes"] = group.stripes();
    result["algorithms"] = algorithms_of(Dtype::none);
    // Only sums of halves use other algorithms: their partial sums may travel as float32.
    result["algorithms_of_halves"] = algorithms_of(Dtype::float16);
    result["operations"] = group.operations();
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
    constexpr double kForever = 3e9;  // a century: more would overflow the clock
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(*timeout, kForever)));
}

void run_released(Group& group, FunctionRef<void(const std::function<bool()>&)> body) {
    std::optional<py::error_already_set> raised;
    const std::function<bool()> interrupt = [&raised, &group] {
        // An interpreter that is shutting down gives the GIL to no thread. Then the operation goes
        // on, because peers may wait for this rank's part.
        if (is_finalizing()) return false;
        const TakenGil taken;
        try {
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
            group.tell_threads(may_others_act());
        } catch (const py::error_already_set& error) {
            raised.emplace(error);
            return true;
        }
        return false;
    };
    try {
        const ReleasedGil released;
        body(interrupt);
    } catch (const Interrupted&) {
        if (raised) throw std::move(*raised);
        throw;
    } catch (const Aborted& error) {
        const int culprit_rank = group.culprit_seen_by(error.reason);
        raise_reason(error.reason, culprit_rank, group.host_of(culprit_rank));
    }
}

void run_call(Group& group, Call& call) {
    std::optional<std::string> site;
    if (group.has_finished()) group.drop_finished();
    // The operation will run on the group's thread, which has no Python frames.
    if (!group.is_idle()) call.site = &site.emplace(current_site());
    run_released(group, [&](const std::function<bool()>& interrupt) {
        call.interrupt = interrupt;
        group.run(call);
    });
}

namespace {

// Reads the arguments of an operation, which Python has checked: so the texts are short. Only a
// send has no `out`, only recv and barrier have no `x`.
void prepare(ArrayCall& read, const Group& group, py::str op, const py::object& x,
             const py::object& out, int root, const std::optional<double>& timeout,
             std::string_view dtype) {
    PyUnicode_InternInPlace(&op.ptr());
    const NamedKind* named = kind_of(op.ptr());
    const auto check = [&](bool is_right, const char* what) {
        if (!is_right)
            throw py::value_error(op.cast<std::string>() + ": the engine cannot " + what);
    };
    check(named != nullptr, "do this");
    Call& call = read.call;
    call.kind = named->kind;
    call.root = root;
    call.timeout = to_duration(timeout);
    if (call.kind == OpKind::kBarrier) return;
    const bool is_recv = call.kind == OpKind::kRecv;
    check(read.read_input((is_recv ? out : x).ptr(), dtype, is_recv), "use the array as it is");
    group.check_call(call);  // before the size of out, which is computed from a valid x
    if (is_message(call.kind)) return;
    check(read.read_output(out.ptr(), dtype, group), "write its result to out");
}

// The native record holds the arrays, not this struct: a Work without references still runs, and
// its arrays are dropped at a later call, with the GIL (Group::drop_finished).
struct PyWork {
    std::shared_ptr<Group> group;
    std::shared_ptr<AsyncOperation> work;
};

// Arrays of a queued operation; the end of a group drops them without the GIL.
struct Arrays {
    py::object x, out;
    Arrays(const py::object& the_x, const py::object& the_out) : x(the_x), out(the_out) {}
    Arrays(const Arrays&) = delete;
    Arrays& operator=(const Arrays&) = delete;
    ~Arrays() {
        std::optional<TakenGil> taken;
        if (PyGILState_Check() == 0) taken.emplace();
        x = py::object();
        out = py::object();
    }
};

PyWork submit(const std::shared_ptr<Group>& group, const py::str& op, const py::object& x,
              const py::object& out, int root, const std::optional<double>& timeout,
              std::string_view dtype) {
    ArrayCall prepared;
    prepare(prepared, *group, op, x, out, root, timeout, dtype);
    if (is_message(prepared.call.kind)) throw UsageError("messages cannot be submitted");
    const auto arrays = std::make_shared<Arrays>(x, out);
    if (group->has_finished()) group->drop_finished();
    // Look it up now: when the work runs, its caller is elsewhere.
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
    // Also if it raises, once the work is over: a shared error must not keep arrays alive.
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

void register_group(py::module_& module) {
    py::class_<PyWork>(module, "Work", py::is_final())
        .def("wait", &wait, py::arg("timeout") = py::none())
        .def_property_readonly("done", [](const PyWork& self) {
            if (!self.work->is_done()) return false;
            self.work->drop_owner();
            return true;
        });
    auto group =
        py::class_<Group, std::shared_ptr<Group>>(module, "Group", py::is_final())
            .def(py::init(&make_group), py::kw_only(), py::arg("rank"), py::arg("size"),
                 py::arg("epoch"), py::arg("channel") = 0, py::arg("tag") = 0,
                 py::arg("members") = py::tuple(), py::arg("hosts"), py::arg("slots") = py::tuple(),
                 py::arg("host_names") = py::tuple(), py::arg("arena") = py::none(),
                 py::arg("links") = py::dict(), py::arg("page") = py::none(),
                 py::arg("wake_fd") = -1, py::arg("pair_links") = py::dict(),
                 py::arg("ranks_here") = 0, py::arg("page_slots") = py::tuple(),
                 py::arg("silence_s") = py::none(), py::arg("selector") = SelectorTable())
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
                "run",
                [](Group& self, const py::str& op, const py::object& x, const py::object& out,
                   int root, const std::optional<double>& timeout, std::string_view dtype) {
                    ArrayCall prepared;
                    prepare(prepared, self, op, x, out, root, timeout, dtype);
                    run_call(self, prepared.call);
                },
                py::arg("op"), py::arg("x") = py::none(), py::arg("out") = py::none(),
                py::arg("root") = 0, py::arg("timeout") = py::none(), py::arg("dtype") = "")
            .def("submit", &submit, py::arg("op"), py::arg("x"), py::arg("out"),
                 py::arg("root") = 0, py::arg("timeout") = py::none(), py::arg("dtype") = "")
            .def(
                "abort",
                [](Group& self, int kind, int culprit, const std::string& message) {
                    const ReleasedGil released;  // touches no Python object
                    return self.abort({checked_kind(kind), culprit, message});
                },
                py::arg("kind"), py::arg("culprit"), py::arg("message"))
            .def(
                "wait_until_idle",
                [](Group& self, double timeout) {
                    const ReleasedGil released;  // waits for running operations
                    const std::chrono::duration<double> time(timeout);
                    return self.wait_until_idle(std::chrono::ceil<std::chrono::milliseconds>(time));
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
            .def("all_members_left", &Group::all_members_left)
            .def("describe", &describe, py::arg("sizes") = std::vector<std::uint64_t>{});
    group.attr("CHANNELS") = Arena::kChannels;
}

}  // namespace phalanx::binding
