//! Readers of traces on arbitrary bytes.

use std::io::BufReader;

use super::{
    Batch, Run, Source, TraceError, Universe,
    foreign::{OracleGeneral, Text},
    format::{MAGIC, Reader, VERSION, Writer},
};

/// The page of each reference, and the object of each page.
type Expanded = (Vec<u64>, Vec<u32>);

/// All references of a trace, as far as they are this many at most, and the objects of the pages.
fn all(mut source: impl Source, most: u64) -> Result<Option<Expanded>, TraceError> {
    let (mut universe, mut batch, mut pages) = (Universe::default(), Batch::default(), Vec::new());
    let mut total = 0u64;
    loop {
        batch.clear();
        source.fill(&mut batch, &mut universe)?;
        if batch.steps.is_empty() {
            return Ok((total <= most).then_some((pages, universe.objects)));
        }
        assert!(batch.steps.iter().all(|step| step.times > 0 && step.len > 0));
        total = total.saturating_add(batch.references());
        if total > most {
            continue;
        }
        for step in &batch.steps {
            for run in (0..step.times).flat_map(|_| batch.of(step)) {
                pages.extend((0..run.count).map(|_| universe.pages[run.page as usize]));
            }
        }
    }
}

/// Reads bytes as each format; what our own reader takes is written and read again, to the same references.
pub fn fuzz_one(data: &[u8]) {
    let _refused = all(Text::lines(data), 0);
    let _refused = all(Text::columns(data, 2, b','), 0);
    let _refused = all(OracleGeneral::new(data), 0);
    let _refused = Reader::new(data).and_then(|reader| all(reader, 0));
    let head = [&MAGIC[..], &[VERSION]].concat();
    let whole = [&head[..], data].concat();
    let Ok(Some((pages, _))) = Reader::new(&whole[..]).and_then(|reader| all(reader, 1 << 12)) else {
        return;
    };
    let mut writer = super::compact::Compactor::new(Writer::new(Vec::new()).expect("a vector"));
    for run in pages.chunk_by(|a, b| a == b) {
        writer.push(Run { page: run[0], count: run.len() as u32 }).expect("a vector");
    }
    let (again, references) = writer.finish().and_then(Writer::finish).expect("a vector");
    assert_eq!(references, pages.len() as u64);
    // Through a small buffer: numbers lie across its ends.
    let reader = Reader::new(BufReader::with_capacity(3, &again[..])).expect("it was just written");
    let (read, _) = all(reader, u64::MAX).expect("it was just written").expect("all");
    assert_eq!(read, pages);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::Sink;

    /// A trace of two objects.
    fn sample() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.object(100, 50).unwrap();
        writer.object(1 << 40, 3).unwrap();
        for page in [100, 101, 99, 1 << 40] {
            writer.run(Run { page, count: 1 + page as u32 % 3 }).unwrap();
        }
        writer.pattern(&[Run { page: 100, count: 1 }, Run { page: 101, count: 2 }], 4).unwrap();
        writer.finish().unwrap().0
    }

    #[test]
    fn reads_what_was_written() {
        let (pages, objects) = all(Reader::new(&sample()[..]).unwrap(), u64::MAX).unwrap().unwrap();
        let far = 1u64 << 40;
        let mut wanted = vec![100, 100, 101, 101, 101, 99, far];
        wanted.extend([100, 101, 101].repeat(4));
        assert_eq!(pages, wanted);
        assert_eq!(objects, [1, 1, 0, 2]);
    }

    #[test]
    fn cut_and_foreign_files_are_told_apart() {
        let sample = sample();
        for len in 0..sample.len() {
            let why = Reader::new(&sample[..len]).and_then(|reader| all(reader, 0)).unwrap_err();
            let expected = if len < 9 { "not a page trace" } else { "cut off" };
            assert!(why.to_string().contains(expected), "{len}: {why}");
        }
        let mut newer = sample.clone();
        newer[8] = 2;
        let why = Reader::new(&newer[..]).err().unwrap().to_string();
        assert!(why.contains("version 2") && why.contains("reads version 1"), "{why}");
        let mut fewer = sample.clone();
        *fewer.last_mut().unwrap() -= 1;
        let why = Reader::new(&fewer[..]).and_then(|reader| all(reader, 0)).unwrap_err();
        assert!(why.to_string().contains("number of references"), "{why}");
    }

    #[test]
    fn reads_libcachesims_formats() {
        let of = |source: Result<Option<Expanded>, TraceError>| source.unwrap().unwrap().0;
        assert_eq!(of(all(Text::lines(&b"5\n\n# six\n0x10\n5"[..]), 9)), [5, 16, 5]);
        assert_eq!(of(all(Text::columns(&b"time,id,size\n1,7,1\n2, 8 ,1\n"[..], 2, b','), 9)), [7, 8]);
        let why = all(Text::columns(&b"1,7\n2\n"[..], 2, b','), 9).unwrap_err().to_string();
        assert!(why.contains("line 2") && why.contains("--column"), "{why}");
        let why = all(Text::lines(&b"five\n"[..]), 9).unwrap_err().to_string();
        assert!(why.contains("line 1: the id is no number"), "{why}");
        let record = |id: u64| [&[1, 0, 0, 0][..], &id.to_le_bytes(), &[1; 12]].concat();
        let file = [record(3), record(1 << 60), record(3)].concat();
        assert_eq!(of(all(OracleGeneral::new(&file[..]), 9)), [3, 1 << 60, 3]);
        let why = all(OracleGeneral::new(&file[..50]), 9).unwrap_err().to_string();
        assert!(why.contains("cut off after 2 references"), "{why}");
    }

    proptest! {
        #[test]
        fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_one(&data);
        }

        /// Small numbers are runs and patterns more often than not.
        #[test]
        fn likely_bytes(mut data in proptest::collection::vec(0u8..40, 0..200), end in any::<bool>()) {
            if end {
                data.extend([2, 100]);
            }
            fuzz_one(&data);
        }

        #[test]
        fn patterns_are_the_same_references(pieces in proptest::collection::vec((0u64..5, 1usize..6, 1usize..30), 0..20)) {
            let mut data = Vec::new();
            for (page, len, times) in pieces {
                (0..times).for_each(|_| data.extend((0..len as u64).map(|n| Run { page: page + n, count: 1 + n as u32 % 2 })));
            }
            let mut writer = crate::trace::compact::Compactor::new(Writer::new(Vec::new()).unwrap());
            let expand = |run: &Run<u64>| vec![run.page; run.count as usize];
            let wanted: Vec<u64> = data.iter().flat_map(expand).collect();
            data.iter().for_each(|run| writer.push(*run).unwrap());
            let (bytes, references) = writer.finish().and_then(Writer::finish).unwrap();
            let read = all(Reader::new(&bytes[..]).unwrap(), u64::MAX).unwrap().unwrap().0;
            prop_assert_eq!(references, wanted.len() as u64);
            prop_assert_eq!(read, wanted);
        }
    }
}
