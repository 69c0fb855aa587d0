# What a tree is, in text: types, modes, owners, sizes, times of change, names, links, content, attributes, access-control
# lists. Source it.
# shellcheck shell=bash

# picture DIR
picture() (
  cd "$1" || exit 1
  find . -printf '%y %m %U %G %n %P %l\n' | LC_ALL=C sort
  find . ! -type d -printf '%P %s %T@\n' | LC_ALL=C sort
  find . -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum
  getfattr -R -d -m '^(user|system\.posix_acl)' . 2>/dev/null || true
)

# Of the mount one is in.
keys() {
  "$KVFS" kv scan tags --json || return
  # Since format 2.
  "$KVFS" kv scan packed --json 2>/dev/null || true
}
