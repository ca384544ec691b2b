#!/usr/bin/env bash
# A cluster of N hosts on this one, to test what only several hosts have: each is a network namespace with a loopback, an
# address (10.77.0.K), a name (hostK) and shared memory of its own, and a cable to one switch. Their processes reach each
# other by TCP over those cables alone; processors, files and time are this machine's.
#
#   scripts/hosts.sh N COMMAND [ARGUMENT...]   makes host1 ... hostN, runs COMMAND at the switch, ends with its exit code
#   scripts/hosts.sh N                         the same with a shell (or what stdin says)
#
# COMMAND may call these:
#   scripts/hosts.sh on K COMMAND [ARG...]     runs COMMAND on hostK
#   scripts/hosts.sh mpirun ARG...             Open MPI's mpirun on host1, over all hosts in turn: rank r on host (r mod N) + 1
#   scripts/hosts.sh launcher COMMAND [ARG...]  runs COMMAND, which starts mpirun itself, on host1 with Open MPI's settings for
#                                              these hosts; $SHERD_HOSTS_AGENT is the remote shell that reaches them
#   scripts/hosts.sh cut K                     pulls the cable of hostK out: packets are lost without an error
#   scripts/hosts.sh restore K                 and puts it back
#
# Root alone may make namespaces; they need no further package than iproute2 and util-linux. Where that is not possible this
# says why and ends with 77, which is what tests mean by skipped. All that is made goes when COMMAND has ended, however it
# ended, including its remaining processes: they run in namespaces of their own, which the kernel takes down.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
base=/run/sherd-hosts  # a file system of the namespace's own
network=10.77.0

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$self" >&2; exit 2; }
skip() { echo "SKIPPED: hosts.sh: $*" >&2; exit 77; }
inside() { [[ -e $base/count ]] || { echo "hosts.sh $1: the hosts are missing; start it by \`scripts/hosts.sh N COMMAND\`" >&2; exit 2; }; }
count() { cat "$base/count"; }
is_host() {
  if [[ ! $1 =~ ^[1-9][0-9]*$ ]] || (($1 > $(count))); then
    echo "hosts.sh: host $1 is missing; hosts are 1 to $(count)" >&2
    exit 2
  fi
}

# enter K COMMAND...: in the namespaces of host K. ip makes a mount namespace for the command, where /sys is the host's.
enter() {
  local k=$1
  shift
  exec ip netns exec "host$k" nsenter --uts="$base/host$k.uts" sh -c \
    "mount --bind '$base/host$k.shm' /dev/shm && exec \"\$@\"" sh "$@"
}

make_hosts() {
  local n=$1 k names=
  mkdir -p /run/netns "$base"
  mount -t tmpfs tmpfs /run/netns
  mount -t tmpfs tmpfs "$base"
  ip link set lo up
  ip link add switch type bridge
  ip link set switch up
  for ((k = 1; k <= n; ++k)); do
    ip netns add "host$k"
    ip link add "port$k" type veth peer name eth0 netns "host$k"
    ip link set "port$k" master switch up
    ip -n "host$k" link set lo up
    ip -n "host$k" address add "$network.$k/24" dev eth0
    ip -n "host$k" link set eth0 up
    # TCP to a host that is cut off fails after about 13 s instead of 15 min, the setting that docs/clusters.md advises:
    # Open MPI's mpirun ends no earlier.
    ip netns exec "host$k" sh -c 'echo 5 >/proc/sys/net/ipv4/tcp_retries2'
    touch "$base/host$k.uts"
    unshare --uts="$base/host$k.uts" hostname "host$k"
    mkdir "$base/host$k.shm"
    names+="$network.$k host$k"$'\n'
  done
  printf '127.0.0.1 localhost\n%s' "$names" >"$base/names"
  mount --bind "$base/names" /etc/hosts
  # Open MPI starts its daemons with "AGENT HOST COMMAND", as with ssh.
  # shellcheck disable=SC2016  # expanded there
  printf '#!/bin/sh\nhost=$1\nshift\nexec "%s" on "${host#host}" sh -c "$*"\n' "$self" >"$base/agent"
  printf '#!/bin/sh\nexec "%s" mpirun "$@"\n' "$self" >"$base/mpirun"
  chmod +x "$base/agent" "$base/mpirun"
  echo "$n" >"$base/count"
}

case ${1:-} in
  --inside)  # in namespaces of its own
    make_hosts "$2" || skip "the hosts cannot be made here"
    shift 2
    (($# > 0)) || set -- bash
    export SHERD_HOSTS_MPIRUN=$base/mpirun SHERD_HOSTS_AGENT=$base/agent
    status=0
    "$@" || status=$?
    exit "$status"
    ;;
  on)
    inside on
    (($# >= 3)) || usage
    is_host "$2"
    enter "${@:2}"
    ;;
  mpirun)
    inside mpirun
    hosts=$(seq -s, -f 'host%g' 1 "$(count)")
    exec "$self" launcher mpirun --host "$hosts" --map-by node "${@:2}"
    ;;
  launcher)
    inside launcher
    (($# >= 2)) || usage
    command -v mpirun >/dev/null || skip "mpirun is missing; install openmpi-bin"
    # Shared memory is left out, for hosts have none in common. A host that falls silent is noticed after 10 + 3 * 5 s by
    # mpirun as by the job's store, instead of after minutes.
    enter 1 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
      OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent="$base/agent" OMPI_MCA_plm_rsh_no_tree_spawn=1 \
      OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include="$network.0/24" OMPI_MCA_oob_tcp_if_include="$network.0/24" \
      OMPI_MCA_oob_tcp_keepalive_time=10 OMPI_MCA_oob_tcp_keepalive_intvl=5 OMPI_MCA_oob_tcp_keepalive_probes=3 \
      OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none \
      "${@:2}"
    ;;
  cut | restore)
    inside "$1"
    (($# == 2)) || usage
    is_host "$2"
    # At the switch: the host itself sees no more than that nothing comes.
    ip link set "port$2" "$([[ $1 == cut ]] && echo down || echo up)"
    ;;
  *)
    [[ ${1:-} =~ ^[1-9][0-9]?$ ]] || usage
    [[ ! -e $base/count ]] || { echo "hosts.sh: there are hosts here already" >&2; exit 2; }
    [[ $(id -u) == 0 ]] || skip "only root may make network namespaces"
    for tool in ip unshare nsenter hostname; do
      command -v $tool >/dev/null || skip "$tool is missing; install iproute2, util-linux and hostname"
    done
    own=(unshare --net --mount --pid --fork --kill-child --mount-proc)
    # shellcheck disable=SC2016  # expanded there
    why=$("${own[@]}" sh -c 'mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && ip netns add trial &&
      ip link add switch type bridge && ip link add port type veth peer name eth0 netns trial' 2>&1) ||
      skip "namespaces are not allowed here: $why"
    exec "${own[@]}" bash "$self" --inside "$@"
    ;;
esac
