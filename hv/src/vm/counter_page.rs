//! The page on which a VCPU's kernel counts its page faults ([`abi::hypercall::CounterPage`]): the hypervisor sees none of them
//! with nested paging, and policies need them.
//!
//! The guest registers one for each VCPU by a hypercall (`vcpu::hypercall`). It is read when the VCPU publishes what it has
//! counted (`vcpu::sampling`), never at an exit, and never written. What is kept is an address of the guest's, looked up again at
//! each reading: the P2m may have changed. A guest writes what it likes. So only the growth counts, and at most what a VCPU can
//! do in the time that it ran: a lie has a policy choose badly for this guest, and nothing else.

use abi::hypercall::{
    self, COUNTER_PAGE_BYTES, COUNTER_PAGE_ENABLED, COUNTER_PAGE_VERSION, CounterPage as Layout,
};

use crate::arch::addr::Gpa;
use crate::mem::guest_memory::{GuestMemory, NotRam};

/// Ticks of the TSC for a page fault at least. Delivery of the exception and IRET alone take longer on all processors, and on
/// emulators; a handler takes a thousand.
const LEAST_TICKS: u64 = 64;

/// The counters that are read, by their places on the page.
const PLACES: [u64; 2] = [
    core::mem::offset_of!(Layout, page_faults_user) as u64,
    core::mem::offset_of!(Layout, page_faults_kernel) as u64,
];

/// Why a page is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The address is not aligned, or reserved bits are set.
    Invalid,
    /// This version of the layout is unknown.
    Version,
    /// There is no RAM at the address.
    NotRam,
}

impl Refusal {
    /// The number for it, as the C header has it.
    pub const fn number(self) -> u64 {
        match self {
            Refusal::Invalid => hypercall::KVM_EINVAL,
            Refusal::Version => hypercall::KVM_EOPNOTSUPP,
            Refusal::NotRam => hypercall::KVM_EFAULT,
        }
    }
}

/// What a hypercall asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Use the page at this address.
    Register(Gpa),
    /// Use none.
    Unregister,
}

impl Request {
    /// Reads the arguments of the hypercall; whether there is RAM at the address is for the caller to find out.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] and [`Refusal::Version`].
    pub fn parse(value: u64, version: u64) -> Result<Request, Refusal> {
        if value == 0 {
            return Ok(Request::Unregister);
        }
        let gpa = value & !COUNTER_PAGE_ENABLED;
        if value == gpa || !gpa.is_multiple_of(COUNTER_PAGE_BYTES as u64) {
            return Err(Refusal::Invalid);
        }
        if version != COUNTER_PAGE_VERSION {
            return Err(Refusal::Version);
        }
        Ok(Request::Register(Gpa(gpa)))
    }
}

/// The counter page of a VCPU, and what it has counted since the VCPU's reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterPage {
    registered: Option<Registered>,
    total: u64,
}

/// A page in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registered {
    gpa: Gpa,
    /// What was on it, and the ticks that the VCPU had run, at the last reading.
    last: [u64; PLACES.len()],
    ran: u64,
}

impl CounterPage {
    /// Uses the page at `gpa`, instead of another one: counting goes on from what is on it now. `ran`: ticks that the VCPU has
    /// run so far.
    ///
    /// # Errors
    /// There is no RAM; everything stays as it is.
    pub fn register(&mut self, memory: &impl GuestMemory, gpa: Gpa, ran: u64) -> Result<(), Refusal> {
        let last = read(memory, gpa).map_err(|NotRam { .. }| Refusal::NotRam)?;
        self.update(memory, ran);
        self.registered = Some(Registered { gpa, last, ran });
        Ok(())
    }

    /// Uses no page any more; what was counted up to `ran` stays counted.
    pub fn unregister(&mut self, memory: &impl GuestMemory, ran: u64) {
        self.update(memory, ran);
        self.registered = None;
    }

    /// Whether a page is in use.
    pub fn is_registered(&self) -> bool {
        self.registered.is_some()
    }

    /// Page faults of the VCPU that its kernel has counted, as of the last reading.
    pub fn page_faults(&self) -> u64 {
        self.total
    }

    /// Reads the page. One whose memory is gone is not used any more.
    pub fn update(&mut self, memory: &impl GuestMemory, ran: u64) {
        let Some(page) = &mut self.registered else { return };
        let Ok(now) = read(memory, page.gpa) else {
            self.registered = None;
            return;
        };
        let most = ran.saturating_sub(page.ran) / LEAST_TICKS;
        let grown = now.iter().zip(page.last).fold(0u64, |sum, (now, last)| {
            // Backwards: the guest began again, or lies.
            sum.saturating_add(now.saturating_sub(last))
        });
        self.total = self.total.wrapping_add(grown.min(most));
        (page.last, page.ran) = (now, ran);
    }
}

fn read(memory: &impl GuestMemory, gpa: Gpa) -> Result<[u64; PLACES.len()], NotRam> {
    let mut counters = [0; PLACES.len()];
    for (counter, place) in counters.iter_mut().zip(PLACES) {
        *counter = memory.read_u64(gpa.wrapping_add(place))?;
    }
    Ok(counters)
}

