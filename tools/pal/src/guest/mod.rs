//! What a guest is made of, on this side: kernel files, the default initramfs, and the bundle that carries it all to
//! the hypervisor.

pub mod bundle;
pub mod cpio;
pub mod devices;
pub mod disk;
pub mod drivers;
pub mod files;
pub mod get;
pub mod image;
pub mod initramfs;
pub mod mark;
pub mod vm;
