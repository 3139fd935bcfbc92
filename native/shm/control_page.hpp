// Abort an epoch on a host: any rank, thread or supervisor wakes all waiting ranks through this
// page. The page also has the doorbells on which ranks sleep, and the ranks' state for the
// supervisor.
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
#include "os/descriptors.hpp"
#include "os/memory_map.hpp"
#include "os/sync.hpp"
#include "shm/heartbeat.hpp"
#include "shm/trace_ring.hpp"

namespace phalanx {

inline constexpr std::size_t kCacheLine = 128;  // two lines: the prefetcher fetches pairs

// Concurrency of a doorbell. Its rank sleeps on it; any thread or process rings. Sleeper:
// ++sleeping, check again, sleep. Ringer: publish, check sleeping, ring. All four accesses are
// seq_cst, so one of the two sees the other (Dekker), and no wake is lost; a sleep ends after 50 ms
// in any case.
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
    // Sleeps unless `awake()`; kBySignal if a signal handler ran.
    template <class Awake>
    Woken sleep(std::chrono::nanoseconds limit, Awake&& awake) noexcept {
        const auto seen = bell.load(std::memory_order_seq_cst);
        sleeping.fetch_add(1, std::memory_order_seq_cst);
        const Woken woken = awake() ? Woken::kYes : futex_wait(bell, seen, limit);
        sleeping.fetch_sub(1, std::memory_order_seq_cst);
        return woken;
    }
};

inline constexpr int kActivityChannels = 32;  // as many as the arena's

// Present operations of a rank, for its supervisor, which decides whether an operation can still
// complete. By channel, because a group and its splits may run at the same time. The one thread of
// the rank that holds a channel's turn writes the channel; any process reads it at any time. `done`
// is stored before `current` is cleared (release), and read after it: for a rank that is seen in no
// operation, `done` is up to date. `tag` identifies the channel's group: it is 0 while the other
// fields are reset, so a reader that finds the same tag before and after has read one group.
//
// `pair` is the message that the rank waits to send or to receive. Several threads of a rank may
// wait at once: the first one to wait is shown until it leaves, then another one that polls. Each
// thread puts its own word into an empty field and removes only this word (compare-and-swap).
struct alignas(kCacheLine) Activity {
    // Long wait of the user's code, not of the group's own thread. If several threads of the user
    // wait, `threads` says so, and the other fields are not reliable. `number` is stored last and
    // removed first; it is unique among the waits in this slot.
    struct LongWait {
        std::atomic<std::uint64_t> number;   // 0: none
        std::atomic<std::uint64_t> tag;      // of the group, as in Channel
        std::atomic<std::uint64_t> word;     // of the operation or message, or queued_word()
        std::atomic<std::uint64_t> looks;    // polls without success
        std::atomic<std::uint64_t> threads;  // kNoOthers: no other thread may act for the user
        std::atomic<std::uint64_t> count;    // number of waits in this slot
    };
    static constexpr std::uint64_t kNoOthers = 1;
    static constexpr std::uint64_t kMessageNumber = (std::uint64_t{1} << 36) - 1;  // mask in a word
    // A wait until at most `left` operations are queued in the group.
    static constexpr std::uint64_t kQueued = 0xFF;
    static constexpr std::uint64_t queued_word(std::uint64_t left) noexcept {
        return kQueued << 48 | left;
    }
    static constexpr bool is_queued(std::uint64_t word) noexcept { return word >> 48 == kQueued; }
    static constexpr std::uint64_t kWorldTag = std::uint64_t{1} << 63;  // combined with the epoch
    struct Channel {
        std::atomic<std::uint64_t> tag;
        std::atomic<std::uint64_t> current;  // word_of(kind, seq); 0: no operation
        std::atomic<std::uint64_t> done;     // the last operation completed, likewise
        std::atomic<std::uint64_t> queued;  // submitted to the group's thread, not over; read first
    };
    std::atomic<std::uint64_t> epoch;
    // (channel + 1) << 56 | is_recv << 52 | peer << 36 | number of the message, cut to 36 bits
    std::atomic<std::uint64_t> pair;
    Channel channels[kActivityChannels];
    LongWait wait;

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
               (seq & kMessageNumber);
    }
    struct MessageWord {
        int channel;
        bool is_recv;
        int peer;  // world rank
        std::uint64_t number;
        [[nodiscard]] const char* name() const noexcept { return is_recv ? "recv" : "send"; }
    };
    static constexpr MessageWord message_of(std::uint64_t word) noexcept {
        return {static_cast<int>(word >> 56) - 1, (word >> 52 & 1) != 0,
                static_cast<int>(word >> 36 & 0xFFFF), word & kMessageNumber};
    }
    void show(std::uint64_t word) noexcept {
        std::uint64_t nothing = 0;
        if (pair.load(std::memory_order_relaxed) == 0) pair.compare_exchange_strong(nothing, word);
    }
    void hide(std::uint64_t word) noexcept { pair.compare_exchange_strong(word, 0); }

    [[nodiscard]] Channel& of(int channel) noexcept {
        return channels[channel % kActivityChannels];
    }
    // The world's own group has the tag 0, which means "none" on the page. The shown tag has the
    // epoch, because one epoch's group may be closed after the next epoch's group has begun.
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
    // Does nothing if the next epoch has begun: a split keeps its tag, and may be there again.
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
    // Number of the last operation of a group that the rank has begun; queued operations count as
    // begun. None between two operations of the group's thread, because `queued` may then count a
    // completed one. Never too large.
    [[nodiscard]] std::optional<std::uint64_t> begun(int channel) noexcept;
};