/// A guest that registers what it likes and writes what it likes: the sum only grows, and by no more than time allows.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    use crate::mem::guest_memory::VecMemory;
    let mut input = crate::device::fuzz::Input::new(data);
    let memory = VecMemory::new(4 * COUNTER_PAGE_BYTES);
    let mut page = CounterPage::default();
    let mut ran = 0u64;
    while let Some(op) = input.byte() {
        let (before, ran_before) = (page.page_faults(), ran);
        // Mostly a page, which random bits hardly ever are.
        let value = if op < 0x80 { input.u64() } else { (u64::from(op % 6) * 0x1000) | 1 };
        match op % 4 {
            0 => match Request::parse(value, u64::from(op >> 2) % 3) {
                Ok(Request::Register(gpa)) => {
                    let is_ram = gpa.0 < 4 * COUNTER_PAGE_BYTES as u64;
                    assert_eq!(page.register(&memory, gpa, ran).is_ok(), is_ram);
                }
                Ok(Request::Unregister) => page.unregister(&memory, ran),
                Err(refusal) => assert!(refusal.number() != 0),
            },
            1 => ran = ran.wrapping_add(value % 1_000_000),
            2 => page.update(&memory, ran),
            _ => {
                let at = Gpa(u64::from(op >> 2) % 4 * COUNTER_PAGE_BYTES as u64 + value % 2 * 8);
                memory.write(at, &input.u64().to_le_bytes()).unwrap();
            }
        }
        let grown = page.page_faults().checked_sub(before).expect("the sum went backwards");
        assert!(grown <= ran_before.max(ran) / LEAST_TICKS, "more than time allows");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::guest_memory::VecMemory;
    use proptest::prelude::*;

    const PAGE: Gpa = Gpa(0x2000);
    /// More ticks than the tests have page faults for.
    const LONG: u64 = 1_000_000;

    fn memory() -> VecMemory {
        VecMemory::new(0x4000)
    }

    fn count(memory: &VecMemory, gpa: Gpa, user: u64, kernel: u64) {
        memory.write(gpa, [user, kernel].map(u64::to_le_bytes).as_flattened()).unwrap();
    }

    #[test]
    fn arguments_are_checked() {
        let parse = Request::parse;
        assert_eq!(parse(0x2001, 1), Ok(Request::Register(PAGE)));
        assert_eq!(parse(0, 7), Ok(Request::Unregister));
        for bad in [0x11, 0x2000, 0x2003, 0x2801, u64::MAX, 2] {
            assert_eq!(parse(bad, 1), Err(Refusal::Invalid), "{bad:#x}");
        }
        assert_eq!([0, 2, u64::MAX].map(|version| parse(0x2001, version)), [Err(Refusal::Version); 3]);
        assert_eq!(parse(0xffff_ffff_ffff_f001, 1), Ok(Request::Register(Gpa(!0xfff))));
    }

    #[test]
    fn growth_of_both_counters_counts() {
        let memory = memory();
        count(&memory, PAGE, 1000, 7);
        let mut page = CounterPage::default();
        page.register(&memory, PAGE, 0).unwrap();
        assert_eq!(page.page_faults(), 0, "what was there before");
        count(&memory, PAGE, 1003, 8);
        page.update(&memory, LONG);
        assert_eq!(page.page_faults(), 4);
        count(&memory, PAGE, 1005, 8);
        page.unregister(&memory, 2 * LONG);
        assert_eq!((page.page_faults(), page.is_registered()), (6, false));
        count(&memory, PAGE, 2000, 8);
        page.update(&memory, 3 * LONG);
        assert_eq!(page.page_faults(), 6);
    }

    #[test]
    fn a_page_that_is_not_ram_is_refused_and_the_old_one_stays() {
        let memory = memory();
        let mut page = CounterPage::default();
        page.register(&memory, PAGE, 0).unwrap();
        assert_eq!(page.register(&memory, Gpa(0x10_0000), 0), Err(Refusal::NotRam));
        assert_eq!(page.register(&memory, Gpa(!0xfff), 0), Err(Refusal::NotRam));
        count(&memory, PAGE, 5, 0);
        page.update(&memory, LONG);
        assert_eq!(page.page_faults(), 5);
    }

    #[test]
    fn another_page_takes_its_place() {
        let memory = memory();
        let mut page = CounterPage::default();
        page.register(&memory, PAGE, 0).unwrap();
        count(&memory, PAGE, 5, 0);
        count(&memory, Gpa(0x3000), 900, 0);
        page.register(&memory, Gpa(0x3000), LONG).unwrap();
        count(&memory, PAGE, 50, 0);
        count(&memory, Gpa(0x3000), 901, 0);
        page.update(&memory, 2 * LONG);
        assert_eq!(page.page_faults(), 6);
    }

    #[test]
    fn lies_are_cut_to_what_time_allows() {
        let memory = memory();
        let mut page = CounterPage::default();
        count(&memory, PAGE, 100, 100);
        page.register(&memory, PAGE, 0).unwrap();
        count(&memory, PAGE, 10, 101);
        page.update(&memory, LONG);
        assert_eq!(page.page_faults(), 1, "backwards");
        count(&memory, PAGE, u64::MAX, u64::MAX);
        page.update(&memory, LONG + 64 * 20);
        assert_eq!(page.page_faults(), 21, "a jump");
        page.update(&memory, LONG);
        assert_eq!(page.page_faults(), 21, "time that runs backwards");
        count(&memory, PAGE, 0, 0);
        page.update(&memory, 2 * LONG);
        count(&memory, PAGE, 3, 0);
        page.update(&memory, 3 * LONG);
        assert_eq!(page.page_faults(), 24, "and it goes on");
    }

    proptest! {
        #[test]
        fn no_guest_makes_the_sum_jump(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            fuzz_one(&bytes);
        }
    }
}
