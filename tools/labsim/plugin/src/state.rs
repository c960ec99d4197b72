//! What the plugin has beside its processors ([`crate::vcpu`]): one [`Plugin`].

use std::{
    ffi::{CStr, c_uint, c_void},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU64,
            Ordering::{Acquire, Relaxed},
        },
    },
};

use abi::lab::{Header, MAGIC, PAGE, PCPUS, Record, VERSION};
use labsim::{
    model::{
        Processor,
        cache::REACH,
        channel::Carried,
        decode::Operation,
        processor::{Checking, Pcpus, Shared},
    },
    report::{About, Pcpu, report},
};

use crate::{
    ffi,
    keeper::Keeper,
    memory::{Mapping, Ram, other_mapping},
    options::{Broken, Model, ModelFrom, Options, check_name, from_name, model_name},
    page_trace::PageTrace,
    vcpu::Vcpu,
};

/// Words of a processor that translated code changes.
#[repr(C)]
pub struct Score {
    /// Instructions.
    pub instructions: u64,
    /// The code that runs: see [`crate::translate`]. Another value has the next block call back.
    pub code: u64,
    /// Instructions since the processor has last looked whether it is ahead of others.
    pub since: u64,
}

/// Ranges of memory that have a channel, and what that has carried.
type Channels = Vec<(std::ops::Range<u64>, Carried)>;

/// [`Score::code`] of no block.
pub const ASK: u64 = u64::MAX;

/// The plugin as a whole.
pub struct Plugin {
    /// How much is modelled.
    pub model: Model,
    from: ModelFrom,
    /// See [`Options::clock`].
    pub clock: bool,
    /// What follows is modelled, and not only counted.
    models: AtomicBool,
    /// What is compared.
    pub check: Checking,
    /// Keeps several processors in step.
    pub keeper: Option<Keeper>,
    broken: Option<Broken>,
    /// The pages that guests access, if they are recorded.
    pub page_trace: Option<PageTrace>,
    /// The machine's memory.
    pub ram: Ram,
    ram_file: String,
    /// Where QEMU has the memory, found when the first code is translated.
    mapped: OnceLock<Option<std::ops::Range<u64>>>,
    score: *mut ffi::Scoreboard,
    header: *mut Header,
    records: *mut Record,
    shared: Mutex<Shared>,
    /// What channels of memory had carried when the machine said that the run ends.
    ended: Mutex<Option<Channels>>,
    report: Option<String>,
    machine: String,
    mhz: u32,
    pcpus_per_domain: u32,
    pcpus: usize,
    spare: u32,
}

// SAFETY: the raw pointers are to what lives as long as the process: QEMU's scoreboard, of which each processor uses its own words
// ([`Plugin::score`]), and the records, of which each processor writes its own.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
static ID: AtomicU64 = AtomicU64::new(0);
/// The processors, by the numbers that QEMU has for them.
pub static VCPUS: [AtomicPtr<Vcpu>; PCPUS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; PCPUS];

/// The plugin. Callbacks are registered only after it is there.
pub fn plugin() -> &'static Plugin {
    PLUGIN.get().expect("the plugin was installed")
}

