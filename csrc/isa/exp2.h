// 2 to a power, for all instruction sets: 2^x = 2^n * 2^f with n the nearest integer to x.
#pragma once

namespace octavo {

// 2^f for |f| <= 1/2 with a relative error below 1e-7 before rounding; highest power first. The last
// one is 1, so that 2^0 is exactly 1: a scale of 1 must change nothing.
constexpr int kExp2Terms = 6;
constexpr float kExp2[kExp2Terms] = {1.32647265e-03f, 9.67151283e-03f, 5.55073375e-02f,
                                     2.40222421e-01f, 6.93146978e-01f, 1.0f};

}  // namespace octavo
