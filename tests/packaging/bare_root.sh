# Functions for tests that need a Debian without anything else. To be sourced; root, with debootstrap and Debian's packages within
# reach, or exit code 77.
# shellcheck shell=bash
bare_needs() {
  [ "$(id -u)" -eq 0 ] || { echo "SKIPPED: only root can make a bare system"; exit 77; }
  command -v debootstrap >/dev/null || { echo "SKIPPED: debootstrap is not installed"; exit 77; }
}

# bare_root FOLDER: a minimal Debian 12 in FOLDER, with this machine's settings of apt and names. BARE_ROOT names one to copy.
bare_root() {
  if [ -n "${BARE_ROOT:-}" ]; then
    cp -a --reflink=auto "$BARE_ROOT" "$1"
  else
    debootstrap --variant=minbase bookworm "$1" >/dev/null || { echo "SKIPPED: debootstrap failed"; exit 77; }
    cp /etc/resolv.conf "$1/etc/resolv.conf"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$1/etc/hosts"  # Debian's installer writes it
    cp /etc/apt/apt.conf.d/99* "$1/etc/apt/apt.conf.d/" 2>/dev/null || true
    echo 'APT::Install-Recommends "false";' >"$1/etc/apt/apt.conf.d/90lean"
  fi
}

# bare_run FOLDER COMMAND...: runs it there, with /proc and devices of its own for that time.
bare_run() {
  local root=$1
  shift
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --propagation private sh -c '
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 && shift && exec chroot "$root" "$@"' sh "$root" \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}
