# What a guest of pal's does on its console, included by the scripts that start it: a shell, or the command of --exec, between
# marks; then it sends the files of --get. The including script has set:
#   bb      a busybox with all of its tools
#   pal     the folder with pal's files
#   nonce   the random word of the marks; without one, on a machine without pal, there are none
#   size    rows and columns of the person's terminal, or nothing
#   shell   what runs the command or is the shell
# and powers off afterwards.

mark() {
    if [ -n "$nonce" ]; then printf '\036pal %s %s\036' "$nonce" "$1"; fi
}

# The contents of a path in a form that survives a console. The statuses are those of tools/pal/src/run/fetch.rs.
packed() {
    set -o pipefail
    if [ -f "$1" ]; then
        $bb gzip -c < "$1" | $bb base64
    elif [ -d "$1" ]; then
        $bb tar -c -f - -C "${1%/*}/" -- "${1##*/}" | $bb gzip -c | $bb base64
    elif [ -e "$1" ]; then
        return 253
    else
        return 254
    fi
}

send_files() {
    number=0
    while IFS= read -r path; do
        mark "file $number"
        (packed "$path" 2>/dev/null </dev/null)
        mark "sent $number $?"
        number=$((number + 1))
    done < $pal/get
}

# The command's output shares the console with the kernel, which keeps quiet from here on unless it dies.
$bb dmesg -n 1
if [ -e $pal/command ]; then
    # Raw: the bytes of the command reach the other end unchanged, and no input is echoed.
    if [ -n "$nonce" ]; then $bb stty raw -echo; fi
    set -- $shell $pal/command
else
    # Input from a pipe is not echoed: it is not typed.
    if [ "$TERM" = dumb ]; then $bb stty -echo; else unset LS_COLORS; fi
    if [ -n "$size" ]; then $bb stty rows "${size%x*}" cols "${size#*x}"; fi
    export PS1='guest:\w\$ '
    set -- $shell
fi
# A lab machine may wait for it (--lab-from session).
$pal/model
mark begin
# The end of a session hangs its terminal up, which drops output that is still on its way. So the session's leader
# waits for that: setting a mode does. It may not be in the foreground then.
$bb setsid $bb cttyhack $bb sh -c 'bb=$1; shift; "$@"; status=$?; trap "" TTOU; $bb stty raw -echo; exit $status' sh $bb "$@"
status=$?
$bb stty raw -echo
# Before the mark with the status: pal ends a run when all are through.
if [ -n "$nonce" ] && [ -e $pal/get ]; then send_files; fi
mark "end $status"
$bb stty sane
