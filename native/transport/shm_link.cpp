// See shm_link.hpp for the correctness argument.
#include "transport/shm_link.hpp"

#include <algorithm>

#include "base/copy.hpp"
#include "transport/cache_distance.hpp"

namespace phalanx {

namespace {

// Bytes per step: one step is written while another is read. The queue has room for four and a
// rest. 1 MiB one way (Xeon, far) takes 165 us in steps and past the caches, 285 us in one step
// through the caches.
constexpr std::size_t kStepBytes = std::size_t{16} << 10;
// Least size of a streamed write. A reader checks each step of this size, or the rest of a step
// after a header that was read separately, so that old advice is always reconsidered.
constexpr std::size_t kStreamedBytes = 2 * CacheDistance::kSampleBytes;
// A sample costs 0.2 us, a step 1 to 6 us (16 KiB near and far).
constexpr unsigned kStepsPerSample = 4;

class ArenaLink final : public Link {
  public:
    ArenaLink(int peer, std::span<std::byte> own, std::span<const std::byte> theirs, Doorbell* bell,
              std::uint64_t epoch, bool is_always_far)
        : Link(peer),
          own_(reinterpret_cast<ArenaHalf*>(own.data())),
          theirs_(reinterpret_cast<const ArenaHalf*>(theirs.data())),
          own_data_(ArenaHalf::data_of(own)),
          their_data_(ArenaHalf::data_of(theirs)),
          capacity_(own.size() - sizeof(ArenaHalf)),
          bell_(bell),
          epoch_(epoch),
          head_(own_->head.load(std::memory_order_relaxed)),
          tail_(own_->tail.load(std::memory_order_relaxed)),
          cache_distance_(is_always_far) {}

    [[nodiscard]] bool has_ended() noexcept override {
        return theirs_->ended_epoch.load(std::memory_order_acquire) == epoch_;
    }
    // seq_cst, as the doorbell's accesses: producer or sleeper sees the other.
    [[nodiscard]] bool can_send() noexcept override {
        return head_ - theirs_->tail.load(std::memory_order_seq_cst) != capacity_;
    }
    [[nodiscard]] bool can_recv() noexcept override {
        return theirs_->head.load(std::memory_order_seq_cst) != tail_;
    }

  protected:
    std::size_t do_send(Parts parts) override {
        const auto bytes = first_of(parts);
        const std::uint64_t consumed = theirs_->tail.load(std::memory_order_acquire);
        if (consumed > head_ || head_ - consumed > capacity_) lose("its queue is corrupt");
        const auto room = capacity_ - (head_ - consumed);
        const auto size = std::min<std::uint64_t>({bytes.size(), kStepBytes, room});
        const auto at = head_ % capacity_;
        const auto first = std::min(size, capacity_ - at);
        const bool streams =
            size >= kStreamedBytes && theirs_->wants_streaming.load(std::memory_order_relaxed) != 0;
        const auto copy = streams ? copy_streaming : copy_cached;
        copy(own_data_ + at, bytes.data(), first);
        copy(own_data_, bytes.data() + first, size - first);
        if (streams) streaming_fence();
        head_ += size;
        own_->head.store(head_, std::memory_order_seq_cst);
        if (size > 0 && bell_ != nullptr) bell_->ring_if_sleeping();
        return static_cast<std::size_t>(size);
    }

    std::size_t do_recv(std::span<std::byte> bytes, std::span<std::byte> more) override {
        if (bytes.empty()) bytes = more;
        // Check the end first: all bytes produced before it are then visible.
        const bool is_at_end = has_ended();
        const std::uint64_t produced = theirs_->head.load(std::memory_order_acquire);
        if (produced < tail_ || produced - tail_ > capacity_) lose("its queue is corrupt");
        const auto size = std::min<std::uint64_t>({bytes.size(), kStepBytes, produced - tail_});
        if (size == 0 && !bytes.empty() && is_at_end) lose(kClosedThere);
        const auto at = tail_ % capacity_;
        const auto first = std::min(size, capacity_ - at);
        if (first >= CacheDistance::kSampleBytes) look_where_cores_sit(their_data_ + at);
        copy_cached(bytes.data(), their_data_ + at, first);
        copy_cached(bytes.data() + first, their_data_, size - first);
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
    // Measures how fast a step comes that is about to be read, and advises the writer: to write
    // past the caches while the cores are far. Withdraws the advice now and then, to measure again.
    void look_where_cores_sit(const std::byte* step) noexcept {
        if (own_->wants_streaming.load(std::memory_order_relaxed) != 0) {
            if (!cache_distance_.wants_streaming(Clock::now())) advise_streaming(false);
        } else if (tail_ >= sampled_from_ && ++steps_ % kStepsPerSample == 0) {
            cache_distance_.saw(read_sample(step));
            if (cache_distance_.is_far()) advise_streaming(true);
        }
    }
    void advise_streaming(bool is_wanted) noexcept {
        own_->wants_streaming.store(is_wanted ? 1 : 0, std::memory_order_relaxed);
        sampled_from_ = tail_ + capacity_;
    }

    ArenaHalf* own_;
    const ArenaHalf* theirs_;
    std::byte* own_data_;
    const std::byte* their_data_;
    std::uint64_t capacity_;
    Doorbell* bell_;
    std::uint64_t epoch_;
    std::uint64_t head_;
    std::uint64_t tail_;
    // Of this end as the receiver. Only data that came through a cache counts: for one round of the
    // queue after a change of advice, data may have come either way.
    CacheDistance cache_distance_;
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
    if (own.size() != theirs.size() || own.size() <= sizeof(ArenaHalf)) {
        throw UsageError("the two halves of a queue in the arena must be equal and not empty");
    }
    return std::make_unique<ArenaLink>(peer, own, theirs, bell, epoch, is_always_far);
}

}  // namespace phalanx
