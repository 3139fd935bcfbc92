// Borrow a callable without allocation; valid only during the call it is passed to.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace phalanx {

template <class Signature>
class FunctionRef;

template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
  public:
    template <class F>
        requires(!std::same_as<std::remove_cvref_t<F>, FunctionRef>)
    FunctionRef(F&& callable) noexcept  // NOLINT: implicit on purpose, as function_ref of C++26
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
          call_([](void* object, Args... args) -> Result {
              return (*static_cast<std::add_pointer_t<std::remove_reference_t<F>>>(object))(
                  std::forward<Args>(args)...);
          }) {}
    Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

  private:
    void* object_;
    Result (*call_)(void*, Args...);
};

}  // namespace phalanx
