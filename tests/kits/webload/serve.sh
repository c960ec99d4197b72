#!/bin/sh
# Serves one kind of pages to a load in the same guest: `serve.sh KIND VCPUS SET KIB WARM_MS MS`. KIND is `static` (files by nginx),
# `dynamic` (page.py, with tables of KIB KiB, behind nginx), or `redis` (values by Redis). SET is a set of slab caches of the guest kit's that gets a region;
# `program`: each table of page.py gets one; or `none`. Between the line `ready` and the load there are some seconds, in which regions
# can be mapped to caches.
kind=$1 vcpus=$2 set=$3 kib=$4 warm=$5 measured=$6
kit=/sys/kernel/palimpsest
mkdir -p /srv /var/log/nginx /var/lib/nginx /tmp /etc
echo 'root:x:0:0::/:/bin/sh' > /etc/passwd
echo 'root:x:0:' > /etc/group
mount -t ext4 /dev/vda /srv || exit 1
if [ "$kind" = static ]; then
	servers=$vcpus
	/webload make /srv/files 96 64
	port=80
	load="/files 96 65536"
elif [ "$kind" = redis ]; then
	servers=$vcpus
	port=6379
	load="value 1024 1024"
else
	# The page has the last processor for itself.
	servers=$((vcpus - 1))
	[ "$set" = program ] && memory=regions || memory=plain
	/webload on $servers python3 -I -S /page.py 8000 "$kib" $memory &
	until [ -e /ready ]; do sleep 0.05; done
	# 12 results and two numbers of eight digits: page.py.
	port=80
	load="/page 4000 6257"
fi
# Where Linux puts processes decides what wake-ups between processors cost, and which one preempts the other decides how many requests are
# answered in a row: a request takes a fifth more or less by that. So each processor has a server of its own, which its load alone asks,
# and neither preempts the other when it wakes up (SCHED_BATCH).
cpu=0
while [ "$kind" = redis ] && [ $cpu -lt $servers ]; do
	/webload on $cpu redis-server --port $((port + cpu)) --bind 127.0.0.1 --save "" --daemonize yes > /dev/null || exit 1
	/webload fill $((port + cpu)) $load || exit 1
	cpu=$((cpu + 1))
done
while [ $cpu -lt $servers ]; do
	cat > /nginx-$cpu.conf <<END
user root root;
worker_processes 1;
pid /nginx-$cpu.pid;
error_log /dev/null crit;
events { worker_connections 256; }
http {
	access_log off;
	sendfile on;
	tcp_nodelay on;
	keepalive_requests 100000000;
	upstream pages { server 127.0.0.1:8000; keepalive 16; }
	server {
		listen 127.0.0.1:$((port + cpu));
		root /srv;
		location /page/ { proxy_pass http://pages; proxy_http_version 1.1; proxy_set_header Connection ""; }
	}
}
END
	/webload on $cpu nginx -c /nginx-$cpu.conf || exit 1
	cpu=$((cpu + 1))
done
case $set in
none) ;;
program) sed 's/^/program /' $kit/programs ;;
*) echo "+$set" > $kit/regions || exit 1 ;;
esac
# What was written must not be on its way to the disk while the load is measured.
sync
echo ready
sleep 4
/webload get $port $load 12 "$warm" "$measured" $servers || exit 1
sed 's/^/region /' $kit/regions
