//! The report on a machine, without a guest.

use anyhow::Result;

use super::{Case, only};
use crate::context::{BOCHS_TIMEOUT, Context};

pub const CASES: &[Case] = &[
    only("qemu-svm", "a report on the machine", report),
    only("qemu-svm", "a report on a machine that cannot run guests", unsuitable),
    only("bochs-vtx", "a report on an Intel machine", intel),
    only("bochs-vtx", "two processors with VT-x", two),
    only("qemu-svm", "a report needs the hypervisor and no guest", options),
];

fn report(context: &Context) -> Result<()> {
    let options = ["--probe", "--mem", "512", "--pcpus", "4,sockets=2"];
    let report = context.run(&[&options[..], &["--qemu-arg=-device", "--qemu-arg=amd-iommu"]].concat())?;
    let report = report.status(0)?.soon()?;
    let lines = [
        "hardware report of Palimpsest ",
        "machine: QEMU, ",
        "firmware: SeaBIOS, ",
        "processor: AMD EPYC Processor (AuthenticAMD, family 23 model 1 stepping 2)\n",
        "  it is virtual: the hypervisor below is TCGTCGTCGTCG\n",
        "  cache: L2 512 KiB",
        "virtualization: AMD-V, 16 ASIDs\n  has: nested paging\n  has no next RIP: ",
        "PCPUs: 4 in the MADT, APIC IDs 0 to 3; 4 started\n",
        "  4 cores in 2 packages, last-level caches of PCPUs 0-1, 2-3, 1 memory node\n",
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

/// Both start, in x2APIC mode, run guests at once, and end each other's.
fn two(context: &Context) -> Result<()> {
    let options =
        ["--probe", "--pcpus", "2", "--hv-arg", "selftest=smp", "--verbose", "--timeout", BOCHS_TIMEOUT];
    let report = context.run(&options)?.status(0)?.says("selftest: a loop with interrupts disabled: ")?;
    // Until now no entry has failed that should not.
    let report = report
        .says("selftest: guest with invalid state: VMCS: exit 0x80000021")?
        .says("broken: CR0 has upper bits\n")?;
    let report = report.says("selftest: passed on 2 PCPUs")?.has("interrupts: x2APIC with TSC deadline")?;
    report.has("PCPUs: 2 in the MADT, APIC IDs 0 to 1; 2 started\n")?;
    Ok(())
}

fn options(context: &Context) -> Result<()> {
    context.run(&["--probe", "--exec", "true"])?.status(2)?.says("--exec")?;
    context.run(&["--probe", "--mode", "shadow"])?.status(2)?.says("--mode")?;
    context.run(&["--probe", "--pcpus", "4,sockets=3"])?.status(2)?.says("do not make that up")?;
    context.run(&["--pcpus", "2", "--icount", "--exec", "true"])?.status(2)?.says("--icount")?;
    context
        .pal(["run", "--machine", "native", "--pcpus", "2", "--exec", "true"], None)?
        .status(2)?
        .says("--vcpus")?;
    context.pal(["run", "--machine", "native", "--probe"], None)?.status(2)?.says("--probe")?;
    Ok(())
}
