#!/usr/bin/env bash
# Sets this worktree up: its Python environment, its PostgreSQL cluster, test/.env and a first reset.
# Plain enough for bash 3.2. Killed at any point, it finishes when it is run again.
set -eu
unset CDPATH PYTHONPATH PYTHONHOME GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_PREFIX

usage() {
    cat <<'TEXT'
Usage: test/bootstrap-stack.sh [options]

Makes what this worktree's tests need: a Python environment (.venv), a PostgreSQL cluster of its own, test/.env with
the DSNs, and both test databases, migrated. Run again, it mends what is missing and keeps the rest.

  --server auto|system|embedded|external
                  where the server comes from (default: harness.toml's, else auto: the system's PostgreSQL, else
                  the embedded one from a Python package); external takes the DSNs from the environment
  --no-reset      leave the test databases as they are
  --python PATH   use this Python executable or environment folder instead of .venv
  --force         overwrite lines of test/.env that were changed by hand
  --help          show this text

HARNESS_PASSWORD in the environment replaces the random passwords.
TEXT
}

say() { printf '%s\n' "bootstrap: $*"; }
fail() {
    code=$1
    shift
    printf '%s\n' "bootstrap: $*" >&2
    exit "$code"
}

self=${BASH_SOURCE[0]}
while [ -L "$self" ]; do
    link=$(readlink "$self")
    case $link in
        /*) self=$link ;;
        *) self=$(dirname "$self")/$link ;;
    esac
done
root=$(cd -P "$(dirname "$self")/.." && pwd -P)
script=$root/test/$(basename "$self")

server="" python="" force="" reset=yes
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --server | --python)
            [ $# -gt 1 ] || fail 2 "$1 needs a value. See --help."
            case $1 in --server) server=$2 ;; *) python=$2 ;; esac
            shift
            ;;
        --server=*) server=${1#*=} ;;
        --python=*) python=${1#*=} ;;
        --no-reset) reset="" ;;
        --force) force=yes ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail 2 "unknown option '$1'. See --help." ;;
    esac
    shift
done
case $server in
    "" | auto | system | embedded | external) ;;
    *) fail 2 "--server is '$server'. It takes auto, system, embedded or external." ;;
esac
[ -f "$root/harness.toml" ] || fail 2 "there is no harness.toml in '$root'. Write one (\`harness init\`), then run this again."

is_own=""
if [ -f "$root/pyproject.toml" ] && grep -q '^name = "pgharness"$' "$root/pyproject.toml"; then is_own=yes; fi
venv=$root/.venv
stamp=$venv/pgharness.installed
requirements=$root/test/bootstrap-requirements.txt
unfinished=$venv/pgharness.unfinished

# Another worktree's activated environment would test that worktree's code: only one inside this worktree counts.
inside_worktree() {
    folder=$(cd -P "$1" 2>/dev/null && pwd -P) || return 1
    case $folder in "$root"/*) ;; *) return 1 ;; esac
    while [ "$folder" != "$root" ]; do
        if [ -e "$folder/.git" ] || [ -z "$folder" ]; then return 1; fi
        folder=${folder%/*}
    done
}

choose_python() {
    is_given=""
    if [ -n "$python" ]; then
        is_given=yes
        if [ -d "$python" ]; then python=$python/bin/python; fi
        case $python in */*) ;; *) python=$(command -v "$python" || printf './%s' "$python") ;; esac
        if [ ! -f "$python" ] || [ ! -x "$python" ]; then
            fail 2 "--python '$python' is no Python executable and no environment folder. Name one."
        fi
        python=$(cd -P "${python%/*}/" && pwd -P)/${python##*/}
    elif [ -n "${VIRTUAL_ENV:-}" ] && inside_worktree "$VIRTUAL_ENV" && [ "$(cd -P "$VIRTUAL_ENV" && pwd -P)" != "$venv" ]; then
        is_given=yes
        python=$VIRTUAL_ENV/bin/python
        [ -x "$python" ] || fail 2 "VIRTUAL_ENV is '$VIRTUAL_ENV', which has no bin/python. Deactivate it, or make it again."
    else
        python=$venv/bin/python
    fi
}

# What .venv must have been made from; cksum, since no digest program is on every system.
wanted_stamp() {
    printf '%s\n' "$root"
    if [ -n "$is_own" ]; then cksum <"$root/pyproject.toml"; elif [ -f "$requirements" ]; then cksum <"$requirements"; fi
}

# Asked from /, since Python would find a folder named harness where it is started.
has_harness() {
    where=$(cd / && "$python" -c 'import importlib.util as u; h, i = u.find_spec("harness"), u.find_spec("invoke"); print(h.origin if h and i else "")' 2>/dev/null) || return 1
    [ -n "$where" ]
}

# An environment that came along with a moved or copied worktree leads to the other place.
leads_elsewhere() {
    if [ -f "$stamp" ]; then
        IFS= read -r place <"$stamp" || true
        [ "$place" = "$root" ] || return 0
    fi
    [ -n "$is_own" ] && has_harness && [ "$where" != "$root/harness/__init__.py" ]
}

