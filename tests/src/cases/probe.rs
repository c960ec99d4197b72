//! The report on a machine, without a guest.

use anyhow::Result;

use super::{Case, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "a report on the machine", report),
    only("qemu-svm", "a report on a machine that cannot run guests", unsuitable),
    only("bochs-vtx", "a report on an Intel machine", intel),
    only("qemu-svm", "a report needs the hypervisor and no guest", options),
];

fn report(context: &Context) -> Result<()> {
    let options = ["--probe", "--mem", "512", "--qemu-arg=-smp", "--qemu-arg=3"];
    let report = context.run(&[&options[..], &["--qemu-arg=-device", "--qemu-arg=amd-iommu"]].concat())?;
    let report = report.status(0)?.within(30)?;
    let lines = [
        "hardware report of Palimpsest ",
        "machine: QEMU, ",
        "firmware: SeaBIOS, ",
        "processor: AMD EPYC Processor (AuthenticAMD, family 23 model 1 stepping 2)\n",
        "  it is a virtual one, of TCGTCGTCGTCG\n",
        "  cache: L2 512 KiB",
        "virtualization: AMD-V, 16 ASIDs\n  has: nested paging\n  has no next RIP: ",
        "PCPUs: 3 in the MADT, APIC IDs 0 to 2\n",
        "memory: ",
        "IOMMU: AMD-Vi with 1 units, not used\n",
        "time: TSC at ",
        "ACPI: FACP, APIC, ",
        "serial ports: COM1, COM2; none at COM3, COM4\n",
        "end of the report; the emulated machine ends\n",
    ];
    lines.iter().try_fold(report, |report, line| report.has(line))?;
    Ok(())
}

/// Above all there is the report needed, and it is no failure.
fn unsuitable(context: &Context) -> Result<()> {
    let report = context.run(&["--probe", "--qemu-arg=-cpu", "--qemu-arg=EPYC,-svm"])?.status(0)?;
    report.has("virtualization: cannot be used: this processor has no AMD-V")?.has("end of the report")?;
    Ok(())
}

/// Started by GRUB from a medium, as real machines are.
fn intel(context: &Context) -> Result<()> {
    let report = context.run(&["--probe"])?.status(0)?;
    let lines = [
        "started by: GRUB 2.",
        " on a PC BIOS\n",
        "(GenuineIntel, family 6 model 85 stepping 4)\n",
        "  its XSAVEC loses AVX state and is hidden from guests\n",
        "  cache: L2 1 MiB, 16 ways, lines of 64 bytes",
        "virtualization: VT-x, VMCS revision ",
        "  has: EPT, ",
        "end of the report; it is switched off now\n",
    ];
    lines.iter().try_fold(report, |report, line| report.has(line))?;
    Ok(())
}

fn options(context: &Context) -> Result<()> {
    context.run(&["--probe", "--exec", "true"])?.status(2)?.says("--exec")?;
    context.run(&["--probe", "--mode", "shadow"])?.status(2)?.says("--mode")?;
    context.pal(["run", "--machine", "native", "--probe"], None)?.status(2)?.says("--probe")?;
    Ok(())
}
