//! Documents: widths, lengths of paragraphs and cells, and links to files that exist.

use std::path::Path;

use crate::{DOCUMENTS, Source, check, sources};

const COLUMNS_MAX: usize = 100;
const PARAGRAPH_WORDS_MAX: usize = 80;
const CELL_WORDS_MAX: usize = 15;

fn documents() -> Vec<Source> {
    sources(DOCUMENTS, ".md")
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            lines.push((number, ""));
        } else {
            lines.push((number, if in_code { "" } else { line }));
        }
    }
    lines
}

#[test]
fn documents_fit_their_width() {
    let mut broken = Vec::new();
    for source in documents() {
        let wide = source.text.lines().zip(1..).filter(|(line, _)| line.chars().count() > COLUMNS_MAX);
        broken.extend(wide.map(|(_, number)| (source.path.clone(), format!(":{number}"))));
    }
    check("a line of a document has at most 100 columns", &broken, &[]);
}

#[test]
fn paragraphs_and_cells_are_short() {
    let mut broken = Vec::new();
    for source in documents() {
        let mut words = 0;
        for (number, line) in prose(&source.text) {
            let text = line.trim_start();
            let is_numbered = text.trim_start_matches(|char: char| char.is_ascii_digit()).starts_with(". ");
            let starts_item = text.is_empty() || is_numbered || text.starts_with(['-', '#', '|', '>']);
            words = line.split_whitespace().count() + if starts_item { 0 } else { words };
            if line.starts_with('|') {
                let cells = line.split('|').map(|cell| cell.split_whitespace().count());
                if cells.max().unwrap_or(0) > CELL_WORDS_MAX {
                    broken.push((source.path.clone(), format!(":{number}: a cell of over {CELL_WORDS_MAX} words")));
                }
                words = 0;
            } else if words > PARAGRAPH_WORDS_MAX {
                broken
                    .push((source.path.clone(), format!(":{number}: a paragraph of over {PARAGRAPH_WORDS_MAX} words")));
                words = 0;
            }
        }
    }
    check("paragraphs have at most 80 words, cells 15", &broken, &[]);
}

#[test]
fn links_between_documents_lead_to_files() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut broken, mut followed) = (Vec::new(), 0);
    for source in documents() {
        let dir = top.join(&source.path).parent().unwrap().to_owned();
        for (number, line) in prose(&source.text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
                // Links of the API's documentation are checked by rustdoc.
                if link.is_empty() || link.contains("://") || link.starts_with("crate::") {
                    continue;
                }
                followed += 1;
                if !dir.join(link).exists() {
                    broken.push((source.path.clone(), format!(":{number}: {link}")));
                }
            }
        }
    }
    assert!(followed > 10, "only {followed} links were found");
    check("links lead to files", &broken, &[]);
}
