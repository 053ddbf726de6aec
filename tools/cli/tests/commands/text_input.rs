//! Text as people have it, in every command that reads text: `load` in each format, the shell, the
//! demo, and a JSON value from a file. The advice of each error is followed with a shell.

use crate::common::{Ran, Sandbox};

/// The formats of `load`, and how a file with the rows `apple`, `red` and `kiwi`, `grün` looks.
const FORMATS: [(&str, &str); 4] = [
    ("jsonl", "{\"key\": \"apple\", \"value\": \"red\"}\n{\"key\": \"kiwi\", \"value\": \"grün\"}\n"),
    ("csv", "apple,red\nkiwi,grün\n"),
    ("tsv", "apple\tred\nkiwi\tgrün\n"),
    ("raw-tsv", "apple\tred\nkiwi\tgrün\n"),
];

const STATEMENTS: &str = "put fruit apple red\nput fruit kiwi grün\n";
pub const LOADED: &str = "apple\tred\nkiwi\tgrün\n";

fn utf_16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(bytes).collect()
}

/// The command that an error recommends after these words.
pub fn advice<'a>(err: &'a str, after: &str) -> &'a str {
    let rest = err.split_once(after).unwrap_or_else(|| panic!("no {after:?} in {err}")).1;
    rest.split("; ").next().unwrap().trim_end()
}

#[test]
fn every_line_end_and_a_mark_are_read_alike() {
    for (mark, end, is_last_ended) in [
        ("", "\r\n", true),
        ("", "\r\n", false),
        ("", "\r", true),
        ("", "\r", false),
        ("\u{feff}", "\n", true),
        ("\u{feff}", "\r\n", false),
    ] {
        let ended = |text: &str| {
            let text = if is_last_ended { text } else { text.trim_end() };
            format!("{mark}{}", text.replace('\n', end))
        };
        let sandbox = Sandbox::new();
        for (format, text) in FORMATS {
            let line = format!("load --create s {format} --format {format}");
            let report = sandbox.with_input(&line, ended(text)).succeeds();
            assert!(report.starts_with("2 rows in 1 transaction"), "{format} {end:?}: {report}");
            assert_eq!(sandbox.ok(&format!("scan s {format}")), LOADED, "{format} {end:?}");
        }
        let statements = format!("create fruit\n{STATEMENTS}scan fruit\n");
        let shown = sandbox.with_input("shell s", ended(&statements)).succeeds();
        assert!(shown.ends_with(&format!("committed\ncommitted\n{LOADED}")), "{end:?}: {shown}");
        sandbox.file("v.json", ended("{\"a\":\n1}\n"));
        sandbox.ok("put s fruit k --value-encoding json --value-file v.json");
        assert_eq!(sandbox.ok("get s fruit k --raw"), format!("{{\"a\":{end}1}}"));
    }
}

