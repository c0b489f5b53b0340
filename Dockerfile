# SPDX-License-Identifier: MIT
# A server with the module, for clients on this machine:
#
#     docker build -t redis-lock . && docker run -p 127.0.0.1:6379:6379 redis-lock
#
# With Valkey: docker build --build-arg SERVER=valkey/valkey:9 -t valkey-lock .
#
# Every client of the port can acquire and break all locks, and delete all data. Set a password before you open the port to other
# machines:
#
#     docker run -p 6379:6379 redis-lock /etc/redis-lock/server.conf --requirepass <password>
#
# CONFIG REWRITE writes to /etc/redis-lock in the container. To keep the configuration and the data in a new container, mount
# volumes: `-v lock-conf:/etc/redis-lock -v lock-data:/data`.

ARG SERVER=redis:8

FROM rust:1-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends libclang-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /redis-lock
COPY . .
RUN make install DESTDIR=/out && strip --strip-unneeded /out/usr/lib/redis/modules/*.so /out/usr/bin/*

FROM ${SERVER}
COPY --from=build /out/ /
COPY LICENSE /usr/share/doc/redis-lock/copyright
# The loadmodule line is in the main configuration file, as CONFIG REWRITE requires. The entrypoint of redis:8 loads the image's
# own modules by options. CONFIG REWRITE would write them, too, so the next start would load them twice and fail. Protected mode
# would refuse published ports.
RUN rm -f /usr/local/lib/redis/modules/*.so \
    && mkdir -p /etc/redis-lock && cp /usr/share/redis-lock/redis-lock.conf /etc/redis-lock/server.conf \
    && printf '%s\n' 'dir /data' 'appendonly yes' 'protected-mode no' >>/etc/redis-lock/server.conf \
    && mkdir -p /data && chown -R "$(id -u redis 2>/dev/null || id -u valkey)" /etc/redis-lock /data
VOLUME /data
WORKDIR /data
EXPOSE 6379
# The exec form: the image's entrypoint starts the server with this file, as the server's user. A command that begins with
# anything but an option, a .conf file or the server's name runs as root.
CMD ["/etc/redis-lock/server.conf"]
