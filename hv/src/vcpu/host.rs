//! What the run loop needs of the PCPU that it runs on. Bare metal implements it once; tests script it.

use records::trace::What;

use crate::arch::counters::{BothSides, Spent};
use crate::device::virtio::switch::Woken;
use crate::vm::mailbox::Mailbox;

/// One PCPU as the run loop sees it. Except for [`Host::tsc`] and the console's output, functions are called only
/// after the VCPU has released the processor.
pub trait Host {
    /// The host's TSC.
    fn tsc(&self) -> u64;

    /// Its low half, which is enough where the two ends of a short time are subtracted.
    #[inline(always)]
    fn tsc_low(&self) -> u32 {
        self.tsc() as u32
    }

    /// The VCPU is entered after pending work was served; so it is at the first entry of each turn.
    fn entering(&mut self) {}

    /// The PCPU's performance counters now; `None` if they are not used.
    fn counters(&mut self) -> Option<BothSides> {
        None
    }

    /// What the hypervisor has executed on the PCPU; `None` if that does not count it.
    fn host_spent(&mut self) -> Option<Spent> {
        None
    }

    /// Every exit of a divided VM is told by [`Host::exited`].
    const TELLS_EXITS: bool = false;

    /// An exit begins, of a VM some of whose memory is mapped to caches.
    fn exited(&mut self) {}

    /// What is done now for the VCPU is no part of the move that it comes by, if it has not been entered since.
    fn does_other_work(&mut self) {}

    /// [`Host::host_spent`] when the exit began, or now if that was not noted.
    fn spent_at_exit(&mut self) -> Option<Spent> {
        self.host_spent()
    }

    /// The number of the VCPU's VM in the configuration.
    fn vm_number(&self) -> u8 {
        0
    }

    /// Takes a sample of the VM ([`records::sample`]).
    fn record_sample(&mut self, record: &[u64]) {
        let _ignored = record;
    }

    /// Whether events on this PCPU are wanted by [`Host::trace`].
    fn is_traced(&self) -> bool {
        false
    }

    /// Takes an event of the VM that runs here: of VCPU `vcpu`, from `tsc` on, at an address or 0.
    fn trace(&mut self, what: What, vcpu: u32, tsc: u64, ticks: u64, at: u64) {
        let _ignored = (what, vcpu, tsc, ticks, at);
    }

    /// Requests an interrupt at or soon after this host TSC value; replaces an earlier request. Returns when the timer will
    /// interrupt: then, or earlier for another reason.
    fn arm_timer(&mut self, deadline: u64) -> u64;

    /// Whether the timer's interrupt has been taken since the last call. It may come early, by the error of the timer's
    /// calibration; the timer is no longer armed then.
    fn timer_fired(&mut self) -> bool;

    /// Takes the host interrupts that are pending.
    fn serve_interrupts(&mut self);

    /// Has an interrupt wait for the PCPU that executes this: the next entry ends as soon as it has delivered its event, before
    /// the guest's first instruction. At once, unlike the timer: on an emulator that fires from another thread, and a guest
    /// that exits at each instruction would arm it again each time.
    fn interrupt_self(&mut self);

    /// Has the VCPU of this mailbox look into it soon: by an interrupt to the PCPU that runs it, or by waking it.
    fn kick(&mut self, mailbox: &Mailbox);

    /// Whether the PCPU is wanted for something else: another VCPU, or a person at the console.
    fn is_wanted(&mut self) -> bool;

    /// Whether another VCPU waits for the PCPU.
    fn others_wait(&self) -> bool {
        false
    }

    /// The cache domain of this PCPU, below 16. May be called while the VCPU has the processor, as the next one.
    fn cache_domain(&self) -> u8 {
        0
    }

    /// The PCPU of a cache domain on which the VCPU of this mailbox should go on; `None`: it may run on none of them.
    fn place_in(&mut self, mailbox: &Mailbox, domain: u8) -> Option<u8> {
        let _one_domain = (mailbox, domain);
        None
    }

    /// Whether this PCPU has taken the VCPU of this mailbox away from the cache domain that its memory had moved it to, because it
    /// had nothing else to run; true once.
    fn was_taken(&mut self, mailbox: &Mailbox) -> bool {
        let _one_domain = mailbox;
        false
    }

    /// Whether [`Host::console_read`] may have something. Cheap.
    fn console_ready(&self) -> bool;

    /// The next byte of console input for the guest.
    fn console_read(&mut self) -> Option<u8>;

    /// Shows a byte of the guest's console. False: no more can be taken until [`Host::console_writable`].
    #[must_use]
    fn console_write(&mut self, byte: u8) -> bool;

    /// Whether [`Host::console_write`] takes bytes (again).
    fn console_writable(&mut self) -> bool;

    /// Devices of these VMs have something to do: some VCPU of each looks soon ([`work::DEVICES`](super::work::DEVICES)).
    /// Without it they look at their next exit, a fraction of a second later.
    fn wake(&mut self, vms: Woken) {
        let _no_wakeup_is_urgent = vms;
    }

    /// Reads the guest's XMM register `index` (0 to 15), which is in the processor.
    fn xmm(&self, index: u8) -> u128;

    /// Writes it.
    fn set_xmm(&mut self, index: u8, value: u128);

    /// Reads the guest's MMX register `index` (0 to 7); `None` if an x87 exception is pending (#MF).
    fn mmx(&self, index: u8) -> Option<u64>;

    /// Writes it, as an MMX instruction does: the x87 tag word becomes all valid.
    fn set_mmx(&mut self, index: u8, value: u64);

    /// The guest's XCR0, which is in the processor; 1 on processors without XSAVE.
    fn xcr0(&self) -> u64;

    /// Sets XCR0 to a value that is valid for the guest and its processor.
    fn set_xcr0(&mut self, value: u64);

    /// Sets TSC_AUX, if the processor has it.
    fn set_tsc_aux(&mut self, value: u64);

    /// The guest wants this in SPEC_CTRL from now on; it has the MSR.
    fn set_spec_ctrl(&mut self, wanted: u64);

    /// Writes bit 0 of this MSR, PRED_CMD or FLUSH_CMD, which the processor has.
    fn forget_speculation(&mut self, msr: u32);

    /// Clears DR0 to DR3.
    fn clear_breakpoints(&mut self);
}
