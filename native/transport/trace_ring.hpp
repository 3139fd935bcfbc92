// The last things that a rank did, in memory that its supervisor may read as well, also when the
// rank is busy, frozen or dead. Knows nothing of operations: a record is some words.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace phalanx {

// Concurrency. Any thread of the rank writes; any thread or process reads, at any time. A writer
// holds `claim_` (exchange, acquire; store, release) for a few loads and stores, in which it takes
// the next ticket and stamps that one's record, `stamp` = ticket << 2 | state. A record that is
// still open, as its operation runs, is passed over: so nobody writes where another does, and what
// hangs is never overwritten. Nobody waits for long either: who finds the claim taken again and
// again (its holder has lost its core) goes without a record, and that is counted. From the claim
// until it is closed a record is its writer's, who needs no more atomic operations than stores:
// `stamp` says kWriting before the first word changes, and kOpen after the last. Rejected: a ticket
// by fetch_add and then the record by compare-and-swap, which nobody ever waits in: 14.8 ns a
// record, not 10.5 (recorder_cost, Xeon, medians of 20 runs, least 14.6 and 10.2).
//
// A reader takes the stamp (acquire), the words, the stamp again: where it has changed, it has seen
// nothing. Words are stored with release and loaded with acquire, so who has seen a word of the
// next writer sees its stamp, too. Some words change while a record is
// open, each by one store: a reader gets their old or their new value.
//
// `first` is the ticket at which the present process began; what is older is of its predecessor.
class TraceRing {
  public:
    static constexpr std::uint64_t kRecords = 4096;  // a power of two: 256 KiB, a quarter of an L2
    static constexpr std::size_t kWords = 7;
    using Words = std::array<std::uint64_t, kWords>;
    static constexpr std::uint64_t kState = 3;  // of a stamp
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
    struct Seen {
        std::uint64_t number;  // of this process's records, from 0
        bool is_open;
        Words words;
    };

    // A new process is the rank: it begins with nothing.
    void begin() noexcept;
    // Null where too many are open.
    Record* open(const Words& words) noexcept;
    // Oldest first. `dropped`: how many there were that are not in it (any more).
    [[nodiscard]] std::vector<Seen> read(std::uint64_t& dropped) const;
    // Those from a number on: who looks again and again need not read what it knows. Where there
    // were not as many, another process is the rank: all of its.
    [[nodiscard]] std::vector<Seen> read_from(std::uint64_t number) const;

  private:
    static bool look_at(const Record& record, std::uint64_t first, Seen& seen) noexcept;
    static void sort(std::vector<Seen>& found);
    [[nodiscard]] bool claim() noexcept;
    Record* take_next() noexcept;
    void pass_to(std::uint64_t next, std::uint64_t passed) noexcept;

    // Of whoever holds the claim, but for `missed_`.
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
