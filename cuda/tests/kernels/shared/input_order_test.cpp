// The places of f16 activations.
#include "kernels/shared/input_order.h"

#include <gtest/gtest.h>

namespace wcuda::kernels {
namespace {

TEST(InputOrder, a_quarter_is_where_its_inputs_are) {
  for (const InputOrder order :
       {InputOrder::kContiguous8, InputOrder::kCross, InputOrder::kSplit, InputOrder::kNested})
    for (uint32_t place = 0; place < 32; ++place) {
      const uint32_t input = input_of_place(order, place);
      const QuarterPlace quarter = place_of_quarter(order, input / 4);
      const bool is_cross = order == InputOrder::kCross;
      const uint32_t within = input % 4, half = is_cross ? within / 2 : within % 2,
                     second = is_cross ? within % 2 : within / 2;
      EXPECT_EQ((quarter.piece + second) * 8 + quarter.word * 2 + half, place);
    }
}

}  // namespace
}  // namespace wcuda::kernels
