// phalanx._native.Recorder, and what AbortPage tells of other ranks' records and counters.
#include <span>

#include "binding/binding.hpp"
#include "collectives/op.hpp"
#include "group/recorder.hpp"
#include "group/spans.hpp"

namespace phalanx::binding {

namespace {

// Of each record its number << 1 | whether it is open, then its words.
py::tuple packed(const TraceRing& ring, std::uint64_t since) {
    std::uint64_t dropped = 0;
    std::vector<std::uint64_t> words;
    {
        const py::gil_scoped_release released;  // some 20 us; nothing of Python
        const auto records = since == 0 ? ring.read(dropped) : ring.read_from(since);
        words.reserve(records.size() * (TraceRing::kWords + 1));
        for (const auto& record : records) {
            words.push_back(record.number << 1 | (record.is_open ? 1 : 0));
            words.insert(words.end(), record.words.begin(), record.words.end());
        }
    }
    const auto bytes = std::as_bytes(std::span(words));
    return py::make_tuple(py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                          dropped);
}

py::dict names() {
    py::dict ops;
    for (const OpKind kind :
         {OpKind::kBarrier, OpKind::kAllSum, OpKind::kAllGather, OpKind::kBroadcast,
          OpKind::kAllMax, OpKind::kAllMin, OpKind::kSumScatter, OpKind::kAllToAll, OpKind::kSplit,
          OpKind::kSend, OpKind::kRecv}) {
        ops[py::int_(static_cast<int>(kind))] = name_of(kind);
    }
    py::dict algorithms;
    for (int code = 0; code < kAlgorithms; ++code) {
        const std::string name = name_of_algorithm(static_cast<Algorithm>(code));
        if (!name.empty()) algorithms[py::int_(code)] = name;
    }
    py::dict dtypes;
    for (const Dtype dtype : all_dtypes()) {
        dtypes[py::int_(static_cast<int>(dtype))] = name_of(dtype);
    }
    py::dict result;
    result["op"] = ops;
    result["algorithm"] = algorithms;
    result["dtype"] = dtypes;
    return result;
}

void check_slot(const AbortPage& page, int slot) {
    if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
}

}  // namespace

py::tuple trace_of(const PyPage& self, int slot, std::uint64_t since) {
    const auto held = self.page;  // another thread may close the page meanwhile
    check_slot(self.get(), slot);
    return packed(held->trace(slot), since);
}

py::tuple counters_of(const PyPage& self, int slot) {
    const AbortPage& page = self.get();
    check_slot(page, slot);
    const Totals& totals = page.totals(slot);
    std::uint64_t sums[4] = {};
    const auto add = [&](const Totals::Sums& part) {
        sums[0] += part.operations.load(std::memory_order_relaxed);
        sums[1] += part.arena_bytes.load(std::memory_order_relaxed);
        sums[2] += part.inside_ns.load(std::memory_order_relaxed);
        sums[3] += part.waiting_ns.load(std::memory_order_relaxed);
    };
    for (const auto& channel : totals.channels) add(channel);
    add(totals.messages);
    py::dict wires;
    for (int peer = 0; peer < page.ranks(); ++peer) {
        const auto sent = page.wire(slot, peer, false)->load(std::memory_order_relaxed);
        const auto received = page.wire(slot, peer, true)->load(std::memory_order_relaxed);
        if (sent == 0 && received == 0) continue;
        wires[py::int_(peer)] = py::make_tuple(told(sent), told(received));
    }
    return py::make_tuple(told(sums[0]), told(sums[1]), told(sums[2]), told(sums[3]), wires);
}

void register_trace(py::module_& module) {
    py::class_<Recorder, std::shared_ptr<Recorder>>(module, "Recorder", py::is_final())
        .def(py::init([](const PyPage* page) {
                 std::shared_ptr<AbortPage> its;
                 if (page != nullptr) {
                     static_cast<void>(page->get());
                     its = page->page;
                 }
                 return std::make_shared<Recorder>(std::move(its));
             }),
             py::arg("page") = py::none())
        .def("read", [](const Recorder& self) { return packed(self.ring(), 0); });
    module.def("trace_names", &names);
}

}  // namespace phalanx::binding
