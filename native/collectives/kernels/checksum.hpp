// Checksums of messages and of whole blocks, with one implementation per instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace phalanx {

// Eight lanes. For each word of a block a lane adds the word itself, and the product of the halves
// of (word xor key). Each block has other keys.
struct ChecksumLanes {
    static constexpr std::size_t kLanes = 8;
    using Words = std::array<std::uint64_t, kLanes>;

    Words products{};
    Words words{};
    // Random numbers that no sender uses by chance; both halves of each are odd.
    Words keys{0x2545F4914F6CDD1D, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB,
               0x8EBC6AF109C88C6F, 0x589965CD75374CC3, 0x1D8E4E27C47D124F, 0xEB44ACCBAB455D35};
};

constexpr std::size_t kChecksumBlock = sizeof(ChecksumLanes::Words);
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio, odd

// Adds `count` blocks from `blocks` on; the address need not be aligned.
using AddBlocks = void (*)(ChecksumLanes& lanes, const std::byte* blocks, std::size_t count);

// The implementations that this processor supports: fastest first, last the portable one.
std::span<const AddBlocks> checksum_implementations();

// A checksum of received data: tcp's own has only 16 bits, and some wires have none.

// Detects corruption in transit, not an attacker. A changed word, or random changed bytes, stay
// undetected in about one case of 2^64; the same bit changed in two blocks, in one case of 2^34 or
// fewer. A block has eight words, one per lane. For each block a lane adds the word, and separately
// the product of the two halves of (word xor key). Each block has other keys, so the order of
// blocks counts. This is the core of XXH3 (Collet 2019), except that XXH3 adds a neighbour's word
// to the product. 42 GB/s with 512-bit vectors, 31 GB/s with 256 (data in the second-level cache).
class Checksum {
  public:
    // Pieces may have any size; only the sequence of bytes counts.
    void add(std::span<const std::byte> bytes) noexcept;
    [[nodiscard]] std::uint64_t value() const noexcept;

  private:
    ChecksumLanes lanes_;
    std::array<std::byte, kChecksumBlock> block_{};
    std::size_t held_ = 0;
    std::uint64_t size_ = 0;
};

std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept;

// Error text for a wrong checksum. The sender computes the sum while it sends, so a thread of the
// sender that writes to the array meanwhile looks like a bad wire.
inline constexpr const char* kWrongSum =
    "its data was damaged or cut short on the way, or changed while it was being sent: x must stay "
    "as it is until the operation is over";

}  // namespace phalanx
