// Prints the labels of the tests that this machine can run, as a regular expression.

#include <cstdio>

int main() {
  std::fputs("^(plain", stdout);
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) std::fputs("|avx2", stdout);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
    std::fputs("|avx512", stdout);
  }
#endif
  std::puts(")$");
}
