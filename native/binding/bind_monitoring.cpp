// Bind phalanx._native.TraceSummarizer, and read the records and counters of other
// ranks.
#include <cstring>
#include <span>

#include "binding/binding.hpp"
#include "collectives/operation/op.hpp"
#include "monitoring/recorder.hpp"
#include "monitoring/trace_summary.hpp"

namespace phalanx::binding {

namespace {

// Each record is packed as number << 1 | is_open, then its words.
py::tuple packed(const TraceRing& ring, std::uint64_t since) {
    std::uint64_t dropped = 0;
    std::vector<std::uint64_t> words;
    {
        const py::gil_scoped_release released;  // about 20 us; touches no Python object
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
    for (const OpKind kind : kOpKinds) ops[py::int_(static_cast<int>(kind))] = name_of(kind);
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

void check_slot(const ControlPage& page, int slot) {
    if (slot < 0 || slot >= page.slots()) throw UsageError("no such slot");
}

}  // namespace

py::tuple trace_of(const PyPage& self, int slot, std::uint64_t since) {
    const auto held = self.page;  // another thread may close the page meanwhile
    check_slot(self.get(), slot);
    return packed(held->trace(slot), since);
}

py::tuple counters_of(const PyPage& self, int slot) {
    const ControlPage& page = self.get();
    check_slot(page, slot);
    const TrafficCounters& totals = page.totals(slot);
    std::uint64_t sums[4] = {};
    const auto add = [&](const TrafficCounters::Sums& part) {
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
        wires[py::int_(peer)] = py::make_tuple(clamp_untrusted(sent), clamp_untrusted(received));
    }
    return py::make_tuple(clamp_untrusted(sums[0]), clamp_untrusted(sums[1]),
                          clamp_untrusted(sums[2]), clamp_untrusted(sums[3]), wires);
}

namespace {

// The format of packed() above.
struct PackedRecord {
    std::uint64_t number_and_open;
    TraceRing::Words words;
};

py::tuple tuple_of(const OperationSummary& its) {
    return py::make_tuple(its.number, its.op, its.begun, its.done, its.inside, its.wait, its.nbytes,
                          its.seq, its.group, its.peer, its.count, its.kinds, its.failure);
}

// Keeps the GIL: it takes about 20 us, and the GIL protects the reader.
py::tuple read(TraceSummarizer& self, const py::bytes& packed) {
    const std::string_view bytes = packed;
    if (bytes.size() % sizeof(PackedRecord) != 0) throw UsageError("these are no whole records");
    std::vector<TraceRing::Snapshot> records(bytes.size() / sizeof(PackedRecord));
    for (std::size_t i = 0; i < records.size(); ++i) {
        PackedRecord its;
        std::memcpy(&its, bytes.data() + i * sizeof its, sizeof its);
        records[i] = {its.number_and_open >> 1, (its.number_and_open & 1) != 0, its.words};
    }
    const NewSpans found = self.read(records);
    py::list spans;
    for (const OperationSummary& span : found.spans) spans.append(tuple_of(span));
    const auto entries = std::as_bytes(std::span(found.entries));
    return py::make_tuple(spans, found.missed,
                          py::bytes(reinterpret_cast<const char*>(entries.data()), entries.size()));
}

}  // namespace

void register_monitoring(py::module_& module) {
    module.def("trace_names", &names);
    py::class_<TraceSummarizer>(module, "TraceSummarizer", py::is_final())
        .def(py::init<>())
        .def_property_readonly("has_open", &TraceSummarizer::has_open)
        .def_property_readonly("since", &TraceSummarizer::since)
        .def("read", &read, py::arg("packed"));
}

}  // namespace phalanx::binding
