//! The emulator's view of the guest: [`emulate::Memory`] over the guest's page tables, RAM and the device bus.

use crate::arch::addr::{Gpa, Gva, PAGE_SIZE};
use crate::arch::state::VcpuState;
use crate::arch::{Access, Exception, vector};
use crate::emulate::{self, Fault, MAX_LEN};
use crate::mem::guest_memory::GuestMemory;
use crate::paging::P2mEntry;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::guest_walk::{self, PagingState, WalkError, error_code};
use crate::vcpu::bus::Bus;
use crate::vcpu::host::Host;
use crate::vm::{HostMemory, Memory, Vm};

/// Why the emulator could not go on, beyond the guest's own faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortStop {
    /// Instructions would be fetched from where there is no memory.
    FetchOutsideRam(Gpa),
    /// Other VCPUs keep changing the page tables: let the guest try again.
    Retry,
}

/// One emulated instruction's accesses.
pub struct Port<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory, H: Host> {
    /// Devices.
    pub bus: Bus<'a, F, M, H>,
    paging: PagingState,
    written: Option<Written>,
}

/// What shadow paging knows about an instruction that it does not let pass: its write has just been translated.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// An address that is written to.
    pub gva: Gva,
    /// Where that is.
    pub gpa: Gpa,
    /// Written at CPL 3.
    pub user: bool,
}

impl Written {
    /// Where `at` is, if this tells.
    fn translate(&self, at: Gva, access: Access) -> Option<Gpa> {
        let known = access.write && access.user == self.user && (at.0 ^ self.gva.0) < PAGE_SIZE;
        known.then(|| Gpa(self.gpa.align_down(PAGE_SIZE).0 | at.offset()))
    }
}

/// The one or two pages that an access touches: address and length of each piece.
type Pieces = [(Gpa, usize); 2];