#[test]
fn utf_16_is_refused_before_anything_is_stored_and_the_advice_converts_it() {
    for (name, mark, bytes) in [
        ("LE with a mark", "\u{feff}", u16::to_le_bytes as fn(u16) -> [u8; 2]),
        ("BE with a mark", "\u{feff}", u16::to_be_bytes),
        ("LE", "", u16::to_le_bytes),
        ("BE", "", u16::to_be_bytes),
    ] {
        let sandbox = Sandbox::with_shop();
        sandbox.file("my fruit.txt", utf_16(&format!("{mark}a\tred\r\nkiwi\tgreen\r\n"), bytes));
        for options in
            ["", "--skip-bad", "--skip-bad --format csv", "--skip-bad --format jsonl", "--skip-bad --format raw-tsv"]
        {
            let line = format!("percolite load --create new rows 'my fruit.txt' {options}");
            let err = sandbox.in_shell(&line).fails(1, "UTF-16").err;
            assert!(!sandbox.path().join("new").exists(), "{name} {options}: {err}");
            if !options.is_empty() {
                continue;
            }
            let convert = advice(&err, "to convert it: ");
            let converted = sandbox.in_shell(&format!("{convert} | percolite load --create shop rows")).succeeds();
            assert!(converted.starts_with("2 rows in 1 transaction"), "{name}: {converted}");
            assert_eq!(sandbox.ok("scan shop rows"), "a\tred\nkiwi\tgreen\n", "{name}");
        }
        // The commands that read other text.
        let statements = utf_16(&format!("{mark}put fruit kiwi green\n"), bytes);
        sandbox.with_input("shell shop", statements).fails(1, "UTF-16");
        sandbox.file("v.json", utf_16(&format!("{mark}{{\"a\": 1}}"), bytes));
        sandbox.run("put shop fruit kiwi --value-encoding json --value-file v.json").fails(1, "iconv -f UTF-16");
        sandbox
            .with_input("put shop fruit kiwi --value-encoding json --value-file -", utf_16("\u{feff}{}", bytes))
            .fails(1, "UTF-16");
        sandbox.file("people.tsv", utf_16(&format!("{mark}id\tname\n1\tAda\n"), bytes));
        sandbox.run("demo --input people.tsv").fails(1, "UTF-16");
        assert_eq!(sandbox.ok("scan shop fruit --count"), "2\n");
        // A value from a file is bytes.
        sandbox.ok("put shop fruit photo --value-file v.json");
        assert_eq!(
            sandbox.command("get --raw shop fruit photo").output().unwrap().stdout,
            std::fs::read(sandbox.path().join("v.json")).unwrap()
        );
    }
}

#[test]
fn utf_32_is_refused_before_anything_is_stored_and_the_advice_converts_it() {
    for (name, mark, bytes) in [
        ("UTF-32", "\u{feff}", u32::to_le_bytes as fn(u32) -> [u8; 4]),
        ("UTF-32", "\u{feff}", u32::to_be_bytes),
        ("UTF-32LE", "", u32::to_le_bytes),
        ("UTF-32BE", "", u32::to_be_bytes),
    ] {
        let sandbox = Sandbox::with_shop();
        let encoded = |text: &str| format!("{mark}{text}").chars().flat_map(|c| bytes(c.into())).collect::<Vec<u8>>();
        sandbox.file("my fruit.csv", encoded("apple,red\nkiwi,grün\n"));
        let load = "percolite load --create new rows 'my fruit.csv' --skip-bad";
        let err = sandbox.in_shell(load).fails(1, &format!("iconv -f {name} -t UTF-8 ")).err;
        assert!(!sandbox.path().join("new").exists(), "{err}");
        let convert = advice(&err, "to convert it: ");
        sandbox.in_shell(&format!("{convert} | percolite load --create shop rows")).succeeds();
        assert_eq!(sandbox.ok("scan shop rows"), LOADED, "{name}");
        sandbox.with_input("shell shop", encoded("put fruit kiwi green\n")).fails(1, "UTF-32");
        sandbox.file("people.json", encoded("{\"a\": 1}"));
        sandbox.run("put shop fruit kiwi --value-encoding json --value-file people.json").fails(1, "UTF-32");
        sandbox.run("demo --input people.json").fails(1, "UTF-32");
    }
}

/// In UTF-16 most bytes of these letters are ASCII characters, and some are commas and tabs.
#[test]
fn utf_16_without_a_mark_and_without_ascii_letters_gives_no_rows() {
    let sandbox = Sandbox::with_shop();
    for text in ["क\tख\nग\tघ\n", "बऩ,कख\nग,घ\n", "鬀\t日本\n"] {
        for bytes in [u16::to_le_bytes as fn(u16) -> [u8; 2], u16::to_be_bytes] {
            for format in ["csv", "tsv", "raw-tsv", "jsonl"] {
                let line = format!("load shop fruit --skip-bad --format {format}");
                sandbox.with_input(&line, utf_16(text, bytes)).fails(1, "it is no text: it has a NUL byte");
            }
        }
    }
    assert_eq!(sandbox.ok("scan shop fruit --count"), "2\n");
}

