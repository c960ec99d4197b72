//! Loaders against small files built here, byte for byte as the protocols describe them.

mod elf_files;
mod linux;
mod noise;

use super::*;
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::vm::layout::MemoryLayout;

/// RAM with the holes of a layout; only touched pages take memory.
pub struct SparseMemory {
    layout: MemoryLayout,
    pages: core::cell::RefCell<std::collections::BTreeMap<u64, [u8; 4096]>>,
}

impl SparseMemory {
    pub fn new(layout: MemoryLayout) -> Self {
        SparseMemory { layout, pages: Default::default() }
    }

    /// Calls `f` with each run of bytes within a page: the offset from `gpa`, and the bytes.
    fn each(&self, gpa: Gpa, len: usize, mut f: impl FnMut(usize, &mut [u8])) -> Result<(), NotRam> {
        let mut done = 0;
        while done < len {
            let at = gpa.checked_add(done as u64).ok_or(NotRam { gpa })?;
            if !self.layout.ram().iter().any(|r| r.contains(&at)) {
                return Err(NotRam { gpa: at });
            }
            let offset = at.offset() as usize;
            let run = (4096 - offset).min(len - done);
            // Fresh memory is not zero: loaders must clear what has to be.
            let mut pages = self.pages.borrow_mut();
            f(done, &mut pages.entry(at.frame().0).or_insert([0xa5; 4096])[offset..offset + run]);
            done += run;
        }
        Ok(())
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        self.read(Gpa(at), &mut buf).unwrap();
        buf
    }

    pub fn u32(&self, at: u64) -> u32 {
        self.read_u32(Gpa(at)).unwrap()
    }

    pub fn u64(&self, at: u64) -> u64 {
        self.read_u64(Gpa(at)).unwrap()
    }

    /// A zero-terminated text.
    pub fn text(&self, at: u64) -> std::string::String {
        let bytes = (at..).map(|a| self.bytes(a, 1)[0]).take_while(|&b| b != 0);
        std::string::String::from_utf8(bytes.collect()).unwrap()
    }
}

impl GuestMemory for SparseMemory {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.each(gpa, buf.len(), |at, run| buf[at..at + run.len()].copy_from_slice(run))
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.each(gpa, buf.len(), |at, run| run.copy_from_slice(&buf[at..at + run.len()]))
    }
    fn compare_exchange(&self, _: Gpa, _: usize, _: u64, _: u64) -> Result<bool, NotRam> {
        unreachable!("loaders do not need it")
    }
}

pub fn file<'a>(name: &'a str, bytes: &'a [u8]) -> File<'a> {
    File { name, bytes }
}

pub fn request<'a>(kernel: &'a [u8], memory_mib: u64) -> Request<'a> {
    Request {
        kernel: file("kernel", kernel),
        initrd: None,
        modules: Vec::new(),
        cmdline: "console=ttyS0",
        protocol: Protocol::Auto,
        layout: MemoryLayout::new(memory_mib),
        rsdp: Gpa(0xf_0000),
    }
}

/// Loads and checks that nothing overlaps.
pub fn load_ok(request: &Request<'_>) -> (SparseMemory, BootState) {
    let memory = SparseMemory::new(request.layout);
    let state = load(&memory, request).unwrap_or_else(|e| panic!("{e}"));
    let mut ranges: Vec<_> = state.placed.iter().map(|p| p.range.clone()).collect();
    ranges.sort_by_key(|r| r.start);
    assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start), "{:?}", state.placed);
    (memory, state)
}

pub fn load_err(request: &Request<'_>) -> LoadError {
    load(&SparseMemory::new(request.layout), request).unwrap_err()
}

/// Where the thing called `what` was placed.
pub fn placed(state: &BootState, what: &str) -> core::ops::Range<u64> {
    let p = state.placed.iter().find(|p| p.what == what).unwrap_or_else(|| panic!("no {what}"));
    p.range.start.0..p.range.end.0
}

pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

#[test]
fn bios_data_names_the_end_of_low_memory() {
    let (memory, _) = load_ok(&request(&linux::bzimage(), 64));
    assert_eq!((memory.bytes(0x40e, 2), memory.bytes(0x413, 2)), (vec![0xc0, 0x9f], vec![0x7f, 2]));
}

#[test]
fn files_come_from_the_configuration() {
    struct One;
    impl Files for One {
        fn get(&self, name: &str) -> Option<&[u8]> {
            (name == "k").then_some(b"bytes")
        }
    }
    let text = "version = 1\n[[vm]]\nname = \"a\"\nkernel = \"k\"\nmemory_mib = 64\ninitrd = \"i\"";
    let config = super::super::config::Config::parse(text.as_bytes()).unwrap();
    let layout = MemoryLayout::new(64);
    let e = Request::from_config(&config.vm[0], &One, layout, Gpa(0)).unwrap_err();
    assert_eq!((e.file.as_str(), &e.problem), ("i", &Problem::Missing));
    let mut vm = config.vm[0].clone();
    vm.initrd = None;
    assert_eq!(Request::from_config(&vm, &One, layout, Gpa(0)).unwrap().kernel.bytes, b"bytes");
}
