// See gil.hpp.
#include "binding/gil.hpp"

#include <cxxabi.h>
#include <unistd.h>

namespace phalanx::binding {

namespace {

template <class Ask>
void ask_for_gil(const Ask& ask) {
#ifdef __GLIBCXX__
    try {
        ask();
    } catch (const abi::__forced_unwind&) {
        while (true) ::pause();  // returning would continue the unwinding; the process ends soon
    }
#else
    ask();
#endif
}

}  // namespace

ReleasedGil::~ReleasedGil() {
    ask_for_gil([this] { PyEval_RestoreThread(state_); });
}

TakenGil::TakenGil() {
    ask_for_gil([this] { held_.emplace(); });
}

}  // namespace phalanx::binding
