// What is new in a flight recorder: on records made up. What they are for records of all kinds,
// tests/packages/distributed/recorder/test_spans.py adds up.
#include <doctest/doctest.h>

#include <limits>
#include <memory>

#include "collectives/operation/op.hpp"
#include "monitoring/recorder.hpp"
#include "monitoring/trace_summary.hpp"

using namespace phalanx;

namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

// Of 6 us, of which 4 are for the last rank; one begins each 10 us.
TraceRing::Snapshot quick(std::uint64_t number, OpKind kind = OpKind::kAllSum) {
    const auto begun = 1 + 10'000 * number;
    return {number,
            false,
            {record_place(1, number + 1), 8, 0, begun, begun + 4000, begun + 6000,
             static_cast<std::uint64_t>(kind)}};
}
std::vector<TraceRing::Snapshot> quick_from(std::uint64_t first, std::uint64_t count) {
    std::vector<TraceRing::Snapshot> records;
    for (std::uint64_t i = 0; i < count; ++i) records.push_back(quick(first + i));
    return records;
}
TraceRing::Snapshot running(std::uint64_t number) {
    auto record = quick(number);
    record.is_open = true;
    record.words[kRecordArrived] = record.words[kRecordEnded] = 0;
    return record;
}

}  // namespace

TEST_CASE("what is read straight from a ring comes once, and what runs until it is over") {
    const auto ring = std::make_unique<TraceRing>();
    TraceSummarizer reader;
    CHECK(reader.read(ring->read_from(reader.since())).spans.empty());
    auto* first = ring->open(quick(0).words);
    ring->open(quick(1).words)->close();
    auto found = reader.read(ring->read_from(reader.since()));
    REQUIRE(found.spans.size() == 2);
    CHECK(found.spans[0].done == 0);  // what runs comes first
    CHECK(found.spans[1].number == 1);
    CHECK(found.entries.size() == 2);
    CHECK(found.entries[0].ended == 0);
    CHECK(reader.has_open());
    CHECK(reader.since() == 0);
    first->close();
    found = reader.read(ring->read_from(reader.since()));
    REQUIRE(found.spans.size() == 1);
    CHECK(found.spans[0].number == 0);
    CHECK(found.spans[0].inside == 6000);
    CHECK(reader.since() == 2);
    CHECK(reader.read(ring->read_from(reader.since())).spans.empty());
}

TEST_CASE("many are laid together, none is lost, and what was overwritten is counted") {
    TraceSummarizer reader;
    const auto found = reader.read(quick_from(0, 1000));
    CHECK(found.spans.size() == kMostSpans);
    CHECK(found.entries.size() == kMostEntries);
    CHECK(found.entries.back().place == record_place(1, 1000));
    std::int64_t count = 0;
    std::int64_t wait = 0;
    for (const OperationSummary& span : found.spans) {
        count += span.count;
        wait += span.wait;
    }
    CHECK(count == 1000);
    CHECK(wait == 1000 * 4000);
    CHECK(reader.read(quick_from(1007, 5)).missed == 7);
    CHECK(reader.read(quick_from(0, 5)).missed == 0);  // another process
    CHECK(reader.since() == 5);
}

TEST_CASE("what runs is not laid together, nor compared where it is a message") {
    auto records = quick_from(0, 40);
    records[7] = running(7);
    for (auto& record : records) record.words[kRecordWhat] = 64;  // send
    records[3].words[kRecordWhat] |= std::uint64_t{9} << 40;
    TraceSummarizer reader;
    const auto found = reader.read(records);
    CHECK(found.spans.front().number == 7);
    CHECK(found.spans.front().wait == 0);  // a message that is sent waits for nobody
    CHECK(found.spans.front().peer == 0);
    CHECK(found.entries.empty());
}

TEST_CASE("no word of a record is too large, whatever it says") {
    TraceSummarizer reader;
    std::vector<TraceRing::Snapshot> records;
    for (std::uint64_t i = 0; i < 40; ++i) {
        auto record = quick(i);
        record.words.fill(i % 3 == 0 ? kMost : i % 3 == 1 ? kMost >> 1 : 0);
        records.push_back(record);
    }
    records.back().words.fill(0);  // else all that is small was long ago
    const auto found = reader.read(records);
    CHECK(!found.spans.empty());
    for (const OperationSummary& span : found.spans) {
        for (const auto number : {span.begun, span.done, span.inside, span.wait, span.nbytes}) {
            CHECK(number >= -1);
            CHECK(number <= kMaxUntrusted);
        }
        CHECK(span.op <= 255);
        CHECK(span.failure <= 255);
    }
    auto last = quick(0);
    last.number = kMost;
    CHECK(reader.read({&last, 1}).spans.size() == 1);
    CHECK(reader.read(quick_from(0, 1)).spans.size() == 1);
}
