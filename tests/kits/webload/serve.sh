#!/bin/sh
# Serves one kind of pages to a load in the same guest: `serve.sh KIND WORKERS SET KIB WARM_MS MS`. KIND is `static` (files by nginx) or
# `dynamic` (page.py, with tables of KIB KiB, behind nginx). SET is a set of slab caches of the guest kit's that gets a region;
# `program`: each table of page.py gets one; or `none`. Between the line `ready` and the load there are some seconds, in which regions
# can be mapped to caches.
kind=$1 workers=$2 set=$3 kib=$4 warm=$5 measured=$6
kit=/sys/kernel/palimpsest
mkdir -p /srv /var/log/nginx /var/lib/nginx /tmp /etc
echo 'root:x:0:0::/:/bin/sh' > /etc/passwd
echo 'root:x:0:' > /etc/group
mount -t ext4 /dev/vda /srv || exit 1
cat > /nginx.conf <<END
user root root;
worker_processes $workers;
worker_cpu_affinity auto;
pid /nginx.pid;
error_log /dev/null crit;
events { worker_connections 256; }
http {
	access_log off;
	sendfile on;
	tcp_nodelay on;
	keepalive_requests 100000000;
	upstream pages { server 127.0.0.1:8000; keepalive 16; }
	server {
		listen 127.0.0.1:80;
		root /srv;
		location /page/ { proxy_pass http://pages; proxy_http_version 1.1; proxy_set_header Connection ""; }
	}
}
END
if [ "$kind" = static ]; then
	/webload make /srv/files 96 64
	load="/files 96 65536"
else
	[ "$set" = program ] && memory=regions || memory=plain
	python3 -I -S /page.py 8000 "$kib" $memory &
	until [ -e /ready ]; do sleep 0.05; done
	# 12 results and two numbers of eight digits: page.py.
	load="/page 4000 6257"
fi
nginx -c /nginx.conf || exit 1
case $set in
none) ;;
program) sed 's/^/program /' $kit/programs ;;
*) echo "+$set" > $kit/regions || exit 1 ;;
esac
# What was written must not be on its way to the disk while the load is measured.
sync
echo ready
sleep 4
# With that many connections no server waits: what wake-ups between processors cost depends on where Linux puts processes.
/webload get 80 $load $((12 * workers)) "$warm" "$measured" || exit 1
sed 's/^/region /' $kit/regions
