//! Patches of mutants, and how they are applied to the library's sources.
//!
//! A patch is a line that says what the mutant does wrong, perhaps a line `found by: LAYER`
//! with the layer that is tried first, and then a diff as of `git diff`. Line numbers are
//! ignored: the lines of a hunk that begin with a space or `-` must be in the file exactly
//! once. Whitespace, lines of comments, and commas before a closing bracket do not count. So a
//! patch survives formatting and changes elsewhere in the file. Every patch is for the library
//! without the others, so patches may share lines, but two must not replace the same line.
//!
//! An inserted `mutated!()` says whether the mutant is switched on.

/// What an inserted `mutated!()` is in a patch.
pub const SWITCH: &str = "mutated!()";

/// A patch as parsed.
pub struct Patch {
    pub name: String,
    pub description: String,
    /// The layer of the harness that is known to find the mutant; the others come after it.
    pub layer: Option<String>,
    pub hunks: Vec<Hunk>,
}

/// A place that a patch changes.
pub struct Hunk {
    /// Path of the file from the root of the repository.
    pub file: String,
    /// The lines, with the first character of each: a space, `-` or `+`.
    pub lines: Vec<(char, String)>,
}

/// A change of a source: replaces the bytes from `start` to `end`.
#[derive(Debug)]
struct Edit {
    start: usize,
    end: usize,
    text: String,
    mutant: String,
}

pub fn parse(name: &str, text: &str) -> Result<Patch, String> {
    let mut lines = text.lines();
    let description = lines.next().unwrap_or_default().trim().to_owned();
    let mut patch = Patch { name: name.to_owned(), description, layer: None, hunks: Vec::new() };
    let mut file = String::new();
    for line in lines {
        if let Some(path) = line.strip_prefix("+++ ") {
            file = path.strip_prefix("b/").unwrap_or(path).to_owned();
        } else if let Some(layer) = line.strip_prefix("found by: ").filter(|_| patch.hunks.is_empty()) {
            patch.layer = Some(layer.to_owned());
        } else if line.starts_with("@@") {
            patch.hunks.push(Hunk { file: file.clone(), lines: Vec::new() });
        } else if ["diff ", "index ", "--- "].iter().any(|header| line.starts_with(header)) || line.is_empty() {
        } else if let (Some(kind @ (' ' | '-' | '+')), Some(hunk)) = (line.chars().next(), patch.hunks.last_mut()) {
            hunk.lines.push((kind, line[1..].to_owned()));
        } else {
            return Err(format!("mutant {name}: no line of a patch: {line:?}"));
        }
    }
    let inserted = patch.hunks.iter().flat_map(|hunk| &hunk.lines).filter(|(kind, _)| *kind == '+');
    if !inserted.clone().any(|(_, line)| line.contains(SWITCH)) || patch.description.is_empty() {
        return Err(format!("mutant {name}: a patch begins with a description, and inserts {SWITCH} at least once"));
    }
    Ok(patch)
}

