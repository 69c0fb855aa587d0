//! A photo and its tags, stored together or not at all: the file in the file system, the tags as a key beside
//! it. usage: photo DIR DIR: in a mounted kvfs, e.g. the one of `make run` Crashes on purpose between the
//! two, and shows that neither is there; then does it right.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvfs_rpc::client::BeginOptions;
use kvfs_rpc::client::blocking::{Store, Transaction};

const PHOTO: &[u8] = &[0xff; 100_000];

fn store_photo(txn: &mut Transaction, photo: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::write(txn.path(photo)?, PHOTO)?;
    Ok(())
}

fn store_tags(txn: &mut Transaction) -> Result<(), Box<dyn Error>> {
    Ok(txn.put("photo-tags", b"cat.jpg", b"cat, sofa")?)
}

fn show(store: &mut Store, photo: &Path) -> Result<(), Box<dyn Error>> {
    let word = |is_there: bool| if is_there { "there" } else { "absent" };
    let tags = store.get("photo-tags", b"cat.jpg")?;
    println!("  photo: {}   tags: {}", word(photo.exists()), word(tags.is_some()));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let usage = "usage: photo DIR, a directory in a mounted kvfs";
    let dir = PathBuf::from(args.next().ok_or(usage)?).canonicalize()?;
    let crashes = args.next().is_some();

    let mut store = Store::connect(&dir)?;
    let mount = store.call(async |client| client.info().await)?.1;
    std::fs::create_dir_all(dir.join("photos"))?;
    let photo = dir.join("photos/cat.jpg");
    // Where it is from the root of the store.
    let inside = photo.strip_prefix(&mount)?.to_owned();

    // Tied to the connection: however this process ends, it leaves nothing half done.
    let tied = BeginOptions { tied: true, label: "photo".to_owned(), ..BeginOptions::default() };
    if crashes {
        let mut txn = store.begin(tied)?;
        store_photo(&mut txn, &inside)?;
        std::process::abort();
    }
    println!("a program that crashes when the photo is stored and its tags are not:");
    let ended = Command::new(std::env::current_exe()?).arg(&dir).arg("crash").status()?;
    println!("  it ended with {ended}");
    show(&mut store, &photo)?;

    println!("the same program without the crash:");
    let mut txn = store.begin(tied)?;
    store_photo(&mut txn, &inside)?;
    store_tags(&mut txn)?;
    txn.commit()?;
    show(&mut store, &photo)
}
