//! Chance that can be repeated: the same seed gives the same throws on every machine.

/// A stream of throws (`SplitMix64`, whose neighbouring seeds give unrelated streams).
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is at least one.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % limit).unwrap_or(0)
    }

    /// True in so many of a hundred throws.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// One of several, each as likely; none of none.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }

    /// One of several; the number beside each says how likely it is.
    pub fn weighted<T: Copy>(&mut self, all: &[(usize, T)]) -> T {
        let total = all.iter().map(|(weight, _)| weight).sum();
        let mut left = self.below(total);
        for &(weight, item) in all {
            if left < weight {
                return item;
            }
            left -= weight;
        }
        all[all.len() - 1].1
    }

    /// All, in any order.
    pub fn shuffled<T: Clone>(&mut self, all: &[T]) -> Vec<T> {
        let mut all = all.to_vec();
        for end in (1..all.len()).rev() {
            all.swap(end, self.below(end + 1));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_its_neighbour_does_not() {
        let throws = |seed| {
            let mut dice = Dice::new(seed);
            [(); 20].map(|()| dice.below(1000))
        };
        assert_eq!(throws(7), throws(7));
        assert_ne!(throws(7), throws(8));
    }

    #[test]
    fn every_face_comes_up() {
        let mut dice = Dice::new(1);
        let mut seen = [false; 6];
        for _ in 0..200 {
            seen[dice.below(6)] = true;
        }
        assert_eq!(seen, [true; 6]);
        assert!((0..100).all(|_| dice.weighted(&[(0, 'a'), (1, 'b')]) == 'b'));
        let mut all = dice.shuffled(&[1, 2, 3, 4]);
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4]);
    }
}
