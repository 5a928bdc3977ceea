// The numbers by which a draw cuts a row of logits. Plain data; it stands in base/ because requests
// set it, the scheduler carries it, and the sample op of every device reads it as one.
//
// The filters apply in the order of the fields, behind a row's edits and mask; probabilities are
// those after temperature. temperature == 0 is argmax (the lowest id wins a tie), and nothing else
// applies then.
//   top_n_sigma: the logits that are at least the largest minus top_n_sigma standard deviations of
//     the finite ones.
//   top_k: the k largest (ties at the k-th value: lowest ids first).
//   top_p: the smallest set of most likely tokens whose probability reaches top_p, at least one;
//     over what top_k left, renormalised.
//   min_p: tokens with at least min_p times the probability of the most likely.
//   typical_p: of what is left, renormalised, the tokens whose surprise -log(p) is nearest to the
//     entropy, until they reach typical_p together, and all as near as the last of them.
//   xtc_threshold: with probability xtc_probability, of what is left, renormalised, all tokens that
//     are likelier than the least likely of those of at least this probability go. The coin is the
//     row's random number of stream 1 (that of the draw is of stream 0), so that the same seed and
//     position toss it alike.
// Those before typical_p each keep a prefix of the ranking. What a request may set, and the ranges:
// engine/sampling_params.h.
// Sources: Holtzman et al. 2019 (nucleus), Fan et al. 2018 (top-k), Nguyen et al. 2024 (min-p),
// Meister et al. 2022 (locally typical; edge cases as transformers' TypicalLogitsWarper), Tang et
// al. 2024 (top-n-sigma; edge cases as llama.cpp), p-e-w 2024 (XTC, "exclude top choices": as
// llama.cpp, but tokens as likely as the least likely stay with it).
#pragma once

#include <cstdint>

namespace heddle::base {

struct SampleFilters {
  float temperature = 1.0f;
  float top_n_sigma = -1.0f;     // <= 0: off
  int32_t top_k = 0;             // <= 0: off
  float top_p = 1.0f;            // >= 1: off
  float min_p = 0.0f;            // <= 0: off
  float typical_p = 1.0f;        // >= 1: off
  float xtc_probability = 0.0f;  // <= 0: off
  float xtc_threshold = 0.1f;    // > 0.5: off, since no two tokens reach it

  // Whether any but the temperature is on.
  bool CutsAnything() const {
    return top_n_sigma > 0 || top_k > 0 || top_p < 1 || min_p > 0 || typical_p < 1 ||
           xtc_probability > 0;
  }
};

}  // namespace heddle::base
