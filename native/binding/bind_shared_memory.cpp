// Bind phalanx._native.Arena and ControlPage.
#include "binding/binding.hpp"
#include "collectives/operation/op.hpp"

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

// phalanx._native.ControlPage
namespace phalanx::binding {

namespace {

const ControlPage& checked(const PyPage& self, int slot) {
    const auto& page = self.get();
    if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
    return page;
}

// The tag that Python knows: 0 for the world.
py::int_ group_of(std::uint64_t tag) {
    return py::int_((tag & Activity::kWorldTag) != 0 ? 0 : tag);
}

// What a rank has done in one of its groups.
struct GroupState {
    struct Passed {
        int peer;
        std::uint64_t sent;
        std::uint64_t received;
    };
    std::uint64_t tag;
    std::optional<std::uint64_t> begun;
    std::uint64_t queued;
    std::uint64_t current;
    std::uint64_t done;
    std::vector<Passed> passed;  // messages with peers; a rank may wait for the next one
};

// The groups of the rank in `slot`, apart from those that begin or end meanwhile.
std::vector<GroupState> groups_in(const ControlPage& page, int slot) {
    std::vector<GroupState> found;
    Activity& activity = page.activity(slot);
    for (int number = 0; number < kActivityChannels; ++number) {
        const auto& channel = activity.of(number);
        GroupState its{channel.tag.load(std::memory_order_seq_cst), {}, 0, 0, 0, {}};
        if (its.tag == 0) continue;
        its.begun = activity.begun(number);
        its.queued = channel.queued.load(std::memory_order_acquire);
        its.current = channel.current.load(std::memory_order_acquire);
        its.done = channel.done.load(std::memory_order_acquire);
        for (int peer = 0; peer < page.ranks(); ++peer) {
            const auto read = [&](bool is_recv) {
                return page.tally(slot, number, peer, is_recv)->load(std::memory_order_acquire);
            };
            const GroupState::Passed passed{peer, read(false), read(true)};
            if (passed.sent != 0 || passed.received != 0) its.passed.push_back(passed);
        }
        if (channel.tag.load(std::memory_order_seq_cst) == its.tag) found.push_back(std::move(its));
    }
    return found;
}

// (op, peer, number); op is empty for no operation, peer -1 for a collective.
py::tuple describe_word(std::uint64_t word) {
    if (Activity::is_message(word)) {
        const auto its = Activity::message_of(word);
        return py::make_tuple(its.name(), its.peer, its.number);
    }
    const std::string op = word == 0                   ? ""
                           : Activity::is_queued(word) ? "work"
                                                       : name_of(static_cast<OpKind>(word >> 48));
    return py::make_tuple(op, -1, Activity::seq_of(word));
}

py::tuple activity_of(const PyPage& self, int slot) {
    const auto& page = checked(self, slot);
    Activity& activity = page.activity(slot);
    py::dict groups;
    py::dict messages;
    for (const GroupState& its : groups_in(page, slot)) {
        const py::int_ group = group_of(its.tag);
        for (const auto& [peer, sent, received] : its.passed) {
            messages[py::make_tuple(group, peer)] =
                py::make_tuple(sent & ~kTallyWaits, received & ~kTallyWaits,
                               (sent & kTallyWaits) != 0, (received & kTallyWaits) != 0);
        }
        const auto op_of = [](std::uint64_t word) -> py::object { return describe_word(word)[0]; };
        groups[group] =
            py::make_tuple(op_of(its.current), Activity::seq_of(its.current),
                           Activity::seq_of(its.done), its.queued, op_of(its.done), its.begun);
    }
    const auto pair = activity.pair.load(std::memory_order_acquire);
    const int channel = Activity::message_of(pair).channel;  // -1 without a message
    return py::make_tuple(activity.epoch.load(std::memory_order_acquire), groups,
                          py::make_tuple(channel) + describe_word(pair), messages);
}

// The source line of the awaited operation; for queued operations that of the running one.
std::string site_of_wait(const ControlPage& page, int slot, std::uint64_t tag, std::uint64_t word) {
    if (!Activity::is_queued(word)) return page.site(slot, tag, word).value_or("");
    for (const auto& channel : page.activity(slot).channels) {
        if (channel.tag.load(std::memory_order_acquire) != tag) continue;
        const auto current = channel.current.load(std::memory_order_acquire);
        return current == 0 ? "" : page.site(slot, tag, current).value_or("");
    }
    return "";
}

py::object wait_of(const PyPage& self, int slot) {
    const auto& page = checked(self, slot);
    const auto& wait = page.activity(slot).wait;
    const auto number = wait.number.load(std::memory_order_seq_cst);
    const auto tag = wait.tag.load(std::memory_order_acquire);
    const auto word = wait.word.load(std::memory_order_acquire);
    const auto looks = wait.looks.load(std::memory_order_acquire);
    const bool has_others = wait.threads.load(std::memory_order_acquire) != Activity::kNoOthers;
    if (number == 0 || wait.number.load(std::memory_order_seq_cst) != number) return py::none();
    const py::tuple its = describe_word(word);
    return py::make_tuple(number, group_of(tag), its[0], its[2], its[1], looks, has_others,
                          to_text(site_of_wait(page, slot, tag, word)));
}

py::object site_of(const PyPage& self, int slot) {
    const auto seen = checked(self, slot).current_site(slot);
    if (!seen) return py::none();
    return py::make_tuple(group_of(seen->tag), describe_word(seen->word)[2], to_text(seen->text));
}

// Channel of a group, by tag (0: the world), of the rank in `slot` in this epoch; -1: not a member.
int channel_of(const ControlPage& page, int slot, std::uint64_t epoch, std::uint64_t group) {
    Activity& activity = page.activity(slot);
    if (activity.epoch.load(std::memory_order_acquire) != epoch) return -1;
    const auto tag = Activity::shown(group, epoch);
    for (int number = 0; number < kActivityChannels; ++number) {
        if (activity.of(number).tag.load(std::memory_order_acquire) == tag) return number;
    }
    return -1;
}

// The place where a stop holds the rank in `slot`, (group, op, peer, number), or None.
py::object held_of(const PyPage& self, int slot) {
    const auto seen = checked(self, slot).hold(slot).look();
    if (!seen) return py::none();
    return py::make_tuple(group_of(seen->tag)) + describe_word(seen->word);
}

}  // namespace

ControlPage& PyPage::get() const {
    if (page == nullptr) raise_distributed_error("the control page is closed");
    return *page;
}

void register_page(py::module_& module) {
    py::class_<PyPage>(module, "ControlPage", py::is_final())
        .def_static("nbytes", &ControlPage::nbytes, py::arg("slots"), py::arg("ranks") = 0)
        .def_static("format", &ControlPage::format, py::arg("fd"), py::arg("slots"),
                    py::arg("ranks") = 0)
        .def(py::init([](int fd, int slots, int author, const std::vector<int>& wake_fds) {
                 return PyPage{std::make_shared<ControlPage>(fd, slots, author, wake_fds)};
             }),
             py::arg("fd"), py::kw_only(), py::arg("slots"), py::arg("author"),
             py::arg("wake_fds") = py::tuple())
        .def(
            "abort",
            [](const PyPage& self, std::uint64_t epoch, int kind, int culprit,
               const std::string& message) {
                if (epoch < 1 || epoch >= std::uint64_t{1} << 48) {
                    throw UsageError("epoch must be from 1 to 2**48 - 1");
                }
                const auto page = self.page;
                ControlPage& target = self.get();
                const ReleasedGil released;  // the lambda holds its own share of the page
                return target.abort(epoch, {checked_kind(kind), culprit, message});
            },
            py::arg("epoch"), py::arg("kind"), py::arg("culprit"), py::arg("message"))
        .def(
            "reason",
            [](const PyPage& self, std::uint64_t epoch) {
                return to_tuple(self.get().reason(epoch));
            },
            py::arg("epoch"))
        .def("activity", &activity_of, py::arg("slot"))
        .def("wait", &wait_of, py::arg("slot"))
        .def("site", &site_of, py::arg("slot"))
        .def(
            "heartbeats",
            [](const PyPage& self, int slot) { return checked(self, slot).heartbeats(slot); },
            py::arg("slot"))
        .def(
            "mark_stopped",
            [](const PyPage& self, int slot) {
                const auto held = self.page;  // another thread may close the page meanwhile
                static_cast<void>(checked(self, slot));
                const ReleasedGil released;  // waits for the heartbeat thread
                held->mark_stopped(slot);
            },
            py::arg("slot"))
        .def(
            "hold",
            [](const PyPage& self, int slot, std::uint64_t thread) {
                checked(self, slot).hold(slot).set(thread);
            },
            py::arg("slot"), py::arg("thread"))
        .def(
            "drop_hold",
            [](const PyPage& self, int slot) { return checked(self, slot).hold(slot).drop(); },
            py::arg("slot"))
        .def(
            "release",
            [](const PyPage& self, int slot) { checked(self, slot).hold(slot).release(); },
            py::arg("slot"))
        .def(
            "let_in",
            [](const PyPage& self, int slot, std::uint64_t epoch, std::uint64_t group,
               std::uint64_t number, int peer, bool is_recv) {
                const auto& page = checked(self, slot);
                const int channel = channel_of(page, slot, epoch, group);
                if (channel < 0) return;
                LetIn* until = peer < 0 ? &page.hold(slot).until[channel]
                                        : page.let_in(slot, channel, peer, is_recv);
                if (until == nullptr || until->load() >= number) return;
                until->store(number);
                page.hold(slot).ring();
            },
            py::arg("slot"), py::arg("epoch"), py::arg("group"), py::arg("number"),
            py::arg("peer") = -1, py::arg("is_recv") = false)
        .def("held", &held_of, py::arg("slot"))
        .def("trace", &trace_of, py::arg("slot"), py::arg("since") = 0)
        .def("counters", &counters_of, py::arg("slot"))
        .def("close", [](PyPage& self) { self.page.reset(); });
    module.def("make_wake", [] { return make_wake().release(); });
}

}  // namespace phalanx::binding
