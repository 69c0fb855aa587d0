#!/usr/bin/env python3
"""A photo and its tags, stored together or not at all: the file in the file system, the tags as a key beside it.

usage: photo.py DIR        DIR: in a mounted kvfs, e.g. the one of `make run`
Crashes on purpose between the two, and shows that neither is there; then does it right.
Needs the package in python/ (PYTHONPATH) and grpcio.
"""

import os
import subprocess
import sys

import kvfs


def store_photo(txn: kvfs.Transaction, photo: str) -> None:
    with open(txn.path(photo), "wb") as file:
        file.write(os.urandom(100_000))


def store_tags(txn: kvfs.Transaction) -> None:
    txn["photo-tags"][b"cat.jpg"] = b"cat, sofa"


def show(store: kvfs.Store, photo: str) -> None:
    there = {True: "there", False: "absent"}
    print(f"  photo: {there[os.path.exists(photo)]}   tags: {there[b'cat.jpg' in store['photo-tags']]}")


def main(directory: str, crashes: bool) -> None:
    directory = os.path.realpath(directory)
    os.makedirs(os.path.join(directory, "photos"), exist_ok=True)
    photo = os.path.join(directory, "photos", "cat.jpg")
    with kvfs.connect(directory) as store:
        inside = os.path.relpath(photo, store.info()[1])  # from the root of the store
        if crashes:
            with store.transaction() as txn:
                store_photo(txn, inside)
                os.abort()
        print("a program that crashes when the photo is stored and its tags are not:", flush=True)
        ended = subprocess.run([sys.executable, __file__, directory, "crash"], stderr=subprocess.DEVNULL)
        print(f"  it ended with exit code {ended.returncode}")
        show(store, photo)

        print("the same program without the crash:")
        with store.transaction() as txn:
            store_photo(txn, inside)
            store_tags(txn)
        show(store, photo)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: photo.py DIR, a directory in a mounted kvfs")
    main(sys.argv[1], len(sys.argv) > 2)
