# What a tree is, in text: types, modes, owners, sizes, times of change, names, links, content, attributes. Source it.
# shellcheck shell=bash

# picture DIR
picture() (
  cd "$1" || exit 1
  find . -printf '%y %m %U %G %n %P %l\n' | LC_ALL=C sort
  find . ! -type d -printf '%P %s %T@\n' | LC_ALL=C sort
  find . -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum
  getfattr -R -d -m '^user' . 2>/dev/null || true
)
