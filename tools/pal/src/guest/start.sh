# Runs the session of a guest with a root file system of its own, started by its init, and has it power off.
bb=/run/pal/busybox pal=/run/pal size= beside=
. /run/pal/environment
export TERM HOME=/root USER=root LOGNAME=root SHELL=/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/console >/dev/console 2>&1
cd /root 2>/dev/null || cd /
shell=/bin/sh
[ -x /bin/sh ] || shell="$bb sh"
. /run/pal/session
# In the way of this system, which stops its services and unmounts its disks; and if that fails, at once.
if [ -n "$beside" ]; then
    # An init that is unknown need not know how.
    :
elif [ -d /run/systemd/system ] && command -v systemctl > /dev/null; then
    systemctl --no-block poweroff
else
    poweroff || $bb poweroff
fi
[ -n "$beside" ] || $bb sleep 60
$bb sync
echo u > /proc/sysrq-trigger
$bb poweroff -f
