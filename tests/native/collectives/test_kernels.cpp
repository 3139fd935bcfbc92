// Sums: order, aliasing, wrap-around; and what invalid output looks like.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "collectives/kernels/reduce.hpp"

using namespace phalanx;

namespace {

template <class T>
const std::byte* bytes(const std::vector<T>& v) {
    return reinterpret_cast<const std::byte*>(v.data());
}
template <class T>
std::byte* bytes(std::vector<T>& v) {
    return reinterpret_cast<std::byte*>(v.data());
}

}  // namespace

TEST_CASE("sums are in the order of the inputs, to the last bit, also in place") {
    for (const std::size_t count : {0UL, 1UL, 7UL, 64UL, 1023UL, 1024UL, 1025UL, 5000UL}) {
        for (std::size_t inputs = 1; inputs <= 7; ++inputs) {
            std::vector<std::vector<float>> x(inputs, std::vector<float>(count));
            std::vector<float> expected(count);
            for (std::size_t i = 0; i < count; ++i) {
                for (std::size_t k = 0; k < inputs; ++k) {
                    x[k][i] = std::sin(static_cast<float>(i * 31 + k * 7)) *
                              std::pow(10.F, static_cast<float>(k));
                    expected[i] = k == 0 ? x[k][i] : expected[i] + x[k][i];
                }
            }
            for (std::size_t alias = 0; alias <= inputs; ++alias) {
                auto copies = x;
                std::vector<float> apart(count);
                std::vector<float> too(count);
                std::vector<const std::byte*> in;
                for (const auto& one : copies) in.push_back(bytes(one));
                auto& out = alias < inputs ? copies[alias] : apart;
                reduce(Reduction::kSum, Dtype::float32, bytes(out), bytes(too), in, count);
                CHECK((count == 0 || std::memcmp(out.data(), expected.data(), count * 4) == 0));
                CHECK((count == 0 || std::memcmp(too.data(), expected.data(), count * 4) == 0));
            }
        }
    }
}

TEST_CASE("integers wrap") {
    const std::vector<std::int64_t> a{std::numeric_limits<std::int64_t>::max(), -5};
    const std::vector<std::int64_t> b{1, 3};
    std::vector<std::int64_t> out(2);
    const std::byte* in[] = {bytes(a), bytes(b)};
    reduce(Reduction::kSum, Dtype::int64, bytes(out), nullptr, in, 2);
    CHECK(out == std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min(), -2});
}

TEST_CASE("an invalid output is NaN, or the least integer") {
    std::vector<double> f(3, 1.0);
    std::vector<std::int64_t> i(3, 1);
    invalidate(Dtype::float64, bytes(f), 3);
    invalidate(Dtype::int64, bytes(i), 3);
    CHECK(std::isnan(f[2]));
    CHECK(i[2] == std::numeric_limits<std::int64_t>::min());
}
