//! The public API, as rustdoc lists it, is the one that `docs/public-api.txt` records.
//!
//! So a change of the API shows in the diff, where a review can ask whether it is meant. Only the
//! script `tools/public-api` runs the test, after it has built the pages that the test reads.
//! `./dev api` accepts the present API. A type that a user cannot name is in no signature.

use std::fmt::Write as _;
use std::path::PathBuf;

const RECORD: &str = "docs/public-api.txt";
/// How rustdoc begins the signature of a method.
const METHOD: &str = "<h4 class=\"code-header\">";

#[test]
#[ignore = "tools/public-api runs it after it has built the documentation"]
fn the_public_api_is_the_recorded_one() {
    let pages = PathBuf::from(std::env::var("PERCOLITE_DOC").expect("the directory of rustdoc's pages"));
    let list = std::fs::read_to_string(pages.join("all.html")).unwrap();
    let (mut api, mut unnameable) = (String::new(), Vec::new());
    for path in between(&list, "<li><a href=\"", "\"").filter(|path| path.ends_with(".html")) {
        let page = std::fs::read_to_string(pages.join(path)).unwrap();
        let _ = writeln!(api, "{}", path.trim_end_matches(".html").replace('/', "::"));
        describe(&page, &mut api);
        let own = page.split("<h2 id=\"trait-implementations\"").next().unwrap_or_default();
        let own = own.split("<h2 id=\"deref-methods").next().unwrap_or_default();
        for method in between(own, METHOD, "</h4>").filter(|method| text(method).contains("fn ")) {
            unnameable.extend(private_types(method).map(|name| format!("{path}: {name} in {}", text(method))));
        }
    }
    assert!(unnameable.is_empty(), "types that are not public:\n{}", unnameable.join("\n"));
    assert!(api.lines().count() > 500, "only {} lines", api.lines().count());
    let record = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(RECORD);
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        return std::fs::write(record, api).unwrap();
    }
    let recorded = std::fs::read_to_string(record).unwrap();
    let changed: Vec<String> = diff(&recorded, &api).collect();
    assert!(changed.is_empty(), "the public API is not that of {RECORD}:\n{}", changed.join("\n"));
}

/// Appends the declaration of an item, its methods, and the traits that it implements.
fn describe(page: &str, api: &mut String) {
    // Leaves out methods of `Deref` targets, and what the compiler implements for every type.
    let page = page.split("<h2 id=\"synthetic-implementations\"").next().unwrap_or_default();
    let (own, traits) = page.split_once("<h2 id=\"trait-implementations\"").unwrap_or((page, ""));
    let own = own.split("<h2 id=\"deref-methods").next().unwrap_or_default();
    let own = own.split("<h2 id=\"implementors\"").next().unwrap_or_default();
    for declaration in between(own, "<pre class=\"rust item-decl\"><code>", "</code></pre>") {
        let _ = writeln!(api, "    {}", one_member_per_line(&text(declaration)));
    }
    for method in between(own, METHOD, "</h4>") {
        let _ = writeln!(api, "    {}", text(method));
    }
    for implemented in between(traits, "<h3 class=\"code-header\">", "</h3>").map(text) {
        if !implemented.contains("StructuralPartialEq") {
            let _ = writeln!(api, "    {implemented}");
        }
    }
}

/// The types in a signature that have no link: those of this crate that are not public. Type
/// parameters are single letters, `Item` belongs to iterators, and `Mutex` is the one of
/// `parking_lot`, whose documentation is not known.
fn private_types(method: &str) -> impl Iterator<Item = String> {
    let mut pieces = method.split("<a ");
    let unlinked: String =
        pieces.next().into_iter().chain(pieces.filter_map(|piece| Some(piece.split_once("</a>")?.1))).collect();
    let words: Vec<String> = text(&unlinked).split(|char: char| !char.is_alphanumeric()).map(str::to_owned).collect();
    let is_type = |word: &String| word.starts_with(char::is_uppercase) && word.contains(char::is_lowercase);
    words.into_iter().filter(move |word| is_type(word) && !["Self", "Item", "Mutex"].contains(&word.as_str()))
}

fn between<'a>(page: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    page.split(start).skip(1).filter_map(move |rest| rest.split(end).next())
}

/// The text of a piece of a page, on one line.
fn text(html: &str) -> String {
    let mut text = String::new();
    let mut is_tag = false;
    for char in html.replace("<br", " <br").chars() {
        match char {
            '<' => is_tag = true,
            '>' => is_tag = false,
            // A mark that rustdoc puts beside some return types.
            'ⓘ' => {}
            _ if !is_tag => text.push(char),
            _ => {}
        }
    }
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'").replace("&quot;", "\"");
    let text = text.replace("&nbsp;", " ").replace("&amp;", "&").replace("where", " where").replace("]pub", "] pub");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // How rustdoc breaks long signatures is not part of the API.
    text.replace("( ", "(").replace(", )", ")").replace(" )", ")")
}

/// A long declaration with a line for each field, variant or method, without rustdoc's "Show 31
/// fields".
fn one_member_per_line(declaration: &str) -> String {
    let Some((head, rest)) = declaration.split_once("Show ") else { return declaration.to_owned() };
    let members = rest.split_once(' ').and_then(|(_count, rest)| Some(rest.split_once(' ')?.1)).unwrap_or(rest);
    let separated = members
        .replace("// Required methods ", "")
        .replace("// Provided methods ", "")
        .replace(", pub ", ",\n        pub ")
        .replace(" fn ", "\n        fn ");
    format!("{}\n        {separated}", head.trim_end())
}

/// Lines that only one of the texts has.
fn diff<'a>(old: &'a str, new: &'a str) -> impl Iterator<Item = String> + 'a {
    let missing = |from: &'a str, of: &'a str, sign: char| {
        let of: Vec<&str> = of.lines().collect();
        from.lines().filter(move |line| !of.contains(line)).map(move |line| format!("{sign} {}", line.trim()))
    };
    missing(old, new, '-').chain(missing(new, old, '+'))
}