#[test]
fn a_nul_byte_is_refused_in_text_and_kept_in_a_value() {
    let sandbox = Sandbox::with_shop();
    for (format, text) in FORMATS {
        let line = format!("load shop fruit --skip-bad --format {format}");
        sandbox.with_input(&line, text.replace("red", "r\0d")).fails(1, "a NUL byte at offset ");
        // Text of more than a pipe holds, of which the beginning is loaded.
        let long = text.repeat(40_000) + "\0";
        let ran = sandbox.with_input(&line, &long).fails(1, &format!("a NUL byte at offset {}", long.len() - 1));
        assert!(ran.err.contains("resume with --skip "), "{}", ran.err);
    }
    sandbox.with_input("shell shop", "put fruit fig a\0b\n").fails(1, "a NUL byte at offset 15");
    sandbox.run("get shop fruit fig").fails(3, "fig");
    // Rows have NUL bytes in the escapes of each format.
    sandbox.with_input("load shop fruit --format jsonl", "{\"key\": \"a\", \"value\": \"b\\u0000\"}").succeeds();
    sandbox.with_input("load shop fruit --format tsv", "b\tb\\x00\n").succeeds();
    sandbox.with_input("put shop fruit c --value-file -", "b\0").succeeds();
    sandbox.with_input("put shop fruit d --value-encoding hex --value-file -", "b\0").succeeds();
    for key in ["a", "b", "c", "d"] {
        assert_eq!(sandbox.ok(&format!("get shop fruit {key} --value-encoding hex")), "6200\n", "{key}");
    }
}

#[test]
fn text_that_is_not_utf_8_is_refused_by_its_line() {
    let sandbox = Sandbox::new();
    for (format, text) in FORMATS {
        let latin: Vec<u8> = text.chars().map(|c| u8::try_from(c).unwrap()).collect();
        sandbox.file("my latin.txt", &latin);
        let load = format!("percolite load --create s {format} --format {format}");
        let err = sandbox.in_shell(&format!("{load} 'my latin.txt'")).fails(1, "line 2 is not UTF-8: byte ").err;
        assert_eq!(sandbox.ok(&format!("scan s {format}")), "apple\tred\n");
        let convert = advice(&err, "if it is Latin-1: ");
        sandbox.in_shell(&format!("{convert} < 'my latin.txt' | {load}")).succeeds();
        assert_eq!(sandbox.ok(&format!("scan s {format}")), LOADED);
        let skipped = sandbox.in_shell(&format!("{load} 'my latin.txt' --skip-bad --json")).succeeds();
        let skipped: serde_json::Value = serde_json::from_str(&skipped).unwrap();
        assert_eq!((&skipped["rows"], &skipped["skipped"]), (&1.into(), &1.into()), "{format}");
    }
    sandbox.ok("keyspaces s --create fruit");
    let ran = sandbox.with_input("shell s", b"put fruit a b\nput fruit gr\xfcn c\n");
    assert_eq!(ran.out, "committed\n");
    ran.fails(1, "line 2 is not UTF-8: byte 13 is fc");
    sandbox.file("people.tsv", b"id\tname\n1\tJ\xfcrgen\n");
    sandbox.run("demo --input people.tsv").fails(1, "line 2 of people.tsv is not UTF-8");
}

