//! Each program that people use on files, below the prefix.

use crate::run::compare;

#[test]
fn coreutils_work_as_on_a_real_directory() {
    compare(
        &["ls"],
        r"mkdir -p $D/a/b/c; echo one > $D/a/f; echo two >> $D/a/f; cat $D/a/f; cat < $D/a/f; cp -a $D/a $D/x; mv $D/x $D/y
        ln -s f $D/a/l; ln $D/a/f $D/a/h; readlink $D/a/l; realpath $D/a/l; stat -c '%n %F %h' $D/a/*; stat -c %s $D/a/f; chmod 640 $D/a/f
        cd $D/a; pwd; /bin/pwd; ls -a; ls -d ..; cat f l | tee g | wc; head -1 < g; (cd b; echo in > t; cat ../g ./t); cd ..; ls
        touch -d 2001-01-01 y/f; truncate -s 100 y/f; ls y; dd if=y/f of=y/g bs=10 count=3 2>/dev/null; sort $D/a/f; cmp a/f a/h
        rm -r $D/y/b; rmdir $D/a/b/c 2>/dev/null; ls -R $D; mkdir $D/e; rmdir $D/e; cd /; ls $D; test -d $D; test ! -e $D/none
        cat /dev/stdin < $D/a/f; cat /proc/self/fd/0 < $D/a/f; exec 7<$D/a/f; cat <&7",
    );
}

#[test]
fn descriptors_are_opened_anew_by_their_names() {
    compare(
        &["tee"],
        r"(echo one; echo two >> /dev/stdout; echo three > /dev/stderr; echo four >> /dev/fd/2) > $D/out 2> $D/err; cat $D/out $D/err
        echo five | tee /dev/stderr > $D/o2 2> $D/e2; cat $D/o2 $D/e2; echo six | dd of=/dev/stdout conv=notrunc 2>/dev/null > $D/o3; cat $D/o3
        exec 7> $D/long; echo 123456 >&7; echo 8 > /proc/self/fd/7; echo 9 >&7; wc -c < $D/long",
    );
}

/// Executes `tool` of a directory by a descriptor of the directory, of which programs that are begun have a
/// copy or not, or of the file.
const EXECUTES: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
extern char **environ;
int main(int c, char **v) {
  (void)c; char how = v[2][0], *w[] = {"tool", "word", 0}; int dir = open(v[1], O_RDONLY | O_DIRECTORY | (how == 'c' ? O_CLOEXEC : 0));
  if (how == 'f') fexecve(openat(dir, "tool", O_RDONLY), w, environ); else syscall(SYS_execveat, dir, "tool", w, environ, 0);
  printf("%d\n", errno); return 0;
}
"#;

#[test]
fn script_is_executed_by_a_descriptor_and_no_fifo_is_waited_for() {
    compare(
        &["gcc"],
        &format!(
            r"gcc -w -o $D/prog -x c - <<'C_END'
{EXECUTES}
C_END
            w=$(mktemp -d); cd $w; printf '#!/bin/sh\necho of the store: $0 $1\n' > $D/tool; printf '#!/bin/sh\necho another one\n' > tool
            chmod +x $D/tool tool; for how in d c f; do $D/prog $D $how; done; ./tool
            mkfifo fifo; chmod +x fifo; timeout 60 ./fifo || echo $?; rm -r $w"
        ),
    );
}

#[test]
fn path_through_the_parent_of_the_prefix_is_found() {
    compare(&["ls"], "echo x > $D/f; cat /.$D/f /../$D/f /$D/f $D//f; ls -d $D/..; cd $D/..; cat ${D##*/}/f");
}

#[test]
fn path_that_leads_up_from_elsewhere_is_found() {
    compare(
        &["python3"],
        r#"echo x > $D/f; cd /usr/bin; cat ../..$D/f ../.././$D/f; echo y > ../../$D/g; cat $D/g; cd /; cat .$D/f
        python3 -c "import os; d = os.open('.', os.O_RDONLY); print(os.read(os.open('.' + os.environ['D'] + '/f', 0, dir_fd=d), 9))""#,
    );
}

#[test]
fn tar_packs_and_unpacks() {
    compare(
        &["tar"],
        "mkdir -p $D/s/t; for i in 1 2 3; do seq $i 1000 > $D/s/t/$i; done; tar cf $D/a.tar -C $D s; mkdir $D/o; tar xf $D/a.tar -C $D/o
        diff -r $D/s $D/o/s; cd $D; tar czf a.tgz s; tar tzf a.tgz | sort; rm a.tgz; tar cf - s | tar xf - -C o; rm a.tar",
    );
}

#[test]
fn rsync_copies() {
    compare(
        &["rsync"],
        "mkdir -p $D/s/t; for i in 1 2 3; do seq $i 1000 > $D/s/t/$i; done; rsync -a $D/s/ $D/o/; rm $D/s/t/1; rsync -a --delete $D/s/ $D/o/; diff -r $D/s $D/o; ls -R $D/o",
    );
}

