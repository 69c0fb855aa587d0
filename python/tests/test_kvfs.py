"""The package on a mounted store: KVFS_DIR names a directory on it, KVFS the command.

usage: KVFS_DIR=… KVFS=… python3 -m unittest discover -s python/tests
"""

import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import grpc

import kvfs
from kvfs import _locate, _store
from kvfs._proto import store_pb2 as pb

DIR = os.environ.get("KVFS_DIR", "")
KVFS = os.environ.get("KVFS", "kvfs")
PROTO = os.path.join(os.path.dirname(__file__), "../../crates/rpc/proto/kvfs/v1/store.proto")


class Generated(unittest.TestCase):
    def test_the_generated_code_is_that_of_the_protocol_file(self):
        with open(PROTO, encoding="utf-8") as file:
            text = re.sub(r"//.*", "", file.read())
        service = pb.DESCRIPTOR.services_by_name["Store"]
        self.assertEqual(re.findall(r"rpc (\w+)\(", text), [method.name for method in service.methods])
        messages = re.findall(r"^message (\w+) \{(\}|\n.*?^\})", text, re.S | re.M)
        found = {name: dict(re.findall(r"(\w+) = (\d+);", body)) for name, body in messages}
        known = {
            name: {field.name: str(field.number) for field in message.fields}
            for name, message in pb.DESCRIPTOR.message_types_by_name.items()
        }
        self.assertEqual(found, known)


class Located(unittest.TestCase):
    def test_a_closed_store_that_root_serves_without_a_mount_is_found_by_its_path(self):
        with tempfile.TemporaryDirectory() as base, mock.patch.object(_locate, "PUBLIC", base):
            store = os.path.realpath(os.path.join(base, "store"))
            with self.assertRaises(kvfs.NotMounted):
                kvfs.connect(store)
            directory, socket = _locate._public_of(store)
            os.mkdir(directory)
            open(socket, "wb").close()
            self.assertEqual(_locate.locate(store), store)

    def test_no_time_means_that_a_transaction_is_never_idle(self):
        self.assertEqual({_store._idle_ms(never) for never in (0, 0.0, math.inf)}, {(1 << 64) - 1})
        self.assertEqual([_store._idle_ms(idle) for idle in (None, 0.00001, 2)], [0, 1, 2000])


