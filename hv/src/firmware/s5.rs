//! The sleep types of soft-off, found in the DSDT without an AML interpreter.
//!
//! Firmware declares `Name (\_S5, Package () { SLP_TYPa, SLP_TYPb, … })` with constants. ACPI 6.5, 7.4.2 and 20.2.

/// The SLP_TYP values for the PM1a and PM1b control registers in AML code.
pub fn find(aml: &[u8]) -> Option<[u8; 2]> {
    let at = aml.windows(4).enumerate().filter(|(_, name)| *name == b"_S5_").map(|(at, _)| at);
    at.filter(|at| is_name(&aml[..*at])).find_map(|at| package(&aml[at + 4..]))
}

/// Whether a NameOp, with or without a root prefix, comes before.
fn is_name(before: &[u8]) -> bool {
    before.ends_with(&[0x08]) || before.ends_with(&[0x08, b'\\'])
}

/// The first two elements of a package of integer constants.
fn package(aml: &[u8]) -> Option<[u8; 2]> {
    let [0x12, length, rest @ ..] = aml else { return None };
    // The package length takes up to three more bytes; behind it is the number of elements.
    let mut elements = rest.get((length >> 6) as usize + 1..)?;
    let mut types = [0; 2];
    for value in &mut types {
        (*value, elements) = integer(elements)?;
    }
    Some(types)
}

/// An integer constant, truncated to a byte, and what follows it.
fn integer(aml: &[u8]) -> Option<(u8, &[u8])> {
    match aml {
        [value @ (0 | 1), rest @ ..] => Some((*value, rest)),
        [0x0a, value, rest @ ..] => Some((*value, rest)),
        [0x0b, value, _, rest @ ..] => Some((*value, rest)),
        [0x0c, value, _, _, _, rest @ ..] => Some((*value, rest)),
        _ => None,
    }
}

/// Searches arbitrary bytes; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let _ = find(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms_that_compilers_produce() {
        // QEMU: Package (4) { 0, 0, 0, 0 } with ZeroOp.
        assert_eq!(find(b"xx\x08_S5_\x12\x06\x04\x00\x00\x00\x00"), Some([0, 0]));
        // Bochs: byte constants and a root prefix.
        assert_eq!(find(b"\x08\\_S5_\x12\x0a\x04\x0a\x05\x0a\x06\x00\x00"), Some([5, 6]));
        // A length in two bytes.
        assert_eq!(find(b"\x08_S5_\x12\x4a\x00\x04\x0a\x07\x01\x00\x00"), Some([7, 1]));
        assert_eq!(find(b"\x08_S5_\x12\x0a\x02\x0b\x03\x00\x0c\x04\x00\x00\x00"), Some([3, 4]));
    }

    #[test]
    fn other_uses_of_the_name_are_passed_over() {
        assert_eq!(find(b"\x14\x08_S5_\x00 \x08_S5_\x12\x06\x04\x01\x01\x00\x00"), Some([1, 1]));
        assert_eq!(find(b"_S5_\x12\x06\x04\x00\x00\x00\x00"), None);
        assert_eq!(find(b"\x08_S5_\x12"), None);
        assert_eq!(find(b""), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(tail in prop::collection::vec(any::<u8>(), 0..16)) {
            fuzz_one(&[b"\x08_S5_\x12".as_slice(), &tail].concat());
        }
    }
}
