// The flight recorder: what this rank does and did last, operation by operation. Where the ring of
// records lies, the page knows; which words of a record mean what is known here only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "base/tick_clock.hpp"
#include "collectives/op.hpp"
#include "transport/abort_page.hpp"
#include "transport/trace_ring.hpp"

namespace phalanx {

// The words of a record. Times are CLOCK_MONOTONIC in nanoseconds.
enum RecordWord : std::size_t {
    kRecordPlace,    // epoch << 40 | number in its group, or of the message in its lane
    kRecordBytes,    // of x on this rank
    kRecordTag,      // of the group; 0: the world
    kRecordEntered,  // the rank has begun it
    kRecordArrived,  // ... has learnt that all ranks have; of a message: the sender; 0: not known
    kRecordEnded,    // ... is through with it; 0: it runs
    // kind | algorithm << 8 | dtype << 16 | channel << 24 | failure << 32 | peer << 40
    kRecordWhat,
};
constexpr std::uint64_t record_place(std::uint64_t epoch, std::uint64_t seq) noexcept {
    return epoch << 40 | (seq & ((std::uint64_t{1} << 40) - 1));
}
constexpr int kRecordFailure = 32;  // where in kRecordWhat the AbortKind is; 0: none

// The ring of one rank process, which all its groups share, and its clock.
class Recorder {
  public:
    // In the page, at this rank's slot, where the supervisor sees it; without a page, in own
    // memory.
    explicit Recorder(std::shared_ptr<AbortPage> page);
    [[nodiscard]] TraceRing& ring() const noexcept { return *ring_; }
    [[nodiscard]] TickClock<>& clock() const noexcept { return clock_; }

  private:
    mutable TickClock<> clock_;
    std::shared_ptr<AbortPage> page_;
    std::unique_ptr<TraceRing> own_;
    TraceRing* ring_;
};

// One operation from its beginning to its end, on the thread that carries it out. Costs three looks
// at the clock (two for a small array on one host) and one atomic read-modify-write; it writes to
// one cache line of its own, and to that of the ring's counters.
class Recording {
  public:
    using Nanoseconds = TickClock<>::Nanoseconds;

    // Entered now; `peer` is a rank of the world.
    Recording(const Recorder& recorder, const Op& op, std::uint64_t tag, std::uint8_t algorithm,
              int peer) noexcept;
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording() {
        if (!has_ended_) fail(AbortKind::kError);
    }

    void arrive() noexcept {
        arrived_ = clock_.now_after_reads();
        if (record_ != nullptr) record_->set(kRecordArrived, arrived_);
    }
    // What is left takes no time worth a look at the clock: the end is the time of arrival, too.
    void arrive_with_end() noexcept { arrives_with_end_ = true; }
    void finish() noexcept { end(what_); }
    void fail(AbortKind kind) noexcept {
        end(what_ | static_cast<std::uint64_t>(kind) << kRecordFailure);
    }
    // Once it has ended.
    [[nodiscard]] Nanoseconds inside() const noexcept { return ended_ - entered_; }
    // Of that, before the last rank came (as far as it is known).
    [[nodiscard]] Nanoseconds waited() const noexcept {
        return arrived_ == 0 ? 0 : arrived_ - entered_;
    }

  private:
    void end(std::uint64_t what) noexcept;

    TickClock<>& clock_;
    std::uint64_t what_;
    Nanoseconds entered_;
    Nanoseconds arrived_ = 0;
    Nanoseconds ended_ = 0;
    bool arrives_with_end_ = false;
    bool has_ended_ = false;
    TraceRing::Record* record_;
};

}  // namespace phalanx
