//! shell: statements from a pipe.

use crate::common::Place;

#[test]
fn a_transaction_takes_effect_at_its_commit_and_not_before() {
    let place = Place::with_shop();
    let told = place
        .fed("shell shop", "begin\nput fruit kiwi green\nput fruit 'red apple' sweet\nget fruit kiwi\ncommit\n")
        .succeeds();
    assert!(
        told.contains("noted, to be committed") && told.contains("green") && told.contains("committed at "),
        "{told}"
    );
    assert_eq!(place.ok("scan shop fruit --count"), "4\n");
    place
        .fed(
            "shell shop",
            "BEGIN\ndelete fruit kiwi\nrollback\nscan fruit r limit 5\nkeyspaces\nlocks\nhelp\nquit\nnonsense",
        )
        .succeeds();
    assert_eq!(place.ok("get shop fruit kiwi"), "green\n");
}

#[test]
fn a_transaction_that_is_left_open_is_rolled_back() {
    let place = Place::with_shop();
    let ran = place.fed("shell shop", "begin\nput fruit kiwi green\n");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), "the open transaction was rolled back\n"));
    place.run("get shop fruit kiwi").fails(3, "kiwi");
}

#[test]
fn the_first_error_in_a_pipe_ends_it_with_its_line() {
    let place = Place::with_shop();
    place
        .fed("shell shop", "# a comment\nput fruit\nput fruit kiwi green\n")
        .fails(2, "line 2: it is: put KEYSPACE KEY VALUE");
    place.fed("shell shop", "get frut apple").fails(3, "there are \"fruit\"");
    place.fed("shell shop", "commit").fails(1, "begin opens one");
    place.fed("shell shop", "get fruit 'apple").fails(2, "a quote is not closed");
    place.fed("shell --read-only shop", "put fruit kiwi green").fails(1, "read-only");
    place.run("get shop fruit kiwi").fails(3, "kiwi");
    place.fed("shell new", "help").fails(5, "--create");
    place.fed("shell --create new", "create fruit\nput fruit apple red").succeeds();
    assert_eq!(place.ok("get new fruit apple"), "red\n");
}
