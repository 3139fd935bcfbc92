// See shared_memory_team.hpp for the correctness argument.
#include "collectives/on_host/shared_memory_team.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/copy.hpp"

namespace phalanx {

namespace {
constexpr int kPhaseBits = 24;  // 16 million chunks per operation
constexpr std::size_t kAlign = 64;
}  // namespace

SharedMemoryTeam::SharedMemoryTeam(const Arena& arena, ControlPage& page, int channel,
                                   std::uint64_t epoch, std::uint64_t tag, std::vector<int> ranks,
                                   std::vector<int> slots, int me, HostTuning tuning,
                                   Waiter& waiter)
    : waiter_(waiter),
      me_(me),
      epoch_(epoch),
      tag_(tag),
      is_always_far_(tuning.is_always_far),
      cache_distance_(tuning.is_always_far) {
    const auto own = arena.own_channel(channel);
    // Two stages and two results; a result is one slice: at most half a chunk plus alignment.
    const std::size_t room = own.size() - sizeof(Control);
    chunk_nbytes_ = std::min(tuning.chunk_bytes, (room - 4 * kAlign) / 3) / kAlign * kAlign;
    // A chunk has room for one element of any dtype for every member.
    const std::size_t least = (ranks.size() * kLargestElement + kAlign - 1) / kAlign * kAlign;
    if (3 * least + 4 * kAlign > room) {
        throw UsageError("the regions of the arena are too small for " +
                         std::to_string(ranks.size()) + " ranks");
    }
    chunk_nbytes_ = std::max(chunk_nbytes_, least);
    own_ = reinterpret_cast<Control*>(own.data());
    own_staging_ = own.data() + sizeof(Control);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (slots[i] >= page.slots())
            throw UsageError("the control page has fewer slots than the arena");
        const std::byte* base =
            slots[i] == arena.own() ? own.data() : arena.channel(slots[i], channel).data();
        members_.push_back({ranks[i], slots[i], reinterpret_cast<const Control*>(base),
                            base + sizeof(Control), &page.doorbell(slots[i])});
    }
    own_->step.store(0, std::memory_order_seq_cst);
    own_->closed_epoch.store(0, std::memory_order_seq_cst);
    own_->tag.store(tag, std::memory_order_seq_cst);
    own_->epoch.store(epoch, std::memory_order_seq_cst);
}

void SharedMemoryTeam::publish_header(const Op& op, std::span<const std::byte> payload) {
    seq_ = op.seq;
    Slot& slot = own_->slots[seq_ & 1];
    slot.op = op;
    const bool is_large = is_always_far_ || op.nbytes() >= CacheDistance::kSampleBytes;
    first_is_nontemporal_ =
        is_large && cache_distance_.is_far() && cache_distance_.wants_streaming(Clock::now());
    slot.is_streamed = first_is_nontemporal_ ? 1 : 0;
    write_shared(slot.payload, payload.data(), payload.size(), 0);
    target_ = seq_ << kPhaseBits;
    advance_phase();
}

void SharedMemoryTeam::write_shared(std::byte* to, const std::byte* from, std::uint64_t nbytes,
                                    std::uint64_t chunk) {
    if (!uses_nontemporal(chunk)) return copy_cached(to, from, nbytes);
    copy_streaming(to, from, nbytes);
    has_nontemporal_ = true;
}

void SharedMemoryTeam::advance_phase() {
    if (has_nontemporal_) streaming_fence();
    has_nontemporal_ = false;
    ++target_;
    own_->step.store(target_, std::memory_order_seq_cst);
    for (int member = 0; member < size(); ++member) {
        if (member != me_) members_[index(member)].doorbell->ring_if_sleeping();
    }
}

void SharedMemoryTeam::await_member(int member) {
    if (has_come(member)) return;
    waiter_.wait_until([&] { return has_come(member); }, [&] { return missing(); });
}

void SharedMemoryTeam::await_members() {
    for (int member = 0; member < size(); ++member) {
        if (member != me_) await_member(member);
    }
}

void SharedMemoryTeam::await_headers(bool must_match) {
    bool is_early = false;
    for (int member = 0; member < size() && !is_early; ++member) {
        if (member == me_ || has_come(member)) continue;
        // All headers are awaited, so that all ranks name the same pair. But a rank that never
        // comes must not hide a mismatch among the others.
        waiter_.wait_until(
            [&] {
                is_early = must_match && waiter_.is_patience_over() && has_visible_mismatch();
                return is_early || has_come(member);
            },
            [&] { return missing(); });
    }
    if (must_match) check_headers();
}

bool SharedMemoryTeam::has_visible_mismatch() const {
    for (int member = 0; member < size(); ++member) {
        if (member != me_ && has_come(member) && op_of(member) != op_of(me_)) return true;
    }
    return false;
}

void SharedMemoryTeam::check_headers() const {
    int first = -1;  // the lowest member that has arrived; the others are compared with it
    for (int member = 0; member < size(); ++member) {
        if (!has_come(member)) continue;
        if (first < 0) {
            first = member;
        } else if (op_of(member) != op_of(first)) {
            const Op mine = op_of(member);
            const Op other = op_of(first);
            throw OpMismatch(rank(member), mine, rank(first), other);
        }
    }
}

void SharedMemoryTeam::await_leader() {
    advance_phase();
    if (!is_leader()) await_member(0);
}

MissingRanks SharedMemoryTeam::missing() const {
    MissingRanks who;
    for (int member = 0; member < size(); ++member) {
        if (member == me_) continue;
        // Load `closed` before the step: a rank that finished its part before it closed has
        // arrived.
        const Control& control = *members_[index(member)].control;
        const bool is_closed = control.closed_epoch.load(std::memory_order_seq_cst) == epoch_;
        if (has_come(member)) continue;
        who.ranks.push_back(rank(member));
        if (is_closed) who.closed_rank = rank(member);
    }
    return who;
}

const std::byte* SharedMemoryTeam::inline_payload(int member) const {
    return slot_of(member).payload;
}

std::size_t SharedMemoryTeam::result_offset(std::uint64_t chunk) const noexcept {
    return 2 * chunk_nbytes_ + (chunk & 1) * (chunk_nbytes_ / 2 + 2 * kAlign) / kAlign * kAlign;
}

std::byte* SharedMemoryTeam::own_stage(std::uint64_t chunk) const {
    return own_staging_ + (chunk & 1) * chunk_nbytes_;
}

const std::byte* SharedMemoryTeam::stage(int member, std::uint64_t chunk) const {
    return members_[index(member)].staging + (chunk & 1) * chunk_nbytes_;
}

std::byte* SharedMemoryTeam::own_result(std::uint64_t chunk) const {
    return own_staging_ + result_offset(chunk);
}

const std::byte* SharedMemoryTeam::result(int member, std::uint64_t chunk) const {
    return members_[index(member)].staging + result_offset(chunk);
}

bool SharedMemoryTeam::all_members_left() const noexcept {
    return std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
        const Control& control = *member.control;
        return control.tag.load(std::memory_order_seq_cst) != tag_ ||
               control.epoch.load(std::memory_order_seq_cst) != epoch_ ||
               control.closed_epoch.load(std::memory_order_seq_cst) == epoch_;
    });
}

void SharedMemoryTeam::close() noexcept {
    own_->closed_epoch.store(epoch_, std::memory_order_seq_cst);
    for (const Member& member : members_) member.doorbell->ring();
}

}  // namespace phalanx
