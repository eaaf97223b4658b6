#!/bin/sh
# The first and only process of the guest: makes a small Linux around the machine's own files, runs
# what is in job.sh, and switches off. Files are the machine's, read-only but for the folder OUT.
export PATH=/run/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /run
mkdir -p /run/netns /run/out /run/bin /run/lib
mount -t hostfs none /run/out -o "$OUT"
mount -t tmpfs tmp /tmp

# Modules of this kernel are not where modprobe looks by itself, and that place may not exist.
ln -s "$MODULES" /run/lib/modules
printf '#!/bin/sh\nexec /sbin/modprobe -d /run "$@"\n' >/run/bin/modprobe
chmod +x /run/bin/modprobe
echo /run/bin/modprobe >/proc/sys/kernel/modprobe

# Debian's kernel has no nf_tables for IPv4 and IPv6, so that only the older flavour works.
if nft add table ip probe; then
  nft delete table ip probe
else
  for flavour in iptables ip6tables; do
    for name in $flavour $flavour-save $flavour-restore; do
      ln -s /usr/sbin/xtables-legacy-multi /run/bin/$name
    done
  done
fi
# Before a namespace has settings of IPv6, someone must have asked for it. Tables of iptables that are
# loaded by several programs at once sometimes are an error for one of them.
modprobe -a ipv6 iptable_nat iptable_filter iptable_mangle ip6table_nat ip6table_filter ip6table_mangle

# Every refusal is received; before Linux 6.13 this limit is not one of a namespace.
echo 1000000 >/proc/sys/net/ipv4/icmp_msgs_per_sec
echo 1000000 >/proc/sys/net/ipv4/icmp_msgs_burst
ip link set lo up

sh /run/out/job.sh >/run/out/log 2>&1
echo $? >/run/out/verdict
sync
halt -f
