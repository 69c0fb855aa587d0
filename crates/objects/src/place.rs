//! Where objects are: a URL, and for S3 perhaps an endpoint of one's own.
//!
//! Thread safety: plain values; functions. Invariant: a place never holds credentials.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use rustix::fs::{Mode, OFlags};
use url::Url;

use crate::cloud;

/// Of a directory with objects.
const PRIVATE: u32 = 0o700;

/// How long requests may last, and how often one is made again that the service has not answered, or as one
/// that is too busy.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A request that lasts longer, with all that is sent and received, has failed.
    pub request_time_max: Duration,
    /// It is made again so often at most.
    pub retries_max: usize,
    /// Not later than so long after the first one.
    pub age_max: Duration,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPlace {
    url: Url,
    endpoint: Option<String>,
}

impl ObjectPlace {
    /// The prefix that `url` names, such as `s3://bucket/prefix`, or a directory; `endpoint`: of a server
    /// that speaks S3.
    ///
    /// # Errors
    /// Why it can't be used, in words.
    pub fn new(url: &str, endpoint: Option<&str>) -> Result<Self, String> {
        let place = Self { url: parse(url)?, endpoint: endpoint.map(str::to_owned) };
        let text = place.url.as_str();
        let has_secret = !place.url.username().is_empty() || place.url.password().is_some();
        if has_secret || place.url.query().is_some() || place.url.fragment().is_some() {
            return Err(format!(
                "{text} has more than bucket and prefix; credentials come from the environment, such as AWS_ACCESS_KEY_ID"
            ));
        }
        if !place.is_local() && place.url.host_str().is_none_or(str::is_empty) {
            return Err(format!("{text} names no bucket"));
        }
        if endpoint.is_some() && place.url.scheme() != "s3" {
            return Err(format!("{text} has no endpoint of its own; s3://… may have one"));
        }
        if !place.is_local() {
            cloud::check(&place)?;
        }
        Ok(place)
    }

    /// The URL.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// The endpoint.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// What the URL begins with.
    #[cfg(feature = "cloud")]
    pub(crate) fn scheme(&self) -> &str {
        self.url.scheme()
    }

    /// Whether the objects are files.
    pub fn is_local(&self) -> bool {
        self.url.scheme() == "file"
    }

    /// The directory, where the objects are files.
    pub fn directory(&self) -> Option<PathBuf> {
        self.url.to_file_path().ok().filter(|_| self.is_local())
    }

    /// Makes a directory that no other user can enter, or one that is there such, before anything is in it:
    /// objects are files that the umask lets others read. Does nothing in object storage, whose rights are
    /// its own.
    ///
    /// # Errors
    /// It can't be made, belongs to another user, also for root, or is a symbolic link.
    pub fn make_private(&self) -> io::Result<()> {
        let Some(dir) = self.directory() else { return Ok(()) };
        if let Some(parent) = dir.parent() {
            std::fs::create_dir_all(parent)?;
        }
        match std::fs::DirBuilder::new().mode(PRIVATE).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let dir = open_own(&dir)?;
                dir.set_permissions(std::fs::Permissions::from_mode(PRIVATE))
            }
            made => made,
        }
    }

    /// The service, and the prefix there. `patience` is of no use for files.
    ///
    /// # Errors
    /// The service can't be used as it is set up, such as for want of credentials. Nothing is asked of it.
    pub fn connect(&self, patience: Patience) -> object_store::Result<(Arc<dyn ObjectStore>, Path)> {
        let service: Arc<dyn ObjectStore> = if self.is_local() {
            Arc::new(LocalFileSystem::new().with_fsync(true))
        } else {
            cloud::connect(self, patience)?
        };
        // abfs://container@account/path has the prefix in its path, as all others have.
        let prefix = Path::from_url_path(self.url.path());
        let prefix = prefix.map_err(object_store::Error::from)?;
        Ok((service, prefix))
    }
}

