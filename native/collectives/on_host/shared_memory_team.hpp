// The ranks of one host in their arena: headers, steps and staging memory. host_collectives.hpp has
// the algorithms.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "collectives/operation/op.hpp"
#include "shm/arena.hpp"
#include "transport/cache_distance.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

// Best values measured on two cores (tests/bench/engine/MEASUREMENTS.md); tests use small values.
struct HostTuning {
    std::size_t inline_bytes = std::size_t{16} << 10;  // at most SharedMemoryTeam::kInlineBytes
    std::size_t chunk_bytes = std::size_t{256} << 10;
    // For tests: always use streaming stores, whatever the size and the cores.
    bool is_always_far = false;
};

// Concurrency. Each rank writes only its own channel; peers read it.
//
// `step` = seq << 24 | phase only grows. A rank writes the data of a phase, stores `step` (seq_cst,
// so release) and wakes the sleeping peers. A peer that has loaded the same or a larger step
// (seq_cst, so acquire) may read the data. seq_cst and not release, because of this pair: the rank
// stores `step` and loads `sleeping`; the sleeper stores `sleeping` and loads `step`.
//
// Two header slots, by parity of seq, suffice. A rank writes the slot of operation s + 2 only after
// it has left s + 1. In s + 1 it saw phase 1 of every peer, and a peer posts that phase only after
// it has left s. For the same reason all staging memory is free once the headers of an operation
// have been exchanged.
//
// Within an operation every rank makes the same number of posts, so a phase means the same on all
// ranks. Staged chunks and results use two buffers each, by parity of the chunk; each algorithm
// says why two suffice.
//
// The end of a group: `closed_epoch` says that this rank has left. A channel may be given to
// another group of the same epoch only after every member has left the old group (or has made
// another group in that channel, which it does only after leaving): until then a member may still
// read here.
//
// A new epoch: the constructor resets the own channel, and the callers meet (rendezvous) before the
// first operation. The rendezvous protects the memory of the old epoch: a rank joins the first
// rendezvous of a new epoch after the old epoch was aborted on its host and no thread of the rank
// is inside any group of the old epoch (Group::wait_until_idle). No rank writes for the new epoch
// before that rendezvous is complete. A frozen rank delays the rendezvous until it comes or is
// dead.
//
// One data race remains. Header, payload and staging memory are plain memory, and a rank that was
// declared dead while it was frozen may read them while a rank of the next epoch writes. In
// C++ this is undefined; here it is harmless. The bytes are trivially copyable, and
// nothing read from them is followed as a pointer or used as a size before check_headers. Reader
// and writer are different processes, so no compiler sees both. The reader checks the abort word
// after its last read (Waiter::check_still_theirs, behind a fence for loads) and discards what it
// has read. Within an epoch there is no race: the tests run ranks as threads under the thread
// sanitizer. It cannot see this one, because it does not look into other processes.
class SharedMemoryTeam {
  public:
    static constexpr std::size_t kInlineBytes = std::size_t{32} << 10;

    // Members in rank order; rank ranks[i] has arena slot slots[i]; `me` is this rank's index.
    SharedMemoryTeam(const Arena& arena, ControlPage& page, int channel, std::uint64_t epoch,
                     std::uint64_t tag, std::vector<int> ranks, std::vector<int> slots, int me,
                     HostTuning tuning, Waiter& waiter);

