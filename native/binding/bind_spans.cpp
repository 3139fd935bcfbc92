// phalanx._native.SpanReader, and who came last: what is made of records and entries.
#include <cstring>
#include <span>

#include "binding/binding.hpp"
#include "group/lateness.hpp"
#include "group/spans.hpp"

namespace phalanx::binding {

namespace {

// A class of words alone, from bytes.
template <class Words>
std::vector<Words> unpacked(const py::bytes& packed, const char* what) {
    static_assert(std::is_trivially_copyable_v<Words>);
    const std::string_view bytes = packed;
    if (bytes.size() % sizeof(Words) != 0) {
        throw UsageError(std::string("these are no whole ") + what);
    }
    std::vector<Words> words(bytes.size() / sizeof(Words));
    if (!words.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
}

template <class Words>
py::bytes packed_of(const std::vector<Words>& words) {
    const auto bytes = std::as_bytes(std::span(words));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// As packed() in bind_trace.cpp has them.
struct PackedRecord {
    std::uint64_t number_and_open;
    TraceRing::Words words;
};

py::tuple tuple_of(const OpSpan& its) {
    return py::make_tuple(its.number, its.op, its.begun, its.done, its.inside, its.wait, its.nbytes,
                          its.seq, its.group, its.peer, its.count, its.kinds, its.failure);
}

// With the GIL all the time: some 20 us, and it guards the reader.
py::tuple read(SpanReader& self, const py::bytes& packed) {
    std::vector<TraceRing::Seen> records;
    {
        const auto its = unpacked<PackedRecord>(packed, "records");
        records.reserve(its.size());
        for (const auto& [number, words] : its) {
            records.push_back({number >> 1, (number & 1) != 0, words});
        }
    }
    const NewSpans found = self.read(records);
    py::list spans;
    for (const OpSpan& span : found.spans) spans.append(tuple_of(span));
    py::list uses;
    for (const OpUse& use : found.uses) {
        uses.append(py::make_tuple(use.op, use.algorithm, use.low, use.high, use.is_split));
    }
    return py::make_tuple(spans, found.missed, packed_of(found.entries), uses);
}

py::bytes entered(const py::bytes& entries, std::int64_t rank, std::int64_t host,
                  std::int64_t unsure) {
    std::vector<Entered> seen;
    for (const auto& its : unpacked<OpEntry>(entries, "entries")) {
        seen.push_back({rank, its.group, its.place, its.entered, its.ended, host, unsure});
    }
    return packed_of(seen);
}

py::tuple compared(const py::bytes& seen, std::int64_t from, std::int64_t until,
                   std::map<std::uint64_t, std::int64_t> members) {
    auto entries = unpacked<Entered>(seen, "entries");
    Compared found;
    {
        const py::gil_scoped_release released;  // of many ranks some ms; nothing of Python
        found = late_ranks(std::move(entries), {from, until, std::move(members)});
    }
    py::list late;
    for (const auto& [rank, its] : found.late) {
        late.append(py::make_tuple(rank, its.count, its.late, its.worst));
    }
    return py::make_tuple(found.n_compared, late, found.n_unsure, found.unsure);
}

}  // namespace

void register_spans(py::module_& module) {
    py::class_<SpanReader>(module, "SpanReader", py::is_final())
        .def(py::init<>())
        .def_property_readonly("has_open", &SpanReader::has_open)
        .def_property_readonly("since", &SpanReader::since)
        .def("read", &read, py::arg("packed"));
    module.def("entered", &entered, py::arg("entries"), py::arg("rank"), py::arg("host"),
               py::arg("unsure_ns"));
    module.def("late_ranks", &compared, py::arg("seen"), py::arg("from_ns"), py::arg("until_ns"),
               py::arg("members"));
}

}  // namespace phalanx::binding
