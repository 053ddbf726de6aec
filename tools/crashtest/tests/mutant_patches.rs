//! How patches of mutants are applied, and what is said of one that does not apply.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test that cannot continue fails")]

#[allow(clippy::pedantic, reason = "part of a build script")]
#[path = "../mutated/patches.rs"]
mod patches;

use patches::{Hunk, Patch, apply, parse};

const SOURCE: &str = "\
fn commit(&self, ts: Timestamp) -> Result<()> {
    let durable = self.sync(ts)?;
    // Readers look here.
    self.publish(durable, ts)
}

fn close(&self) -> Result<()> {
    self.sync(Timestamp::MAX)?;
    self.stop(
        one,
        other,
    )
}
";

fn patch(name: &str, hunk: &str) -> Patch {
    let patch = parse(name, &format!("what it does\n--- src/a.rs\n+++ src/a.rs\n@@ -1,3 +1,4 @@\n{hunk}")).unwrap();
    assert_eq!((patch.description.as_str(), patch.hunks[0].file.as_str()), ("what it does", "src/a.rs"));
    patch
}

/// The source with these patches, without whitespace; a switch is the name of its mutant.
fn mutated(source: &str, patches: &[&Patch]) -> Result<String, String> {
    let one = |patch: &'_ Patch| -> Vec<(String, String, usize)> {
        (0..patch.hunks.len()).map(|hunk| (patch.name.clone(), format!("<{}>", patch.name), hunk)).collect()
    };
    let all: Vec<_> = patches.iter().flat_map(|patch| one(patch).into_iter().map(move |own| (own, patch))).collect();
    let hunks: Vec<(&str, &str, &Hunk)> =
        all.iter().map(|((name, switch, at), patch)| (name.as_str(), switch.as_str(), &patch.hunks[*at])).collect();
    let done = apply("src/a.rs", source, &hunks).map_err(|errors| errors.join("\n"))?;
    Ok(done.chars().filter(|letter| !letter.is_whitespace()).collect())
}

#[test]
fn lines_are_inserted_replaced_and_removed() {
    let inserts = patch("inserts", "     let durable = self.sync(ts)?;\n+    if mutated!() { return Ok(()) }\n");
    let done = mutated(SOURCE, &[&inserts]).unwrap();
    assert!(done.contains("letdurable=self.sync(ts)?;if<inserts>{returnOk(())}//Readers"), "{done}");
    let before = patch("before", "+    if mutated!() { return Ok(()) }\n     self.publish(durable, ts)\n");
    let done = mutated(SOURCE, &[&before]).unwrap();
    assert!(done.contains("here.if<before>{returnOk(())}self.publish("), "{done}");
    let replaces = patch("replaces", "-    let durable = self.sync(ts)?;\n+    let durable = mutated!();\n");
    let done = mutated(SOURCE, &[&replaces]).unwrap();
    assert!(done.starts_with("fncommit(&self,ts:Timestamp)->Result<()>{letdurable=<replaces>;//"), "{done}");
}

#[test]
fn formatting_and_comments_do_not_count() {
    let one_line = patch("one", "-    self.stop(one, other)\n+    if mutated!() { self.stop(other, one) }\n }\n");
    let done = mutated(SOURCE, &[&one_line]).unwrap();
    assert!(done.ends_with("self.sync(Timestamp::MAX)?;if<one>{self.stop(other,one)}}"), "{done}");
    let around = patch("two", "     let durable = self.sync(ts)?;\n+    mutated!();\n     self.publish(durable, ts)\n");
    let done = mutated(SOURCE, &[&around]).unwrap();
    assert!(done.contains("self.sync(ts)?;<two>;//Readers"), "{done}");
    let argument = patch("three", "         one,\n-        other,\n+        if mutated!() { one } else { other },\n");
    let done = mutated(SOURCE, &[&argument]).unwrap();
    assert!(done.contains("self.stop(one,if<three>{one}else{other},)"), "{done}");
}

#[test]
fn patches_are_for_the_library_without_the_others() {
    let one = patch("one", "-    let durable = self.sync(ts)?;\n+    let durable = mutated!();\n");
    let two = patch("two", "     let durable = self.sync(ts)?;\n+    let durable = durable || mutated!();\n");
    for both in [[&one, &two], [&two, &one]] {
        let done = mutated(SOURCE, &both).unwrap();
        assert!(done.contains("letdurable=<one>;letdurable=durable||<two>;"), "{done}");
    }
    let three = patch("three", "-    let durable = self.sync(ts)?;\n+    mutated!();\n");
    let error = mutated(SOURCE, &[&one, &three]).unwrap_err();
    assert_eq!(error, "mutants one and three change the same line of src/a.rs: let one of them only insert");
}

#[test]
fn a_patch_that_does_not_apply_says_how_to_mend_it() {
    let gone = patch("gone", "-    self.flush()?;\n+    mutated!();\n");
    let error = mutated(SOURCE, &[&gone]).unwrap_err();
    let says = "mutant gone does not apply to src/a.rs: these lines are not in the file:\n-    self.flush()?;\n";
    assert!(error.starts_with(says), "{error}");
    assert!(error.contains("Mend tools/crashtest/mutants/gone.patch"), "{error}");
    assert!(error.contains("run: ./dev mutant gone"), "{error}");
    let twice = patch("twice", "     self.sync(\n+    mutated!();\n");
    let error = mutated(SOURCE, &[&twice]).unwrap_err();
    assert!(error.contains("these lines are in the file 2 times; add some around them"), "{error}");
}

#[test]
fn a_patch_may_name_the_layer_that_finds_it() {
    let of = |text: &str| parse("one", text).map(|patch| (patch.description, patch.layer, patch.hunks.len()));
    let hunk = "--- a\n+++ a\n@@\n one\n+mutated!()\n";
    assert_eq!(of(&format!("what\nfound by: kill\n\n{hunk}")), Ok(("what".into(), Some("kill".into()), 1)));
    assert_eq!(of(&format!("what\n\n{hunk}")), Ok(("what".into(), None, 1)));
}

#[test]
fn a_patch_inserts_a_switch() {
    let error = |text: &str| parse("plain", text).err().unwrap();
    assert!(error("what\n--- a\n+++ a\n@@\n one\n+two\n").contains("inserts mutated!() at least once"));
    assert!(error("what\nno line of a patch\n").contains("no line of a patch"));
}

/// Otherwise the harness would test a library with other features of its dependencies.
#[test]
fn dependencies_are_those_of_the_library() {
    let dependencies = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
        let lines = lines.take_while(|line| *line != "[dev-dependencies]");
        // The harness has none of these features.
        let others = ["metrics", "tracing"];
        let is_other = |line: &&str| others.iter().any(|name| line.starts_with(&format!("{name} =")));
        lines.filter(|line| line.contains(" = ") && !is_other(line)).map(str::to_owned).collect()
    };
    let library = dependencies(include_str!("../../../Cargo.toml"));
    assert!(library.iter().any(|line| line.starts_with("rocksdb =")), "{library:?}");
    assert_eq!(library, dependencies(include_str!("../mutated/Cargo.toml")));
}
