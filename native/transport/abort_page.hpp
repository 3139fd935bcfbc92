// The page through which any rank, thread or supervisor of a host frees all ranks that wait, and
// the doorbells on which they sleep. Knows nothing of operations or algorithms.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/fd.hpp"
#include "base/futex.hpp"
#include "base/mapping.hpp"
#include "base/wake.hpp"
#include "transport/heart.hpp"
#include "transport/trace_ring.hpp"

namespace phalanx {

inline constexpr std::size_t kCacheLine = 128;  // two lines: the prefetcher fetches pairs

// Concurrency of a doorbell. Its rank sleeps on it; anybody rings. Sleeper: ++sleeping, look again,
// sleep. Ringer: publish, look at sleeping, ring. All four accesses are seq_cst, so one of the two
// sees the other (Dekker), and no wake is lost; a sleep ends after 50 ms in any case.
struct alignas(kCacheLine) Doorbell {
    std::atomic<std::uint32_t> bell;
    std::atomic<std::uint32_t> sleeping;

    void ring_if_sleeping() noexcept {
        if (sleeping.load(std::memory_order_seq_cst) != 0) ring();
    }
    void ring() noexcept {
        bell.fetch_add(1, std::memory_order_seq_cst);
        futex_wake_all(bell);
    }
    // Sleeps unless `awake()` says that there is no need; kBySignal if a signal handler ran.
    template <class Awake>
    Woken sleep(std::chrono::nanoseconds limit, Awake&& awake) noexcept {
        const auto seen = bell.load(std::memory_order_seq_cst);
        sleeping.fetch_add(1, std::memory_order_seq_cst);
        const Woken woken = awake() ? Woken::kYes : futex_wait(bell, seen, limit);
        sleeping.fetch_sub(1, std::memory_order_seq_cst);
        return woken;
    }
};

inline constexpr int kActivityChannels = 32;  // as the arena has

// What a rank is in the middle of, for its supervisor: whether an operation that others wait in can
// still come to pass. By channel, as a group and its splits may be at work at the same time; each
// is written by the one thread of the rank whose turn it is there, and read by anybody at any time.
// `done` is stored before `current` is cleared (release), and read after it: a rank that is seen to
// be in nothing has its last number in place. `tag` says which group the channel is of: it is 0
// while the rest is made anew, so who finds the same tag before and after has read of one group.
//
// `pair` is the message it waits to send or to receive. Several threads of a rank may wait at once:
// the first to wait is shown until it leaves, then another one that looks around; each puts its own
// word in an empty field and takes out nothing but that (compare-and-swap).
struct alignas(kCacheLine) Activity {
    static constexpr std::uint64_t kWorldTag = std::uint64_t{1} << 63;  // and the epoch
    struct Channel {
        std::atomic<std::uint64_t> tag;
        std::atomic<std::uint64_t> current;  // word_of(kind, seq); 0: in nothing
        std::atomic<std::uint64_t> done;     // the last operation completed, likewise
        std::atomic<std::uint64_t> queued;  // handed to the group's thread and not over; read first
    };
    std::atomic<std::uint64_t> epoch;
    // (channel + 1) << 56 | is_recv << 52 | peer << 36 | number of the message, cut to 36 bits
    std::atomic<std::uint64_t> pair;
    Channel channels[kActivityChannels];

    static constexpr std::uint64_t word_of(int kind, std::uint64_t seq) noexcept {
        return static_cast<std::uint64_t>(kind) << 48 | seq;
    }
    static constexpr std::uint64_t seq_of(std::uint64_t word) noexcept {
        return word & ((std::uint64_t{1} << 48) - 1);
    }
    static constexpr bool is_message(std::uint64_t word) noexcept { return word >> 56 != 0; }
    static constexpr std::uint64_t word_of(int channel, bool is_recv, int peer,
                                           std::uint64_t seq) noexcept {
        return static_cast<std::uint64_t>(channel + 1) << 56 |
               static_cast<std::uint64_t>(is_recv) << 52 | static_cast<std::uint64_t>(peer) << 36 |
               (seq & ((std::uint64_t{1} << 36) - 1));
    }
    void show(std::uint64_t word) noexcept {
        std::uint64_t nothing = 0;
        if (pair.load(std::memory_order_relaxed) == 0) pair.compare_exchange_strong(nothing, word);
    }
    void hide(std::uint64_t word) noexcept { pair.compare_exchange_strong(word, 0); }

    [[nodiscard]] Channel& of(int channel) noexcept {
        return channels[channel % kActivityChannels];
    }
    // The world's own group has the tag 0, which on the page means: none. With its epoch, as one
    // epoch's group may be closed after the next one's has begun.
    static std::uint64_t shown(std::uint64_t tag, std::uint64_t number) noexcept {
        return tag == 0 ? kWorldTag | number : tag;
    }