// A stop holds a rank before its next operation, until another member has begun that operation too,
// or the rank's program is interrupted. This record has the held operation and the operations up to
// which the rank may go on; `phalanx.workspace` decides.
//
// Concurrency. Any thread that maps the page calls set, drop, release and lets in; only the thread
// to be held enters and leaves. `state` changes by compare-and-swap. The held thread writes
// `at_tag` and `at_word`, which belong to hold number `n_holds`: a reader reads this number before
// and after. `until` only grows while a group exists: a value of an earlier stop lets no rank into
// an operation that no member has begun. All accesses are seq_cst, because they are used in stops
// only; each operation costs only one relaxed load of `state`.
struct alignas(kCacheLine) Hold {
    enum State : std::uint32_t { kNone, kSet, kHeld };
    std::atomic<std::uint32_t> state;
    std::atomic<std::uint32_t> bell;
    std::atomic<std::uint64_t> thread;  // a this_thread_number()
    std::atomic<std::uint64_t> n_holds;
    std::atomic<std::uint64_t> at_tag;
    std::atomic<std::uint64_t> at_word;                   // as in Activity; 0: not known yet
    std::atomic<std::uint64_t> until[kActivityChannels];  // last allowed collective, by channel

    struct Position {
        std::uint64_t tag;
        std::uint64_t word;
    };

    void ring() noexcept {
        bell.fetch_add(1);
        futex_wake_all(bell);
    }
    // Hold a thread of the process before its next operation.
    void set(std::uint64_t the_thread) noexcept {
        thread.store(the_thread);
        std::uint32_t none = kNone;
        state.compare_exchange_strong(none, kSet);
    }
    // Called before the thread is interrupted. A held thread stays held until the interrupt; any
    // other thread will not be held, because its handling of the interrupt may need operations.
    // True if held.
    bool drop() noexcept {
        std::uint32_t set = kSet;
        state.compare_exchange_strong(set, kNone);
        return set == kHeld;
    }
    void release() noexcept {
        state.store(kNone);
        ring();
    }
    // Called by the thread to be held. False if the hold was dropped meanwhile.
    bool enter() noexcept {
        std::uint32_t set = kSet;
        n_holds.fetch_add(1);
        at_word.store(0);
        return state.compare_exchange_strong(set, kHeld);
    }
    void show(std::uint64_t tag, std::uint64_t word) noexcept {
        at_tag.store(tag);
        at_word.store(word);
    }
    void leave(bool is_over) noexcept {
        std::uint32_t held = kHeld;
        state.compare_exchange_strong(held, is_over ? kNone : kSet);
    }
    // The operation before which the thread is held, if it is held.
    [[nodiscard]] std::optional<Position> look() const noexcept {
        const auto before = n_holds.load();
        const Position seen{at_tag.load(), at_word.load()};
        const bool is_there = state.load() == kHeld && seen.word != 0;
        return is_there && n_holds.load() == before ? std::optional(seen) : std::nullopt;
    }
};
// Last message that a held rank may begin, for one lane.
using LetIn = std::atomic<std::uint64_t>;

// Number of messages between a rank and a peer in one direction, and whether the rank waits for the
// next one. So a reader can tell a message that is yet to come from one that will never be sent or
// received. One word, because both are only useful together. Written by the thread that holds the
// lane's turn (point_to_point.hpp), in a cache line that no other rank writes.
using MessageProgress = std::atomic<std::uint64_t>;
inline constexpr std::uint64_t kTallyWaits = std::uint64_t{1} << 63;

