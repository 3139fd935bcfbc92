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
// takes a ticket (one atomic add) and claims the record of that ticket by compare-and-swap of its
// `stamp` = ticket << 2 | state. One that is still open, as its operation runs, is passed over: so
// nobody waits, nobody writes where another does, and what hangs is never overwritten. From the
// claim until it is closed a record is its writer's, who needs no more atomic operations than
// stores: `stamp` says kWriting before the first word changes, and kOpen after the last.
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

    struct alignas(64) Record {
        std::atomic<std::uint64_t> stamp;
        std::atomic<std::uint64_t> words[kWords];

        void set(std::size_t word, std::uint64_t value) noexcept {
            words[word].store(value, std::memory_order_release);
        }
        void close() noexcept {
            const auto mine = stamp.load(std::memory_order_relaxed);
            stamp.store((mine & ~kState) | kClosed, std::memory_order_release);
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

    static constexpr std::uint64_t kState = 3;
    enum State : std::uint64_t { kNever, kWriting, kOpen, kClosed };

    alignas(128) std::atomic<std::uint64_t> next_;
    std::atomic<std::uint64_t> first_;
    std::atomic<std::uint64_t> passed_over_;  // tickets that became no record
    std::atomic<std::uint64_t> missed_;       // operations that got no record
    alignas(128) Record records_[kRecords];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(TraceRing::Record) == 64);

}  // namespace phalanx
