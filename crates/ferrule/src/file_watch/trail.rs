//! Where to look for changes of what a path says.
//!
//! A path leads through links: a mounted ConfigMap is `cluster.yaml → ..data/cluster.yaml` and
//! `..data → ..2025_01_02/`, and an update replaces the middle one. So we follow a path the way
//! the kernel does and remember every link on it. At a missing name the trail ends, and its
//! appearance is the change to wait for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// As many links as Linux follows in one path.
const MAX_LINKS: usize = 40;

/// The files and folders whose change may change what the path says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Trail {
    /// Files, links, and names that do not exist yet; absolute and with all links resolved
    /// except at their end.
    entries: BTreeSet<PathBuf>,
    /// The folder of which everything matters.
    folder: Option<PathBuf>,
    /// Where all of these are.
    parents: BTreeSet<PathBuf>,
}

impl Trail {
    /// The trail of a file or folder, by its absolute path.
    pub(super) fn of(path: &Path) -> Self {
        let mut trail = Self::default();
        let end = trail.follow(path);
        if let Some(folder) = end.filter(|end| end.is_dir()) {
            // A folder that cannot be listed now is met again when it changes.
            let names = fs::read_dir(&folder).into_iter().flatten().flatten();
            for link in names
                .map(|name| name.path())
                .filter(|path| path.is_symlink())
            {
                trail.follow(&link);
            }
            trail.folder = Some(folder);
        }
        let parents = trail.entries.iter().filter_map(|entry| entry.parent());
        trail.parents = parents.map(Path::to_owned).collect();
        trail
    }

    /// Whether a change at this path, of which all links but the last are resolved, matters.
    pub(super) fn concerns(&self, path: &Path) -> bool {
        self.entries.contains(path)
            || (self.folder.is_some() && self.folder.as_deref() == path.parent())
            // A folder we watch for one of its names was itself moved or deleted.
            || self.parents.contains(path)
    }

    /// The folders to watch, without those inside them.
    pub(super) fn folders(&self) -> BTreeSet<&Path> {
        self.parents
            .iter()
            .chain(&self.folder)
            .map(PathBuf::as_path)
            .collect()
    }

    /// Follows `path` to its end, which is `None` if it leads nowhere.
    fn follow(&mut self, path: &Path) -> Option<PathBuf> {
        let mut here = PathBuf::new();
        let mut ahead = path.to_owned();
        let mut links = 0;
        loop {
            let mut components = ahead.components();
            let Some(component) = components.next() else {
                break;
            };
            let rest = components.as_path().to_owned();
            match component {
                Component::ParentDir => _ = here.pop(),
                Component::Normal(name) => {
                    let next = here.join(name);
                    if let Ok(target) = fs::read_link(&next) {
                        self.entries.insert(next);
                        links += 1;
                        if links > MAX_LINKS {
                            return None;
                        }
                        ahead = target.join(rest);
                        continue;
                    }
                    if fs::symlink_metadata(&next).is_err() {
                        self.entries.insert(next);
                        return None;
                    }
                    here = next;
                }
                Component::Prefix(_) | Component::RootDir => here.push(component),
                Component::CurDir => {}
            }
            ahead = rest;
        }
        self.entries.insert(here.clone());
        Some(here)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        (folder, real)
    }

    #[test]
    fn a_file_concerns_only_itself() {
        let (_guard, here) = folder();
        fs::write(here.join("a.yaml"), "").unwrap();
        let trail = Trail::of(&here.join("a.yaml"));
        assert_eq!(trail.folders(), [here.as_path()].into());
        assert!(trail.concerns(&here.join("a.yaml")));
        assert!(!trail.concerns(&here.join("b.yaml")));
        assert!(trail.concerns(&here), "its folder may be moved away");
    }

    #[test]
    fn every_link_on_the_way_matters() {
        let (_guard, here) = folder();
        fs::create_dir(here.join("..2025")).unwrap();
        fs::write(here.join("..2025/a.yaml"), "").unwrap();
        symlink("..2025", here.join("..data")).unwrap();
        symlink("./..2025/../..data/a.yaml", here.join("a.yaml")).unwrap();
        let trail = Trail::of(&here.join("a.yaml"));
        for name in ["a.yaml", "..data", "..2025/a.yaml"] {
            assert!(trail.concerns(&here.join(name)), "{name}");
        }
        assert!(!trail.concerns(&here.join("..other")));
    }

    #[test]
    fn a_folder_concerns_all_its_names_and_what_its_links_point_to() {
        let (_guard, here) = folder();
        let (_other_guard, other) = folder();
        fs::write(other.join("real.yaml"), "").unwrap();
        symlink(other.join("real.yaml"), here.join("a.yaml")).unwrap();
        let trail = Trail::of(&here);
        assert!(trail.concerns(&here.join("new.yaml")));
        assert!(trail.concerns(&other.join("real.yaml")));
        assert!(!trail.concerns(&other.join("unrelated")));
        assert!(trail.folders().contains(here.parent().unwrap()));
    }

    #[test]
    fn a_missing_path_waits_at_the_first_missing_name() {
        let (_guard, here) = folder();
        let trail = Trail::of(&here.join("x/y/a.yaml"));
        assert_eq!(trail.folders(), [here.as_path()].into());
        assert!(trail.concerns(&here.join("x")));
    }

    #[test]
    fn links_in_a_circle_end() {
        let (_guard, here) = folder();
        symlink("b", here.join("a")).unwrap();
        symlink("a", here.join("b")).unwrap();
        let trail = Trail::of(&here.join("a"));
        assert_eq!(trail.entries, [here.join("a"), here.join("b")].into());
    }
}
