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

struct Passed {
    int peer;
    std::uint64_t sent;
    std::uint64_t received;
};

// The peers that the rank in `slot` has exchanged messages with in a channel, or waits for.
std::vector<Passed> passed_in(const ControlPage& page, int slot, int channel) {
    std::vector<Passed> found;
    for (int peer = 0; peer < page.ranks(); ++peer) {
        const auto read = [&](bool is_recv) {
            return page.tally(slot, channel, peer, is_recv)->load(std::memory_order_acquire);
        };
        const Passed passed{peer, read(false), read(true)};
        if (passed.sent != 0 || passed.received != 0) found.push_back(passed);
    }
    return found;
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
    const auto& page = self.get();
    if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
    const auto& wait = page.activity(slot).wait;
    const auto number = wait.number.load(std::memory_order_seq_cst);
    const auto tag = wait.tag.load(std::memory_order_acquire);
    const auto word = wait.word.load(std::memory_order_acquire);
    const auto looks = wait.looks.load(std::memory_order_acquire);
    const bool has_others = wait.threads.load(std::memory_order_acquire) != Activity::kNoOthers;
    if (number == 0 || wait.number.load(std::memory_order_seq_cst) != number) return py::none();
    const bool is_message = Activity::is_message(word);
    const std::string op = Activity::is_queued(word) ? "work"
                           : !is_message             ? name_of(static_cast<OpKind>(word >> 48))
                           : (word >> 52 & 1) != 0   ? "recv"
                                                     : "send";
    const auto seq = is_message ? word & ((std::uint64_t{1} << 36) - 1) : Activity::seq_of(word);
    const int peer = is_message ? static_cast<int>(word >> 36 & 0xFFFF) : -1;
    const bool is_world = (tag & Activity::kWorldTag) != 0;
    return py::make_tuple(number, is_world ? 0 : tag, op, seq, peer, looks, has_others,
                          to_text(site_of_wait(page, slot, tag, word)));
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

py::int_ group_of(std::uint64_t tag) {
    return py::int_((tag & Activity::kWorldTag) != 0 ? 0 : tag);
}

py::tuple describe_word(std::uint64_t word) {
    if (Activity::is_message(word)) {
        return py::make_tuple((word >> 52 & 1) != 0 ? "recv" : "send",
                              static_cast<int>(word >> 36 & 0xFFFF),
                              word & ((std::uint64_t{1} << 36) - 1));
    }
    return py::make_tuple(word == 0 ? std::string() : name_of(static_cast<OpKind>(word >> 48)), -1,
                          Activity::seq_of(word));
}

// The place where a stop holds the rank in `slot`, (group, op, peer, number), or None.
py::object held_at(const ControlPage& page, int slot) {
    const auto seen = page.hold(slot).look();
    if (!seen) return py::none();
    return py::make_tuple(group_of(seen->tag)) + describe_word(seen->word);
}

py::tuple progress_of(const ControlPage& page, int slot) {
    Activity& activity = page.activity(slot);
    py::object held = held_at(page, slot);
    py::list groups;
    py::list messages;
    for (int number = 0; number < kActivityChannels; ++number) {
        auto& channel = activity.of(number);
        const auto tag = channel.tag.load(std::memory_order_seq_cst);
        if (tag == 0) continue;
        const auto begun = activity.begun(number);
        const auto done = channel.done.load(std::memory_order_acquire);
        const auto current = channel.current.load(std::memory_order_acquire);
        const auto queued = channel.queued.load(std::memory_order_acquire);
        const auto passed = passed_in(page, slot, number);
        if (channel.tag.load(std::memory_order_seq_cst) != tag) continue;
        py::object n_begun = py::none();
        if (begun) n_begun = py::int_(*begun);
        groups.append(py::make_tuple(group_of(tag), n_begun, current != 0 || queued != 0,
                                     describe_word(current), describe_word(done)));
        for (const auto& [peer, sent, received] : passed) {
            for (const bool is_recv : {false, true}) {
                const auto tally = is_recv ? received : sent;
                const auto count = (tally & ~kTallyWaits) + ((tally & kTallyWaits) != 0 ? 1 : 0);
                messages.append(py::make_tuple(group_of(tag), peer, is_recv, count));
            }
        }
    }
    // Unchanged between two reads: held in one place; else report that it is not held.
    if (!held.equal(held_at(page, slot))) held = py::none();
    return py::make_tuple(activity.epoch.load(std::memory_order_acquire), groups, messages, held);
}

const ControlPage& checked(const PyPage& self, int slot) {
    const auto& page = self.get();
    if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
    return page;
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
        .def(
            "activity",
            [](const PyPage& self, int slot) {
                const auto& page = self.get();
                if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
                Activity& activity = page.activity(slot);
                py::dict channels;
                py::dict messages;
                for (int number = 0; number < kActivityChannels; ++number) {
                    auto& channel = activity.of(number);
                    const auto tag = channel.tag.load(std::memory_order_seq_cst);
                    const auto queued = channel.queued.load(std::memory_order_acquire);
                    const auto current = channel.current.load(std::memory_order_acquire);
                    const auto done = channel.done.load(std::memory_order_acquire);
                    if (tag == 0) continue;
                    const auto passed = passed_in(page, slot, number);
                    if (channel.tag.load(std::memory_order_seq_cst) != tag) continue;
                    const auto kind = static_cast<OpKind>(current >> 48);
                    const py::int_ group((tag & Activity::kWorldTag) != 0 ? 0 : tag);
                    for (const auto& [peer, sent, received] : passed) {
                        messages[py::make_tuple(group, peer)] = py::make_tuple(
                            sent & ~kTallyWaits, received & ~kTallyWaits, (sent & kTallyWaits) != 0,
                            (received & kTallyWaits) != 0);
                    }
                    channels[group] =
                        py::make_tuple(current == 0 ? std::string() : name_of(kind),
                                       Activity::seq_of(current), Activity::seq_of(done), queued);
                }
                const auto pair = activity.pair.load(std::memory_order_acquire);
                const bool is_waiting = pair != 0;
                const char* what = !is_waiting ? "" : (pair >> 52 & 1) != 0 ? "recv" : "send";
                const py::tuple message =
                    py::make_tuple(static_cast<int>(pair >> 56) - 1, what,
                                   is_waiting ? static_cast<int>(pair >> 36 & 0xFFFF) : -1,
                                   pair & ((std::uint64_t{1} << 36) - 1));
                return py::make_tuple(activity.epoch.load(std::memory_order_acquire), channels,
                                      message, messages);
            },
            py::arg("slot"))
        .def("wait", &wait_of, py::arg("slot"))
        .def(
            "site",
            [](const PyPage& self, int slot) -> py::object {
                const auto& page = self.get();
                if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
                const auto seen = page.current_site(slot);
                if (!seen) return py::none();
                const bool is_message = Activity::is_message(seen->word);
                const auto seq = is_message ? seen->word & ((std::uint64_t{1} << 36) - 1)
                                            : Activity::seq_of(seen->word);
                const bool is_world = (seen->tag & Activity::kWorldTag) != 0;
                return py::make_tuple(is_world ? 0 : seen->tag, seq, to_text(seen->text));
            },
            py::arg("slot"))
        .def(
            "heartbeats",
            [](const PyPage& self, int slot) {
                const auto& page = self.get();
                if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
                return page.heartbeats(slot);
            },
            py::arg("slot"))
        .def(
            "mark_stopped",
            [](const PyPage& self, int slot) {
                const auto held = self.page;  // another thread may close the page meanwhile
                ControlPage& page = self.get();
                if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
                const ReleasedGil released;  // waits for the heartbeat thread
                page.mark_stopped(slot);
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
        .def(
            "progress",
            [](const PyPage& self, int slot) { return progress_of(checked(self, slot), slot); },
            py::arg("slot"))
        .def("trace", &trace_of, py::arg("slot"), py::arg("since") = 0)
        .def("counters", &counters_of, py::arg("slot"))
        .def("close", [](PyPage& self) { self.page.reset(); });
    module.def("make_wake", [] { return make_wake().release(); });
}

}  // namespace phalanx::binding
