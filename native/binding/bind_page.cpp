// phalanx._native.AbortPage
#include "binding/binding.hpp"
#include "collectives/op.hpp"

namespace phalanx::binding {

namespace {

struct Passed {
    int peer;
    std::uint64_t sent;
    std::uint64_t received;
};

// The peers with which the rank in `slot` has passed messages in a channel, or waits for one.
std::vector<Passed> passed_in(const AbortPage& page, int slot, int channel) {
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

}  // namespace

AbortPage& PyPage::get() const {
    if (page == nullptr) raise_distributed_error("the abort page is closed");
    return *page;
}

void register_page(py::module_& module) {
    py::class_<PyPage>(module, "AbortPage", py::is_final())
        .def_static("nbytes", &AbortPage::nbytes, py::arg("slots"), py::arg("ranks") = 0)
        .def_static("format", &AbortPage::format, py::arg("fd"), py::arg("slots"),
                    py::arg("ranks") = 0)
        .def(py::init([](int fd, int slots, int author, const std::vector<int>& wake_fds) {
                 return PyPage{std::make_shared<AbortPage>(fd, slots, author, wake_fds)};
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
                AbortPage& target = self.get();
                const ReleasedGil released;  // holds its own share of the page
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
            "beats",
            [](const PyPage& self, int slot) {
                const auto& page = self.get();
                if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
                return page.beats(slot);
            },
            py::arg("slot"))
        .def(
            "still",
            [](const PyPage& self, int slot) {
                const auto held = self.page;  // another thread may close the page meanwhile
                AbortPage& page = self.get();
                if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
                const ReleasedGil released;  // waits for the heart's thread
                page.still(slot);
            },
            py::arg("slot"))
        .def("trace", &trace_of, py::arg("slot"), py::arg("since") = 0)
        .def("counters", &counters_of, py::arg("slot"))
        .def("close", [](PyPage& self) { self.page.reset(); });
    module.def("make_wake", [] { return make_wake().release(); });
}

}  // namespace phalanx::binding
