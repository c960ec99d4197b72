//! The files of a guest, read and checked, the default ones fetched: from a description to contents.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use super::{
    bundle::{File, Module},
    disk::Disk,
    drivers,
    get::Get,
    image::Image,
    initramfs::{self, Contents, Put, Root},
    vm::{self, Vm},
};
use crate::{host::needs::Needs, kit};

/// A guest's files.
pub struct Files {
    /// The kernel.
    pub kernel: File,
    /// What the kernel is.
    pub kind: Image,
    /// The initial RAM disk.
    pub initrd: Option<File>,
    /// It is the default one.
    pub ours: bool,
    /// Files that the default guest sends at its end.
    pub gets: Vec<Get>,
    /// Modules with their command lines.
    pub modules: Vec<Module>,
    /// Disks.
    pub disks: Vec<Disk>,
}

impl Files {
    /// Reads the files. What the person gave is read before anything is fetched. With `can_map` disks stay in their files where
    /// possible.
    ///
    /// # Errors
    /// [`crate::status::Usage`] for files that cannot work, others for default files that are not to be had.
    pub fn read(vm: &Vm, needs: &Needs, can_map: bool) -> Result<Files> {
        let read = |key: &str, path: &Path| {
            fs::read(path).map_err(|error| vm.wrong(key, format!(" {}: {error}", path.display())))
        };
        let given = vm.kernel.as_deref().map(|path| read("kernel", path)).transpose()?;
        let puts = vm.put.iter().map(|put| Put::parse(put)).collect::<Result<Vec<_>>>();
        let puts = puts.map_err(|error| vm.wrong("put", format!(" {error}")))?;
        let gets = vm.get.iter().map(|get| Get::parse(get, &vm.folder)).collect::<Result<Vec<_>>>();
        let gets = gets.map_err(|error| vm.wrong("get", format!(" {error}")))?;
        let modules = vm.modules.iter().map(|module| {
            let name = file_name(&module.file).replace(' ', "_");
            let cmdline = module.cmdline.clone().unwrap_or(name);
            Ok(Module { contents: read("modules", &module.file)?, cmdline })
        });
        let modules = modules.collect::<Result<Vec<_>>>()?;
        let root = vm.root.iter().map(|root| Disk::root(vm, root, needs, can_map));
        let disks = root.chain(vm.disks.iter().map(|disk| Disk::open(vm, disk, can_map)));
        let mut disks = disks.collect::<Result<Vec<_>>>()?;
        drivers::check(vm)?;
        let own = vm.initrd.as_deref().map(|path| read("initrd", path)).transpose()?;
        let path = vm.kernel.clone().map_or_else(|| needs.kernel(vm.guest()), Ok)?;
        let kernel = given.map_or_else(|| read("kernel", &path), Ok)?;
        let kind = Image::identify(&kernel)
            .map_err(|what| vm.wrong("kernel", format!(" {}: {what}", path.display())))?;
        if !kind.is_linux()
            && let Some(key) = vm.asks_of_default_guest()
        {
            let kernel = vm.called("kernel");
            return Err(
                vm.wrong(key, format!(" needs a Linux kernel for the default initramfs: leave out {kernel}"))
            );
        }
        if matches!(kind, Image::BzImage { .. }) && !modules.is_empty() {
            return Err(vm.wrong("modules", ": a Linux bzImage takes one initrd and no modules"));
        }
        let ours = kind.is_linux() && own.is_none();
        let mut root = vm.root.as_ref().map(|_| Root::default());
        if let Some(root) = &mut root
            && let Some(folder) = drivers::folder(vm, &path, &kernel)
        {
            let file = needs.modules_disk(&folder)?;
            let modules = vm::Disk { file, read_only: true, write_back: false };
            root.modules_disk = Some(format!("/dev/vd{}", char::from(b'a' + disks.len() as u8)));
            disks.push(Disk::open(vm, &modules, can_map)?);
        }
        let initrd = match own.map(|contents| (vm.initrd.as_deref(), contents)) {
            None if ours => {
                let busybox = needs.busybox(vm.guest())?;
                let mut drivers =
                    if vm.has_devices() { drivers::find(vm, &path, &kernel)? } else { Vec::new() };
                if vm.kit {
                    let module = kit::build(vm, needs, &path, &kernel)?;
                    let contents =
                        fs::read(&module).with_context(|| format!("cannot read {}", module.display()))?;
                    drivers.push((kit::NAME.to_owned(), contents));
                }
                let command = vm.exec.as_deref();
                let contents = initramfs::build(&Contents {
                    busybox: &busybox,
                    puts: &puts,
                    modules: &drivers,
                    command,
                    gets: &gets,
                    root: root.as_ref(),
                })?;
                Some(File { name: "initramfs".into(), contents })
            }
            own => own.map(|(path, contents)| File { name: path.map_or(String::new(), file_name), contents }),
        };
        let kernel = File { name: file_name(&path), contents: kernel };
        let files = Files { kernel, kind, initrd, ours, gets, modules, disks };
        files.check_memory(vm)?;
        Ok(files)
    }

    fn check_memory(&self, vm: &Vm) -> Result<()> {
        let Image::BzImage { end } = self.kind else { return Ok(()) };
        let initrd = self.initrd.as_ref().map_or(0, |initrd| initrd.contents.len() as u64);
        let needed = end.saturating_add(initrd).div_ceil(1 << 20);
        if vm.memory_mib < needed {
            let (kernel, initrd) = (end.div_ceil(1 << 20), initrd.div_ceil(1 << 20));
            let text = format!(
                " {}: this kernel needs {kernel} MiB to start and {initrd} MiB for its initrd; give at least {} {needed}",
                vm.memory_mib,
                vm.called("memory_mib"),
            );
            return Err(vm.wrong("memory_mib", text));
        }
        Ok(())
    }
}

/// The last part of a path, as text.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
