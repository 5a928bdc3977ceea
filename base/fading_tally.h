// Tries and hits, of which old ones fade: an estimate of a probability that follows what it
// estimates. Thread-safety: none.
#pragma once

namespace heddle::base {

struct FadingTally {
  double tried = 0;  // or what was expected to be hit
  double hits = 0;

  // Beyond `memory` tries, the old ones count half.
  void Add(double more_tried, double more_hits, double memory) {
    if (tried > memory) {
      tried /= 2;
      hits /= 2;
    }
    tried += more_tried;
    hits += more_hits;
  }

  // Hits per try, as if `prior_tries` had been at `prior` before.
  double Rate(double prior, double prior_tries) const {
    return (hits + prior_tries * prior) / (tried + prior_tries);
  }
};

}  // namespace heddle::base