/// Opens a directory of this process's user, and none that a link leads to: the owner of either could read
/// and replace what comes to be in it.
fn open_own(dir: &std::path::Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(dir, flags, Mode::empty())?);
    let owner = opened.metadata()?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(opened);
    }
    let text =
        format!("{} belongs to user {owner}, so what is in it could be read and replaced", dir.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn parse(text: &str) -> Result<Url, String> {
    if text.contains("://") {
        return Url::parse(text).map_err(|error| format!("{text} is no URL: {error}"));
    }
    let path = absolute(text).map_err(|error| format!("{text}: {error}"))?;
    Url::from_file_path(&path).map_err(|()| format!("{} is no path of a directory", path.display()))
}

/// The path from the root on, without `..`, which paths of objects do not have. What is behind the last `..`
/// need not be there.
fn absolute(text: &str) -> io::Result<PathBuf> {
    let path = std::path::absolute(text)?;
    let parts: Vec<_> = path.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else { return Ok(path) };
    let (upper, rest) = parts.split_at(last + 1);
    // By the file system: what is above a directory that a link leads to is not what is above the link.
    let mut resolved = upper.iter().collect::<PathBuf>().canonicalize()?;
    resolved.extend(rest);
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<String, String> {
        ObjectPlace::new(text, None).map(|place| place.url().to_owned())
    }

    #[test]
    fn places_are_directories_or_urls_without_secrets() {
        assert_eq!(url("/tmp/x").unwrap(), "file:///tmp/x");
        assert!(url("x").unwrap().starts_with("file:///"));
        for (text, words) in [
            ("s3://key:secret@bucket/a", "environment"),
            ("s3://bucket/a?token=x", "environment"),
            ("s3://", "no bucket"),
        ] {
            let refused = url(text);
            assert!(refused.as_ref().is_err_and(|error| error.contains(words)), "{text}: {refused:?}");
        }
        assert!(ObjectPlace::new("/tmp/x", Some("http://localhost")).is_err());
    }

    #[test]
    fn paths_that_lead_up_are_places() {
        let at = tempfile::tempdir().unwrap();
        let at = at.path().canonicalize().unwrap();
        std::fs::create_dir_all(at.join("store/deep")).unwrap();
        std::os::unix::fs::symlink(at.join("store/deep"), at.join("link")).unwrap();
        for (path, leads_to) in [
            ("store/../backup", "backup"),
            ("store/./deep/../../new/backup", "new/backup"),
            ("store/deep/..", "store"),
            ("link/../backup", "store/backup"),
        ] {
            let place = ObjectPlace::new(at.join(path).to_str().unwrap(), None).unwrap();
            assert_eq!(place.directory(), Some(at.join(leads_to)), "{path}");
            let patience =
                Patience { request_time_max: Duration::ZERO, retries_max: 0, age_max: Duration::ZERO };
            let (_, prefix) = place.connect(patience).unwrap();
            assert_eq!(format!("/{prefix}"), at.join(leads_to).to_str().unwrap(), "{path}");
        }
        let missing = url(at.join("nowhere/../backup").to_str().unwrap());
        assert!(missing.as_ref().is_err_and(|error| error.contains("No such file")), "{missing:?}");
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn places_are_in_object_storage() {
        assert_eq!(url("s3://bucket/a/b").unwrap(), "s3://bucket/a/b");
        assert_eq!(url("gs://bucket/a").unwrap(), "gs://bucket/a");
        assert!(url("ftp://bucket/a").is_err_and(|error| error.contains("no object storage")));
        assert!(ObjectPlace::new("gs://bucket", Some("http://localhost")).is_err());
        let own = ObjectPlace::new("s3://bucket/a", Some("http://localhost:9000")).unwrap();
        assert_eq!(own.endpoint(), Some("http://localhost:9000"));
    }

    #[test]
    fn a_directory_of_objects_is_entered_by_no_other_user() {
        let at = tempfile::tempdir().unwrap();
        let open = at.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        for dir in [open, at.path().join("new/deep")] {
            ObjectPlace::new(dir.to_str().unwrap(), None).unwrap().make_private().unwrap();
            assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    fn mode(dir: &std::path::Path) -> u32 {
        std::fs::metadata(dir).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn directory_of_another_user_or_behind_a_link_is_refused_and_keeps_its_mode() {
        let at = tempfile::tempdir().unwrap();
        let target = at.path().join("target");
        std::fs::create_dir(&target).unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755)).unwrap();
        let make =
            |dir: &std::path::Path| ObjectPlace::new(dir.to_str().unwrap(), None).unwrap().make_private();
        for (link, of) in [("link", target.clone()), ("dangling", at.path().join("missing"))] {
            let link = at.path().join(link);
            std::os::unix::fs::symlink(of, &link).unwrap();
            assert!(make(&link).is_err(), "{}", link.display());
        }
        assert_eq!(mode(&target), 0o755);
        assert!(!at.path().join("missing").exists());
        // Only root can give a directory away.
        if std::os::unix::fs::chown(&target, Some(54321), None).is_ok() {
            let refused = make(&target).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            assert!(refused.to_string().contains("54321"), "{refused}");
            assert_eq!(mode(&target), 0o755);
        }
    }

    #[cfg(not(feature = "cloud"))]
    #[test]
    fn a_build_without_clients_says_so() {
        assert!(url("s3://bucket/a").is_err_and(|error| error.contains("`cloud`")));
    }
}
