// The instruction sets that kernels are built for, as tags of templates.
//
// Each set has a translation unit of its own, compiled with its own flags. The linker keeps one copy
// of an inline function, whichever unit it comes from; were it one with newer instructions, older
// machines would stop at it. So what such a unit calls is static, a template on the tag, or
// OCTAVO_INLINE; and it uses no containers of the standard library.
//
// All these units need -ffp-contract=off: a sum must not depend on which rows are computed with it,
// so the compiler must not fuse products and sums in some instances of a template and not in others.
#pragma once

namespace octavo {

struct Plain {};   // any machine
struct Avx2 {};    // x86-64 with AVX2, FMA and F16C
struct Avx512 {};  // x86-64 with AVX-512 F, BW, DQ, VL, VNNI and BF16

}  // namespace octavo

// What the flags of this translation unit allow.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define OCTAVO_HAS_AVX2 1
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__) && defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#define OCTAVO_HAS_AVX512 1
#endif
