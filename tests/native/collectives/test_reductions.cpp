// Every kernel of every dtype against a naive reduction; the conversions of all halves.
#include <doctest/doctest.h>

#include <random>

#include "support/reference.hpp"

using namespace phalanx;
using namespace phalanx::test;

namespace {

constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kMax, Reduction::kMin};

// Plain numbers and all the awkward ones, in an order that the seed decides.
template <class T>
std::vector<T> awkward(std::size_t count, unsigned seed) {
    using Limits = std::numeric_limits<T>;
    std::mt19937 random(seed);
    std::vector<double> specials{0.0, -0.0, 1.0, -1.0, 65504.0, -65504.0, 65519.0, 1e-7, 6e-8};
    for (const double x :
         std::initializer_list<double>{INFINITY, -INFINITY, NAN, -NAN, 3e38, -3e38, 1e-40}) {
        if constexpr (!std::is_integral_v<T>) specials.push_back(x);
    }
    std::vector<T> values(count);
    for (T& x : values) {
        const bool is_special = random() % 3 == 0;
        const double number = is_special ? specials[random() % specials.size()]
                                         : std::ldexp(static_cast<double>(random()) - 0x1p31,
                                                      static_cast<int>(random() % 40) - 40);
        if constexpr (std::is_same_v<T, Bool>) {
            x = Bool{static_cast<std::uint8_t>(random() % 2 == 0 ? 0 : random() % 255 + 1)};
        } else if constexpr (std::is_integral_v<T>) {
            x = is_special ? (random() % 2 == 0 ? Limits::max() : Limits::min())
                           : static_cast<T>(random());
        } else {
            encode(number, x);
        }
        if constexpr (requires { x.imag; }) {
            if (random() % 4 == 0)
                x.imag = static_cast<decltype(x.imag)>(specials[random() % specials.size()]);
            if (random() % 4 == 0) x.real = static_cast<decltype(x.imag)>(1.0);
        }
    }
    return values;
}

// Bits, but for NaNs, whose signs and payloads are the processor's business.
template <class T>
bool is_same(T a, T b) {
    if constexpr (kIsHalf<T>) {
        return a.bits == b.bits || (std::isnan(decode(a)) && std::isnan(decode(b)));
    } else if constexpr (requires { a.imag; }) {
        return is_same(a.real, b.real) && is_same(a.imag, b.imag);
    } else if constexpr (std::is_floating_point_v<T>) {
        return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
    } else {
        return a == b;
    }
}

template <class T>
const std::byte* bytes(const std::vector<T>& v) {
    return reinterpret_cast<const std::byte*>(v.data());
}
template <class T>
std::byte* bytes(std::vector<T>& v) {
    return reinterpret_cast<std::byte*>(v.data());
}

// How many elements are wrong, with the output apart from or in the place of each input.
template <class T>
int count_wrong(Reduction how, Dtype dtype, std::size_t inputs, std::size_t count) {
    std::vector<std::vector<T>> x;
    for (std::size_t k = 0; k < inputs; ++k) {
        x.push_back(awkward<T>(count, static_cast<unsigned>(k * 977 + count)));
    }
    int n_wrong = 0;
    for (std::size_t alias = 0; alias <= inputs; ++alias) {
        auto copies = x;
        std::vector<T> apart(count);
        std::vector<T> too(count);
        std::vector<const std::byte*> in;
        for (const auto& one : copies) in.push_back(bytes(one));
        auto& out = alias < inputs ? copies[alias] : apart;
        reduce(how, dtype, bytes(out), alias % 2 == 0 ? bytes(too) : nullptr, in, count);
        for (std::size_t i = 0; i < count; ++i) {
            std::vector<T> column;
            for (const auto& one : x) column.push_back(one[i]);
            const T expected = naive(how, column);
            n_wrong += is_same(out[i], expected) ? 0 : 1;
            if (alias % 2 == 0) n_wrong += is_same(too[i], expected) ? 0 : 1;
        }
    }
    return n_wrong;
}

}  // namespace