    void begin_group(int channel, std::uint64_t number, std::uint64_t tag) noexcept {
        Channel& it = of(channel);
        it.tag.store(0, std::memory_order_seq_cst);
        it.current.store(0, std::memory_order_release);
        it.done.store(0, std::memory_order_release);
        it.queued.store(0, std::memory_order_release);
        epoch.store(number, std::memory_order_release);
        it.tag.store(shown(tag, number), std::memory_order_seq_cst);
    }
    // Not where the next epoch has begun: a split keeps its tag, and may stand there again.
    void end_group(int channel, std::uint64_t number, std::uint64_t tag) noexcept {
        if (epoch.load(std::memory_order_acquire) != number) return;
        std::uint64_t mine = shown(tag, number);
        of(channel).tag.compare_exchange_strong(mine, 0, std::memory_order_seq_cst);
    }
    void enter(int channel, std::uint64_t word) noexcept {
        of(channel).current.store(word, std::memory_order_release);
    }
    void queue(int channel, int more) noexcept {
        of(channel).queued.fetch_add(static_cast<std::uint64_t>(more), std::memory_order_acq_rel);
    }
    void leave(int channel, std::uint64_t word, bool is_done) noexcept {
        if (is_done) of(channel).done.store(word, std::memory_order_release);
        of(channel).current.store(0, std::memory_order_release);
    }
};

// How many messages a rank has passed with a peer in one direction, and whether it waits for the
// next one: so anybody can tell a message that is yet to come from one that nobody will ever send
// or take. One word, as the two are of use only together; written by the thread whose turn it is
// in that lane (pairs.hpp), and no cache line of another rank.
using Tally = std::atomic<std::uint64_t>;
inline constexpr std::uint64_t kTallyWaits = std::uint64_t{1} << 63;

// What a rank has moved and how long that took, since its slot was made: for whoever samples it. Of
// a channel it is written by the thread whose turn it is there, so by loads and stores; messages
// are counted by several threads at once.
struct alignas(kCacheLine) Totals {
    struct Sums {
        std::atomic<std::uint64_t> operations;   // completed
        std::atomic<std::uint64_t> arena_bytes;  // of arrays that went through the arena
        std::atomic<std::uint64_t> inside_ns;    // from entering an operation to leaving it
        std::atomic<std::uint64_t> waiting_ns;   // of that, until the last rank had come
    };
    Sums channels[kActivityChannels];
    Sums messages;
};
// Bytes that were given to wires, or taken from them.
using WireBytes = std::atomic<std::uint64_t>;

// Where a rank has called one operation, "train.py:31": for its peers' error texts and for its
// supervisor. Written only once the operation fails or waits long, so by any thread of the rank;
// these exclude each other by an odd `version`. A reader takes the version, the fields, and the
// version again: where it has changed, or is odd, it has seen nothing. Nobody takes a site out: it
// is of the operation that (tag, word) name, as in Activity, and of no other.
struct alignas(kCacheLine) Site {
    static constexpr std::size_t kMaxText = 200;
    std::atomic<std::uint64_t> version;
    std::atomic<std::uint64_t> tag;
    std::atomic<std::uint64_t> word;
    std::atomic<std::uint64_t> length;
    std::atomic<std::uint64_t> text[kMaxText / 8];

    struct Seen {
        std::uint64_t tag;
        std::uint64_t word;
        std::string text;
    };
    void write(std::uint64_t its_tag, std::uint64_t its_word, std::string_view its_text) noexcept;
    [[nodiscard]] std::optional<Seen> read() const;
    void clear() noexcept;
};
// By channel, collectives and messages apart: what waits in two groups at once is both seen.
struct Sites {
    static constexpr int kCount = 8;
    Site sites[kCount];
};

// Concurrency of the page. `word` = epoch << 16 | author + 1 only ever grows in epoch, by
// compare-and-swap: the first abort of an epoch wins and is final; epoch E is aborted iff
// word >> 16 >= E. Each author (a slot, or the supervisor) has a record of its own, which it writes
// before it swaps the word: fields, then `valid` = epoch (release). A reader takes the word
// (acquire), then the record, then `valid` once more: if that is not the word's epoch before and
// after, the record is of another time and is not believed. Threads of one author exclude each
// other by `claim`; a claim whose holder died is taken over after a short wait, so that no dead
// process can keep the living from aborting. All fields are atomics: a torn read is seen, not UB.
class AbortPage {
  public:
    static constexpr std::size_t kMaxText = 500;
    static constexpr int kMaxSlots = 4096;

    static constexpr int kMaxRanks = 1 << 16;

    // `ranks`: of the world, which may have more than this host; 0: as many as slots.
    static std::size_t nbytes(int slots, int ranks = 0);
    static void format(int fd, int slots, int ranks = 0);

