//! Changes on a real file system. Each test waits for a state, not for a time.

use std::os::unix::fs::symlink;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, SystemTime};

use super::*;

/// Far longer than any wait takes; only a failing test waits so long.
const LONG: Duration = Duration::from_secs(30);

/// A consumer that keeps its last good state, as all should.
struct Consumer {
    results: Receiver<Result<Vec<Event>, ManifestError>>,
    tracker: Tracker,
    _watch: FileWatch,
}

impl Consumer {
    fn of(path: &Path) -> Self {
        let (sender, results) = mpsc::channel();
        let watch = watch(path, "here", move |result| match sender.send(result) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })
        .unwrap();
        Self {
            results,
            tracker: Tracker::new(SystemTime::UNIX_EPOCH),
            _watch: watch,
        }
    }

    /// Takes results until the cluster has exactly these Services.
    fn until_services(&mut self, expected: &[&str]) {
        let expected: Vec<String> = expected
            .iter()
            .map(|name| format!("default/{name}"))
            .collect();
        loop {
            let result = self
                .results
                .recv_timeout(LONG)
                .expect("the state is reached");
            if let Ok(events) = result
                && services(&mut self.tracker, events) == expected
            {
                return;
            }
        }
    }

    /// Takes results until one is an error.
    fn until_error(&mut self) -> ManifestError {
        loop {
            let result = self
                .results
                .recv_timeout(LONG)
                .expect("an error is reported");
            if let Err(error) = result {
                return error;
            }
        }
    }
}

/// Replaces a file in one step, the way careful editors do.
fn replace(folder: &Path, name: &str, content: &str) {
    let temporary = folder.join(".temporary");
    fs::write(&temporary, content).unwrap();
    fs::rename(&temporary, folder.join(name)).unwrap();
}

/// Services of these names.
fn web(names: &[&str]) -> String {
    let services: Vec<String> = names
        .iter()
        .map(|name| service(name, "172.30.0.1"))
        .collect();
    services.join("---\n")
}

#[test]
fn a_file_is_read_again_after_writing_replacing_and_recreating() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yaml");
    fs::write(&file, web(&["a"])).unwrap();
    let mut consumer = Consumer::of(&file);
    consumer.until_services(&["a"]);
    fs::write(&file, web(&["a", "b"])).unwrap();
    consumer.until_services(&["a", "b"]);
    replace(folder.path(), "cluster.yaml", &web(&["c"]));
    consumer.until_services(&["c"]);
    // The replaced file is another one; it is still watched.
    fs::write(&file, web(&["d"])).unwrap();
    consumer.until_services(&["d"]);
    fs::remove_file(&file).unwrap();
    assert!(matches!(
        consumer.until_error(),
        ManifestError::Unreadable { .. }
    ));
    fs::write(&file, web(&["e"])).unwrap();
    consumer.until_services(&["e"]);
}

#[test]
fn a_folder_is_read_again_when_files_come_change_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let mut consumer = Consumer::of(folder.path());
    consumer.until_services(&[]);
    write(folder.path(), "a.yaml", &web(&["a"]));
    consumer.until_services(&["a"]);
    replace(folder.path(), "b.yaml", &web(&["b"]));
    consumer.until_services(&["a", "b"]);
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    consumer.until_services(&["b"]);
    fs::rename(folder.path().join("b.yaml"), folder.path().join("b.off")).unwrap();
    consumer.until_services(&[]);
}

#[test]
fn a_broken_file_is_told_and_the_next_good_one_is_used() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.yaml", &web(&["a"]));
    let mut consumer = Consumer::of(folder.path());
    consumer.until_services(&["a"]);
    write(folder.path(), "a.yaml", "a: [");
    assert!(matches!(
        consumer.until_error(),
        ManifestError::Malformed { .. }
    ));
    write(folder.path(), "a.yaml", &web(&["b"]));
    consumer.until_services(&["b"]);
}

/// Puts files into a mounted ConfigMap the way the kubelet does.
fn publish(mount: &Path, version: &str, content: &str) {
    fs::create_dir(mount.join(version)).unwrap();
    write(&mount.join(version), "cluster.yaml", content);
    symlink(version, mount.join("..data_tmp")).unwrap();
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
}

