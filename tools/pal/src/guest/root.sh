# Included by /init of a guest with a root file system of its own (--root): puts the kernel's modules, pal's files and, for
# --exec, a way to start the session into it, and hands over to its own init. Nothing of this is written to the disk: it is
# mounted over it, in memory.

fail() {
    # As a message of the kernel, which is out before the next one: what is still on its way through the terminal when the kernel
    # panics is lost. <3> is an error, which also a quiet console shows.
    echo "<3>init: $1" > /dev/kmsg || echo "init: $1"
    # The kernel panics, and pal tells the last lines.
    exit 1
}

mkdir /disk
[ "$(cat /sys/block/vda/ro)" = 1 ] && how=ro || how=rw
mount -o $how /dev/vda /disk || fail "cannot mount the root file system on /dev/vda"
[ -d /disk/run ] && [ -d /disk/proc ] && [ -d /disk/sys ] && [ -d /disk/dev ] ||
    fail "the root file system lacks one of the directories /run, /proc, /sys and /dev"

# The modules are a disk of their own, the last one. A root file system that cannot be written may lack their directory.
modules=/disk/lib/modules/$(uname -r)
if [ -e /pal/modules-disk ]; then
    mkdir -p "$modules" 2>/dev/null || { mount -t tmpfs tmpfs /disk/lib/modules && mkdir "$modules"; }
    mount -t ext4 -o ro "$(cat /pal/modules-disk)" "$modules" || echo "init: cannot mount the kernel's modules"
fi
if [ -d /pal/put ]; then cp -a /pal/put/. /disk/ || fail "cannot put files into the root file system"; fi

mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /disk/run
mkdir /disk/run/pal
mount -t tmpfs -o mode=755 tmpfs /disk/run/pal
cp -p /bin/busybox /pal/session /pal/start /disk/run/pal
for file in command get model; do [ -e /pal/$file ] && cp -p /pal/$file /disk/run/pal; done
printf 'nonce=%s\nTERM=%s\n' "$nonce" "$TERM" > /disk/run/pal/environment

[ -n "$init" ] || for init in /sbin/init /etc/init /bin/init /bin/sh; do [ -e "/disk$init" ] || [ -L "/disk$init" ] && break; done
kind=$(basename "$(chroot /disk /run/pal/busybox readlink -f "$init")")
hook=
if [ -e /pal/command ]; then
    case $(basename "$init"):$kind in
    *:systemd)
        # A unit in memory, which begins when all others have. Nothing else reads the console.
        units=/disk/run/systemd/system
        mkdir -p $units/multi-user.target.wants
        cp /pal/session.service $units/pal-session.service
        ln -s ../pal-session.service $units/multi-user.target.wants/pal-session.service
        for console in ttyS0 hvc0; do ln -s /dev/null $units/serial-getty@$console.service; done
        ;;
    init:init | init:busybox)
        # An inittab without logins on the console, in which the session comes after the scripts that start the system.
        line='pal:12345:once:/run/pal/busybox sh /run/pal/start'
        [ $kind = busybox ] && line='::once:/run/pal/busybox sh /run/pal/start'
        if [ -e /disk/etc/inittab ]; then
            { grep -v 'ttyS0\|hvc0\|console' /disk/etc/inittab; echo "$line"; } > /disk/run/pal/inittab
            mount -o bind /disk/run/pal/inittab /disk/etc/inittab
        else
            hook=aside
        fi
        ;;
    *) hook=aside ;;
    esac
fi
for tree in dev proc sys; do mount -o move /$tree /disk/$tree; done
# An init that is unknown is left alone for a moment, and then the session runs beside it.
[ -n "$hook" ] && echo beside=yes >> /disk/run/pal/environment && printf '%s' '/run/pal/busybox sleep 3; exec /run/pal/busybox sh /run/pal/start' > /disk/run/pal/aside &&
    exec switch_root /disk /run/pal/busybox sh -c '/run/pal/busybox sh /run/pal/aside & exec "$0"' "$init"
exec switch_root /disk "$init"
