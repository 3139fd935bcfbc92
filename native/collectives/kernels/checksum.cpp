// Written with intrinsics: from a plain loop compilers make whole 64-bit products, which take three
// instructions with AVX-512 and a dozen with AVX2. One instruction multiplies the halves.
#include "collectives/kernels/checksum.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own header leaves vectors uninitialised on purpose and warns about it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace phalanx {

namespace {

using Words = ChecksumLanes::Words;

void add_plainly(ChecksumLanes& lanes, const std::byte* blocks, std::size_t count) {
    ChecksumLanes sum = lanes;  // a copy: the compiler keeps it in registers
    for (std::size_t block = 0; block < count; ++block) {
        Words words;
        std::memcpy(words.data(), blocks + block * sizeof words, sizeof words);
        for (std::size_t i = 0; i < ChecksumLanes::kLanes; ++i) {
            const std::uint64_t mixed = words[i] ^ sum.keys[i];
            sum.products[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32);
            sum.words[i] += words[i];
            sum.keys[i] += kGolden;
        }
    }
    lanes = sum;
}

#if defined(__x86_64__)

constexpr auto kStep = static_cast<long long>(kGolden);

[[gnu::target("avx2")]] void add_by_4(ChecksumLanes& lanes, const std::byte* blocks,
                                      std::size_t count) {
    __m256i products[2];
    __m256i words[2];
    __m256i keys[2];
    std::memcpy(products, &lanes.products, sizeof products);
    std::memcpy(words, &lanes.words, sizeof words);
    std::memcpy(keys, &lanes.keys, sizeof keys);
    const __m256i step = _mm256_set1_epi64x(kStep);
    for (std::size_t block = 0; block < count; ++block) {
        for (std::size_t i = 0; i < 2; ++i) {
            __m256i word;
            std::memcpy(&word, blocks + block * kChecksumBlock + i * sizeof word, sizeof word);
            const __m256i mixed = _mm256_xor_si256(word, keys[i]);
            const __m256i high = _mm256_srli_epi64(mixed, 32);
            products[i] = _mm256_add_epi64(products[i], _mm256_mul_epu32(mixed, high));
            words[i] = _mm256_add_epi64(words[i], word);
            keys[i] = _mm256_add_epi64(keys[i], step);
        }
    }
    std::memcpy(&lanes.products, products, sizeof products);
    std::memcpy(&lanes.words, words, sizeof words);
    std::memcpy(&lanes.keys, keys, sizeof keys);
}

[[gnu::target("avx512f")]] void add_by_8(ChecksumLanes& lanes, const std::byte* blocks,
                                         std::size_t count) {
    __m512i products = _mm512_loadu_si512(&lanes.products);
    __m512i words = _mm512_loadu_si512(&lanes.words);
    __m512i keys = _mm512_loadu_si512(&lanes.keys);
    const __m512i step = _mm512_set1_epi64(kStep);
#pragma GCC unroll 4
    for (std::size_t block = 0; block < count; ++block) {
        const __m512i word = _mm512_loadu_si512(blocks + block * kChecksumBlock);
        const __m512i mixed = _mm512_xor_si512(word, keys);
        // The shuffle uses another execution port than the multiplication; a shift would not.
        const __m512i high = _mm512_shuffle_epi32(mixed, _MM_PERM_CDAB);
        products = _mm512_add_epi64(products, _mm512_mul_epu32(mixed, high));
        words = _mm512_add_epi64(words, word);
        keys = _mm512_add_epi64(keys, step);
    }
    _mm512_storeu_si512(&lanes.products, products);
    _mm512_storeu_si512(&lanes.words, words);
    _mm512_storeu_si512(&lanes.keys, keys);
}

std::vector<AddBlocks> known_ways() {
    std::vector<AddBlocks> ways;
    if (__builtin_cpu_supports("avx512f")) ways.push_back(add_by_8);
    if (__builtin_cpu_supports("avx2")) ways.push_back(add_by_4);
    ways.push_back(add_plainly);
    return ways;
}

#else

std::vector<AddBlocks> known_ways() { return {add_plainly}; }

#endif

}  // namespace

std::span<const AddBlocks> checksum_implementations() {
    static const std::vector<AddBlocks> ways = known_ways();
    return ways;
}

// Implementation of Checksum; checksum.hpp describes it.

namespace {

constexpr std::uint64_t mix(std::uint64_t sum, std::uint64_t word) noexcept {
    const std::uint64_t mixed = (sum ^ word) * kGolden;
    return mixed ^ (mixed >> 32);
}

const AddBlocks add_blocks = checksum_implementations().front();

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
    std::uint64_t words = 0;  // a second accumulator: its multiplications overlap with the first's
    // In reverse lane order: otherwise a bit of the last lane would change both results alike.
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
