// What no kernel can beat on this machine: how fast the threads of a pool read memory, and how fast they
// calculate where nothing waits for memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.h"

namespace octavo {

class ThreadPool;
struct Kernels;

// What kernels spend their instructions on. A product and its sum are two operations.
enum class Arithmetic : int {
  kIntegers,  // dot products of codes without a sign and codes with one
  kBf16,
  kFloat32,
};

constexpr Arithmetic arithmetic_of(Format format) {
  return takes_codes(format) ? Arithmetic::kIntegers
         : takes_bf16(format) ? Arithmetic::kBf16
                              : Arithmetic::kFloat32;
}

// Reads whole megabytes once; returns a sum that depends on all of it.
uint64_t read_memory(const uint8_t* data, size_t megabytes, ThreadPool& pool, const Kernels& kernels);

// Multiplies and adds in registers, `chunks` times some ten thousand instructions; returns the number
// of operations.
double calculate(Arithmetic arithmetic, int chunks, ThreadPool& pool, const Kernels& kernels);

}  // namespace octavo
