// What the flight recorder costs an operation: recorder_cost [loops]. Prints a
// line for each part, with the median and the least of so many rounds in
// nanoseconds. Build with -DPHALANX_TESTS=ON -DCMAKE_BUILD_TYPE=Release and --target recorder_cost.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "monitoring/recorder.hpp"

using namespace phalanx;

namespace {

constexpr int kRounds = 15;

template <typename Part>
void measure(const char* name, long loops, Part&& part) {
    std::array<double, kRounds> took{};
    for (auto& ns : took) {
        const auto begun = Clock::now();
        for (long i = 0; i < loops; ++i) part(static_cast<std::uint64_t>(i));
        const std::chrono::duration<double, std::nano> all = Clock::now() - begun;
        ns = all.count() / static_cast<double>(loops);
    }
    std::sort(took.begin(), took.end());
    std::printf("%s\t%.1f\t%.1f\n", name, took[kRounds / 2], took.front());
}

}  // namespace

int main(int n_arguments, char** arguments) {
    const long loops = n_arguments > 1 ? std::atol(arguments[1]) : 200'000;
    const auto its = std::make_unique<TraceRing>();
    TraceRing& ring = *its;
    Op op{};
    op.kind = OpKind::kAllSum;
    op.dtype = Dtype::float32;
    op.count = 1024;
    std::uint64_t sum = 0;
    measure("a look at the clock", loops, [&](std::uint64_t) { sum += steady_ns(); });
    measure("a record, no clock", loops, [&](std::uint64_t i) {
        TraceRing::Record* const record = ring.open({i, op.nbytes(), 0, i, 0, 0, 1});
        record->set(kRecordArrived, i);
        record->set(kRecordEnded, i);
        record->close();
    });
    measure("an operation: begun, arrived, done", loops, [&](std::uint64_t i) {
        op.seq = i;
        Recording recording(ring, op, 0, 1, 0);
        recording.arrive();
        recording.finish();
        sum += recording.inside();
    });
    measure("a small one on one host: begun, done", loops, [&](std::uint64_t i) {
        op.seq = i;
        Recording recording(ring, op, 0, 1, 0);
        recording.arrive_with_end();
        recording.finish();
        sum += recording.inside();
    });
    std::fprintf(stderr, "%llu\n", static_cast<unsigned long long>(sum));
    return 0;
}