/// The source of a file with all hunks for it, each with the name of its mutant and the text that
/// replaces [`SWITCH`].
///
/// # Errors
/// All hunks that do not apply.
pub fn apply(file: &str, source: &str, hunks: &[(&str, &str, &Hunk)]) -> Result<String, Vec<String>> {
    let mut edits = Vec::new();
    let mut errors = Vec::new();
    let tokens = tokens(source);
    for (mutant, switch, hunk) in hunks {
        match edits_of(source, &tokens, hunk, mutant, switch) {
            Ok(found) => edits.extend(found),
            Err(what) => errors.push(explain(file, mutant, &what, hunk)),
        }
    }
    // At one place, what replaces a line is before what is inserted after it.
    edits.sort_by_key(|edit| (edit.end, edit.start));
    for pair in edits.windows(2) {
        if pair[1].start < pair[0].end {
            let (one, other) = (&pair[0].mutant, &pair[1].mutant);
            errors
                .push(format!("mutants {one} and {other} change the same line of {file}: let one of them only insert"));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut result = String::with_capacity(source.len() + 1024);
    let mut done = 0;
    for edit in edits {
        result.push_str(&source[done..edit.start]);
        result.push_str(&edit.text);
        done = edit.end;
    }
    result.push_str(&source[done..]);
    Ok(result)
}

fn explain(file: &str, mutant: &str, what: &str, hunk: &Hunk) -> String {
    let lines: String = hunk.lines.iter().map(|(kind, line)| format!("{kind}{line}\n")).collect();
    format!(
        "mutant {mutant} does not apply to {file}: {what}\n{lines}Mend tools/crashtest/mutants/{mutant}.patch: edit its \
         lines without `+` so that they are lines of {file} again, or make the change in src with {SWITCH} and \
         run: ./dev mutant {mutant}"
    )
}

fn edits_of(
    source: &str,
    tokens: &[(usize, u8)],
    hunk: &Hunk,
    mutant: &str,
    switch: &str,
) -> Result<Vec<Edit>, String> {
    let mut before = String::new();
    let mut starts = Vec::new();
    for (_, line) in hunk.lines.iter().filter(|(kind, _)| *kind != '+') {
        starts.push(before.len());
        before.push_str(line);
        before.push('\n');
    }
    let mut wanted = self::tokens(&before);
    // Before a bracket it does not count in the source.
    wanted.pop_if(|last| last.1 == b',');
    let is_here = |window: &&[(usize, u8)]| window.iter().zip(&wanted).all(|(one, other)| one.1 == other.1);
    let mut found = tokens.windows(wanted.len().max(1)).filter(is_here);
    let here = match (found.next(), found.count()) {
        (Some(here), 0) if !wanted.is_empty() => here,
        (None, _) => return Err("these lines are not in the file:".into()),
        (_, more) => return Err(format!("these lines are in the file {} times; add some around them:", more + 1)),
    };
    // Where a line of the hunk begins and ends in the source; `None` for a line without tokens.
    let place = |line: usize| {
        let (start, end) = (starts[line], starts.get(line + 1).copied().unwrap_or(before.len()));
        let mut own = wanted.iter().zip(here).filter(|(token, _)| (start..end).contains(&token.0)).map(|(_, at)| at.0);
        let first = own.next()?;
        let has_comma = before[start..end].trim_end().ends_with(',');
        Some((first, end_of_token(source, own.next_back().unwrap_or(first), has_comma)))
    };
    let mut edits: Vec<Edit> = Vec::new();
    let (mut line, mut cursor, mut after_removed) = (0, here[0].0, false);
    for (kind, text) in &hunk.lines {
        let edit = |start, end, text| Edit { start, end, text, mutant: mutant.to_owned() };
        if *kind == '+' {
            let text = format!("\n{}\n", text.replace(SWITCH, switch));
            match edits.last_mut() {
                Some(last) if last.end == cursor && (after_removed || last.start == last.end) => {
                    last.text.push_str(&text)
                }
                _ => edits.push(edit(cursor, cursor, text)),
            }
            continue;
        }
        after_removed = *kind == '-';
        if let Some((first, end)) = place(line) {
            if after_removed {
                match edits.last_mut() {
                    Some(last) if last.end == cursor && last.start < last.end => last.end = end,
                    _ => edits.push(edit(first, end, String::new())),
                }
            }
            cursor = end;
        }
        line += 1;
    }
    Ok(edits)
}

/// The end of the token at an offset, and of the comma after it, if the line that was searched for
/// has one, or if it does not count.
fn end_of_token(source: &str, last: usize, has_comma: bool) -> usize {
    let rest = source[last + 1..].trim_start();
    let Some(after) = rest.strip_prefix(',').filter(|_| !source[last..].starts_with(',')) else { return last + 1 };
    let counts = !after.trim_start().starts_with([')', ']', '}']);
    if has_comma || !counts { source.len() - after.len() } else { last + 1 }
}

/// The bytes that count, with their offsets.
fn tokens(text: &str) -> Vec<(usize, u8)> {
    let mut tokens: Vec<(usize, u8)> = Vec::with_capacity(text.len());
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if !line.trim_start().starts_with("//") {
            for (at, byte) in line.bytes().enumerate().filter(|(_, byte)| !byte.is_ascii_whitespace()) {
                if matches!(byte, b')' | b']' | b'}') && tokens.last().is_some_and(|last| last.1 == b',') {
                    tokens.pop();
                }
                tokens.push((offset + at, byte));
            }
        }
        offset += line.len();
    }
    tokens
}
