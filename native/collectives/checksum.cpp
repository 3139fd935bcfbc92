// The sum itself; checksum.hpp says what it is good for.
#include "collectives/checksum.hpp"

#include <algorithm>
#include <cstring>

#include "base/clones.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio, odd

constexpr std::uint64_t mix(std::uint64_t sum, std::uint64_t word) noexcept {
    const std::uint64_t mixed = (sum ^ word) * kGolden;
    return mixed ^ (mixed >> 32);
}

PHALANX_CLONES void take(Checksum::Lanes& sums, Checksum::Lanes& keys, const std::byte* blocks,
                         std::size_t count) {
    Checksum::Lanes sum = sums;  // copies: the compiler keeps them in registers
    Checksum::Lanes key = keys;
    for (std::size_t block = 0; block < count; ++block) {
        Checksum::Lanes words;
        std::memcpy(words.data(), blocks + block * sizeof words, sizeof words);
        for (std::size_t i = 0; i < Checksum::kLanes; ++i) {
            const std::uint64_t mixed = words[i] ^ key[i];
            sum[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32) + words[i ^ 1];
            key[i] += kGolden;
        }
    }
    sums = sum;
    keys = key;
}

}  // namespace

void Checksum::add(std::span<const std::byte> bytes) noexcept {
    size_ += bytes.size();
    if (held_ > 0) {
        const std::size_t more = std::min(bytes.size(), kBlock - held_);
        std::memcpy(block_.data() + held_, bytes.data(), more);
        held_ += more;
        bytes = bytes.subspan(more);
        if (held_ < kBlock) return;
        take(sums_, keys_, block_.data(), 1);
        held_ = 0;
    }
    const std::size_t whole = bytes.size() / kBlock;
    if (whole > 0) take(sums_, keys_, bytes.data(), whole);
    const auto rest = bytes.subspan(whole * kBlock);
    std::copy(rest.begin(), rest.end(), block_.begin());
    held_ = rest.size();
}

std::uint64_t Checksum::value() const noexcept {
    Checksum last = *this;
    if (held_ > 0) {
        std::fill(last.block_.begin() + static_cast<std::ptrdiff_t>(held_), last.block_.end(),
                  std::byte{0});
        take(last.sums_, last.keys_, last.block_.data(), 1);
    }
    std::uint64_t sum = size_;
    for (const std::uint64_t lane : last.sums_) sum = mix(sum, lane);
    return sum;
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
    Checksum sum;
    sum.add(bytes);
    return sum.value();
}

}  // namespace phalanx
