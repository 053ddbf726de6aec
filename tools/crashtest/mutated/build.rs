//! Copies the library's sources, and applies the mutants to the copy.

#[path = "../../../build.rs"]
mod library;
mod patches;

use std::fs;
use std::path::Path;

use patches::{Hunk, Patch, SWITCH};

type Result<T> = std::result::Result<T, Vec<String>>;

fn main() {
    library::main();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for input in ["src", "tools/crashtest/mutants", "tools/crashtest/mutated"] {
        println!("cargo::rerun-if-changed={}", root.join(input).display());
    }
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    if let Err(errors) = generate(&root, Path::new(&out)) {
        for line in errors.iter().flat_map(|error| error.lines()) {
            println!("cargo::error={line}");
        }
    }
}

fn generate(root: &Path, out: &Path) -> Result<()> {
    let patches = read_patches(&root.join("tools/crashtest/mutants"))?;
    let listed =
        patches.iter().map(|patch| format!("({:?}, {:?}, {:?}),\n", patch.name, patch.description, patch.layer));
    let list = format!("const MUTANTS: &[(&str, &str, Option<&str>)] = &[\n{}];\n", listed.collect::<String>());
    fs::write(out.join("mutants.rs"), list).map_err(io_error)?;

    let switches: Vec<String> =
        (0..patches.len()).map(|number| format!("crate::mutants::is_enabled({number})")).collect();
    let mut hunks: Vec<(&str, &str, &Hunk)> = Vec::new();
    for (patch, switch) in patches.iter().zip(&switches) {
        hunks.extend(patch.hunks.iter().map(|hunk| (patch.name.as_str(), switch.as_str(), hunk)));
    }
    let copy = out.join("src");
    let _ = fs::remove_dir_all(&copy);
    let mut errors = Vec::new();
    copy_dir(root, "src", &copy, &mut hunks, &mut errors)?;
    for (mutant, _, hunk) in hunks {
        errors.push(format!("mutant {mutant}: there is no file {}", hunk.file));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn read_patches(dir: &Path) -> Result<Vec<Patch>> {
    let mut patches = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_error)? {
        let path = entry.map_err(io_error)?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".patch"));
        let Some(name) = name else { return Err(vec![format!("{} is no patch", path.display())]) };
        let text = fs::read_to_string(&path).map_err(io_error)?;
        patches.push(patches::parse(name, &text).map_err(|error| vec![error])?);
    }
    patches.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(patches)
}

/// Copies a directory of the library. Takes the hunks that it applies out of `hunks`.
fn copy_dir(
    root: &Path,
    dir: &str,
    to: &Path,
    hunks: &mut Vec<(&str, &str, &Hunk)>,
    errors: &mut Vec<String>,
) -> Result<()> {
    fs::create_dir_all(to).map_err(io_error)?;
    for entry in fs::read_dir(root.join(dir)).map_err(io_error)? {
        let entry = entry.map_err(io_error)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{dir}/{name}");
        if entry.file_type().map_err(io_error)?.is_dir() {
            copy_dir(root, &path, &to.join(name), hunks, errors)?;
            continue;
        }
        let source = fs::read_to_string(entry.path()).map_err(io_error)?;
        if source.contains(SWITCH) {
            errors.push(format!("{path} has {SWITCH}: move the mutant to a patch with ./dev mutant NAME"));
        }
        let own: Vec<_> = hunks.extract_if(.., |(_, _, hunk)| hunk.file == path).collect();
        let mutated = patches::apply(&path, &source, &own);
        let mut mutated = mutated.unwrap_or_else(|failed| {
            errors.extend(failed);
            source
        });
        if path == "src/lib.rs" {
            mutated = without_inner_attributes(&mutated);
        }
        fs::write(to.join(name), mutated).map_err(io_error)?;
    }
    Ok(())
}

/// The root of the library without what only the first file of a crate can have.
fn without_inner_attributes(source: &str) -> String {
    let mut is_inside = false;
    let mut kept = String::new();
    for line in source.lines() {
        is_inside = is_inside || line.starts_with("#![");
        if is_inside {
            is_inside = !line.ends_with(")]");
        } else if !line.starts_with("//!") {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn io_error(error: std::io::Error) -> Vec<String> {
    vec![error.to_string()]
}
