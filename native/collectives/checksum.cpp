// The sum itself; checksum.hpp says what it is good for.
#include "collectives/checksum.hpp"

#include <algorithm>
#include <cstring>

namespace phalanx {

namespace {

constexpr std::uint64_t mix(std::uint64_t sum, std::uint64_t word) noexcept {
    const std::uint64_t mixed = (sum ^ word) * kGolden;
    return mixed ^ (mixed >> 32);
}

const AddBlocks add_blocks = ways_to_add_blocks().front();

}  // namespace

void Checksum::add(std::span<const std::byte> bytes) noexcept {
    size_ += bytes.size();
    if (held_ > 0) {
        const std::size_t more = std::min(bytes.size(), kChecksumBlock - held_);
        std::memcpy(block_.data() + held_, bytes.data(), more);
        held_ += more;
        bytes = bytes.subspan(more);
        if (held_ < kChecksumBlock) return;
        add_blocks(lanes_, block_.data(), 1);
        held_ = 0;
    }
    const std::size_t whole = bytes.size() / kChecksumBlock;
    if (whole > 0) add_blocks(lanes_, bytes.data(), whole);
    const auto rest = bytes.subspan(whole * kChecksumBlock);
    std::copy(rest.begin(), rest.end(), block_.begin());
    held_ = rest.size();
}

std::uint64_t Checksum::value() const noexcept {
    Checksum last = *this;
    if (held_ > 0) {
        std::fill(last.block_.begin() + static_cast<std::ptrdiff_t>(held_), last.block_.end(),
                  std::byte{0});
        add_blocks(last.lanes_, last.block_.data(), 1);
    }
    std::uint64_t sum = size_;
    std::uint64_t words = 0;  // beside the sum: one multiplication need not wait for the other
    // The other way round: a bit of a lane that comes last in both would change both alike.
    for (std::size_t i = 0; i < ChecksumLanes::kLanes; ++i) {
        sum = mix(sum, last.lanes_.products[i]);
        words = mix(words, last.lanes_.words[ChecksumLanes::kLanes - 1 - i]);
    }
    return mix(sum, words);
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
    Checksum sum;
    sum.add(bytes);
    return sum.value();
}

}  // namespace phalanx
