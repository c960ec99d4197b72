//! What others than the driver do with a VM's devices: the person at the console, and the pager with the balloon's pages.

use core::sync::atomic::Ordering;

use super::Virtio;
use super::balloon::{Balloon, Counts};
use super::console::Console;
use super::model::Model;
use crate::arch::addr::Gfn;
use crate::device::message::Messages;

impl Virtio {
    /// Bytes of console input that there is room for; `None`: the guest does not use this console.
    pub fn console_room(&self) -> Option<usize> {
        self.console(|device, console| device.then(|| console.room())).flatten()
    }

    /// A byte of console input.
    pub fn console_input(&self, byte: u8) {
        self.console(|_, console| console.type_byte(byte));
        self.0.console.into_iter().for_each(|slot| self.wait(slot, true));
    }

    /// Whether [`Virtio::console_output`] has something.
    pub fn has_output(&self) -> bool {
        self.console(|_, console| console.has_output()).unwrap_or(false)
    }

    /// The host's console takes output again.
    pub fn resume_output(&self) {
        if self.has_output()
            && let Some(slot) = self.0.console
        {
            self.wait(slot, true);
        }
    }

    /// Takes the next byte that the console shows.
    pub fn console_output(&self) -> Option<u8> {
        let byte = self.console(|_, console| console.take_output())??;
        // Chains that found no room wait without a notification.
        self.wait(self.0.console?, true);
        Some(byte)
    }

    fn console<R>(&self, f: impl FnOnce(bool, &mut Console) -> R) -> Option<R> {
        let mut device = self.0.slots.get(usize::from(self.0.console?))?.lock();
        let running = device.is_running();
        match &mut device.model {
            Model::Console(console) => Some(f(running, console)),
            _ => None,
        }
    }

    /// What the balloon has done, and shall; `None`: there is none.
    pub fn balloon_counts(&self) -> Option<Counts> {
        self.balloon(|balloon| balloon.counts())
    }

    /// Asks the driver for this many pages, now or when it drives the device. The lines may have changed. False: there is no balloon.
    pub fn set_balloon(&self, pages: u32, messages: &mut Messages) -> bool {
        let set = |device: &mut super::device::Device| {
            if let Model::Balloon(balloon) = &mut device.model
                && balloon.set_target(pages)
            {
                device.notify_config(messages);
            }
        };
        self.0.balloon.and_then(|slot| self.with(slot, set)).is_some()
    }

    /// Whether [`take_named`](Self::take_named) has something.
    #[inline]
    pub fn has_named(&self) -> bool {
        self.0.has_named.load(Ordering::SeqCst)
    }

    /// Gives out the pages that the balloon wants to be discarded. The caller calls [`discarded`](Self::discarded) when no processor
    /// reaches them.
    pub fn take_named(&self, mut discard: impl FnMut(Gfn)) {
        self.balloon(|balloon| balloon.take_named(&mut discard));
    }

    /// The pages that were given out are gone: the balloon goes on.
    pub fn discarded(&self) {
        if self.balloon(Balloon::discarded) == Some(true)
            && let Some(slot) = self.0.balloon
        {
            self.wait(slot, true);
        }
    }

    fn balloon<R>(&self, f: impl FnOnce(&mut Balloon) -> R) -> Option<R> {
        let work = |device: &mut super::device::Device| match &mut device.model {
            Model::Balloon(balloon) => Some(f(balloon)),
            _ => None,
        };
        self.with(self.0.balloon?, work)?
    }
}
