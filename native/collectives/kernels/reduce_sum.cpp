// The kernels of Reduction::kSum; a file of their own, so that three files compile in parallel.
#include "collectives/kernels/element_ops.hpp"
#include "collectives/kernels/reduce_loops.hpp"

namespace phalanx {

namespace {

template <class T>
using Rule = SumRule<T>;

#define PHALANX_KERNEL_OF(id, name, type) PHALANX_KERNEL(id, Rule<type>)
PHALANX_DTYPES(PHALANX_KERNEL_OF)
#undef PHALANX_KERNEL_OF

}  // namespace

#define PHALANX_ENTRY(id, name, type) reduce_##id,
const Kernel kSumKernels[kDtypes] = {reduce_nothing, PHALANX_DTYPES(PHALANX_ENTRY)};
#undef PHALANX_ENTRY

}  // namespace phalanx
