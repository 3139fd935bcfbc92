// Incremental reader of a flight recorder: merges the new records into few spans. Pure: records in,
// spans out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shm/trace_ring.hpp"

namespace phalanx {

constexpr std::size_t kMostSpans = 16;  // per look: in 0.3 s each is wider than the eye resolves
constexpr std::size_t kMostFirst = 64;  // for a first look or after a pause: a longer time to show
constexpr std::int64_t kPauseNs = 1'000'000'000;
constexpr std::int64_t kFirstNs = 10'000'000'000;  // time before the first look: what is drawn
constexpr std::size_t kMostEntries = 128;          // to compare: more do not improve a mean

// Any process of the host may have written the records. Readers accept no number beyond this
// (kernel_ext/phalanx/protocol/records.py), and a sum of two such numbers fits 64 bits.
constexpr std::int64_t kMaxUntrusted = (std::int64_t{1} << 62) - 1;
constexpr std::int64_t clamp_untrusted(std::uint64_t word) noexcept {
    return word < static_cast<std::uint64_t>(kMaxUntrusted) ? static_cast<std::int64_t>(word)
                                                            : kMaxUntrusted;
}
// Adds two non-negative numbers, up to kMaxUntrusted.
constexpr std::int64_t add_untrusted(std::int64_t one, std::int64_t other) noexcept {
    return one < kMaxUntrusted - other ? one + other : kMaxUntrusted;
}

// One operation, or `count` operations close together. Times in nanoseconds.
struct OperationSummary {
    std::int64_t number = 0;  // of the (last) record
    int op = 0;               // an OpKind, or any other value in the record: 0 to 255
    std::int64_t begun = 0;
    std::int64_t done = 0;  // 0: still running
    std::int64_t inside = 0;
    std::int64_t wait = 0;  // -1: the last rank has not come yet
    std::int64_t nbytes = 0;
    std::int64_t seq = 0;
    std::uint64_t group = 0;
    int peer = -1;
    std::int64_t count = 1;
    int kinds = 0;    // number of operations other than `op`
    int failure = 0;  // an AbortKind, or any other value in the record: 0 to 255
};

// The times at which this rank entered and left a collective (0: still running).
struct CollectiveEntry {
    std::uint64_t group;
    std::uint64_t place;
    std::uint64_t entered;
    std::uint64_t ended;
};

struct NewSpans {
    std::vector<OperationSummary> spans;  // finished operations, at most kMostSpans (or kMostFirst)
    std::uint64_t missed = 0;             // begun, finished and overwritten since the last look
    std::vector<CollectiveEntry> entries;  // of the newest collectives
};

// Reads the new records of one recorder since the last look. Running operations are returned at
// each look until they are finished. Not thread-safe.
class TraceSummarizer {
  public:
    // Whether an operation ran at the last look.
    [[nodiscard]] bool has_open() const noexcept { return !open_.empty(); }
    // Number of the oldest record that the next look needs.
    [[nodiscard]] std::uint64_t since() const noexcept;
    // Takes records as TraceRing reads them, at least those from since() on.
    [[nodiscard]] NewSpans read(std::span<const TraceRing::Snapshot> records);

  private:
    std::uint64_t next_ = 0;           // first record not yet read
    std::vector<std::uint64_t> open_;  // sorted
};

}  // namespace phalanx
