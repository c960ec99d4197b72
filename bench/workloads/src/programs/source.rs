//! Input for the compiler: C as it leaves the preprocessor, without a directive, because nothing was ever included.

use std::fmt::Write;

use crate::random::Random;

/// A file with this many functions; another number, another file. The functions have what passes of a compiler work on: loops
/// over arrays and structures, switches, chains of conditions, calls of functions before them, 64-bit and floating-point
/// arithmetic.
pub fn source(number: u64, functions: u64) -> String {
    let mut text = String::from(
        "typedef unsigned int u32;\ntypedef unsigned long u64;\n\
         struct node { struct node *left, *right; u32 key; double weight; u64 counts[8]; };\n\
         extern void *allocate(u64 bytes);\nextern void report(const char *what, u64 value);\n",
    );
    let mut random = Random::new(number.wrapping_mul(0x9e37_79b9).wrapping_add(23));
    for function in 0..functions {
        // Writing to a string does not fail.
        let _ = one(&mut text, &mut random, function);
    }
    text
}

fn one(text: &mut String, random: &mut Random, function: u64) -> std::fmt::Result {
    writeln!(text, "u64 f{function}(struct node *n, const u32 *a, u64 count)\n{{")?;
    writeln!(text, "    u64 sum = {}, i, j;\n    u32 x = a[0], y = (u32)count;", random.below(1 << 16))?;
    for _ in 0..2 + random.below(4) {
        block(text, random, function)?;
    }
    writeln!(text, "    report(\"f{function}\", sum);\n    return sum ^ x + y;\n}}\n")
}

/// A part of a function.
fn block(text: &mut String, random: &mut Random, function: u64) -> std::fmt::Result {
    let number = |random: &mut Random| 1 + random.below(1 << 10);
    let (first, second) = (number(random), number(random));
    match random.below(8) {
        0 => writeln!(
            text,
            "    for (i = 0; i < count; i++)\n        for (j = i; j < {first}; j++)\n            \
             sum += a[i] * (a[j] ^ {second}u) + (n->counts[j & 7] >> (i & 15));"
        ),
        1 => {
            writeln!(text, "    switch ((x ^ {first}) & 15) {{")?;
            for case in 0..12 {
                let value = number(random);
                let what = ["sum +=", "sum ^=", "sum -=", "x *=", "y |="][random.below(4)];
                writeln!(text, "    case {case}: {what} {value} + y; break;")?;
            }
            writeln!(text, "    default: x = a[y % {second}];\n    }}")
        }
        2 => writeln!(
            text,
            "    while (n) {{\n        if (n->key == x) break;\n        n->weight = n->weight * {first}.5 + (double)sum;\n        \
             n = n->key < x ? n->left : n->right;\n        if (!n) n = allocate(sizeof *n + {second});\n    }}"
        ),
        3 => writeln!(
            text,
            "    for (i = 0; i < 8; i++)\n        n->counts[i] = n->counts[(i + {first}) & 7] * {second} + sum / (i + 1);"
        ),
        4 if function > 0 => {
            let callee = random.next() % function;
            writeln!(text, "    if (x > {first})\n        sum += f{callee}(n->left, a + 1, count / 2);")?;
            writeln!(text, "    else if (y < {second})\n        sum -= f{callee}(n->right, a, count - 1);")
        }
        5 => writeln!(
            text,
            "    x = (x << {} | x >> {}) ^ {second};\n    y += x % {first} ? x / {first} : (u32)(sum >> 32);",
            1 + first % 31,
            31 - first % 31
        ),
        6 => writeln!(
            text,
            "    {{\n        double d[16] = {{ {first}.25, {second}.5 }};\n        for (i = 1; i < 15; i++)\n            \
             d[i] = d[i - 1] * n->weight + d[i + 1] / (double)(a[i] + 1);\n        sum += (u64)d[{}];\n    }}",
            first % 15
        ),
        _ => writeln!(
            text,
            "    if (a[{first}] > x && a[{second}] < y || n->left && n->left->key == {first})\n        sum = sum * 31 + a[x & 255];"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_differ_by_their_numbers() {
        let (one, again, other) = (source(1, 20), source(1, 20), source(2, 20));
        assert_eq!(one, again);
        assert_ne!(one, other);
        assert_eq!(one.matches("\nu64 f").count(), 20);
        assert!(!one.contains('#'), "no directive of the preprocessor");
        assert_eq!(one.matches('{').count(), one.matches('}').count());
    }
}
