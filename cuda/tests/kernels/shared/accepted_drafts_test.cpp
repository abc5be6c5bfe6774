#include "kernels/shared/accepted_drafts.h"

#include <gtest/gtest.h>

namespace wcuda::kernels {
namespace {

TEST(AcceptedDrafts, are_those_before_the_first_that_was_not_drawn_or_has_failed) {
  const int32_t drafts[] = {7, 7, 0, 9};
  const int32_t drawn[] = {7, 7, 0, 9};
  const int32_t statuses[] = {kRowOk, kRowOk, kRowOk, kRowOk};
  for (uint32_t count = 0; count <= 4; ++count)
    EXPECT_EQ(accepted_drafts(count, drafts, drawn, statuses), count);
  for (uint32_t wrong = 0; wrong < 4; ++wrong) {
    int32_t other[] = {7, 7, 0, 9};
    other[wrong] = -1;
    EXPECT_EQ(accepted_drafts(4, drafts, other, statuses), wrong);
    EXPECT_EQ(accepted_drafts(wrong, drafts, other, statuses), wrong);
    for (const int32_t status : {kRowEmptyMask, kRowNotFinite, kRowSkipped}) {
      int32_t failed[] = {kRowOk, kRowOk, kRowOk, kRowOk};
      failed[wrong] = status;
      EXPECT_EQ(accepted_drafts(4, drafts, drawn, failed), wrong);
    }
  }
}

}  // namespace
}  // namespace wcuda::kernels