#[test]
fn pretty_printed_json_is_refused_and_the_advice_converts_it() {
    let sandbox = Sandbox::new();
    let one = "{\n  \"key\": \"apple\",\n  \"value\": \"red\"\n}\n";
    let two = "{\"key\": \"kiwi\", \"value\": \"grün\"}\n";
    for (text, problem) in [
        (format!("{one}{two}"), "one object in several lines"),
        (format!("{one}{two}").replace('\n', "\r\n"), "one object in several lines"),
        (format!("{one}{two}").replace("  ", "\t"), "one object in several lines"),
        (format!("[{one},{two}]"), "one JSON array"),
        (format!(" \n[\n{two},\n{one}\n]\n"), "one JSON array"),
        ("[[\"apple\", \"red\"], [\"kiwi\", \"grün\"]]".into(), "one JSON array"),
    ] {
        sandbox.file("it's fruit", &text);
        for options in ["", "--skip-bad", "--format jsonl --skip-bad"] {
            let line = format!("percolite load --create new rows \"it's fruit\" {options}");
            let err = sandbox.in_shell(&line).fails(2, problem).err;
            assert!(!sandbox.path().join("new").exists(), "{err}");
            let convert = advice(&err, "to convert it: ");
            sandbox.in_shell(&format!("rm -rf shop; {convert} | percolite load --create shop rows")).succeeds();
            assert_eq!(sandbox.ok("scan shop rows"), LOADED, "{text}: {convert}");
        }
    }
    // An object of several lines after the first one.
    let err = sandbox.with_input("load shop rows", format!("{two}{one}")).fails(1, "line 2 is not JSON").err;
    assert_eq!(advice(&err, "if its objects have several lines: "), "jq -c .");
    // A truncated line is one bad record.
    let truncated = format!("{{\"key\": \"apple\", \"val\n{two}");
    let report = sandbox.with_input("load shop rows --skip-bad", truncated).succeeds();
    assert!(report.starts_with("1 row in 1 transaction") && report.contains("1 record skipped"), "{report}");
    sandbox.file("people.json", "[\n{\"id\": 1}\n]");
    sandbox.run("demo --input people.json").fails(1, "to convert it: jq -c '.[]' people.json");
    sandbox.file("people.json", "{\n\"id\": 1\n}");
    sandbox.run("demo --input people.json").fails(1, "to convert it: jq -c . people.json");
}

