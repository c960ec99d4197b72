//! The host's screen: found in the boot loader's information, written by `boot::console` and `boot::panic`.
//!
//! What must hold: its memory is mapped and is no RAM. It is used on the boot tables already, if it lies where they reach, and
//! mapped write-combining as soon as the host has its own.

use spin::{Mutex, MutexGuard};

use super::{memory, paging};
use crate::firmware::info::BootInfo;
use crate::hw::video::{self, VideoMemory};
use crate::screen::{Layout, Terminal, Text};

/// What the boot tables map.
const BOOT_MAP: u64 = 4 << 30;

static TEXT: Mutex<Text> = Mutex::new(Text::new());
static SCREEN: Mutex<Option<Terminal<'static, VideoMemory>>> = Mutex::new(None);

/// The screen that the loader describes, unless it cannot be used; a warning says why.
fn layout(boot: &BootInfo) -> Option<Layout> {
    let framebuffer = boot.framebuffer?;
    let layout =
        Layout::new(&framebuffer).map_err(|why| ::log::info!("the screen is not used: {why}")).ok()?;
    let place = layout.memory();
    let is_ram = |range: core::ops::Range<u64>| range.start < place.end && place.start < range.end;
    if memory::ram(boot).ok()?.iter().any(is_ram) {
        ::log::warn!("the screen is not used: its framebuffer at {:#x} overlaps RAM", place.start);
        return None;
    }
    Some(layout)
}

/// Finds the screen, and starts it if the boot tables reach it.
pub fn start(boot: &BootInfo) -> Option<Layout> {
    let layout = layout(boot)?;
    if layout.memory().end <= BOOT_MAP {
        // SAFETY: the boot tables and those that follow map it, and it is no RAM.
        unsafe { open(layout) }
    }
    Some(layout)
}

/// Goes on with the host's own tables on what [`start`] has found.
pub fn map(layout: Option<Layout>) {
    let Some(layout) = layout else { return };
    let mapped = paging::map_video(layout.memory());
    if in_use().is_none() && mapped.is_ok() {
        // SAFETY: it was mapped just now, and it is no RAM.
        unsafe { open(layout) }
    }
}

/// # Safety
/// The screen's memory is mapped from now on, and is no RAM.
unsafe fn open(layout: Layout) {
    let Some(text) = TEXT.try_lock() else { return };
    // SAFETY: the caller's promise.
    let video = unsafe { VideoMemory::new(&layout) };
    *SCREEN.lock() = Some(Terminal::new(video, layout, MutexGuard::leak(text)));
}

/// The screen in use.
pub fn in_use() -> Option<Layout> {
    SCREEN.lock().as_ref().map(|screen| *screen.layout())
}

/// Prints, if there is a screen.
pub fn write(bytes: &[u8]) {
    if let Some(screen) = SCREEN.lock().as_mut() {
        bytes.iter().for_each(|byte| screen.put(*byte));
        video::flush();
    }
}

/// Lets a panic print although it may have happened while something was printed.
///
/// # Safety
/// Nothing that holds the screen runs ever again.
pub unsafe fn seize() {
    // SAFETY: the caller's promise; whatever was left half done, the renderer stays within its memory.
    unsafe { SCREEN.force_unlock() }
}
