// A link kept in the arena; see memory_link.hpp for why it is right.
#include <algorithm>
#include <cstring>

#include "base/copy.hpp"
#include "base/placement.hpp"
#include "transport/memory_link.hpp"

namespace phalanx {

namespace {

// Moved at one go. Of a queue of 64 KiB, four: one is written while one is read, and neither end
// waits for the other's last look. Smaller ones cost more in counters than they gain.
constexpr std::size_t kStepBytes = std::size_t{16} << 10;
// Steps read until one is taken as a sample of how fast lines come: 0.2 us of 1 to 6.
constexpr unsigned kStepsPerSample = 4;

class ArenaLink final : public Link {
  public:
    ArenaLink(int peer, std::span<std::byte> own, std::span<const std::byte> theirs, Doorbell* bell,
              std::uint64_t epoch, bool is_always_far)
        : Link(peer),
          own_(reinterpret_cast<ArenaHalf*>(own.data())),
          theirs_(reinterpret_cast<const ArenaHalf*>(theirs.data())),
          capacity_(own.size() - ArenaHalf::kOverhead),
          bell_(bell),
          epoch_(epoch),
          head_(own_->head.load(std::memory_order_relaxed)),
          tail_(own_->tail.load(std::memory_order_relaxed)),
          placement_(is_always_far) {}

    [[nodiscard]] bool has_ended() noexcept override {
        return theirs_->ended_epoch.load(std::memory_order_acquire) == epoch_;
    }
    // seq_cst, against the doorbell's: one of producer and sleeper sees the other.
    [[nodiscard]] bool can_send() noexcept override {
        return head_ - theirs_->tail.load(std::memory_order_seq_cst) != capacity_;
    }
    [[nodiscard]] bool can_recv() noexcept override {
        return theirs_->head.load(std::memory_order_seq_cst) != tail_;
    }

  protected:
    std::size_t do_send(std::span<const std::byte> bytes) override {
        const std::uint64_t consumed = theirs_->tail.load(std::memory_order_acquire);
        if (consumed > head_ || head_ - consumed > capacity_) lose("its queue is corrupt");
        const auto room = capacity_ - (head_ - consumed);
        const auto size = std::min<std::uint64_t>({bytes.size(), kStepBytes, room});
        const auto at = head_ % capacity_;
        const auto first = std::min(size, capacity_ - at);
        const bool streams = size >= Placement::kSampleBytes &&
                             theirs_->wants_streaming.load(std::memory_order_relaxed) != 0;
        const auto copy = streams ? copy_streaming : copy_cached;
        copy(own_->data + at, bytes.data(), first);
        copy(own_->data + 0, bytes.data() + first, size - first);
        if (streams) streaming_fence();
        head_ += size;
        own_->head.store(head_, std::memory_order_seq_cst);
        if (size > 0 && bell_ != nullptr) bell_->ring_if_sleeping();
        return static_cast<std::size_t>(size);
    }

    std::size_t do_recv(std::span<std::byte> bytes) override {
        // The end is looked at first: what was produced before it is then all visible.
        const bool is_at_end = has_ended();
        const std::uint64_t produced = theirs_->head.load(std::memory_order_acquire);
        if (produced < tail_ || produced - tail_ > capacity_) lose("its queue is corrupt");
        const auto size = std::min<std::uint64_t>({bytes.size(), kStepBytes, produced - tail_});
        if (size == 0 && !bytes.empty() && is_at_end) lose(kClosedThere);
        const auto at = tail_ % capacity_;
        const auto first = std::min(size, capacity_ - at);
        if (first >= Placement::kSampleBytes) look_where_cores_sit(theirs_->data + at);
        copy_cached(bytes.data(), theirs_->data + at, first);
        copy_cached(bytes.data() + first, theirs_->data + 0, size - first);
        tail_ += size;
        own_->tail.store(tail_, std::memory_order_seq_cst);
        if (size > 0 && bell_ != nullptr) bell_->ring_if_sleeping();
        return static_cast<std::size_t>(size);
    }

    void do_finish() noexcept override {
        own_->ended_epoch.store(epoch_, std::memory_order_seq_cst);
        if (bell_ != nullptr) bell_->ring();
    }

  private:
    // Of a step that is about to be read: does it come fast? What was written past the caches is no
    // sample, and for one turn of the queue after the advice has changed it may be that.
    void look_where_cores_sit(const std::byte* step) noexcept {
        if (is_streamed_) {
            if (!placement_.wants_streaming(Clock::now())) advise(false);
        } else if (tail_ >= sampled_from_ && ++steps_ % kStepsPerSample == 0) {
            placement_.saw(read_sample(step));
            if (placement_.is_far()) advise(true);
        }
    }
    void advise(bool streaming) noexcept {
        is_streamed_ = streaming;
        sampled_from_ = tail_ + capacity_;
        own_->wants_streaming.store(streaming ? 1 : 0, std::memory_order_relaxed);
    }

    ArenaHalf* own_;
    const ArenaHalf* theirs_;
    std::uint64_t capacity_;
    Doorbell* bell_;
    std::uint64_t epoch_;
    std::uint64_t head_;
    std::uint64_t tail_;
    // Of who receives.
    Placement placement_;
    bool is_streamed_ = false;
    std::uint64_t sampled_from_ = 0;
    unsigned steps_ = 0;
};

}  // namespace

void reset_arena_half(std::span<std::byte> own) {
    auto* half = reinterpret_cast<ArenaHalf*>(own.data());
    half->head.store(0, std::memory_order_seq_cst);
    half->ended_epoch.store(0, std::memory_order_seq_cst);
    half->tail.store(0, std::memory_order_seq_cst);
    half->wants_streaming.store(0, std::memory_order_seq_cst);
}

std::unique_ptr<Link> make_arena_link(int peer, std::span<std::byte> own,
                                      std::span<const std::byte> theirs, Doorbell* bell,
                                      std::uint64_t epoch, bool is_always_far) {
    if (own.size() != theirs.size() || own.size() <= ArenaHalf::kOverhead) {
        throw UsageError("the two halves of a queue in the arena must be equal and not empty");
    }
    return std::make_unique<ArenaLink>(peer, own, theirs, bell, epoch, is_always_far);
}

}  // namespace phalanx
