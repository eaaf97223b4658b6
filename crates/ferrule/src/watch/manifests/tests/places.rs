//! Which files are read, and where errors are said to be.

use std::error::Error as _;
use std::os::unix::fs::symlink;

use super::*;

#[test]
fn errors_name_file_document_and_line() {
    let good = service("a", "172.30.0.1");
    let file = format!("# head\n---\n{good}---\n---\n# why\n{good}  type: [LoadBalancer]\n");
    assert_eq!(
        complaint("c.yaml", &file),
        "c.yaml: document 3, line 22: expected a string scalar"
    );
    let broken = format!("{good}---\na: [1\n");
    assert!(complaint("c.yaml", &broken).starts_with("c.yaml: document 2, line 10: "));
    let windows = file.replace('\n', "\r\n");
    assert!(complaint("c.yaml", &windows).starts_with("c.yaml: document 3, line 22: "));
}

#[test]
fn documents_must_say_what_and_who_they_are() {
    let kindless = "---\n---\n\nmetadata: {name: a}\n";
    assert_eq!(
        complaint("c.yaml", kindless),
        "c.yaml: document 2, line 4: no kind"
    );
    let versionless = "kind: Service\nmetadata: {name: a}\n";
    assert_eq!(
        complaint("c.yaml", versionless),
        "c.yaml: document 1, line 1: Service without apiVersion"
    );
    let nameless = "apiVersion: v1\nkind: Node\nmetadata: {generateName: a-}\n";
    assert_eq!(
        complaint("c.yaml", nameless),
        "c.yaml: document 1, line 1: Node without metadata.name"
    );
    assert_eq!(
        complaint("c.yaml", "hello"),
        "c.yaml: document 1, line 1: expected a mapping"
    );
    let item = "apiVersion: v1\nkind: List\nitems: [{metadata: {name: a}}]\n";
    assert_eq!(
        complaint("c.yaml", item),
        "c.yaml: document 1, line 1, items[0]: no kind"
    );
}

#[test]
fn json_errors_have_lines_too() {
    let two = "{\"apiVersion\": \"v1\",\n\"kind\": \"Node\", \"metadata\": {\"name\": \"n\"}}\n\n";
    let typed = format!("{two}{{\"apiVersion\": \"v1\", \"kind\": \"Service\",\n\"spec\": 5}}");
    assert_eq!(
        complaint("c.json", typed),
        "c.json: document 2, line 5: invalid type: integer `5`, expected struct Spec"
    );
    let broken = format!("{two}{{\"apiVersion\": \"v1\",\n\n\"kind\"}}");
    assert_eq!(
        complaint("c.json", broken),
        "c.json: document 2, line 6: expected `:`"
    );
    assert!(complaint("c.json", "{\"a\": 1").starts_with("c.json: document 1, line 1: EOF"));
}

#[test]
fn several_json_documents_may_follow_each_other() {
    let node = |name| {
        format!(r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{name}"}}}}"#)
    };
    let text = format!(
        "\u{feff}{}{}\n null {}",
        node("there"),
        node("here"),
        node("away")
    );
    assert_eq!(names(&read_file("n.json", text).unwrap()), ["Node here"]);
}

#[test]
fn json_is_also_yaml() {
    let text = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"here"}}"#;
    assert_eq!(names(&yaml(text)), ["Node here"]);
}

#[test]
fn a_terminal_is_not_steered_by_what_a_file_says() {
    let message = complaint("c.yaml", "\"\\e[2Ja\": 1\n\"\\e[2Ja\": 2\n");
    assert!(!message.contains('\u{1b}'), "{message:?}");
}

#[test]
fn what_cannot_be_read_is_told_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let error = read(&folder.path().join("no.yaml"), "here").unwrap_err();
    assert!(
        error.to_string().ends_with("no.yaml: cannot be read"),
        "{error}"
    );
    assert!(error.source().is_some());
    assert_eq!(
        complaint("c.yaml", b"a: 1\nb: \xff\n"),
        "c.yaml: line 2: not UTF-8"
    );
    symlink("nowhere", folder.path().join("dangling.yaml")).unwrap();
    let error = read(folder.path(), "here").unwrap_err();
    assert!(
        error.to_string().ends_with("dangling.yaml: cannot be read"),
        "{error}"
    );
}

#[test]
fn of_a_folder_only_visible_manifests_are_read_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write(here, "b.yaml", &service("web", "172.30.0.2"));
    write(here, "a.yml", &service("web", "172.30.0.1"));
    write(here, "c.json", "");
    write(here, ".hidden.yaml", "a: [");
    write(here, "notes.txt", "a: [");
    write(here, "d.yaml~", "a: [");
    fs::create_dir(here.join("folder.yaml")).unwrap();
    write(&here.join("folder.yaml"), "e.yaml", "a: [");
    let events = read(here, "here").unwrap();
    assert_eq!(names(&events), ["Service default/web"]);
    let place = |name: &str| format!("{}: document 1, line 1", here.join(name).display());
    assert_eq!(
        issues(&events),
        [format!(
            "Service default/web: metadata.name: defined at {} and again at {}; the latter is used",
            place("a.yml"),
            place("b.yaml")
        )]
    );
    let Some(Event::Put {
        object: Object::Service(web),
        ..
    }) = events
        .iter()
        .find(|event| matches!(event, Event::Put { .. }))
    else {
        panic!()
    };
    assert_eq!(web.cluster_ips.v4.unwrap().to_string(), "172.30.0.2");
}

#[test]
fn links_are_followed_to_files_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    write(other.path(), "real", &service("a", "172.30.0.1"));
    symlink(other.path().join("real"), folder.path().join("a.yaml")).unwrap();
    symlink(folder.path(), other.path().join("link")).unwrap();
    let events = read(&other.path().join("link"), "here").unwrap();
    assert_eq!(names(&events), ["Service default/a"]);
}

#[test]
fn one_bad_file_means_no_events_at_all() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.yaml", &service("a", "172.30.0.1"));
    write(folder.path(), "b.yaml", "a: [");
    assert!(read(folder.path(), "here").is_err());
}
