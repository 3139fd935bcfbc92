// A flight recorder that is read again and again: what is new in it, in few spans. Records in,
// spans out; whose recorder it is and who wants to know, it does not know.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/trace_ring.hpp"

namespace phalanx {

constexpr std::size_t kMostSpans = 16;  // for one look: in 0.3 s, each is wider than an eye sees
constexpr std::size_t kMostFirst = 64;  // after a pause, or at the first look: more time to tell of
constexpr std::int64_t kPauseNs = 1'000'000'000;
constexpr std::int64_t kFirstNs = 10'000'000'000;  // that the first look goes back: what is drawn
constexpr std::size_t kMostEntries = 128;          // that are compared: more add nothing to a mean

// Any process of the host may have written what records say. Who is told takes no number beyond
// this (kernel_ext/phalanx/protocol/_samples.py), and sums of two of them fit 64 bits.
constexpr std::int64_t kMostTold = (std::int64_t{1} << 62) - 1;
constexpr std::int64_t told(std::uint64_t word) noexcept {
    return word < static_cast<std::uint64_t>(kMostTold) ? static_cast<std::int64_t>(word)
                                                        : kMostTold;
}
// Of two that are not negative.
constexpr std::int64_t told_sum(std::int64_t one, std::int64_t other) noexcept {
    return one < kMostTold - other ? one + other : kMostTold;
}

// An operation, or `count` of them that lie close together. Times in nanoseconds.
struct OpSpan {
    std::int64_t number = 0;  // of the (last) record
    int op = 0;               // an OpKind, or whatever else the record says: 0 to 255
    std::int64_t begun = 0;
    std::int64_t done = 0;  // 0: it runs
    std::int64_t inside = 0;
    std::int64_t wait = 0;  // -1: the last rank has not come yet
    std::int64_t nbytes = 0;
    std::int64_t seq = 0;
    std::uint64_t group = 0;
    int peer = -1;
    std::int64_t count = 1;
    int kinds = 0;    // of other operations than `op`
    int failure = 0;  // an AbortKind, or whatever else the record says: 0 to 255
};

// When this rank entered a collective, and was through with it (0: it runs).
struct OpEntry {
    std::uint64_t group;
    std::uint64_t place;
    std::uint64_t entered;
    std::uint64_t ended;
};

// A way in which an operation was done, of arrays of `low` to `high` bytes.
struct OpUse {
    int op = 0;
    int algorithm = 0;
    std::int64_t low = 0;
    std::int64_t high = 0;
    bool is_split = false;  // by a group that is not the world
};

struct NewSpans {
    std::vector<OpSpan> spans;     // at most kMostSpans (or kMostFirst) of what is over
    std::uint64_t missed = 0;      // begun, over and overwritten since the last look
    std::vector<OpEntry> entries;  // of the newest collectives
    std::vector<OpUse> uses;       // by all that are new
};

// What is new in one recorder since it was looked at last. Operations that run come again each
// time, until they are over. Of one thread.
class SpanReader {
  public:
    // Whether an operation ran at the last look.
    [[nodiscard]] bool has_open() const noexcept { return !open_.empty(); }
    // Number of the oldest record that is of interest at the next look.
    [[nodiscard]] std::uint64_t since() const noexcept;
    // Records as TraceRing reads them, at least those from since() on.
    [[nodiscard]] NewSpans read(std::span<const TraceRing::Seen> records);

  private:
    std::uint64_t next_ = 0;           // that has not been seen
    std::vector<std::uint64_t> open_;  // sorted
};

}  // namespace phalanx