#[test]
fn git_keeps_a_repository() {
    compare(
        &["git"],
        "git config --global user.email a@b; git config --global user.name n; git config --global --add safe.directory '*'
        git init -q -b m $D/r; cd $D/r; echo a > a; mkdir d; echo b > d/b; git add .; git commit -qm one; echo c >> a; git status --short
        git commit -qam two; git log --format=%s; git clone -q $D/r $D/c 2>&1; cd $D/c; git log --format=%s; git fsck 2>&1 | grep -v dangling || true
        git -C $D/r gc -q; git -C $D/c checkout -qb x HEAD~1; cat a; git -C $D/r diff HEAD~1 | tail -1; git grep b",
    );
}

#[test]
fn sqlite_keeps_a_database() {
    compare(
        &["sqlite3"],
        r#"for m in delete wal; do sqlite3 $D/$m.db "pragma journal_mode=$m; create table t(a,b); insert into t values(1,2),(3,4); begin; insert into t select a+10,b from t; commit; select sum(a) from t; pragma integrity_check; vacuum;"; done; sqlite3 $D/wal.db 'select * from t'"#,
    );
}

const PYTHON: &str = r"
import os, shutil, subprocess, sys, mmap
d = os.environ['D']
os.makedirs(d + '/a/b')
with open(d + '/a/f', 'w') as f: f.write('x' * 10000)
print(os.path.getsize(d + '/a/f'), sorted((r, sorted(ds), sorted(fs)) for r, ds, fs in os.walk(d)))
print(subprocess.run(['ls'], cwd=d + '/a', capture_output=True, text=True).stdout)
print(subprocess.run('pwd; cat f | wc -c', shell=True, cwd=d + '/a', capture_output=True, text=True).stdout)
subprocess.run(['echo', 'to a file'], stdout=open(d + '/out', 'w'))
print(open(d + '/out').read())
shutil.copytree(d + '/a', d + '/c'); shutil.rmtree(d + '/a')
os.chdir(d); print(os.getcwd(), os.path.exists('c/f'), os.path.realpath('c'))
fd = os.open('c', os.O_DIRECTORY); print(os.stat('f', dir_fd=fd).st_size); os.fchdir(fd); print(os.getcwd())
print([e.name for e in os.scandir(fd) if e.is_file()])
with open('f', 'rb') as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print(m[0:5], len(m)); m.close()
with open('f', 'r+b') as f:
    m = mmap.mmap(f.fileno(), 0); m[0:3] = b'abc'; print(open('f').read(5)); m.flush(); f.write(b'Z'); f.flush(); print(m[0:5])
    if os.fork() == 0: m[9:11] = b'**'; os._exit(0)
    os.wait(); print(m[8:12]); m[5000:5003] = b'end'; f.truncate(6000); m.close()
print(subprocess.run(['cat', 'f'], capture_output=True).stdout[4995:5010], os.stat('f').st_size)
open(d + '/mod.py', 'w').write('value = 42\n'); sys.path.insert(0, d); sys.dont_write_bytecode = True
import mod; print(mod.value, mod.__file__)
os.symlink('f', 'l'); print(os.readlink('l')); os.rename('l', d + '/k'); os.unlink(d + '/k')
";

#[test]
fn python_works_on_files() {
    compare(&["python3"], &format!("python3 - <<'PYTHON_END'\n{PYTHON}\nPYTHON_END"));
}

#[test]
fn c_project_is_built_and_run_in_place() {
    compare(
        &["gcc", "make"],
        r#"mkdir $D/p; cd $D/p
        printf '#include <dlfcn.h>\n#include <stdio.h>\nint main(int c,char**v){int (*f)(void)=dlsym(dlopen(v[1],2),"answer");printf("%%d %%d\\n",f(),c);return 0;}\n' > main.c
        printf 'int answer(void){return 42;}\n' > lib.c
        printf 'all: prog libanswer.so\nprog: main.o\n\tgcc -o prog main.o -ldl\nlibanswer.so: lib.c\n\tgcc -shared -fPIC -o libanswer.so lib.c\nclean:\n\trm -f *.o\n' > Makefile
        make; ./prog ./libanswer.so b; $D/p/prog $D/p/libanswer.so; make; make clean; ls; rm prog libanswer.so"#,
    );
}

#[test]
fn find_and_grep_walk() {
    compare(
        &["find", "grep"],
        "mkdir -p $D/a/{b,c}/d; echo needle > $D/a/b/d/f; echo hay > $D/a/c/g; find $D | sort; cd $D; grep -r needle .; grep -rl hay $D
        find . -type f -exec cat {} + | sort; find . -name d -print0 | sort -z | xargs -0 ls; rm $D/a/b/d/f; find . -empty | sort",
    );
}

#[test]
fn scripts_are_run_by_their_interpreters() {
    compare(
        &["perl"],
        r#"printf '#!/bin/sh\necho "$0 $*"\n' > $D/s; chmod +x $D/s; $D/s 1 2; cd $D; ./s 3
        printf '#!/usr/bin/env -S perl -w\nprint "$0 @ARGV\\n";\n' > p; chmod +x p; $D/p x y
        PATH=$D:$PATH; s found; cp s n; chmod -x n; ./n || echo $?; bash -c '$D/s q'; cp /bin/ls myls; ./myls; rm myls"#,
    );
}

#[test]
fn perl_edits_in_place() {
    compare(
        &["perl"],
        "echo abc > $D/f; perl -pi -e 's/b/x/' $D/f; cat $D/f; cd $D; perl -e 'open(F,\">g\"); print F \"t\"; close F; print -s \"g\"'",
    );
}