    [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
    [[nodiscard]] int me() const noexcept { return me_; }
    [[nodiscard]] bool is_leader() const noexcept { return me_ == 0; }
    [[nodiscard]] int rank(int member) const { return members_[index(member)].rank; }
    [[nodiscard]] std::size_t chunk_nbytes() const noexcept { return chunk_nbytes_; }

    // Phase 1: writes the header and a small payload.
    void publish_header(const Op& op, std::span<const std::byte> payload);
    // Waits for the headers of all members; compares them if `must_match`, and throws Mismatch.
    void await_headers(bool must_match);
    void check_headers() const;
    // Members continue only after the leader has called it.
    void await_leader();

    void advance_phase();
    // Waits until a member has made as many posts as this rank.
    void await_member(int member);
    void await_members();
    // Before the staging memory is used a second time in one operation: waits until the peers have
    // read the first data.
    void phase_barrier() {
        advance_phase();
        await_members();
    }

    // Copies into this rank's staging buffer, with streaming stores if the cores share no cache.
    // Visible to the peers after the next advance_phase().
    void write_shared(std::byte* to, const std::byte* from, std::uint64_t nbytes,
                      std::uint64_t chunk);
    // Whether chunk `chunk` of this operation uses streaming stores.
    [[nodiscard]] bool uses_nontemporal(std::uint64_t chunk) const noexcept {
        return chunk == 0 ? first_is_nontemporal_ : cache_distance_.is_far();
    }
    // Samples how fast data that the peers wrote through their caches can be read: `nbytes` bytes
    // at `where(member)`, from the first chunk or the inline payload.
    template <class Where>
    void measure_reads(std::uint64_t nbytes, const Where& where) {
        if (nbytes < CacheDistance::kSampleBytes) return;
        // On near cores only one operation in four: a sample takes 0.2 us.
        if (!cache_distance_.is_far() && (seq_ & 3) != 0) return;
        CacheDistance::Nanoseconds slowest{-1};
        for (int member = 0; member < size(); ++member) {
            if (member == me_ || slot_of(member).is_streamed != 0) continue;
            slowest = std::max(slowest, read_sample(where(member)));
        }
        if (slowest.count() >= 0) cache_distance_.saw(slowest);
    }

    [[nodiscard]] const std::byte* inline_payload(int member) const;
    [[nodiscard]] std::byte* own_stage(std::uint64_t chunk) const;
    [[nodiscard]] const std::byte* stage(int member, std::uint64_t chunk) const;
    [[nodiscard]] std::byte* own_result(std::uint64_t chunk) const;
    [[nodiscard]] const std::byte* result(int member, std::uint64_t chunk) const;

    // Tells peers that still expect this rank that it will not come. noexcept: it is one store.
    void close() noexcept;
    // After close(): whether all peers have stopped reading this rank's channel.
    [[nodiscard]] bool all_members_left() const noexcept;

  private:
    struct Slot {
        Op op;
        // The payload, or the first chunk, used streaming stores, so readers must not sample it.
        alignas(16) std::uint32_t is_streamed;
        alignas(kCacheLine) std::byte payload[kInlineBytes];
    };
    struct Control {
        alignas(kCacheLine) std::atomic<std::uint64_t> step;
        std::atomic<std::uint64_t> epoch;
        std::atomic<std::uint64_t> closed_epoch;
        std::atomic<std::uint64_t> tag;  // identifies the group: splits of one epoch reuse channels
        alignas(kCacheLine) Slot slots[2];
    };
    static_assert(std::is_trivially_copyable_v<Slot>);
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

    struct Member {
        int rank;
        int slot;
        const Control* control;
        const std::byte* staging;
        Doorbell* doorbell;
    };

    static std::size_t index(int member) noexcept { return static_cast<std::size_t>(member); }
    [[nodiscard]] bool has_come(int member) const noexcept {
        return members_[index(member)].control->step.load(std::memory_order_seq_cst) >= target_;
    }
    [[nodiscard]] const Slot& slot_of(int member) const {
        return members_[index(member)].control->slots[seq_ & 1];
    }
    [[nodiscard]] const Op& op_of(int member) const { return slot_of(member).op; }
    [[nodiscard]] MissingRanks missing() const;
    [[nodiscard]] bool has_visible_mismatch() const;
    [[nodiscard]] std::size_t result_offset(std::uint64_t chunk) const noexcept;

    std::vector<Member> members_;
    Waiter& waiter_;
    int me_;
    std::uint64_t epoch_;
    std::uint64_t tag_;
    Control* own_;
    std::byte* own_staging_;
    std::size_t chunk_nbytes_;
    std::uint64_t seq_ = 0;
    std::uint64_t target_ = 0;  // the last step that this rank has posted
    bool is_always_far_;
    CacheDistance cache_distance_;
    bool first_is_nontemporal_ = false;  // of this operation
    bool has_nontemporal_ = false;       // since the last post
};

}  // namespace phalanx