@unittest.skipUnless(DIR, "KVFS_DIR names no mounted store")
class OnMount(unittest.TestCase):
    def setUp(self):
        self.store = kvfs.connect(DIR)
        self.addCleanup(self.store.close)
        self.mount = self.store.info()[1]
        self.name = self.id().rsplit(".", 1)[1]
        self.keys = self.store[self.name]
        self.keys.delete_range()

    def kv(self, *args, **options):
        return subprocess.run([KVFS, "kv", *args], cwd=DIR, check=True, capture_output=True, **options).stdout

    def test_a_child_of_fork_has_a_connection_of_its_own_and_leaves_the_transactions_of_its_parent(self):
        with self.store.transaction() as txn:
            txn[self.name][b"parent"] = b"1"
            children = []
            for _ in range(4):
                pid = os.fork()
                if pid == 0:
                    status = 1
                    try:
                        with txn:
                            self.keys[b"child"] = b"2"
                            status = 0 if self.keys[b"child"] == b"2" and b"parent" not in self.keys else 2
                        self.store.close()
                    finally:
                        os._exit(status)
                children.append(pid)
            self.assertEqual([self.keys.get(b"none") for _ in range(20)], [None] * 20)
            self.assertEqual([os.waitpid(pid, 0)[1] for pid in children], [0] * 4)
            txn[self.name][b"last"] = b"3"
        self.assertEqual(list(self.keys), [b"child", b"last", b"parent"])

    def test_a_call_on_a_channel_that_is_closed_meanwhile_says_that_the_store_is_closed(self):
        stub = self.store._connection._line.stub
        get = stub.Get

        def closes(*args, **options):
            self.store.close()
            return get(*args, **options)

        with mock.patch.object(stub, "Get", closes), self.assertRaises(kvfs.NotMounted):
            self.keys[b"a"]

    def test_a_keyspace_is_like_a_dictionary_in_order(self):
        keys = self.keys
        keys[b"b"] = b"2"
        keys[b"a"] = b"1"
        keys.update({b"c": bytearray(b"3"), b"\xff\x00": memoryview(b"\x00")})
        self.assertEqual(keys[b"b"], b"2")
        self.assertEqual(list(keys), [b"a", b"b", b"c", b"\xff\x00"])
        self.assertEqual(list(reversed(keys))[0], b"\xff\x00")
        self.assertEqual(list(keys.values())[:2], [b"1", b"2"])
        self.assertEqual(keys.get_many([b"c", b"none", b"a"]), [b"3", None, b"1"])
        self.assertTrue(b"a" in keys and b"none" not in keys)
        self.assertEqual(keys.get(b"none", 7), 7)
        with self.assertRaises(KeyError):
            keys[b"none"]
        del keys[b"a"]
        with self.assertRaises(KeyError):
            del keys[b"a"]
        keys.delete_range(b"b", b"c")
        self.assertEqual(list(keys.items()), [(b"c", b"3"), (b"\xff\x00", b"\x00")])
        self.assertEqual(self.kv("get", self.name, "c"), b"3")

    def test_scans_go_both_ways(self):
        with self.store.batch() as batch:
            for number in range(3000):
                batch.put(self.name, b"%05d" % number, b"v" * (number % 100))
        keys = [key for key, _ in self.keys.scan()]
        self.assertEqual(keys, [f"{number:05}".encode() for number in range(3000)])
        self.assertEqual([key for key, _ in self.keys.scan(reverse=True)], keys[::-1])
        self.assertEqual([key for key, _ in self.keys.scan(b"001", start=b"00150", limit=2)], [b"00150", b"00151"])
        self.assertEqual([key for key, _ in self.keys.scan(end=b"00002", reverse=True)], [b"00001", b"00000"])
        self.assertEqual(list(self.keys.scan(limit=0)), [])
        for key, _ in self.keys.scan():  # left in the middle
            break
        self.assertEqual(next(iter(self.keys)), key)

    def test_a_batch_that_is_left_by_an_error_does_nothing(self):
        with self.assertRaises(ZeroDivisionError), self.store.batch() as batch:
            batch.put(self.name, b"a", b"1")
            1 / 0
        self.assertEqual(list(self.keys), [])

    def test_files_and_keys_commit_together(self):
        path = os.path.join(DIR, "music", "song.mp3")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        inside = os.path.relpath(path, self.mount)
        with self.store.transaction() as txn:
            txn[self.name][b"song"] = b"artist"
            with open(txn.path(inside), "wb") as file:
                file.write(b"la la la")
            self.assertTrue(b"song" in txn[self.name] and b"song" not in self.keys)
            self.assertFalse(os.path.exists(path))
            kv = self.kv("get", self.name, "song", env=txn.environment())
            self.assertEqual(kv, b"artist", "a command in the transaction")
            self.assertIn(txn.id, [line.id for line in self.store.transactions()])
        self.assertEqual(self.keys[b"song"], b"artist")
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"la la la")
        with self.assertRaises(kvfs.TransactionEnded):
            txn[self.name][b"song"]
        with self.assertRaises(ZeroDivisionError), self.store.transaction() as txn:
            del txn[self.name][b"song"]
            os.remove(txn.path(inside))
            1 / 0
        self.assertTrue(os.path.exists(path) and b"song" in self.keys)
        self.assertEqual(self.store.transactions(), [])
        os.remove(path)

    def test_a_conflict_names_whom_and_what(self):
        self.keys[b"fought"] = b"0"
        with self.assertRaises(kvfs.Conflict) as caught:
            with self.store.transaction() as txn:
                txn[self.name][b"other"] = b"1"
                self.keys[b"fought"] = b"theirs"
                txn[self.name][b"fought"] = b"mine"
        self.assertEqual((caught.exception.keyspace, caught.exception.key), (self.name, b"fought"))
        self.assertIn("fought", str(caught.exception))
        self.assertEqual(dict(self.keys.items()), {b"fought": b"theirs"})

    def test_what_fails_in_a_transaction_that_met_another_one_is_a_conflict_and_tried_again(self):
        self.keys[b"fought"] = b"0"
        tries = []

        def work(txn):
            tries.append(txn.id)
            if len(tries) == 1:
                self.keys[b"fought"] = b"theirs"
                with self.assertRaises(kvfs.Conflict):
                    txn[self.name][b"fought"] = b"mine"
                raise OSError("as a write to a file of it fails")

        self.store.run(work)
        self.assertEqual(len(tries), 2)
        with self.assertRaises(ZeroDivisionError):
            self.store.run(lambda txn: 1 / 0)

    def test_locks_keep_others_away_and_tell_who_is_late(self):
        self.keys[b"song/a"] = b"1"
        with self.assertRaises(kvfs.Conflict) as caught:
            with self.store.transaction() as late:
                with self.store.transaction() as txn:
                    txn.lock_keys(self.name, prefix=b"song/", exclusive=True)
                    txn.lock_keys(self.name, start=b"talk/", end=b"talk/z")
                    txn.lock_file("/")
                    self.keys[b"zebra"] = b"1"
                    txn[self.name][b"song/b"] = b"2"
                late.lock_keys(self.name, prefix=b"song/")
        self.assertEqual((caught.exception.keyspace, caught.exception.key), (self.name, b"song/b"))

    def test_a_lock_on_what_is_not_there_leaves_the_transaction_open(self):
        with self.store.transaction() as txn:
            for lock in (lambda: txn.lock_keys("nosuch"), lambda: txn.lock_file("nosuch")):
                with self.assertRaises(kvfs.KvfsError) as caught:
                    lock()
                self.assertEqual(caught.exception.code, grpc.StatusCode.NOT_FOUND)
                self.assertNotIsInstance(caught.exception, kvfs.TransactionEnded)
            txn[self.name][b"kept"] = b"1"
        self.assertEqual(self.keys[b"kept"], b"1")
        for lock in (lambda: txn.lock_keys(self.name), lambda: txn.lock_file("/")):
            with self.assertRaises(kvfs.TransactionEnded):
                lock()

    def test_run_retries_and_loses_no_update(self):
        self.keys[b"count"] = b"0"

        def add(txn):
            number = int(txn[self.name][b"count"]) + 1
            txn[self.name][b"count"] = b"%d" % number
            return number

        def work():
            with kvfs.connect(DIR) as store:
                for _ in range(5):
                    store.run(add, retries=100, durable=False)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.keys[b"count"], b"20")
        with self.assertRaises(kvfs.Conflict):
            self.store.run(lambda txn: (self.keys.put(b"count", b"x"), add(txn))[1], retries=0)

    def test_serializable_and_joined(self):
        txn = self.store.transaction(isolation="serializable", tied=False, timeout=60)
        with kvfs.connect(DIR) as other:
            other.join(txn.id)[self.name][b"a"] = b"1"
        self.assertEqual(txn[self.name][b"a"], b"1")
        subprocess.run([KVFS, "txn", "commit", str(txn.id)], cwd=DIR, check=True)
        self.assertEqual(self.keys[b"a"], b"1")
        with self.assertRaises(ValueError):
            self.store.transaction(isolation="chaos")

    def test_a_process_that_dies_leaves_nothing(self):
        script = (
            "import os, sys, kvfs\n"
            "store = kvfs.connect(sys.argv[1])\n"
            "txn = store.transaction()\n"
            "txn[sys.argv[2]][b'a'] = b'1'\n"
            "open(txn.path('left-behind'), 'w').write('x')\n"
            "os.abort()\n"
        )
        died = subprocess.run([sys.executable, "-c", script, DIR, self.name], stderr=subprocess.DEVNULL)
        self.assertLess(died.returncode, 0)
        while self.store.transactions():
            pass
        self.assertNotIn(b"a", self.keys)
        self.assertFalse(os.path.exists(os.path.join(self.mount, "left-behind")))

    def test_keyspaces_have_owners(self):
        self.keys[b"a"] = b"1"
        mine = {info.name: info for info in self.store.keyspaces()}[self.name]
        self.assertEqual((mine.uid, mine.mode), (os.geteuid(), 0o600))
        self.assertEqual(self.store.chmod(self.name, 0o640).mode, 0o640)
        with self.assertRaises(kvfs.KvfsError) as caught:
            self.store.create_keyspace(self.name, exclusive=True)
        self.assertEqual(caught.exception.code, grpc.StatusCode.ALREADY_EXISTS)
        with self.assertRaises(kvfs.KvfsError) as caught:
            self.store["meta"][b"a"] = b"1"
        self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)

    def test_keys_and_values_that_are_not_bytes_are_a_type_error(self):
        for bad in ("text", 7, 1.5, None, [1, 2], {"a": 1}, object()):
            for call in (
                lambda: self.keys.put(b"a", bad),
                lambda: self.keys.put(bad, b"1"),
                lambda: self.keys.get(bad),
                lambda: self.keys.delete(bad),
                lambda: self.keys.get_many([b"a", bad]),
                lambda: self.keys.update({b"a": bad}),
                lambda: kvfs.Batch().delete(self.name, bad),
                lambda: next(self.keys.scan(prefix=bad)),
            ):
                with self.assertRaises(TypeError):
                    call()
        self.assertEqual(list(self.keys), [])

    def test_export_and_import_keep_every_byte(self):
        entries = {bytes([number, 255 - number]): bytes([number]) * 3 for number in range(256)}
        entries["ü".encode()] = "artist=…".encode()
        self.keys.update(entries)
        file = io.StringIO()
        self.assertEqual(self.keys.export_to(file), len(entries))
        self.assertEqual(self.kv("export", self.name).decode(), file.getvalue())
        copy = self.store[self.name + "-copy"]
        self.assertEqual(copy.import_from(file.getvalue().splitlines()), len(entries))
        self.assertEqual(dict(copy.items()), entries)
        with self.assertRaises(ValueError):
            copy.import_from(['{"key": "new", "value": "1"}', "nonsense"])
        self.assertNotIn(b"new", copy)
        lines = [json.dumps({"key": f"new{number}", "value": "1"}) for number in range(2500)]
        with self.assertRaises(kvfs.TransactionEnded), self.store.transaction() as txn:
            with self.assertRaises(ValueError):
                txn[copy.name].import_from([*lines, "nonsense"])
        self.assertNotIn(b"new0", copy)
        self.store.drop_keyspace(copy.name)
        self.assertNotIn(copy.name, [info.name for info in self.store.keyspaces()])
        self.assertEqual(list(copy), [])

    def test_keys_of_a_named_snapshot_are_those_of_then(self):
        self.keys.update({b"a": b"then", b"gone": b"1"})
        subprocess.run([KVFS, "snapshot", "create", self.name], cwd=DIR, check=True)
        self.keys.update({b"a": b"now", b"new": b"1"})
        del self.keys[b"gone"]
        then = self.store.snapshot(self.name)
        self.assertEqual(dict(then[self.name].items()), {b"a": b"then", b"gone": b"1"})
        self.assertEqual(then[self.name].get_many([b"a", b"new"]), [b"then", None])
        self.assertIn(self.name, [info.name for info in then.keyspaces()])
        self.store.drop_keyspace(self.name)
        self.assertEqual(then[self.name][b"a"], b"then")
        for change in (
            lambda: then[self.name].put(b"a", b"1"),
            lambda: then[self.name].delete(b"a"),
            lambda: then[self.name].delete_range(),
            lambda: then[self.name].update({b"a": b"1"}),
            lambda: then[self.name].import_from([]),
        ):
            with self.assertRaises(kvfs.KvfsError):
                change()
        with self.assertRaises(kvfs.KvfsError) as caught:
            self.store.snapshot("none")[self.name].get(b"a")
        self.assertEqual(caught.exception.code, grpc.StatusCode.NOT_FOUND)
        subprocess.run([KVFS, "snapshot", "delete", self.name], cwd=DIR, check=True)

    def test_trees_go_as_a_whole(self):
        def plant():
            os.makedirs(os.path.join(self.mount, "py-tree/below"))
            with open(os.path.join(self.mount, "py-tree/below/file"), "w", encoding="ascii") as file:
                file.write("text")

        plant()
        with self.assertRaises(ZeroDivisionError), self.store.transaction() as txn:
            txn.remove_tree("py-tree")
            self.assertFalse(os.path.exists(txn.path("py-tree")))
            self.assertTrue(os.path.exists(os.path.join(self.mount, "py-tree/below/file")))
            raise ZeroDivisionError
        self.assertTrue(os.path.exists(os.path.join(self.mount, "py-tree/below/file")))
        with self.store.transaction() as txn:
            txn.remove_tree("/py-tree")
            with self.assertRaises(FileNotFoundError) as raised:
                txn.remove_tree("py-tree")
            self.assertIn("no such file or directory", str(raised.exception))
        self.assertFalse(os.path.exists(os.path.join(self.mount, "py-tree")))
        plant()
        number = self.store.remove_tree("py-tree")
        self.assertFalse(os.path.exists(os.path.join(self.mount, "py-tree")))
        subprocess.run([KVFS, "txn", "undo", str(number)], cwd=DIR, check=True, capture_output=True)
        self.store.remove_tree("py-tree/below")
        self.assertEqual(os.listdir(os.path.join(self.mount, "py-tree")), [])
        self.store.remove_tree("py-tree")
        for path, kind in (("py-tree", FileNotFoundError), ("/", OSError), ("a\0b", ValueError), ("x" * 5000, OSError)):
            with self.assertRaises(kind):
                self.store.remove_tree(path)
            with self.assertRaises(kind):
                self.store.clone_tree(path, "py-clone")

    def test_trees_are_cloned_as_a_whole(self):
        os.makedirs(os.path.join(self.mount, "py-tree/below"))
        with open(os.path.join(self.mount, "py-tree/below/file"), "w", encoding="ascii") as file:
            file.write("text")
        clone = os.path.join(self.mount, "py-clone/below/file")
        with self.assertRaises(ZeroDivisionError), self.store.transaction() as txn:
            txn.clone_tree("py-tree", "/py-clone")
            with open(txn.path("py-clone/below/file"), encoding="ascii") as file:
                self.assertEqual(file.read(), "text")
            raise ZeroDivisionError
        self.assertFalse(os.path.exists(clone))
        number = self.store.clone_tree("py-tree", "py-clone")
        with open(clone, encoding="ascii") as file:
            self.assertEqual(file.read(), "text")
        with self.assertRaises(FileExistsError):
            self.store.clone_tree("py-tree", "py-clone")
        subprocess.run([KVFS, "txn", "undo", str(number)], cwd=DIR, check=True, capture_output=True)
        self.assertFalse(os.path.exists(clone))
        self.store.remove_tree("py-tree")

    def test_trees_of_a_transaction_that_was_joined_are_its_own(self):
        file = os.path.join(self.mount, "py-tree/file")
        os.makedirs(os.path.dirname(file))
        with open(file, "w", encoding="ascii") as written:
            written.write("text")
        script = "import kvfs; s = kvfs.connect(); s.clone_tree('py-tree', 'py-clone'); s.remove_tree('py-tree'); {}"
        in_run = [KVFS, "txn", "run", "--", sys.executable, "-c", script.format("1 / 0")]
        self.assertNotEqual(subprocess.run(in_run, cwd=DIR, capture_output=True).returncode, 0)
        self.assertTrue(os.path.exists(file))
        with self.store.transaction() as txn:
            command = [sys.executable, "-c", script.format("")]
            subprocess.run(command, cwd=DIR, check=True, env=txn.environment())
            self.assertTrue(os.path.exists(file))
            self.assertFalse(os.path.exists(txn.path("py-tree")))
        self.assertFalse(os.path.exists(file))
        self.store.remove_tree("py-clone")

    def test_a_place_without_a_store(self):
        with self.assertRaises(kvfs.NotMounted):
            kvfs.connect("/proc")

    def test_in_a_run_the_store_is_the_transaction(self):
        script = "import kvfs, sys; kvfs.connect()[sys.argv[1]][b'a'] = b'1'; sys.exit(int(sys.argv[2]))"
        for code, there in ((3, False), (0, True)):
            command = [KVFS, "txn", "run", "--", sys.executable, "-c", script, self.name, str(code)]
            ran = subprocess.run(command, cwd=DIR)
            self.assertEqual((ran.returncode, b"a" in self.keys), (code, there))


if __name__ == "__main__":
    unittest.main()
