// The ranks of one host, seen through their arena: headers, steps and staging memory. The
// algorithms on top are in host_algorithms.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/placement.hpp"
#include "collectives/op.hpp"
#include "transport/arena.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

// What is measured best on two cores (native/DESIGN.md); tests make all of it small.
struct HostTuning {
    std::size_t inline_bytes = std::size_t{16} << 10;
    std::size_t chunk_bytes = std::size_t{256} << 10;
    // Always write past the caches, however small and wherever the cores sit: for tests.
    bool is_always_far = false;
};

// Concurrency. Each rank writes only its own channel; peers read it.
//
// `step` = seq << 24 | phase only grows. A rank stores it (seq_cst, so release) after it has
// written what the phase promises, then rings the peers that sleep; a peer that has loaded a step
// (seq_cst, so acquire) at least as large may read what was promised. That store and the load of
// `sleeping` in the doorbell, against the sleeper's pair, is why it is seq_cst and not release.
//
// Two header slots, by parity of seq, suffice: a rank writes the slot of operation s + 2 only after
// it has left s + 1, in which it saw phase 1 of s + 1 from every peer, and a peer posts that only
// after it has left s. For the same reason all staging memory is free once the headers of an
// operation have been met.
//
// Within an operation every rank makes the same number of posts, so a phase means the same to all.
// Staging chunks and results lie in two buffers each, by parity of the chunk; why that suffices is
// argued at each algorithm.
//
// The end of a group: `closed_epoch` says that this rank has left. A channel may be given to
// another group of the same epoch only when each of its members has left the old one (or has made
// another in that channel, which it does only after that): until then it may still read here.
//
// A new epoch: the constructor resets the own channel, and the callers meet (rendezvous) before the
// first operation. That is the quarantine of what the old one left: a rank comes to the first
// meeting of a new epoch when the old one was aborted on its host and no thread of it is inside any
// group of that (Group::settle), and no rank writes for the new one before that meeting is
// complete. A rank that does not come (frozen) holds it up, until it comes or is dead. Should one
// still read, it sees nonsense, looks at the abort word after its last read, and believes none of
// it.
class HostTeam {
  public:
    static constexpr std::size_t kInlineBytes = std::size_t{32} << 10;

    // Members in rank order; ranks[i] has arena slot slots[i]; the own one is `me`.
    HostTeam(const Arena& arena, AbortPage& page, int channel, std::uint64_t epoch,
             std::uint64_t tag, std::vector<int> ranks, std::vector<int> slots, int me,
             HostTuning tuning);

    [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
    [[nodiscard]] int me() const noexcept { return me_; }
    [[nodiscard]] bool is_leader() const noexcept { return me_ == 0; }
    [[nodiscard]] int rank(int member) const { return members_[index(member)].rank; }
    [[nodiscard]] std::size_t inline_limit() const noexcept { return inline_limit_; }
    [[nodiscard]] std::size_t chunk_nbytes() const noexcept { return chunk_nbytes_; }

    // Phase 1: writes the header and a small payload.
    void announce(const Op& op, std::span<const std::byte> payload);
    // Waits for the headers of all members, then (if `judge`) compares them; throws Mismatch.
    void meet(Waiter& waiter, bool judge);
    void judge() const;
    // Members go on only when the leader has gone on.
    void pass_gate(Waiter& waiter);

    void post();
    // Waits until a member has made as many posts as this rank.
    void await(int member, Waiter& waiter);
    void await_all(Waiter& waiter);
    // Before a second walk over the staging memory in one operation: the peers have read the first.
    void fence(Waiter& waiter) {
        post();
        await_all(waiter);
    }

    // Writes into the own staging memory for peers to read, the way that suits where the cores
    // sit now; published by the next post.
    void share(std::byte* to, const std::byte* from, std::uint64_t nbytes, std::uint64_t chunk);
    // Whether chunk `chunk` of this operation is written past the caches.
    [[nodiscard]] bool streams(std::uint64_t chunk) const noexcept {
        return chunk == 0 ? streams_first_ : placement_.is_far();
    }
    // Looks at how fast what the peers wrote through their caches can be read: `nbytes` at
    // `where(member)`, from the first chunk or the inline payload.
    template <class Where>
    void sample(std::uint64_t nbytes, const Where& where) {
        if (nbytes < Placement::kSampleBytes) return;
        // Near, one operation in four: a sample is 0.2 us.
        if (!placement_.is_far() && (seq_ & 3) != 0) return;
        Placement::Nanoseconds slowest{-1};
        for (int member = 0; member < size(); ++member) {
            if (member == me_ || slot_of(member).is_streamed != 0) continue;
            slowest = std::max(slowest, read_sample(where(member)));
        }
        if (slowest.count() >= 0) placement_.saw(slowest);
    }

    [[nodiscard]] const std::byte* inline_payload(int member) const;
    [[nodiscard]] std::byte* own_stage(std::uint64_t chunk) const;
    [[nodiscard]] const std::byte* stage(int member, std::uint64_t chunk) const;
    [[nodiscard]] std::byte* own_result(std::uint64_t chunk) const;
    [[nodiscard]] const std::byte* result(int member, std::uint64_t chunk) const;

    // Tells peers that still expect this rank that it will not come. noexcept: a store.
    void close() noexcept;
    // After close(): nobody reads this rank's channel any more.
    [[nodiscard]] bool is_left_by_all() const noexcept;

  private:
    struct Slot {
        Op op;
        // The payload, or the first chunk, was written past the caches: no sample for readers.
        alignas(16) std::uint32_t is_streamed;
        alignas(kCacheLine) std::byte payload[kInlineBytes];
    };
    struct Control {
        alignas(kCacheLine) std::atomic<std::uint64_t> step;
        std::atomic<std::uint64_t> epoch;
        std::atomic<std::uint64_t> closed_epoch;
        std::atomic<std::uint64_t> tag;  // which group it is: splits of one epoch follow each other
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
    [[nodiscard]] Missing missing() const;
    [[nodiscard]] bool has_visible_mismatch() const;
    [[nodiscard]] std::size_t result_offset(std::uint64_t chunk) const noexcept;

    std::vector<Member> members_;
    int me_;
    std::uint64_t epoch_;
    std::uint64_t tag_;
    Control* own_;
    std::byte* own_staging_;
    std::size_t inline_limit_;
    std::size_t chunk_nbytes_;
    std::uint64_t seq_ = 0;
    std::uint64_t target_ = 0;  // the step that this rank has posted last
    bool is_always_far_;
    Placement placement_;
    bool streams_first_ = false;  // of this operation
    bool has_streamed_ = false;   // since the last post
};

}  // namespace phalanx
