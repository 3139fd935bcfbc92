// The flight recorder: this rank's present and last operations. The ring of records is on the
// control page, shared by all groups of the process; this file defines the words of a record.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "collectives/operation/op.hpp"
#include "shm/trace_ring.hpp"

namespace phalanx {

// The words of a record. Times are CLOCK_MONOTONIC in nanoseconds.
enum RecordWord : std::size_t {
    kRecordPlace,    // epoch << 40 | number in the group, or of the message in its lane
    kRecordBytes,    // of x on this rank
    kRecordTag,      // of the group; 0: the world
    kRecordEntered,  // this rank began the operation
    kRecordArrived,  // all ranks (of a message: the sender) are known to have begun; 0: unknown
    kRecordEnded,    // this rank left the operation; 0: still running
    // kind | algorithm << 8 | dtype << 16 | channel << 24 | failure << 32 | peer << 40
    kRecordWhat,
};
constexpr std::uint64_t record_place(std::uint64_t epoch, std::uint64_t seq) noexcept {
    return epoch << 40 | (seq & ((std::uint64_t{1} << 40) - 1));
}
constexpr int kRecordFailure = 32;  // shift of the AbortKind in kRecordWhat; 0: no failure

// One operation from begin to end, on the thread that runs it. Costs three reads of the clock (two
// for a small array on one host) and one atomic read-modify-write. Writes to one cache line of its
// own, and to the line of the ring's counters.
class Recording {
  public:
    using Nanoseconds = std::uint64_t;

    // The operation is entered now; `peer` is a world rank.
    Recording(TraceRing& ring, const Op& op, std::uint64_t tag, std::uint8_t algorithm,
              int peer) noexcept;
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording() {
        if (!has_ended_) fail(AbortKind::kError);
    }

    void arrive() noexcept {
        arrived_ = steady_ns();
        if (record_ != nullptr) record_->set(kRecordArrived, arrived_);
    }
    // The rest takes too little time for another read of the clock: arrival time = end time.
    void arrive_with_end() noexcept { arrives_with_end_ = true; }
    void finish() noexcept { end(what_); }
    void fail(AbortKind kind) noexcept {
        end(what_ | static_cast<std::uint64_t>(kind) << kRecordFailure);
    }
    // After the end: time inside the operation.
    [[nodiscard]] Nanoseconds inside() const noexcept { return ended_ - entered_; }
    // The part of that time before the last rank came (if known).
    [[nodiscard]] Nanoseconds waited() const noexcept {
        return arrived_ == 0 ? 0 : arrived_ - entered_;
    }

  private:
    void end(std::uint64_t what) noexcept;

    std::uint64_t what_;
    Nanoseconds entered_;
    Nanoseconds arrived_ = 0;
    Nanoseconds ended_ = 0;
    bool arrives_with_end_ = false;
    bool has_ended_ = false;
    TraceRing::Record* record_;
};

}  // namespace phalanx