#[test]
fn a_mounted_config_map_is_followed_as_file_and_as_folder() {
    let mount = tempfile::tempdir().unwrap();
    let mount = mount.path();
    publish(mount, "..one", &web(&["a"]));
    symlink("..data/cluster.yaml", mount.join("cluster.yaml")).unwrap();
    let mut file = Consumer::of(&mount.join("cluster.yaml"));
    let mut folder = Consumer::of(mount);
    for consumer in [&mut file, &mut folder] {
        consumer.until_services(&["a"]);
    }
    for (version, name) in [("..two", "b"), ("..three", "c")] {
        publish(mount, version, &web(&[name]));
        for consumer in [&mut file, &mut folder] {
            consumer.until_services(&[name]);
        }
    }
    fs::remove_dir_all(mount.join("..one")).unwrap();
    publish(mount, "..four", &web(&["d"]));
    file.until_services(&["d"]);
}

#[test]
fn a_folder_may_be_missing_for_a_while() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("manifests");
    let mut consumer = Consumer::of(&folder);
    assert!(matches!(
        consumer.until_error(),
        ManifestError::Unreadable { .. }
    ));
    fs::create_dir(&folder).unwrap();
    consumer.until_services(&[]);
    write(&folder, "a.yaml", &web(&["a"]));
    consumer.until_services(&["a"]);
    fs::remove_dir_all(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    write(&folder, "a.yaml", &web(&["b"]));
    consumer.until_services(&["b"]);
    // The old folder is still there, under another name.
    fs::rename(&folder, parent.path().join("old")).unwrap();
    consumer.until_error();
    fs::create_dir(&folder).unwrap();
    write(&folder, "a.yaml", &web(&["c"]));
    consumer.until_services(&["c"]);
    write(&folder, "a.yaml", &web(&["d"]));
    consumer.until_services(&["d"]);
}

#[test]
fn a_path_may_appear_step_by_step() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("x/y/cluster.yaml");
    let mut consumer = Consumer::of(&file);
    consumer.until_error();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, web(&["a"])).unwrap();
    consumer.until_services(&["a"]);
    fs::write(&file, web(&["b"])).unwrap();
    consumer.until_services(&["b"]);
}

#[test]
fn the_target_of_a_link_is_watched_too() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    write(other.path(), "real.yaml", &web(&["a"]));
    symlink(other.path().join("real.yaml"), folder.path().join("a.yaml")).unwrap();
    let mut consumer = Consumer::of(folder.path());
    consumer.until_services(&["a"]);
    write(other.path(), "real.yaml", &web(&["b"]));
    consumer.until_services(&["b"]);
}

#[test]
fn reading_is_not_a_change() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.yaml", &web(&["a"]));
    let mut consumer = Consumer::of(folder.path());
    consumer.until_services(&["a"]);
    for _ in 0..3 {
        read(folder.path(), "here").unwrap();
    }
    // The next result is that of the next change, with nothing in between.
    let quiet = consumer.results.recv_timeout(Duration::from_millis(200));
    assert!(
        matches!(quiet, Err(mpsc::RecvTimeoutError::Timeout)),
        "{quiet:?}"
    );
}

#[test]
fn a_dropped_watch_and_a_consumer_that_left_end_it() {
    let folder = tempfile::tempdir().unwrap();
    let Consumer {
        results,
        _watch: watch,
        ..
    } = Consumer::of(folder.path());
    drop(watch);
    // The channel closes when the thread ends and drops its sender.
    while results.recv_timeout(LONG).is_ok() {}
    let closed = results.recv_timeout(LONG);
    assert!(matches!(closed, Err(mpsc::RecvTimeoutError::Disconnected)));

    let (sender, ended) = mpsc::channel::<()>();
    let _watch = super::watch(folder.path(), "here", move |_| {
        let _until_the_end = &sender;
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!(
        ended.recv_timeout(LONG),
        Err(mpsc::RecvTimeoutError::Disconnected)
    );
}
