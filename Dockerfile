# SPDX-License-Identifier: MIT
# A server with the module: docker build -t redis-lock . && docker run -p 6379:6379 redis-lock
# With Valkey: docker build --build-arg SERVER=valkey/valkey:8-bookworm --build-arg PROGRAM=valkey-server -t valkey-lock .

ARG SERVER=redis:8-bookworm

FROM rust:1-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends libclang-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /redis-lock
COPY . .
RUN make install DESTDIR=/out && strip --strip-unneeded /out/usr/lib/redis/modules/*.so /out/usr/bin/*

FROM ${SERVER}
ARG PROGRAM=redis-server
ENV PROGRAM=${PROGRAM}
COPY --from=build /out/ /
COPY LICENSE /usr/share/doc/redis-lock/copyright
# The line is in the configuration itself, where CONFIG REWRITE finds it.
RUN mkdir -p /etc/redis-lock && cp /usr/share/redis-lock/redis-lock.conf /etc/redis-lock/server.conf \
    && printf '%s\n' 'dir /data' 'appendonly yes' 'protected-mode no' >>/etc/redis-lock/server.conf \
    && mkdir -p /data && chown -R "$(id -u redis 2>/dev/null || id -u valkey)" /etc/redis-lock /data
VOLUME /data
WORKDIR /data
EXPOSE 6379
CMD exec "$PROGRAM" /etc/redis-lock/server.conf
