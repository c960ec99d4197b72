//! Floating numbers with 62 bits of precision and exponents that do not run out: powers of a decay factor, to any age.
//!
//! The processor's own are not used: the hypervisor saves no state of the guest's floating point for them, and theirs end at 2^-1074,
//! which 0.7^2088 is.

/// Bits of a mantissa that is not 0.
const BITS: u32 = 62;

/// `mantissa * 2^exponent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Real {
    /// 0, or from 2^61 up to below 2^62 without its sign.
    mantissa: i64,
    exponent: i64,
}

impl Real {
    /// 1.
    pub const ONE: Real = Real { mantissa: 1 << (BITS - 1), exponent: 1 - BITS as i64 };

    /// A quotient. `below` is not 0.
    pub fn ratio(above: u32, below: u32) -> Real {
        Real::of((i128::from(above) << BITS) / i128::from(below.max(1)), -i64::from(BITS))
    }

    /// The nearest one towards 0.
    fn of(mantissa: i128, exponent: i64) -> Real {
        if mantissa == 0 {
            return Real::default();
        }
        // Positive: too long by this many bits.
        let long = 128 - mantissa.unsigned_abs().leading_zeros() as i64 - i64::from(BITS);
        let mantissa = if long >= 0 { mantissa / (1 << long) } else { mantissa << -long };
        Real { mantissa: mantissa as i64, exponent: exponent.saturating_add(long) }
    }

    /// The product.
    pub fn times(self, other: Real) -> Real {
        let mantissa = i128::from(self.mantissa) * i128::from(other.mantissa);
        Real::of(mantissa, self.exponent.saturating_add(other.exponent))
    }

    /// The sum.
    pub fn plus(self, other: Real) -> Real {
        let (large, small) = match self.mantissa == 0 || other.mantissa != 0 && other.exponent > self.exponent
        {
            true => (other, self),
            false => (self, other),
        };
        let apart = large.exponent.saturating_sub(small.exponent);
        if small.mantissa == 0 || apart > i64::from(BITS) {
            return large;
        }
        Real::of((i128::from(large.mantissa) << apart) + i128::from(small.mantissa), small.exponent)
    }

    /// The same below 0.
    pub fn negative(self) -> Real {
        Real { mantissa: -self.mantissa, ..self }
    }

    /// Whether it is larger.
    pub fn is_above(self, other: Real) -> bool {
        self.plus(other.negative()).mantissa > 0
    }

    /// With this many bits behind the point (at most 62), towards 0, or the nearest one that there is.
    pub fn fixed(self, bits: u32) -> i64 {
        let shift = self.exponent.saturating_add(i64::from(bits.min(BITS)));
        match shift {
            ..=-64 => 0,
            -63..=0 => self.mantissa / (1i128 << -shift) as i64,
            // A mantissa that is not 0 has no room for more.
            1.. => self.mantissa.signum().saturating_mul(i64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(number: i64) -> Real {
        Real::of(number.into(), 0)
    }

    proptest! {
        /// Numbers that fit are as integers.
        #[test]
        fn small_numbers_are_exact(a in -0x4000_0000i64..0x4000_0000, b in -0x4000_0000i64..0x4000_0000) {
            prop_assert_eq!(of(a).plus(of(b)).fixed(0), a + b);
            prop_assert_eq!(of(a).times(of(b)).fixed(0), a * b);
            prop_assert_eq!(of(a).negative().fixed(0), -a);
            prop_assert_eq!(of(a).is_above(of(b)), a > b);
            prop_assert_eq!(of(a).fixed(20), a << 20);
        }

        /// Sums of large and small numbers are off by their last bits at most.
        #[test]
        fn sums_keep_their_precision(
            a in 1i64.., b in 1i64.., e in -1_000_000_000_000i64..1_000_000_000_000, apart in -200i64..200,
        ) {
            let (one, other) = (Real::of(a.into(), e + apart), Real::of(b.into(), e));
            let (sum, larger) = (one.plus(other), if one.is_above(other) { one } else { other });
            prop_assert_eq!(sum, other.plus(one));
            prop_assert!(!larger.is_above(sum) && !sum.is_above(larger.plus(larger)));
            let off = sum.plus(one.negative()).plus(other.negative());
            let most = Real { exponent: larger.exponent - 60, ..larger };
            prop_assert!(!off.is_above(most) && !off.negative().is_above(most));
        }
    }

    #[test]
    fn quotients_add_up() {
        let third = Real::ratio(1, 3);
        let one = third.plus(third).plus(third);
        assert!(((1 << 60) - one.fixed(60)).abs() <= 4, "{one:?}");
        assert_eq!((Real::ONE.fixed(32), Real::ratio(1000, 1000)), (1 << 32, Real::ONE));
        assert_eq!(Real::ratio(0, 1000).times(Real::ONE), Real::default());
    }

    #[test]
    fn exponents_do_not_run_out() {
        let mut power = Real::ratio(1, 1000);
        for _ in 0..40 {
            power = power.times(power);
            assert!(power.is_above(Real::default()) && Real::ONE.is_above(power));
        }
        assert_eq!(of(i64::MAX).times(of(4)).fixed(0), i64::MAX);
        assert_eq!(of(i64::MIN).times(of(4)).fixed(0), -i64::MAX);
    }
}