impl Plugin {
    /// Prepares everything but the processors.
    ///
    /// # Safety
    /// QEMU is in `qemu_plugin_install`.
    pub unsafe fn new(options: Options, info: &ffi::Info) -> Result<Plugin, String> {
        let (oldest, newest) = (info.version.min, info.version.cur);
        if !(oldest..=newest).contains(&ffi::VERSION) {
            return Err(format!(
                "this QEMU has plugin interfaces {oldest} to {newest}, not {}",
                ffi::VERSION
            ));
        }
        // SAFETY: a string of QEMU's.
        let target = unsafe { CStr::from_ptr(info.target_name) };
        if target != c"x86_64" || !info.system_emulation {
            return Err(format!("{target:?} is not a PC: use qemu-system-x86_64"));
        }
        let numbers = usize::try_from(info.max_vcpus).unwrap_or(0);
        if !(1..=PCPUS).contains(&numbers) {
            return Err(format!("{numbers} processors: the model has 1 to {PCPUS}"));
        }
        let spare = options.spare;
        let unused = spare.saturating_sub(1) as usize;
        let pcpus = numbers
            .checked_sub(unused)
            .filter(|pcpus| *pcpus > usize::from(spare > 0))
            .ok_or_else(|| format!("spare={spare}: of {numbers} processors none is left for guests"))?;
        let ram = Ram::new(&options.ram)?;
        let page_trace = options.pages.map(|path| PageTrace::new(&path, options.pages_of_all)).transpose()?;
        if ram.split.end() > REACH {
            return Err(format!(
                "{} GiB of memory: the model's caches hold lines of 255 GiB at most",
                ram.split.end() >> 30
            ));
        }
        let bytes = PAGE * (1 + pcpus);
        let memory = match &options.share {
            Some(path) => Mapping::new(path)?,
            None => anonymous(bytes),
        };
        if memory.len < bytes as u64 {
            return Err(format!("share: {bytes} bytes are needed for {pcpus} processors"));
        }
        let mhz = *options.machine.mhz.get_ref();
        let pcpus_per_domain = options.machine.pcpus_per_domain;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            pcpus: pcpus as u32,
            record_offset: PAGE as u64,
            record_bytes: PAGE as u64,
            khz: u64::from(mhz) * 1000,
            counts_only: u64::from(options.from == ModelFrom::Session || options.model == Model::Count),
        };
        // SAFETY: the memory is large enough, aligned to pages, and is not read yet.
        unsafe {
            std::ptr::write_bytes(memory.base, 0, bytes);
            memory.base.cast::<Header>().write(header);
        }
        let doorbell = options.share_at.map_or(0..0, |at| at..at + bytes as u64);
        let machine = options.machine.name.get_ref().clone();
        let with_caches = options.model == Model::Full;
        let of = Pcpus { count: pcpus as u32, has_spare: spare > 0 };
        let shared = Shared::new(options.machine, ram.split, of, with_caches, options.check, doorbell);
        Ok(Plugin {
            model: options.model,
            from: options.from,
            clock: options.clock,
            models: AtomicBool::new(options.from == ModelFrom::Boot),
            check: options.check,
            keeper: (pcpus > 1).then(|| Keeper::new(numbers, options.step)),
            broken: options.broken,
            page_trace,
            ram,
            ram_file: options.ram,
            mapped: OnceLock::new(),
            // SAFETY: QEMU allocates it.
            score: unsafe { ffi::qemu_plugin_scoreboard_new(size_of::<Score>()) },
            header: memory.base.cast(),
            // SAFETY: within the memory.
            records: unsafe { memory.base.add(PAGE) }.cast(),
            shared: Mutex::new(shared),
            ended: Mutex::new(None),
            report: options.report,
            machine,
            mhz,
            pcpus_per_domain,
            pcpus,
            spare,
        })
    }

    /// Whether code that is translated now is modelled, and not only counted.
    pub fn models(&self) -> bool {
        self.models.load(Relaxed)
    }

    /// A program's mark, on a processor's thread: from now on everything is modelled, if it is not yet.
    ///
    /// Code that is translated already does not call back as it then has to. So QEMU is asked to drop it, together with the
    /// plugin's callbacks, while no processor runs. The block with the mark, and what follows it until QEMU heeds the request, are
    /// counted as before.
    pub fn begin_to_model(&self) {
        if !self.models() {
            // SAFETY: QEMU's number for this plugin; the callback registers all others again.
            unsafe { ffi::qemu_plugin_reset(ID.load(Relaxed), Plugin::begun) };
        }
    }

    /// QEMU has dropped all code and all callbacks; no processor runs.
    extern "C" fn begun(id: ffi::Id) {
        let plugin = plugin();
        plugin.models.store(true, Relaxed);
        // SAFETY: the header lives as long as the process, at a multiple of 8, and nothing else writes this word.
        let counts_only = unsafe { AtomicU64::from_ptr(&raw mut (*plugin.header).counts_only) };
        counts_only.store(u64::from(plugin.model == Model::Count), Relaxed);
        // SAFETY: as in the installation.
        unsafe { crate::register(id) };
        for vcpu in VCPUS.iter().map(|place| place.load(Acquire)).filter(|vcpu| !vcpu.is_null()) {
            // SAFETY: stored by `start`, never freed, and its thread waits.
            unsafe { (*vcpu).ask() };
        }
    }

    /// Whether every access has to come to the model: it compares each, or needs each store to the tables.
    pub fn sees_all(&self) -> bool {
        self.check == Checking::All || self.check == Checking::Misses && self.pcpus > 1
    }

    /// The number that the machine's firmware, and so the hypervisor, gives the processor that QEMU calls `vcpu`, counted
    /// from 0: without the places in the spare one's package that are empty. `None`: there is no such processor.
    fn number(&self, vcpu: c_uint) -> Option<c_uint> {
        let number = if vcpu == 0 { 0 } else { vcpu.checked_sub(self.spare.saturating_sub(1))? };
        ((vcpu == 0 || number > 0) && (number as usize) < self.pcpus).then_some(number)
    }

    /// The words of the processor that QEMU calls `vcpu`, to be used at once: QEMU moves all of them when a processor comes whose number is
    /// a power of two from 16 on, while no other one executes code.
    #[inline]
    pub fn score(&self, vcpu: c_uint) -> *mut Score {
        // SAFETY: the processor exists, as its state does.
        unsafe { ffi::qemu_plugin_scoreboard_find(self.score, vcpu) }.cast()
    }

    /// The model of the processor that QEMU calls `vcpu`. `None`: there is no such processor.
    ///
    /// # Safety
    /// Called once for each processor, when it starts.
    pub unsafe fn processor(&self, vcpu: c_uint) -> Option<Processor<Ram>> {
        let number = self.number(vcpu)?;
        // SAFETY: each processor takes its own record, once, in memory that is never freed; records are a page apart.
        let record = unsafe { &mut *self.records.byte_add(number as usize * PAGE) };
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut processor = shared.processor(number, self.ram, record);
        processor.set_clock(Box::new(move |stalls| {
            // SAFETY: as in `Vcpu::instructions`: it is called on the processor's thread.
            let instructions = unsafe { (*plugin().score(vcpu)).instructions };
            let cycles = instructions.wrapping_add(stalls);
            plugin().keeper.as_ref().map_or(cycles, |keeper| keeper.time(vcpu as usize, cycles))
        }));
        Some(processor)
    }

    /// What channels of memory have carried so far.
    fn channels(&self) -> Channels {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).channels()
    }

    /// The run ends here, says the machine: what channels carry later is not reported.
    pub fn run_ends(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.channels());
    }

    /// Whether this is what a broken model does not see.
    pub fn overlooks(&self, operation: &Operation) -> bool {
        match self.broken {
            Some(Broken::Invlpg) => matches!(operation, Operation::Invlpg(_)),
            Some(Broken::Cr3) => matches!(operation, Operation::MovCr(3)),
            None => false,
        }
    }

    /// Makes it the plugin, which QEMU has given this number.
    pub fn install(self, id: ffi::Id) {
        ID.store(id, Relaxed);
        let _ = PLUGIN.set(self);
    }

    /// The word of a scoreboard at this offset of [`Score`].
    pub fn word(&self, offset: usize) -> ffi::ScoreWord {
        ffi::ScoreWord { score: self.score, offset }
    }

    /// The physical address of code that QEMU has at `host`.
    pub fn physical(&self, host: u64) -> Option<u64> {
        let mapped = self.mapped.get_or_init(|| other_mapping(&self.ram_file, self.ram.base())).as_ref()?;
        mapped.contains(&host).then(|| self.ram.physical(host - mapped.start))
    }
}

