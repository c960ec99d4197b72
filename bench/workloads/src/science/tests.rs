use super::{
    dense::{Matrix, entry, factor},
    sparse::{Factor, Mesh},
    *,
};

#[test]
fn names_are_unique() {
    for (at, program) in PROGRAMS.iter().enumerate() {
        assert!(PROGRAMS[..at].iter().all(|other| other.name != program.name) && !program.work.is_empty());
        assert_eq!(find(program.name).unwrap().name, program.name);
    }
    assert!(PROGRAMS.iter().all(|program| program.name != PASSES.name));
    assert_eq!(all().filter(|program| program.in_thesis).count(), 12);
}

#[test]
fn sums_are_those_of_every_machine() {
    let sums = PROGRAMS.map(|program| (program.name, run(&program, 120, &())));
    let wanted = include!("sums.in");
    for ((name, sum), wanted) in sums.iter().zip(wanted) {
        assert_eq!(*sum, wanted, "{name}: {sums:#x?}");
    }
}

/// The sum that a guest is held to by the test `a loop over more than memory`.
#[test]
fn passes_are_those_of_the_guest() {
    assert_eq!(run(&PASSES, 500, &()), 0x78d4_e4ba_23e4_b57c);
}

#[test]
fn layouts_make_no_difference() {
    for (one, other) in [("lu-cb", "lu-ncb"), ("ocean-cp", "ocean-ncp")] {
        let sum = |name| run(find(name).unwrap(), 150, &());
        assert_eq!(sum(one), sum(other));
    }
}

#[test]
fn lu_is_the_matrix_again() {
    for contiguous in [false, true] {
        let rows = 48;
        let mut a = Matrix::new(&Heap::new(&()), rows, contiguous);
        for n in 0..rows * rows {
            a.data.set(a.at(n / rows, n % rows), entry(rows, n / rows, n % rows));
        }
        factor(&mut a);
        for n in 0..rows * rows {
            let (row, column) = (n / rows, n % rows);
            let of = |row: usize, column: usize| a.data.data()[a.at(row, column)];
            let lower = |k: usize| if k == row { 1.0 } else { of(row, k) };
            let product: f64 = (0..=row.min(column)).map(|k| lower(k) * of(k, column)).sum();
            assert!((product - entry(rows, row, column)).abs() < 1e-9, "{row} {column}");
        }
    }
}

#[test]
fn cholesky_is_the_matrix_again() {
    for side in [2, 7, 14] {
        let mesh = Mesh::new(side);
        let rows = side * side;
        let mut sorted = mesh.order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..rows), "each node has one row");
        let mut l = Factor::new(&Heap::new(&()), &mesh);
        l.factor();
        for column in 0..rows {
            for row in column..rows {
                let product: f64 = (0..=column).map(|k| l.at(row, k) * l.at(column, k)).sum();
                let entry = mesh.entry(row, column).unwrap_or(0.0);
                assert!((product - entry).abs() < 1e-9, "{side}: {row} {column}");
            }
        }
    }
}

#[test]
fn cholesky_solves_as_elimination_of_a_dense_matrix_does() {
    let mesh = Mesh::new(12);
    let rows = mesh.order.len();
    let mut l = Factor::new(&Heap::new(&()), &mesh);
    l.factor();
    let right_side = |row: usize| noise(5, row);
    let mut x: Vec<f64> = (0..rows).map(right_side).collect();
    for row in 0..rows {
        let known: f64 = (0..row).map(|k| l.at(row, k) * x[k]).sum();
        x[row] = (x[row] - known) / l.at(row, row);
    }
    for row in (0..rows).rev() {
        let known: f64 = (row + 1..rows).map(|k| l.at(k, row) * x[k]).sum();
        x[row] = (x[row] - known) / l.at(row, row);
    }
    // Gauss and Jordan, of the matrix beside the right side.
    let wide = |row: usize| {
        let entries = (0..rows).map(|column| mesh.entry(row, column).unwrap_or(0.0));
        entries.chain([right_side(row)]).collect::<Vec<_>>()
    };
    let mut dense: Vec<Vec<f64>> = (0..rows).map(wide).collect();
    for pivot in 0..rows {
        let by = dense[pivot].clone();
        for (_, row) in dense.iter_mut().enumerate().filter(|(row, _)| *row != pivot) {
            let factor = row[pivot] / by[pivot];
            row.iter_mut().zip(&by).for_each(|(value, by)| *value -= factor * by);
        }
    }
    for (row, values) in dense.iter().enumerate() {
        assert!((values[rows] / values[row] - x[row]).abs() < 1e-12, "{row}");
    }
}

#[test]
fn fft_is_the_sum_of_waves() {
    let side = 16;
    let points = side * side;
    let point = |n: usize| [noise(3, n), noise(4, n)];
    let heap = Heap::new(&());
    let got = fft::transform(&heap, side, point);
    for k in 0..points {
        let mut sum = [0.0, 0.0];
        for n in 0..points {
            let angle = -std::f64::consts::TAU * (n * k % points) as f64 / points as f64;
            let ([a, b], (sin, cos)) = (point(n), angle.sin_cos());
            sum = [sum[0] + a * cos - b * sin, sum[1] + a * sin + b * cos];
        }
        let [a, b] = got.data()[k];
        assert!((a - sum[0]).abs() < 1e-8 && (b - sum[1]).abs() < 1e-8, "{k}: {:?} {sum:?}", [a, b]);
    }
}

#[test]
fn radix_sorts() {
    let heap = Heap::new(&());
    let (mut from, to) = (heap.array(5000), heap.array(5000));
    (0..5000).for_each(|n| from.set(n, (noise(5, n) * f64::from(1 << 30)) as u32));
    let mut wanted = from.data().to_vec();
    wanted.sort_unstable();
    assert_eq!(sort::sort(&heap, from, to).data(), wanted);
}

#[test]
fn multipoles_are_near_the_sum() {
    let all = tree::field(&Heap::new(&()), 700, |n| [noise(20, n), noise(21, n)]);
    for (n, ([x, y], field)) in all.iter().enumerate() {
        let mut sum = [0.0, 0.0];
        for (_, ([ox, oy], _)) in all.iter().enumerate().filter(|(other, _)| *other != n) {
            let (dx, dy) = (x - ox, y - oy);
            let square = dx * dx + dy * dy;
            sum = [sum[0] + dx / square, sum[1] - dy / square];
        }
        let scale = sum[0].abs() + sum[1].abs() + 700.0;
        let error = (sum[0] - field[0]).abs() + (sum[1] - field[1]).abs();
        assert!(error < 1e-3 * scale, "{n}: {field:?} {sum:?}");
    }
}
