//! Object storage: a server of S3 on this machine, so far away as it is to be, that counts requests.
//!
//! Thread safety: each value belongs to one thread. Invariant: server and objects are gone when it is
//! dropped.

use crate::delay::Delay;
use anyhow::{Context, Result, bail};
use kvfs_bench::host;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Sub;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Of the server that is made here, which nothing else reaches.
pub(crate) const ACCESS_KEY: &str = "kvfs";
pub(crate) const SECRET_KEY: &str = "secret";
pub(crate) const REGION: &str = "us-east-1";
pub(crate) const BUCKET: &str = "bucket";

/// The server has written a line when its answer is so old.
const LOG_LAG: Duration = Duration::from_millis(100);
const START_LIMIT: Duration = Duration::from_secs(20);

/// See the module.
pub(crate) struct Storage {
    delay: Delay,
    server: Child,
    dir: PathBuf,
    log: PathBuf,
}

/// Requests that the server has had, by what they are billed as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Objects and parts of them that were made, and uploads in parts, their beginning and end each.
    pub(crate) put: u64,
    pub(crate) list: u64,
    /// HEAD, too.
    pub(crate) get: u64,
    pub(crate) delete: u64,
}

impl Requests {
    /// Of an access log, each of whose lines names what was asked for.
    fn parse(log: &str) -> Self {
        let mut requests = Self::default();
        for name in log.split_whitespace().filter_map(|word| word.strip_prefix("s3_")) {
            let count = match name {
                _ if name.starts_with("List") => &mut requests.list,
                _ if name.starts_with("Get") || name.starts_with("Head") => &mut requests.get,
                _ if name.starts_with("Delete") || name.starts_with("Abort") => &mut requests.delete,
                _ => &mut requests.put,
            };
            *count += 1;
        }
        requests
    }
}

impl Sub for Requests {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            put: self.put - before.put,
            list: self.list - before.list,
            get: self.get - before.get,
            delete: self.delete - before.delete,
        }
    }
}

impl Storage {
    /// An empty bucket in a new directory of `work`; an answer takes `delay` longer.
    pub(crate) fn new(program: &Path, work: &Path, delay: Duration) -> Result<Self> {
        let (dir, log) = (work.join("objects"), work.join("requests.log"));
        fs::create_dir_all(dir.join(BUCKET))?;
        // Free a moment ago; another process that takes it first makes this fail, and nothing else.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let output = File::create(work.join("server.log"))?;
        let mut command = Command::new(program);
        command.args(["--port", &address.to_string(), "--access-log"]).arg(&log).arg("posix").arg(&dir);
        command.env("ROOT_ACCESS_KEY", ACCESS_KEY).env("ROOT_SECRET_KEY", SECRET_KEY);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        let mut server = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
        match await_server(&mut server, address).and_then(|()| Delay::new(address, delay)) {
            Ok(delay) => Ok(Self { delay, server, dir, log }),
            Err(error) => {
                server.kill()?;
                server.wait()?;
                Err(error)
            }
        }
    }

    /// Where clients find it.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.delay.address())
    }

    /// Those so far, when no more is written of them: the log is behind the answers.
    pub(crate) fn requests(&self) -> Result<Requests> {
        let mut length = fs::metadata(&self.log)?.len();
        loop {
            thread::sleep(LOG_LAG);
            let now = fs::metadata(&self.log)?.len();
            if now == length {
                return Ok(Requests::parse(&fs::read_to_string(&self.log)?));
            }
            length = now;
        }
    }
}

fn await_server(server: &mut Child, address: SocketAddr) -> Result<()> {
    let is_up = host::wait_until(START_LIMIT, || {
        if let Some(status) = server.try_wait()? {
            bail!("the server of S3 has ended, {status}");
        }
        Ok(TcpStream::connect(address).is_ok())
    })?;
    anyhow::ensure!(is_up, "the server of S3 does not answer within {START_LIMIT:?}");
    Ok(())
}

impl Drop for Storage {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.server.kill();
        let _ = self.server.wait();
        for removed in [fs::remove_dir_all(&self.dir), fs::remove_file(&self.log)] {
            if let Err(error) = removed {
                eprintln!("objects stay in {}: {error}", self.dir.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_as_they_are_billed() {
        let log = "kvfs bucket [28/Nov] 127.0.0.1 kvfs A s3_PutObject a 200\n\
                   kvfs bucket [28/Nov] 127.0.0.1 kvfs B s3_UploadPart a 200\n\
                   kvfs bucket [28/Nov] 127.0.0.1 kvfs C s3_HeadObject a 404\n\
                   kvfs bucket [28/Nov] 127.0.0.1 kvfs D s3_ListObjectsV2 - 200\n\
                   kvfs bucket [28/Nov] 127.0.0.1 kvfs E s3_DeleteObjects - 200\n";
        assert_eq!(Requests::parse(log), Requests { put: 2, list: 1, get: 1, delete: 1 });
    }
}