fn anonymous(bytes: usize) -> Mapping {
    let pages = vec![[0u64; PAGE / 8]; bytes.div_ceil(PAGE)].into_boxed_slice();
    Mapping { base: Box::leak(pages).as_mut_ptr().cast(), len: bytes as u64 }
}

/// QEMU ends: writes the report.
pub extern "C" fn finish(_id: ffi::Id, _data: *mut c_void) {
    let plugin = plugin();
    let vcpus = VCPUS.iter().map(|place| place.load(Acquire)).filter(|vcpu| !vcpu.is_null());
    let mut pcpus: Vec<Pcpu> = vcpus
        .map(|vcpu| {
            // SAFETY: stored by `start`, never freed. A processor that still runs may be in the middle of an update: then
            // a count of its may be off by what it is just adding.
            let vcpu = unsafe { &mut *vcpu };
            vcpu.counted()
        })
        .collect();
    if plugin.spare > 0 && !pcpus.is_empty() {
        pcpus[0].is_spare = true;
        pcpus.rotate_left(1);
    }
    let (model, check) = (model_name(plugin.model), check_name(plugin.check));
    let (from, modelled) = (from_name(plugin.from), plugin.models());
    let out_of_step = plugin.keeper.as_ref().map(Keeper::out_of_step);
    let ended = plugin.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
    let channels = ended.unwrap_or_else(|| plugin.channels());
    let page_trace = plugin.page_trace.as_ref().map(PageTrace::finish);
    let about = About {
        machine: &plugin.machine,
        mhz: plugin.mhz,
        pcpus_per_domain: plugin.pcpus_per_domain,
        model,
        from,
        modelled,
        check,
        out_of_step,
        channels,
        page_trace,
    };
    let text = format!("{:#}\n", report(&about, &pcpus));
    match &plugin.report {
        Some(path) => {
            if let Err(error) = std::fs::write(path, text) {
                eprintln!("labsim: cannot write the report {path}: {error}");
            }
        }
        None => eprint!("{text}"),
    }
}