is_installed() {
    if [ -n "$is_given" ]; then
        has_harness
        return
    fi
    [ -x "$python" ] && [ ! -e "$unfinished" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(wanted_stamp)" ] && has_harness && ! leads_elsewhere
}

find_base_python() {
    for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        base=$(command -v "$name") || continue
        if "$base" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then return 0; fi
    done
    fail 5 "no Python 3.10 or newer with the venv module was found on PATH. Install one, or name one with --python."
}

# One bootstrap installs at a time: python takes the lock, then becomes this script again with the lock still open, so it
# is free when the last process of that bootstrap has ended, however it ended.
lock_and_begin_again() {
    [ -z "${HARNESS_BOOTSTRAP_LOCK:-}" ] || return 0
    find_base_python
    mkdir -p "$root/test/.stack"
    exec "$base" -c 'import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
os.dup2(lock, 9, inheritable=True)
os.execve(sys.argv[2], sys.argv[2:], {**os.environ, "HARNESS_BOOTSTRAP_LOCK": "9"})' \
        "$root/test/.stack/bootstrap.lock" "$BASH" "$script" ${arguments[@]+"${arguments[@]}"}
}

make_environment() {
    find_base_python
    say "making .venv"
    rm -rf "$venv"
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --no-project --python "$base" "$venv" || fail 5 "'uv venv' failed. Mend what the lines above say."
    else
        "$base" -m venv "$venv" || fail 5 "'$base -m venv' failed. Install your system's python3-venv package, or uv."
    fi
}

# PYTHONDONTWRITEBYTECODE is lifted for the installer only: libraries that are compiled at every start cost most of it.
install() {
    log=$root/test/.stack/install.log
    mkdir -p "$root/test/.stack"
    if command -v uv >/dev/null 2>&1; then
        set -- uv pip install --compile-bytecode --python "$python" "$@"
    else
        set -- "$python" -m pip install --disable-pip-version-check "$@"
    fi
    if ! (cd "$root" && env -u PYTHONDONTWRITEBYTECODE PIP_ROOT_USER_ACTION=ignore "$@") >"$log" 2>&1; then
        cat "$log" >&2
        fail 5 "'$*' failed. Mend what the lines above say, then run this again."
    fi
}

# pip before 25.1 does not know dependency groups, and Python before 3.11 no TOML: the harness's own reader is there by then.
development_group() {
    "$python" -c 'import sys, tomli
with open(sys.argv[1], "rb") as file:
    print("\n".join(tomli.load(file)["dependency-groups"]["dev"]))' "$root/pyproject.toml"
}

install_all() {
    if [ -z "$is_given" ] && { [ -e "$unfinished" ] || [ ! -x "$python" ] || leads_elsewhere; }; then make_environment; fi
    if [ -z "$is_given" ]; then touch "$unfinished"; fi
    say "installing what is missing into ${python%/bin/python*}"
    if [ -n "$is_own" ]; then
        install --editable "$root"
        group=()
        while IFS= read -r line; do group+=("$line"); done <<LINES
$(development_group)
LINES
        install ${group[@]+"${group[@]}"}
        # Checked by the sources' own bytes, so that no edit can leave stale bytecode behind.
        "$python" -m compileall -q --invalidation-mode checked-hash "$root/harness"
    elif [ -f "$requirements" ]; then
        install -r test/bootstrap-requirements.txt
        has_harness || fail 5 "'$requirements' does not bring pgharness. Add the line that \`harness init --dry-run\` shows."
    else
        install pgharness pytest
    fi
    env -u PYTHONDONTWRITEBYTECODE "$python" -m pytest --version >/dev/null 2>&1 || true
    if [ -z "$is_given" ]; then
        wanted_stamp >"$stamp"
        rm -f "$unfinished"
    fi
}

# The embedded server is installed where the machine has none, or where this worktree's data was made by it.
wants_embedded() {
    [ "$(cd / && "$python" -c 'import sys
from pathlib import Path
from harness import cluster, errors, settings
try:
    print(cluster.wants_embedded(settings.load(Path(sys.argv[1])), sys.argv[2]))
except errors.HarnessError:
    pass  # stack-up says what is wrong' "$root" "$server")" = True ]
}

choose_python
if ! is_installed; then
    lock_and_begin_again
    if ! is_installed; then install_all; fi
fi
if [ -z "$is_given" ] && wants_embedded; then
    lock_and_begin_again
    if wants_embedded; then
        say "installing the embedded PostgreSQL"
        if [ -n "$is_own" ]; then install --editable "${root}[embedded]"; else install "pgharness[embedded]"; fi
    fi
fi
exec 9>&-
unset HARNESS_BOOTSTRAP_LOCK VIRTUAL_ENV

harness() {
    (cd "$root" && "$python" -c 'import sys
sys.argv[0], sys.path = "harness", [folder for folder in sys.path if folder]  # the environment, not a folder of that name here
from harness.tasks import main
main()' "$@")
}

set -- stack-up
if [ -n "$server" ]; then set -- "$@" --server "$server"; fi
if [ -n "$force" ]; then set -- "$@" --force; fi
harness "$@"
if [ -n "$reset" ]; then harness reset; fi