    // Maps a page; `author` is a slot, or `slots` for the supervisor. A slot's heart beats from
    // here on, until the page is unmapped.
    AbortPage(int fd, int slots, int author, std::span<const int> wake_fds);
    // A page that only this process knows.
    static AbortPage in_process(int slots, int author, int ranks = 0);
    // The same page, seen by another author in this process (tests: a rank per thread).
    [[nodiscard]] AbortPage view_as(int author) const;

    // True if this call was the first for the epoch.
    bool abort(std::uint64_t epoch, const Reason& reason) noexcept;
    [[nodiscard]] bool is_aborted(std::uint64_t epoch) const noexcept {
        return word_->load(std::memory_order_seq_cst) >> 16 >= epoch;
    }
    [[nodiscard]] std::optional<Reason> reason(std::uint64_t epoch) const;

    [[nodiscard]] Doorbell& doorbell(int slot) const noexcept { return doorbells_[slot]; }
    [[nodiscard]] Activity& activity(int slot) const noexcept { return activities_[slot]; }
    // Of the rank in `slot`, with this rank of the world; none beyond the ranks of the page.
    [[nodiscard]] Tally* tally(int slot, int channel, int peer, bool is_recv) const noexcept;
    [[nodiscard]] Totals& totals(int slot) const noexcept { return totals_[slot]; }
    // To or from a rank of the world; none beyond the ranks of the page.
    [[nodiscard]] WireBytes* wire(int slot, int peer, bool is_recv) const noexcept;
    [[nodiscard]] TraceRing& trace(int slot) const noexcept { return traces_[slot]; }
    // The group `tag` begins in a channel of the rank in `slot`.
    void begin_group(int slot, int channel, std::uint64_t epoch, std::uint64_t tag) noexcept;
    // Says where the rank in `slot` has called an operation; who waits to hear it must be woken.
    void show_site(int slot, int channel, std::uint64_t tag, std::uint64_t word,
                   std::string_view text) const noexcept;
    void wake_sleepers() const noexcept;
    // Where it has called that one, if it has said so; of a collective the kind may be another.
    [[nodiscard]] std::optional<std::string> site(int slot, std::uint64_t tag,
                                                  std::uint64_t word) const;
    // One of those that it is in at this moment.
    [[nodiscard]] std::optional<Site::Seen> current_site(int slot) const;
    [[nodiscard]] Seat& seat(int slot) const noexcept { return pulses_[slot].seat; }
    // The sign of life of a slot's process: it grows while that runs; 0: it gives none.
    [[nodiscard]] std::uint64_t beats(int slot) const noexcept {
        return pulses_[slot].beats.load(std::memory_order_acquire);
    }
    // From now on no sign is to be expected of a slot: its rank leaves, or (said by the supervisor)
    // its process is gone.
    void still(int slot) noexcept {
        if (slot == author_) heart_.reset();
        pulses_[slot].beats.store(0, std::memory_order_release);
    }
    [[nodiscard]] int slots() const noexcept { return slots_; }
    [[nodiscard]] int ranks() const noexcept { return ranks_; }
    [[nodiscard]] int author() const noexcept { return author_; }

  private:
    struct Record {
        alignas(kCacheLine) std::atomic<std::uint32_t> claim;
        std::atomic<std::int32_t> kind;
        std::atomic<std::uint64_t> valid;
        std::atomic<std::int32_t> culprit;
        std::atomic<std::uint32_t> length;
        std::atomic<std::uint64_t> text[64];
    };
    struct Header {
        std::uint64_t magic;
        std::uint32_t version;
        std::uint32_t slots;
        std::uint32_t ranks;
    };
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
    static_assert(std::is_standard_layout_v<Record> && sizeof(Record::text) > kMaxText);

    AbortPage() = default;
    void bind(std::byte* base, int slots, int author);
    static void write_header(std::byte* base, int slots, int ranks) noexcept;
    static Header read_header(const std::byte* base, int slots);
    static void write(Record& record, std::uint64_t epoch, const Reason& reason) noexcept;
    static std::optional<Reason> read(const Record& record, std::uint64_t epoch);

    Mapping mapping_;
    std::byte* base_ = nullptr;
    std::atomic<std::uint64_t>* word_ = nullptr;
    Doorbell* doorbells_ = nullptr;
    Activity* activities_ = nullptr;
    Sites* sites_ = nullptr;
    Pulse* pulses_ = nullptr;
    Record* records_ = nullptr;
    Totals* totals_ = nullptr;
    Tally* tallies_ = nullptr;    // by slot, channel, peer, direction
    WireBytes* wires_ = nullptr;  // by slot, peer, direction
    TraceRing* traces_ = nullptr;
    int slots_ = 0;
    int ranks_ = 0;
    int author_ = 0;
    std::vector<Fd> wake_fds_;
    std::unique_ptr<Heart> heart_;  // last: it ends before the page is unmapped
};

// At most `limit` bytes of `text`, cut between two characters of UTF-8.
std::string_view cut_text(std::string_view text, std::size_t limit) noexcept;

}  // namespace phalanx