TEST_CASE("every kernel of every dtype does what a naive loop does") {
    for (const Dtype dtype : all_dtypes()) {
        CAPTURE(name_of(dtype));
        with_type(dtype, [&](auto type) {
            using T = decltype(type);
            for (const Reduction how : kReductions) {
                for (const std::size_t inputs : {1UL, 2UL, 3UL, 5UL}) {
                    for (const std::size_t count : {0UL, 1UL, 7UL, 64UL, 1023UL, 2500UL}) {
                        CAPTURE(static_cast<int>(how));
                        CAPTURE(inputs);
                        CAPTURE(count);
                        CHECK(count_wrong<T>(how, dtype, inputs, count) == 0);
                    }
                }
            }
        });
    }
}

TEST_CASE("every half is widened exactly and comes back as it was") {
    for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
        std::vector<std::uint16_t> halves(1 << 16);
        for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
        std::vector<float> wide(halves.size());
        std::vector<std::uint16_t> back(halves.size());
        widen(dtype, bytes(halves), wide.data(), halves.size());
        narrow(dtype, wide.data(), bytes(back), halves.size());
        int n_wrong = 0;
        for (std::size_t i = 0; i < halves.size(); ++i) {
            const double expected =
                dtype == Dtype::float16 ? decode(Half{halves[i]}) : decode(BFloat16{halves[i]});
            const std::uint16_t quiet = dtype == Dtype::float16 ? 0x200 : 0x40;
            const bool is_nan = std::isnan(expected);
            n_wrong += !is_same(wide[i], static_cast<float>(expected));
            n_wrong += back[i] != (is_nan ? halves[i] | quiet : halves[i]);
        }
        CHECK(n_wrong == 0);
    }
}

TEST_CASE("float32 is narrowed to the nearest half, ties to even") {
    std::vector<float> wide;
    for (std::uint32_t high = 0; high < 1 << 16; ++high) {  // around every half of both kinds
        for (const std::uint32_t low :
             {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
            wide.push_back(std::bit_cast<float>(high << 16 | low));
        }
    }
    std::vector<std::uint16_t> got(wide.size());
    for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
        narrow(dtype, wide.data(), bytes(got), wide.size());
        int n_wrong = 0;
        for (std::size_t i = 0; i < wide.size(); ++i) {
            Half half;
            BFloat16 brain;
            encode(static_cast<double>(wide[i]), half);
            encode(static_cast<double>(wide[i]), brain);
            n_wrong += dtype == Dtype::float16 ? !is_same(Half{got[i]}, half)
                                               : !is_same(BFloat16{got[i]}, brain);
        }
        CHECK(n_wrong == 0);
    }
}

TEST_CASE("halves are rounded once, after the last input") {
    const std::vector<std::uint16_t> large{0x6800};  // 2048, whose unit is 2
    const std::vector<std::uint16_t> one{0x3c00};
    std::vector<std::uint16_t> out(1);
    const std::byte* in[] = {bytes(large), bytes(one), bytes(one), bytes(one)};
    reduce(Reduction::kSum, Dtype::float16, bytes(out), nullptr, in, 1);
    CHECK(decode(Half{out[0]}) == 2052.0);
}

TEST_CASE(
    "an invalid output is NaN in both parts, the least integer, the largest unsigned one, or "
    "true") {
    for (const Dtype dtype : all_dtypes()) {
        with_type(dtype, [&](auto type) {
            using T = decltype(type);
            std::vector<T> out = awkward<T>(3, 1);
            invalidate(dtype, bytes(out), 3);
            for (const T x : out) {
                if constexpr (kIsHalf<T>) {
                    CHECK(std::isnan(decode(x)));
                } else if constexpr (requires { x.imag; }) {
                    CHECK((std::isnan(x.real) && std::isnan(x.imag)));
                } else if constexpr (std::is_same_v<T, Bool>) {
                    CHECK((x == Bool{1}));
                } else if constexpr (std::is_floating_point_v<T>) {
                    CHECK(std::isnan(x));
                } else if constexpr (std::is_signed_v<T>) {
                    CHECK(x == std::numeric_limits<T>::min());
                } else {
                    CHECK(x == std::numeric_limits<T>::max());
                }
            }
        });
    }
}

TEST_CASE("names of dtypes") {
    CHECK(name_of(static_cast<Dtype>(99)) == "no dtype");
    CHECK(size_of(static_cast<Dtype>(99)) == 1);
    CHECK(size_of(Dtype::complex128) == kLargestElement);
}
