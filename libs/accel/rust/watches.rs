// SPDX-License-Identifier: Apache-2.0
//! Decides when a thread watches (polls) for its next work instead of sleeping.

/// Number of watches in a row that may miss before chances are skipped. It is not 0, because even a
/// sender that usually comes in time is sometimes late.
const MISSES_FREE: u32 = 4;
/// After each further miss, twice as many chances are skipped, up to this power of two.
const DOUBLINGS_MAX: u32 = 10;

/// How a watch ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// The work came in time.
    Hit,
    /// The work did not come in time.
    Miss,
    /// Another program wants the processor. A sleeping thread gets it back sooner than a watching
    /// one.
    Displaced,
}

/// Decides at which chances to watch.
#[derive(Default)]
pub struct Watches {
    /// Number of misses in a row, up to `MISSES_FREE + DOUBLINGS_MAX`.
    miss_count: u32,
    skip_count: u32,
}

impl Watches {
    /// Returns whether the thread should watch now; if so, it must call `note` afterwards.
    pub fn is_worthwhile(&mut self) -> bool {
        let is_skipped = self.skip_count > 0;
        self.skip_count = self.skip_count.saturating_sub(1);
        !is_skipped
    }

    /// Records how a watch ended. `Displaced` counts as the maximum number of misses.
    pub fn note(&mut self, watched: Watched) {
        let most = MISSES_FREE + DOUBLINGS_MAX;
        self.miss_count = match watched {
            Watched::Hit => 0,
            Watched::Miss => most.min(self.miss_count + 1),
            Watched::Displaced => most,
        };
        let doublings = self.miss_count.saturating_sub(MISSES_FREE);
        self.skip_count = if doublings == 0 { 0 } else { 1 << doublings };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(watches: &mut Watches, end: Watched, chances: usize) -> usize {
        let mut count = 0;
        for _ in 0..chances {
            if watches.is_worthwhile() {
                watches.note(end);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn watches_in_vain_become_rare_until_one_succeeds() {
        let mut watches = Watches::default();
        assert_eq!(watched(&mut watches, Watched::Hit, 100), 100);
        assert_eq!(watched(&mut watches, Watched::Miss, 2_000), 14);
        assert_eq!(watched(&mut watches, Watched::Miss, 10 * 1_025), 10);
        assert!(watched(&mut watches, Watched::Hit, 1_124) >= 100);
    }

    #[test]
    fn a_sender_that_is_late_now_and_then_is_watched_for_always() {
        let mut watches = Watches::default();
        for _ in 0..100 {
            assert_eq!(watched(&mut watches, Watched::Miss, 4), 4);
            assert_eq!(watched(&mut watches, Watched::Hit, 1), 1);
        }
    }

    #[test]
    fn a_watch_is_rare_while_other_programs_want_the_processor() {
        let mut watches = Watches::default();
        assert_eq!(watched(&mut watches, Watched::Displaced, 1), 1);
        assert_eq!(watched(&mut watches, Watched::Hit, 1_124), 100);
    }
}