// Sums of a rank's bytes, operations and times since its slot was made, for samples. The thread
// that holds a channel's turn writes the channel's sums, with plain loads and stores; several
// threads count messages at once.
struct alignas(kCacheLine) TrafficCounters {
    struct Sums {
        std::atomic<std::uint64_t> operations;   // completed
        std::atomic<std::uint64_t> arena_bytes;  // of arrays that went through the arena
        std::atomic<std::uint64_t> inside_ns;    // from entering an operation to leaving it
        std::atomic<std::uint64_t> waiting_ns;   // the part until the last rank had come
    };
    Sums channels[kActivityChannels];
    Sums messages;
};
// Bytes that were sent to, or received from, one peer's wire.
using LinkBytes = std::atomic<std::uint64_t>;

// Call site of one operation of a rank, "train.py:31", for its peers' error texts and its
// supervisor. Written only when the operation fails or waits long, so by any thread of the rank; an
// odd `version` keeps other writers out. A reader reads the version, the fields, and the version
// again: if it has changed, or is odd, the reader drops the fields. A site is never removed: it
// belongs to the operation that (tag, word) name, as in Activity, and to no other.
struct alignas(kCacheLine) CallSite {
    static constexpr std::size_t kMaxText = 200;
    std::atomic<std::uint64_t> version;
    std::atomic<std::uint64_t> tag;
    std::atomic<std::uint64_t> word;
    std::atomic<std::uint64_t> length;
    std::atomic<std::uint64_t> text[kMaxText / 8];

    struct Published {
        std::uint64_t tag;
        std::uint64_t word;
        std::string text;
    };
    void write(std::uint64_t its_tag, std::uint64_t its_word, std::string_view its_text) noexcept;
    [[nodiscard]] std::optional<Published> read() const;
    void clear() noexcept;
};
// By channel, with collectives and messages apart: waits in two groups at once are both visible.
struct CallSiteTable {
    static constexpr int kCount = 8;
    CallSite sites[kCount];
};

// Concurrency of the page. `word` = epoch << 16 | author + 1 only ever grows in epoch, by
// compare-and-swap: the first abort of an epoch wins and is final; epoch E is aborted iff word >>
// 16 >= E. Each author (a slot, or the supervisor) has its own record, which it writes before it
// swaps the word: fields, then `valid` = epoch (release). A reader reads the word (acquire), then
// the record, then `valid` again: if `valid` is not the word's epoch before and after, the record
// is of another time and is dropped. Threads of one author exclude each other by `claim`. A thread
// that cannot get the claim within a short wait writes without it, so that a process that died with
// the claim cannot prevent an abort; the next process of a slot clears the claim. All fields are
// atomics: a torn read is detected and is not UB.
class ControlPage {
  public:
    static constexpr std::size_t kMaxText = 500;
    static constexpr int kMaxSlots = 4096;

    // A culprit (AbortReason::link) is a signed number with one rank in its upper 16 bits.
    static constexpr int kMaxRanks = 1 << 15;

    // `ranks`: number of ranks of the world, which may be more than this host's; 0: as many as
    // slots.
    static std::size_t nbytes(int slots, int ranks = 0);
    static void format(int fd, int slots, int ranks = 0);

    // Maps a page; `author` is a slot, or `slots` for the supervisor. A slot's heartbeat runs from
    // here until the page is unmapped.
    ControlPage(int fd, int slots, int author, std::span<const int> wake_fds);
    // A page in memory of this process only.
    static ControlPage in_process(int slots, int author, int ranks = 0);
    // The same page for another author in this process (tests: a rank per thread).
    [[nodiscard]] ControlPage view_as(int author) const;

    // True if this call was the first for the epoch.
    bool abort(std::uint64_t epoch, const AbortReason& reason) noexcept;
    [[nodiscard]] bool is_aborted(std::uint64_t epoch) const noexcept {
        return word_->load(std::memory_order_seq_cst) >> 16 >= epoch;
    }
    [[nodiscard]] std::optional<AbortReason> reason(std::uint64_t epoch) const;

