//! No circle of imports between the files of `src`, and no import from a higher layer.
//!
//! An import counts for the file that defines the name: re-exports are followed. Paths in the code
//! count as well as `use` lines; test modules do not.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Source, check, sources};

type Module = Vec<String>;

/// The files of `src` by module path, and what each module re-exports.
struct Modules {
    sources: BTreeMap<Module, Source>,
    exports: BTreeMap<(Module, String), Module>,
}

impl Modules {
    fn read() -> Self {
        let sources: BTreeMap<Module, Source> =
            sources(&["src"], ".rs").into_iter().map(|source| (module(&source.path), source)).collect();
        let mut exports = BTreeMap::new();
        for (module, source) in &sources {
            let code = code(&source.text);
            for (is_public, tree) in uses(&code) {
                for path in expand(&tree).into_iter().filter(|_| is_public) {
                    let name = path.last().cloned().unwrap_or_default();
                    exports.insert((module.clone(), name), absolute(module, &path));
                }
            }
        }
        Self { sources, exports }
    }

    /// The module whose file defines what the path names.
    fn defining(&self, path: &[String], hops: usize) -> Module {
        let length = (0..=path.len()).rev().find(|length| self.sources.contains_key(&path[..*length])).unwrap_or(0);
        let (module, rest) = (path[..length].to_vec(), &path[length..]);
        let export = rest.first().and_then(|name| self.exports.get(&(module.clone(), name.clone())));
        match export {
            Some(target) if hops > 0 => self.defining(&[target, &rest[1..]].concat(), hops - 1),
            _ => module,
        }
    }

    fn imports(&self, module: &Module) -> BTreeSet<Module> {
        let code = code(&self.sources[module].text);
        let used = uses(&code).into_iter().flat_map(|(_, tree)| expand(&tree));
        // `use super::*` of a module inside a file names that file itself, so it is no import.
        let paths = used.chain(paths_in(&code)).filter(|path| path.len() > 1);
        let paths = paths.filter(|path| matches!(&*path[0], "crate" | "super" | "self"));
        let targets = paths.map(|path| self.defining(&absolute(module, &path), 8));
        targets.filter(|target| target != module).collect()
    }
}

#[test]
fn imports_have_no_circles() {
    let modules = Modules::read();
    let graph: BTreeMap<&Module, BTreeSet<Module>> =
        modules.sources.keys().map(|module| (module, modules.imports(module))).collect();
    let edges: usize = graph.values().map(BTreeSet::len).sum();
    assert!(edges > 500, "only {edges} imports were found");
    let mut left: BTreeSet<&Module> = graph.keys().copied().collect();
    // A file that imports none of the files that are left, or is imported by none of them, is in no
    // circle and is removed.
    loop {
        let imported: BTreeSet<&Module> = left.iter().flat_map(|module| &graph[*module]).collect();
        let before = left.len();
        let in_circle =
            |module: &&Module| imported.contains(*module) && graph[*module].iter().any(|target| left.contains(target));
        left = left.iter().copied().filter(in_circle).collect();
        if left.len() == before {
            break;
        }
    }
    let imports = |module: &Module| {
        let targets = graph[module].iter().filter(|target| left.contains(target));
        targets.map(|target| target.join("::")).collect::<Vec<_>>().join(" ")
    };
    let broken: Vec<_> = left
        .iter()
        .map(|module| (modules.sources[*module].path.clone(), format!(" imports {}", imports(module))))
        .collect();
    check("the imports of src have no circle", &broken, &[]);
}

/// The layers of DESIGN.md, from the top. Those in one line do not import each other. Other files
/// in `src` itself belong to no layer.
const LAYERS: &[&[&str]] = &[
    &["asynchronous", "typed"],
    &["store"],
    &["coordinator"],
    &["pipeline"],
    &["contention", "lock_manager", "local_oracle"],
    &["protocol"],
    &["engine"],
    &["memtable"],
    &["wal"],
    &["disk", "codec"],
    &["observe", "keys", "env"],
    &["row"],
    &["timestamp"],
];

#[test]
fn a_layer_imports_from_lower_ones_only() {
    let modules = Modules::read();
    let layer = |module: &Module| {
        let room = module.first()?;
        LAYERS.iter().position(|layer| layer.contains(&room.as_str()))
    };
    let (mut broken, mut checked) = (Vec::new(), 0);
    for (module, source) in &modules.sources {
        let Some(own) = layer(module) else {
            if source.path.matches('/').count() > 1 {
                broken.push((source.path.clone(), " is in no layer".into()));
            }
            continue;
        };
        for target in modules.imports(module).iter().filter(|target| target.first() != module.first()) {
            let Some(other) = layer(target) else { continue };
            checked += 1;
            if other <= own {
                broken.push((source.path.clone(), format!(" imports {}", target.join("::"))));
            }
        }
    }
    assert!(checked > 300, "only {checked} imports between layers were found");
    check("a layer imports from lower ones only", &broken, &[]);
}

fn module(path: &str) -> Module {
    let parts = path.trim_start_matches("src/").trim_end_matches(".rs").split('/');
    let mut module: Module = parts.map(String::from).collect();
    if module.last().is_some_and(|name| name == "mod" || name == "lib") {
        module.pop();
    }
    module
}

/// The code without comments and without the test module.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The trees of the `use` items, and whether each is public.
fn uses(code: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for item in code.split(';') {
        let Some(at) = item.rfind("use ") else { continue };
        let before = item[..at].trim_end();
        let starts_item = before.is_empty() || before.ends_with(['}', ']', '{', ')']) || before.ends_with("pub");
        if starts_item {
            let tree = item[at + 4..].replace(" as ", "@");
            found.push((before.ends_with("pub") || before.ends_with("pub(crate)"), tree.split_whitespace().collect()));
        }
    }
    found
}

/// The paths of a `use` tree.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let Some(open) = tree.find('{') else {
        let path = tree.split("::").map(|name| name.split('@').next().unwrap_or_default().to_string());
        return vec![path.filter(|name| name != "*").collect()];
    };
    let (mut depth, mut part, mut paths) = (0, String::new(), Vec::new());
    let body = tree[open + 1..].strip_suffix('}').unwrap_or_default();
    for char in body.chars().chain([',']) {
        match char {
            ',' if depth == 0 => {
                if !part.is_empty() {
                    paths.extend(expand(&format!("{}{part}", &tree[..open])));
                }
                part.clear();
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        part.push(char);
    }
    paths
}

/// Paths such as `crate::row::RowState::new` anywhere in the code.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let is_path = |char: char| char.is_alphanumeric() || char == '_' || char == ':';
    let words = code.split(|char| !is_path(char));
    let paths = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    paths.map(|path| path.split("::").filter(|name| !name.is_empty()).map(String::from).collect()).collect()
}

fn absolute(module: &Module, path: &[String]) -> Module {
    let mut path = path.to_vec();
    path.retain(|name| name != "self");
    match path.first().map(String::as_str) {
        Some("crate") => path.split_off(1),
        Some("super") => {
            let up = path.iter().take_while(|name| *name == "super").count();
            [&module[..module.len().saturating_sub(up)], &path[up..]].concat()
        }
        _ => [&module[..], &path[..]].concat(),
    }
}
