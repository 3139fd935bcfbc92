// The sum itself; checksum.hpp says what it is good for.
#include "collectives/checksum.hpp"

#include <algorithm>
#include <cstring>

namespace phalanx {

namespace {
constexpr std::uint64_t mix(std::uint64_t lane, std::uint64_t word) noexcept {
    const std::uint64_t mixed = (lane ^ word) * 0x9E3779B97F4A7C15U;
    return mixed ^ (mixed >> 32);
}
}  // namespace

void Checksum::take(const std::byte* block) noexcept {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        std::uint64_t word = 0;
        std::memcpy(&word, block + 8 * i, sizeof word);
        lanes_[i] = mix(lanes_[i], word);
    }
}

void Checksum::add(std::span<const std::byte> bytes) noexcept {
    size_ += bytes.size();
    if (held_ > 0) {
        const std::size_t more = std::min(bytes.size(), kBlock - held_);
        std::memcpy(block_.data() + held_, bytes.data(), more);
        held_ += more;
        bytes = bytes.subspan(more);
        if (held_ < kBlock) return;
        take(block_.data());
        held_ = 0;
    }
    const std::size_t whole = bytes.size() / kBlock;
    for (std::size_t i = 0; i < whole; ++i) take(bytes.data() + i * kBlock);
    const auto rest = bytes.subspan(whole * kBlock);
    std::copy(rest.begin(), rest.end(), block_.begin());
    held_ = rest.size();
}

std::uint64_t Checksum::value() const noexcept {
    Checksum last = *this;
    if (held_ > 0) {
        std::fill(last.block_.begin() + static_cast<std::ptrdiff_t>(held_), last.block_.end(),
                  std::byte{0});
        last.take(last.block_.data());
    }
    std::uint64_t sum = size_;
    for (const std::uint64_t lane : last.lanes_) sum = mix(sum, lane);
    return sum;
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
    Checksum sum;
    sum.add(bytes);
    return sum.value();
}

}  // namespace phalanx