#[test]
fn half_a_surrogate_pair_is_refused_by_every_reader_of_json() {
    let sandbox = Sandbox::with_shop();
    let cases = [
        (r#"{"a":"\ud800"}"#, false),
        (r#""\ud800\ud800""#, false),
        (r#"{"a":"\ud83d\ude00","b":2e400}"#, true),
        (r#"["\\ud800"]"#, true),
        (r#"{"\ud800":1}"#, false),
        (r#"{"a":{"\udc00b":[1]}}"#, false),
        (r#"{"\ud83d\ude00":1}"#, true),
    ];
    for (json, is_valid) in cases {
        let check = |ran: Ran, code: i32, got: &str| {
            if is_valid {
                ran.succeeds();
                assert_eq!(sandbox.ok(&format!("get shop fruit {got} --raw")), json, "{got}");
            } else {
                ran.fails(code, "is half of a surrogate pair");
                sandbox.run(&format!("get shop fruit {got}")).fails(3, got);
            }
        };
        let encoding = "--value-encoding json";
        let mut put = sandbox.command(&format!("put shop fruit put {encoding}"));
        check(Ran::of("put", put.arg(json).output().unwrap()), 2, "put");
        check(sandbox.with_input(&format!("put shop fruit file {encoding} --value-file -"), json), 2, "file");
        let shell = sandbox.with_input(&format!("shell shop {encoding}"), format!("put fruit shell '{json}'"));
        check(shell, 2, "shell");
        let row = |key: &str| format!("{{\"key\": \"{key}\", \"value\": {json}}}");
        check(sandbox.with_input(&format!("load shop fruit --format jsonl {encoding}"), row("load")), 1, "load");
        if !json.starts_with('"') {
            check(sandbox.with_input("load shop fruit --format jsonl", row("text")), 1, "text");
        }
        let whole = format!("{{\"id\": \"whole\", \"more\": {json}}}");
        let ran = sandbox.with_input("load shop fruit --key-field id", &whole);
        if is_valid {
            drop(ran.succeeds())
        } else {
            drop(ran.fails(1, "is half of a surrogate pair"))
        }
        // Names of fields, which are decoded, and a value that is the key.
        if let Some(fields) = json.strip_prefix('{').filter(|_| !is_valid) {
            let line = "load shop fruit --format jsonl --key-field id";
            let input = format!("{{\"id\":\"whole\",{fields}");
            sandbox.with_input(line, input).fails(1, "line 1 cannot be used: \\ud");
            if fields.starts_with("\"\\ud") {
                let input = format!("{{\"key\":\"whole\",\"value\":\"v\",{fields}");
                let line = "load shop fruit --format jsonl";
                sandbox.with_input(line, input).fails(1, "line 1 cannot be used: \\ud");
            }
            sandbox.file("people.jsonl", format!("{{\"id\": 1, {fields}\n"));
            sandbox.run("demo --input people.jsonl").fails(1, "line 1 of people.jsonl cannot be used: \\ud");
        }
        // A value that was stored as text is not shown as JSON, and comes back as it was.
        Ran::of("put", sandbox.command("put shop fruit as-text").arg(json).output().unwrap()).succeeds();
        let shown = sandbox.ok("get shop fruit as-text --value-encoding json --json");
        assert_eq!(shown.contains("\"value\""), is_valid, "{shown}");
        sandbox.with_input(&format!("load --create copy fruit {encoding}"), &shown).succeeds();
        assert_eq!(sandbox.ok("get copy fruit as-text --raw"), json);
        sandbox.run("delete shop fruit put file shell load text whole --if-exists").succeeds();
    }
}

#[test]
fn the_shell_does_not_read_a_value_from_its_statements() {
    let sandbox = Sandbox::with_shop();
    sandbox
        .with_input("shell shop", "put fruit fig --value-file -\nput fruit kiwi green\n")
        .fails(2, "line 1: --value-file -");
    sandbox.file("fig.txt", "blue\r\n");
    sandbox.with_input("shell shop", "put fruit fig --value-file fig.txt\r\n").succeeds();
    assert_eq!(sandbox.ok("get shop fruit fig --raw"), "blue\r\n");
}

#[test]
fn skipped_and_repeated_local_times_are_errors_whose_advice_works() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("retention shop --set 7d");
    for (time, what) in [("2026-03-29T02:30", "never: "), ("2026-10-25T02:30", "twice: ")] {
        for line in [
            "get shop fruit apple --at",
            "scan shop fruit --at",
            "versions shop fruit apple --at",
            "dump shop d --at",
            "dump shop d --since",
        ] {
            let zoned = |time: &str| {
                let mut command = sandbox.command(&format!("{line} {time}"));
                Ran::of(line, command.env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3").output().unwrap())
            };
            let err = zoned(time).fails(2, what).err;
            let meant = err.split("say which is meant: ").nth(1).unwrap().split("; see").next().unwrap();
            for meant in meant.split(" or ") {
                // It is before the history of the store, or after it; but it is understood.
                zoned(meant).fails(1, "");
            }
        }
    }
    sandbox.run("get shop fruit apple --at 2026-10-25T02:30[Asia/Tokyo]").fails(2, "not a relative time");
}

#[test]
fn a_token_and_a_time_from_a_file_with_windows_line_ends_are_read() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("retention shop --set 7d");
    let token = sandbox.ok("lock acquire shop job --ttl 1h");
    sandbox.file("token", token.replace('\n', "\r\n"));
    sandbox.in_shell("percolite lock release shop job \"$(cat token)\"").succeeds();
    sandbox.file("time", "0s\r\n");
    assert_eq!(sandbox.in_shell("percolite get shop fruit apple --at \"$(cat time)\"").succeeds(), "red\n");
}

#[test]
fn a_value_of_several_lines_in_the_shell_is_refused_and_the_advice_puts_it() {
    let sandbox = Sandbox::with_shop();
    let pretty = "{\n  \"a\": 1\n}";
    let err = sandbox
        .with_input("shell shop", format!("put fruit k '{pretty}'\n"))
        .fails(2, "line 1: a quote is not closed")
        .err;
    assert!(err.contains("; put --value-file reads more"), "{err}");
    sandbox.file("v.json", pretty);
    sandbox.with_input("shell shop --value-encoding json", "put fruit k --value-file v.json\n").succeeds();
    assert_eq!(sandbox.ok("get shop fruit k --raw"), pretty);
}
