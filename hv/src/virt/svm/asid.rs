//! Address space identifiers of one PCPU (AMD APM 2, 15.16).
//!
//! A flush without the flush-by-ASID feature is a new ASID; when they run out, one full flush starts a new
//! generation in which all are free again.

/// An ASID that is valid while the pool is in the same generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asid {
    /// The value for the VMCB; 0 is the host's and never given out.
    pub value: u32,
    generation: u64,
}

/// Gives out the ASIDs 1 to `count - 1` of one PCPU.
#[derive(Debug)]
pub struct AsidPool {
    count: u32,
    next: u32,
    generation: u64,
}

impl AsidPool {
    /// `count` is what CPUID Fn8000_000A EBX reports; less than 2 is treated as 2.
    pub fn new(count: u32) -> AsidPool {
        AsidPool { count: count.max(2), next: 1, generation: 1 }
    }

    /// Whether `asid` still is its owner's alone.
    pub fn is_current(&self, asid: Asid) -> bool {
        asid.generation == self.generation
    }

    /// One that has not been given out in this generation, if there is any left.
    #[inline(always)]
    pub fn next_unused(&mut self) -> Option<Asid> {
        let value = self.next;
        if value >= self.count {
            return None;
        }
        self.next = value + 1;
        Some(Asid { value, generation: self.generation })
    }

    /// A fresh ASID. The flag says that the whole TLB must be flushed at the entry that first uses it.
    pub fn allocate(&mut self) -> (Asid, bool) {
        let wrapped = self.next >= self.count;
        if wrapped {
            self.next = 1;
            // Any value given out from now on may tag translations of another VCPU, made in the last generation: hence
            // the flush. VCPUs of the last generation notice by `is_current`, and ask for a new ASID.
            self.generation += 1;
        }
        let asid = Asid { value: self.next, generation: self.generation };
        self.next += 1;
        (asid, wrapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_zero_never_shared_within_a_generation() {
        let mut pool = AsidPool::new(4);
        let taken: alloc::vec::Vec<_> = (0..7).map(|_| pool.allocate()).collect();
        let values: alloc::vec::Vec<_> = taken.iter().map(|(a, _)| a.value).collect();
        assert_eq!(values, [1, 2, 3, 1, 2, 3, 1]);
        let flushes: alloc::vec::Vec<_> = taken.iter().map(|&(_, f)| f).collect();
        assert_eq!(flushes, [false, false, false, true, false, false, true]);
        assert!(!pool.is_current(taken[5].0));
        assert!(pool.is_current(taken[6].0));
        assert!(!pool.is_current(Asid::default()));
    }
}