    [[nodiscard]] Doorbell& doorbell(int slot) const noexcept { return doorbells_[slot]; }
    [[nodiscard]] Activity& activity(int slot) const noexcept { return activities_[slot]; }
    // Message progress of the rank in `slot` with a rank of the world; null beyond the ranks of the
    // page.
    [[nodiscard]] MessageProgress* tally(int slot, int channel, int peer,
                                         bool is_recv) const noexcept;
    [[nodiscard]] Hold& hold(int slot) const noexcept { return holds_[slot]; }
    // Last message that a held rank may begin in a lane; null if there is no tally.
    [[nodiscard]] LetIn* let_in(int slot, int channel, int peer, bool is_recv) const noexcept;
    [[nodiscard]] TrafficCounters& totals(int slot) const noexcept { return totals_[slot]; }
    // Counter of bytes to or from a rank of the world; null beyond the ranks of the page.
    [[nodiscard]] LinkBytes* wire(int slot, int peer, bool is_recv) const noexcept;
    [[nodiscard]] TraceRing& trace(int slot) const noexcept { return traces_[slot]; }
    // Begin the group `tag` in a channel of the rank in `slot`.
    void begin_group(int slot, int channel, std::uint64_t epoch, std::uint64_t tag) noexcept;
    // Publishes a call site of the rank in `slot`; the caller must wake the ranks that wait for it.
    void show_site(int slot, int channel, std::uint64_t tag, std::uint64_t word,
                   std::string_view text) const noexcept;
    void wake_sleepers() const noexcept;
    // Call site of this operation, if published; for a collective the kind may differ.
    [[nodiscard]] std::optional<std::string> site(int slot, std::uint64_t tag,
                                                  std::uint64_t word) const;
    // Call site of one of the rank's present operations.
    [[nodiscard]] std::optional<CallSite::Published> current_site(int slot) const;
    [[nodiscard]] CoreHint& core_hint(int slot) const noexcept {
        return heartbeat_slots_[slot].core_hint;
    }
    // Heartbeat counter of a slot's process: grows while the process runs; 0: no heartbeat.
    [[nodiscard]] std::uint64_t heartbeats(int slot) const noexcept {
        return heartbeat_slots_[slot].beats.load(std::memory_order_acquire);
    }
    // Expect no more heartbeats of a slot: its rank leaves, or (called by the supervisor) its
    // process is gone.
    void mark_stopped(int slot) noexcept {
        if (slot == author_) heartbeat_.reset();
        heartbeat_slots_[slot].beats.store(0, std::memory_order_release);
    }
    [[nodiscard]] int slots() const noexcept { return slots_; }
    [[nodiscard]] int ranks() const noexcept { return ranks_; }
    [[nodiscard]] int author() const noexcept { return author_; }

  private:
    struct AbortRecord {
        alignas(kCacheLine) std::atomic<std::uint32_t> claim;
        std::atomic<std::int32_t> kind;
        std::atomic<std::uint64_t> valid;
        std::atomic<std::int32_t> culprit;
        std::atomic<std::uint32_t> length;
        std::atomic<std::uint64_t> text[64];
    };
    struct PageHeader {
        std::uint64_t magic;
        std::uint32_t version;
        std::uint32_t slots;
        std::uint32_t ranks;
    };
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
    static_assert(std::is_standard_layout_v<AbortRecord> && sizeof(AbortRecord::text) > kMaxText);

    // Offsets of the parts of a page, in order.
    struct Layout {
        std::size_t doorbells, activities, holds, call_sites, heartbeat_slots, records, totals;
        std::size_t tallies, let_in, wires, traces, end;
    };
    static Layout layout_of(int slots, int ranks);

    ControlPage() = default;
    void bind(std::byte* base, int slots, int author);
    [[nodiscard]] std::size_t lane(int slot, int channel, int peer, bool is_recv) const noexcept;
    static void write_header(std::byte* base, int slots, int ranks) noexcept;
    static PageHeader read_header(const std::byte* base, int slots);
    static void write(AbortRecord& record, std::uint64_t epoch, const AbortReason& reason) noexcept;
    static std::optional<AbortReason> read(const AbortRecord& record, std::uint64_t epoch);

    Mapping mapping_;
    std::byte* base_ = nullptr;
    std::atomic<std::uint64_t>* word_ = nullptr;
    Doorbell* doorbells_ = nullptr;
    Activity* activities_ = nullptr;
    Hold* holds_ = nullptr;
    CallSiteTable* call_sites_ = nullptr;
    HeartbeatSlot* heartbeat_slots_ = nullptr;
    AbortRecord* records_ = nullptr;
    TrafficCounters* totals_ = nullptr;
    MessageProgress* tallies_ = nullptr;  // by slot, channel, peer, direction
    LetIn* let_in_ = nullptr;             // likewise
    LinkBytes* wires_ = nullptr;          // by slot, peer, direction
    TraceRing* traces_ = nullptr;
    int slots_ = 0;
    int ranks_ = 0;
    int author_ = 0;
    std::vector<Fd> wake_fds_;
    std::unique_ptr<Heartbeat> heartbeat_;  // last member: destroyed before the page is unmapped
};

// Returns at most `limit` bytes of `text`, cut between two characters of UTF-8.
std::string_view cut_text(std::string_view text, std::size_t limit) noexcept;

}  // namespace phalanx
