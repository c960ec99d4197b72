//! Miss ratios over memory sizes in a report: what `pal replace --json` has written of traces of page accesses.

use std::{fmt::Write, fs, path::Path};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    chart::{self, COLOURS},
    page::escape,
};
use crate::status::Usage;

/// Results that are shown of a file; more are refused.
const MOST: usize = 4096;
/// Policies that are shown of a file: a chart has no more colours.
const MOST_CURVES: usize = 2 * COLOURS;

/// A policy, and the misses of all references by page frames, in percent.
type Curve = (String, Vec<(u32, f64)>);

/// What a file has.
#[derive(Clone, Debug, PartialEq)]
pub struct Misses {
    name: String,
    references: u64,
    pages: u64,
    curves: Vec<Curve>,
}

impl Misses {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Usage`]: it cannot be read, or is something else.
    pub fn open(path: &Path) -> Result<Misses, Usage> {
        let wrong = |why: String| Usage::new(format!("--miss-ratios {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let name =
            path.file_stem().map_or_else(|| "trace".into(), |stem| stem.to_string_lossy().into_owned());
        Misses::read(name, &text).map_err(wrong)
    }

    /// Reads the document.
    ///
    /// # Errors
    /// Why it is none, and what writes one.
    fn read(name: String, text: &str) -> Result<Misses, String> {
        let none = |what: &str| format!("{what}; `cargo pal replace --trace FILE --json FILE` writes one");
        let document: Value = serde_json::from_str(text).map_err(|_| none("no file of miss ratios"))?;
        match (document["format"].as_str(), document["version"].as_u64()) {
            (Some("palimpsest-replace"), Some(1)) => {}
            (Some("palimpsest-replace"), Some(version)) => {
                return Err(format!("version {version}, and this pal reads 1; use the pal that wrote it"));
            }
            _ => return Err(none("no file of miss ratios")),
        }
        let results = document["results"].as_array().filter(|results| results.len() <= MOST);
        let results = results.ok_or_else(|| none("it has no results, or far too many"))?;
        let mut curves: Vec<Curve> = Vec::new();
        for result in results {
            let frames = result["frames"].as_u64().and_then(|frames| u32::try_from(frames).ok());
            let ratio = result["miss_ratio"].as_f64().filter(|ratio| (0.0..=1.0).contains(ratio));
            let (Some(policy), Some(frames), Some(ratio)) = (result["policy"].as_str(), frames, ratio) else {
                return Err(none("one of its results is damaged"));
            };
            let at = curves.iter().position(|(name, _)| name == policy).unwrap_or_else(|| {
                curves.push((policy.to_owned(), Vec::new()));
                curves.len() - 1
            });
            curves[at].1.push((frames, 100.0 * ratio));
        }
        if curves.is_empty() || curves.len() > MOST_CURVES {
            return Err(none(&format!("results of {} policies", curves.len())));
        }
        curves.iter_mut().for_each(|(_, points)| points.sort_by_key(|point| point.0));
        let number = |key: &str| document[key].as_u64().unwrap_or(0);
        Ok(Misses { name, references: number("references"), pages: number("pages"), curves })
    }

    /// Curves and their values.
    fn html(&self) -> Result<String> {
        let points = |points: &[(u32, f64)]| points.iter().map(|(x, y)| (f64::from(*x), *y)).collect();
        let curves: Vec<_> = self.curves.iter().map(|(name, all)| (name.clone(), points(all))).collect();
        let below = format!("page frames ({} pages)", self.pages);
        let svg = chart::curves_within(&curves, &below, "misses in percent of references")?;
        let mut html = format!(
            "<h3>{}</h3><p>{} references to {} pages.</p><figure>{svg}</figure>",
            escape(&self.name),
            self.references,
            self.pages
        );
        let names: String =
            self.curves.iter().map(|(name, _)| format!("<th>{}</th>", escape(name))).collect();
        let _ = write!(html, "<div class=\"wide\"><table><tr><th>frames</th>{names}</tr>");
        let mut sizes: Vec<u32> = self.curves.iter().flat_map(|(_, all)| all).map(|point| point.0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for frames in sizes {
            let cell = |(_, all): &Curve| {
                let found = all.iter().find(|point| point.0 == frames);
                found.map_or_else(|| "<td>–</td>".into(), |(_, misses)| format!("<td>{misses:.3} %</td>"))
            };
            let cells: String = self.curves.iter().map(cell).collect();
            let _ = write!(html, "<tr><td>{frames}</td>{cells}</tr>");
        }
        html += "</table></div>";
        Ok(html)
    }

    fn data(&self) -> Value {
        let curves = self.curves.iter().map(|(policy, points)| json!({ "policy": policy, "points": points }));
        json!({ "name": self.name, "references": self.references, "pages": self.pages,
            "curves": curves.collect::<Vec<_>>() })
    }
}

/// What is to be said of all files; nothing if there are none.
///
/// # Errors
/// A chart cannot be drawn.
pub fn section(all: &[Misses]) -> Result<String> {
    if all.is_empty() {
        return Ok(String::new());
    }
    let mut html =
        "<h2 id=\"misses\">Miss ratios <small>of page replacement, simulated</small></h2>".to_owned();
    for misses in all {
        html += &misses.html()?;
    }
    Ok(html)
}

/// The same for programs.
pub fn data(all: &[Misses]) -> Value {
    all.iter().map(Misses::data).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::{
        Run,
        tests::{ABOUT, END, line},
    };

    fn document() -> Value {
        let result = |policy: &str, frames: u32, ratio: f64| json!({ "policy": policy, "frames": frames, "miss_ratio": ratio });
        json!({ "format": "palimpsest-replace", "version": 1, "references": 1000, "pages": 30,
            "results": [result("clock", 20, 0.25), result("clock", 10, 0.5), result("a<b>", 10, 0.125)] })
    }

    fn read(document: &Value) -> Result<Misses, String> {
        Misses::read("lu".into(), &document.to_string())
    }

    #[test]
    fn a_page_has_the_curves_and_their_values() {
        let misses = read(&document()).unwrap();
        assert_eq!(misses.curves[0], ("clock".to_owned(), vec![(10, 50.0), (20, 25.0)]));
        let text = format!("{ABOUT}{}{END}", line("a", 1, 5));
        let runs = [Run::read(text.as_bytes()).unwrap()];
        let page = crate::report::page::page(&runs, &[misses]).unwrap();
        for part in [
            "id=\"misses\"",
            "1000 references to 30 pages.",
            "<tr><td>10</td><td>50.000 %</td><td>12.500 %</td></tr><tr><td>20</td><td>25.000 %</td><td>–</td></tr>",
            "page frames (30 pages)",
            "<th>a&lt;b&gt;</th>",
        ] {
            assert!(page.contains(part), "no {part:?} in {page}");
        }
        // The page's style sheet has the colours, for light and for dark.
        assert!(!page.contains("<style>svg") && !page.contains("a<b>"));
        let begin = page.find("id=\"data\">").unwrap() + 10;
        let data: Value =
            serde_json::from_str(&page[begin..begin + page[begin..].find("</script>").unwrap()]).unwrap();
        assert_eq!(data["miss_ratios"][0]["curves"][0]["points"], json!([[10, 50.0], [20, 25.0]]));
        assert!(!crate::report::page::page(&runs, &[]).unwrap().contains("id=\"misses\""));
    }

    #[test]
    fn other_files_are_refused_with_what_to_do() {
        let with = |key: &str, value: Value| {
            let mut document = document();
            document[key] = value;
            read(&document).unwrap_err()
        };
        assert!(Misses::read("x".into(), "{").unwrap_err().contains("cargo pal replace"));
        assert!(with("format", json!("other")).contains("cargo pal replace"));
        assert!(with("version", json!(2)).contains("version 2"));
        assert!(with("results", json!([])).contains("0 policies"));
        assert!(with("results", json!(vec![1; MOST + 1])).contains("too many"));
        for (key, value) in [("miss_ratio", json!(1.5)), ("frames", json!(-1)), ("policy", json!(7))] {
            let mut document = document();
            document["results"][1][key] = value;
            assert!(read(&document).unwrap_err().contains("damaged"), "{key}");
        }
        assert!(
            Misses::open(Path::new("/no/such")).unwrap_err().to_string().contains("--miss-ratios /no/such")
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(at in 0usize..400, byte: u8, cut in 0usize..400) {
            let mut text = document().to_string().into_bytes();
            let length = text.len();
            text[at % length] = byte;
            text.truncate(length - cut % length);
            if let Ok(misses) = Misses::read("x".into(), &String::from_utf8_lossy(&text)) {
                prop_assert!(section(&[misses]).is_ok());
            }
        }
    }
}