impl<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory, H: Host> Port<'a, F, M, H> {
    /// A port for the VCPU whose registers say `paging`.
    pub fn new(bus: Bus<'a, F, M, H>, paging: PagingState, written: Option<Written>) -> Self {
        Port { bus, paging, written }
    }

    fn translate(&self, memory: &Memory<F, M>, at: Gva, access: Access) -> Result<Gpa, Fault<PortStop>> {
        if let Some(gpa) = self.written.and_then(|written| written.translate(at, access)) {
            return Ok(gpa);
        }
        match guest_walk::translate(&self.paging, &memory.ram(), at, access) {
            Ok(found) => Ok(found.gpa),
            Err(WalkError::PageFault(error)) => Err(Exception::page_fault(at, error).into()),
            // Where there is no memory tables read as ones: present, with every reserved bit set.
            Err(WalkError::NotRam { .. }) => {
                let error = error_code::PRESENT
                    | error_code::RESERVED
                    | if access.write { error_code::WRITE } else { 0 }
                    | if access.user { error_code::USER } else { 0 }
                    | if access.execute && self.paging.no_execute() { error_code::FETCH } else { 0 };
                Err(Exception::page_fault(at, error).into())
            }
            Err(WalkError::Contended) => Err(Fault::Stop(PortStop::Retry)),
        }
    }

    fn pieces(&mut self, at: Gva, len: usize, access: Access) -> Result<Pieces, Fault<PortStop>> {
        let memory = self.bus.memory();
        let first = len.min((PAGE_SIZE - at.offset()) as usize);
        let gpa = self.translate(&memory, at, access)?;
        if first == len {
            return Ok([(gpa, len), (Gpa(0), 0)]);
        }
        let second = self.translate(&memory, at.wrapping_add(first as u64), access)?;
        Ok([(gpa, first), (second, len - first)])
    }

    fn read_physical(&mut self, gpa: Gpa, buf: &mut [u8]) {
        let memory = self.bus.memory();
        match memory.p2m.translate(gpa) {
            P2mEntry::Mmio => {
                drop(memory);
                self.bus.mmio_read(gpa, buf);
            }
            entry => match entry.readable() {
                Some(hpa) => memory.host.read(hpa, buf),
                None => buf.fill(0xff),
            },
        }
    }

    fn write_physical(&mut self, gpa: Gpa, data: &[u8]) {
        let memory = self.bus.memory();
        match memory.p2m.translate_to_write(gpa) {
            P2mEntry::Mmio => {
                drop(memory);
                self.bus.mmio_write(gpa, data);
            }
            // Writes to ROM and to holes are lost, as on a real machine.
            entry => {
                if let Some(hpa) = entry.writable() {
                    self.bus.write(&memory, gpa, data.len(), || memory.host.write(hpa, data));
                }
            }
        }
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory, H: Host> emulate::Memory for Port<'_, F, M, H> {
    type Stop = PortStop;

    fn fetch(&mut self, at: Gva, buf: &mut [u8], user: bool) -> Result<(), Fault<PortStop>> {
        let memory = self.bus.memory();
        if let Some(hpa) = self.bus.vm.code(at, user) {
            memory.host.read(hpa, buf);
            return Ok(());
        }
        let access = if user { Access::FETCH.user() } else { Access::FETCH };
        let gpa = self.translate(&memory, at, access)?;
        match memory.p2m.translate(gpa).readable() {
            Some(hpa) => {
                memory.host.read(hpa, buf);
                Ok(())
            }
            None => Err(Fault::Stop(PortStop::FetchOutsideRam(gpa))),
        }
    }

    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault<PortStop>> {
        let mut done = 0;
        for (gpa, len) in self.pieces(at, buf.len(), access)? {
            if len != 0 {
                self.read_physical(gpa, &mut buf[done..done + len]);
                done += len;
            }
        }
        Ok(())
    }

    fn write(&mut self, at: Gva, data: &[u8], access: Access) -> Result<(), Fault<PortStop>> {
        let mut done = 0;
        for (gpa, len) in self.pieces(at, data.len(), access)? {
            if len != 0 {
                self.write_physical(gpa, &data[done..done + len]);
                done += len;
            }
        }
        Ok(())
    }

    fn probe(&mut self, at: Gva, len: usize, access: Access) -> Result<(), Fault<PortStop>> {
        self.pieces(at, len, access).map(|_| ())
    }

    fn compare_exchange(
        &mut self,
        at: Gva,
        old: &[u8],
        new: &[u8],
        access: Access,
    ) -> Result<bool, Fault<PortStop>> {
        let pieces = self.pieces(at, old.len(), access)?;
        let size = old.len();
        if let [(gpa, len), (_, 0)] = pieces
            && matches!(len, 4 | 8)
            && gpa.is_aligned(len as u64)
            && let memory = self.bus.memory()
            && memory.p2m.translate_to_write(gpa).writable().is_some()
        {
            let word = |bytes: &[u8]| {
                let mut wide = [0; 8];
                wide[..size].copy_from_slice(bytes);
                u64::from_le_bytes(wide)
            };
            let exchange = || memory.ram().compare_exchange(gpa, size, word(old), word(new));
            return Ok(self.bus.write(&memory, gpa, size, exchange).unwrap_or(true));
        }
        // Other sizes and split accesses are not atomic towards other VCPUs.
        self.write(at, new, access).map(|()| true)
    }

    fn io_in(&mut self, port: u16, size: u8) -> Result<u32, Fault<PortStop>> {
        Ok(self.bus.io_in(port, size))
    }

    fn io_out(&mut self, port: u16, size: u8, value: u32) -> Result<(), Fault<PortStop>> {
        self.bus.io_out(port, size, value);
        Ok(())
    }

    fn wants_pause(&self) -> bool {
        self.bus.has_urgent_work()
    }

    fn xmm(&mut self, index: u8) -> Result<u128, Fault<PortStop>> {
        Ok(self.bus.host.xmm(index))
    }

    fn set_xmm(&mut self, index: u8, value: u128) -> Result<(), Fault<PortStop>> {
        self.bus.host.set_xmm(index, value);
        Ok(())
    }

    fn mmx(&mut self, index: u8) -> Result<u64, Fault<PortStop>> {
        let pending = Exception { vector: vector::MF, error: None, cr2: None };
        self.bus.host.mmx(index).ok_or(pending.into())
    }

    fn set_mmx(&mut self, index: u8, value: u64) -> Result<(), Fault<PortStop>> {
        self.bus.host.set_mmx(index, value);
        Ok(())
    }
}

/// Fetches the bytes at CS:RIP without any effect on the guest; returns how many are there. None while a writer waits for
/// the memory: the guest executes the instruction again.
#[cold]
pub fn fetch<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(
    state: &impl VcpuState,
    vm: &Vm<F, M>,
    bytes: &mut [u8; MAX_LEN],
) -> usize {
    let start = emulate::current_key(state).linear;
    let paging = PagingState::of(state, vm.paging_features);
    let user = state.cpl() == 3;
    let access = if user { Access::FETCH.user() } else { Access::FETCH };
    let Some(memory) = vm.memory.try_read() else { return 0 };
    let mut have = 0;
    while have < MAX_LEN {
        let at = Gva(start.wrapping_add(have as u64));
        let len = (MAX_LEN - have).min((PAGE_SIZE - at.offset()) as usize);
        if let Some(hpa) = vm.code(at, user) {
            memory.host.read(hpa, &mut bytes[have..have + len]);
            have += len;
            continue;
        }
        let Ok(found) = guest_walk::peek(&paging, &memory.ram(), at, access) else { break };
        if memory.ram().read(found.gpa, &mut bytes[have..have + len]).is_err() {
            break;
        }
        have += len;
    }
    have
}
