#!/bin/busybox sh
# PID 1 of Palimpsest's default guest. It sets up a minimal system, then either runs the one command in /pal/command
# or gives an interactive shell (/pal/session), and powers off. The marks around the output carry a word that is new in
# every run, so that nothing the guest prints by accident can be taken for them.

if [ "$1" = on-disk ]; then
    /pal/busybox mkdir /pal/bin
    /pal/busybox --install -s /pal/bin
else
    /bin/busybox mount -t proc proc /proc
    /bin/busybox mount -t sysfs sysfs /sys
    /bin/busybox mount -t devtmpfs devtmpfs /dev
    /bin/busybox --install -s /bin
fi
export PATH=/bin:/usr/bin:/sbin:/usr/sbin:/pal/bin HOME=/root USER=root TERM=dumb LS_COLORS=none
hostname palimpsest
ip link set lo up 2>/dev/null

# Drivers of virtio devices, in an order in which they can be loaded, and the guest kit (--kit). Their parameters are words of the
# kernel's command line, as for modprobe: NAME.PARAMETER=VALUE.
cmdline=$(cat /proc/cmdline)
for module in /pal/modules/*.ko; do
    [ -e "$module" ] || continue
    name=${module##*/}
    name=${name#*-}
    parameters=
    for word in $cmdline; do
        case $word in "${name%.ko}".*=*) parameters="$parameters ${word#*.}" ;; esac
    done
    insmod "$module" $parameters
done
# They may have brought the console.
exec </dev/console >/dev/console 2>&1

nonce=
size=
root=
init=
for word in $cmdline; do
    case $word in
    pal.nonce=*) nonce=${word#*=} ;;
    pal.term=*) TERM=${word#*=} ;;
    pal.size=*) size=${word#*=} ;;
    root=*) root=${word#*=} ;;
    init=*) init=${word#*=} ;;
    esac
done

if [ -e /pal/root ]; then . /pal/root; fi

# The root file system is on a disk: go on there, with what is here.
if [ -n "$root" ] && [ "$1" != on-disk ]; then
    mkdir /disk
    if mount -t ext4 "$root" /disk && mkdir -p /disk/dev /disk/proc /disk/sys /disk/pal /disk/root; then
        mount -t tmpfs tmpfs /disk/pal
        cp -p /bin/busybox /init /pal/session /disk/pal
        for file in command get model; do [ -e /pal/$file ] && cp -p /pal/$file /disk/pal; done
        for tree in dev proc sys; do mount -o move /$tree /disk/$tree; done
        exec switch_root /disk /pal/busybox sh /pal/init on-disk
    fi
    echo "init: cannot use $root as root file system: staying in the initramfs"
fi

cd /root
bb=/bin/busybox
if [ "$1" = on-disk ]; then bb=/pal/busybox; fi
pal=/pal shell=sh
. /pal/session
poweroff -f
