// Every kernel, compiled once per instruction set (-DOCTAVO_ISA=avx512|avx2|generic) into a namespace of that name.
#ifndef OCTAVO_ISA
#error "compile with -DOCTAVO_ISA=avx512, avx2 or generic; see tools/build_cpu.py"
#endif

#include "kernels.h"

#include "attention.h"
#include "linear.h"
#include "step.h"
#include "vec.h"

#define OCTAVO_CONCATENATED_(a, b) a##b
#define OCTAVO_CONCATENATED(a, b) OCTAVO_CONCATENATED_(a, b)

namespace octavo {

extern const Kernels OCTAVO_CONCATENATED(kernels_, OCTAVO_ISA);

const Kernels OCTAVO_CONCATENATED(kernels_, OCTAVO_ISA) = {
    .linear = OCTAVO_ISA::linear,
    .unpack_row = OCTAVO_ISA::unpack_row,
    .write_kv = OCTAVO_ISA::write_kv,
    .attend = OCTAVO_ISA::attend,
    .step = OCTAVO_ISA::step,
};

}  // namespace octavo
