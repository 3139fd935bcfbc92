// Record a rank's last operations in memory that its supervisor can read, also when the rank is
// busy, frozen or dead. A record is an array of words; its users define their meaning.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace phalanx {

// Concurrency. Any thread of the rank writes; any thread or process reads, at any time. A writer
// holds `claim_` (exchange, acquire; store, release) for a few loads and stores. Under the claim it
// takes the next ticket and stamps the ticket's record, `stamp` = ticket << 2 | state. A record
// that is still open, because its operation runs, is skipped: so no two threads write one record,
// and the record of an operation that hangs is never overwritten. No writer waits for long either:
// a thread that finds the claim taken many times (its holder has lost its core) makes no record,
// and this is counted. From the claim until it is closed a record belongs to its writer, which then
// needs only plain atomic stores: `stamp` is kWriting before the first word changes, and kOpen
// after the last. Rejected: a ticket by fetch_add and then the record by compare-and-swap, which
// never waits: 14.8 ns a record, not 10.5 (recorder_cost, Xeon, medians of 20 runs, least 14.6 and
// 10.2).
//
// A reader loads the stamp (acquire), the words, and the stamp again: if the stamp has changed, the
// reader drops the words. Words are stored with release and loaded with acquire, so a reader that
// has seen a word of the next writer sees its stamp too. Some words change while a record is open,
// each by one store: a reader gets their old or their new value.
//
// `first` is the ticket at which the present process began; older records are of its predecessor.
class TraceRing {
  public:
    static constexpr std::uint64_t kRecords = 4096;  // a power of two: 256 KiB, a quarter of an L2
    static constexpr std::size_t kWords = 7;
    using Words = std::array<std::uint64_t, kWords>;
    static constexpr std::uint64_t kState = 3;  // mask of the state in a stamp
    enum State : std::uint64_t { kNever, kWriting, kOpen, kClosed };

    struct alignas(64) Record {
        std::atomic<std::uint64_t> stamp;
        std::atomic<std::uint64_t> words[kWords];

        void set(std::size_t word, std::uint64_t value) noexcept {
            words[word].store(value, std::memory_order_release);
        }
        void close() noexcept { pass_into(kClosed); }

      private:
        friend class TraceRing;
        void pass_into(State state) noexcept {
            const auto mine = stamp.load(std::memory_order_relaxed);
            stamp.store((mine & ~kState) | state, std::memory_order_release);
        }
    };
    struct Snapshot {
        std::uint64_t number;  // number of the record in this process, from 0
        bool is_open;
        Words words;
    };

    // Start an empty ring for a new process of the rank.
    void begin() noexcept;
    // Returns null if too many records are open.
    Record* open(const Words& words) noexcept;
    // Oldest first. `dropped` is the number of records that are missing or were overwritten.
    [[nodiscard]] std::vector<Snapshot> read(std::uint64_t& dropped) const;
    // Records from a number on, for a reader that polls. If the ring has fewer records, another
    // process is the rank now: returns all its records.
    [[nodiscard]] std::vector<Snapshot> read_from(std::uint64_t number) const;

  private:
    static bool look_at(const Record& record, std::uint64_t first, Snapshot& seen) noexcept;
    [[nodiscard]] bool claim() noexcept;
    Record* take_next() noexcept;
    void pass_to(std::uint64_t next, std::uint64_t passed) noexcept;

    // Fields of the holder of the claim, except `missed_`.
    alignas(128) std::atomic<std::uint64_t> next_;
    std::atomic<std::uint64_t> first_;
    std::atomic<std::uint64_t> passed_over_;  // tickets that became no record
    std::atomic<std::uint64_t> missed_;       // operations that got no record
    std::atomic<std::uint32_t> claim_;
    alignas(128) Record records_[kRecords];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(TraceRing::Record) == 64);

}  // namespace phalanx
