#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Shows why a lock alone cannot refuse a late write, and how a fencing token does.

Alice locks an account and reads its balance. Her process is then stopped for longer than her lease, as by a garbage
collection or a swapping host. The lock passes to Bob, who deposits 50. Alice's process continues, does not know that time
has passed, and writes the balance that it computed.

The program plays this three times: without tokens, with a store that refuses old tokens, and with `LOCK.GUARD`. With
`LOCK.GUARD` the lock's server refuses the write. Alice is a separate process, and SIGSTOP stops it.

    redis-server --loadmodule target/release/libredis_lock.so
    python3 docs/clients/python/fencing.py --url redis://127.0.0.1:6379

Needs redis-py (pip install redis), 4.3 or later.
"""

import argparse
import signal
import subprocess
import sys

import redis

LOCK = "example:account:lock"
ACCOUNT = "example:account"

# Alice is stopped for longer than this.
ALICE_LEASE_MS = 300
BOB_LEASE_MS = 10_000

MODES = ("without", "with fencing tokens", "with LOCK.GUARD")

# Writes a balance unless the store has seen a newer token. A database does the same with a column for the token:
# UPDATE … SET balance = ?, token = ? WHERE token <= ?
STORE = """
if tonumber(ARGV[2]) < tonumber(redis.call('HGET', KEYS[1], 'token')) then return 0 end
redis.call('HSET', KEYS[1], 'balance', ARGV[1], 'token', ARGV[2])
return 1
"""


def acquire(client, owner, lease_ms):
    """Waits for the lock and returns its fencing token."""
    reply = client.execute_command("LOCK.ACQUIRE", LOCK, owner, "FENCE", "PX", lease_ms, "BLOCK", 0)
    # A dict in RESP3; in RESP2 a flat list of names and values.
    return reply["token"] if isinstance(reply, dict) else reply[reply.index("token") + 1]


def write(client, mode, balance, token):
    """Writes the balance. Returns False if the write is refused."""
    if mode == "without":
        client.hset(ACCOUNT, "balance", balance)
        return True
    if mode == "with fencing tokens":
        return client.eval(STORE, 1, ACCOUNT, balance, token) == 1
    try:
        client.execute_command("LOCK.GUARD", LOCK, "TOKEN", token, "HSET", ACCOUNT, "balance", balance)
    except redis.ResponseError as error:
        if not str(error).startswith("NOTOWNER"):
            raise
        return False
    return True


def run_alice(client, mode):
    """Runs in Alice's process, which is stopped between the read and the write."""
    token = acquire(client, "alice", ALICE_LEASE_MS)
    balance = int(client.hget(ACCOUNT, "balance"))
    print(f"alice has the lock, token {token}, and reads the balance: {balance}", flush=True)
    sys.stdin.readline()
    if write(client, mode, balance + 10, token):
        print("alice continues and deposits 10")
    elif mode == "with LOCK.GUARD":
        print("alice continues and tries to deposit 10, but the server replies NOTOWNER")
    else:
        print("alice continues and tries to deposit 10, but the store refuses her token")


def play(client, url, mode):
    """Plays the story once and returns the balance at its end."""
    client.delete(LOCK, ACCOUNT)
    client.hset(ACCOUNT, mapping={"balance": 100, "token": 0})
    alice = subprocess.Popen(
        [sys.executable, __file__, "--url", url, "--alice", mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        print(f"  {alice.stdout.readline().strip()}")
        alice.send_signal(signal.SIGSTOP)
        # Bob waits in the server, which grants him the lock as soon as Alice's lease ends.
        token = acquire(client, "bob", BOB_LEASE_MS)
        print(f"  alice is stopped; bob has the lock, token {token}, and deposits 50")
        write(client, mode, int(client.hget(ACCOUNT, "balance")) + 50, token)
        client.execute_command("LOCK.RELEASE", LOCK, "bob")
        alice.send_signal(signal.SIGCONT)
        print(f"  {alice.communicate('continue' + chr(10))[0].strip()}")
    finally:
        alice.kill()
        alice.wait()
    return int(client.hget(ACCOUNT, "balance"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="redis://127.0.0.1:6379")
    parser.add_argument("--alice", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # BLOCK 0 waits without limit, so the client must have no time-out.
    client = redis.Redis.from_url(options.url, decode_responses=True, socket_timeout=None)
    if options.alice:
        run_alice(client, options.alice)
        return 0

    as_expected = True
    for mode in MODES:
        print(f"{mode}:")
        balance = play(client, options.url, mode)
        outcome = "alice knows, and can try again" if balance == 150 else "bob's 50 are lost"
        print(f"  the balance is {balance}: {outcome}")
        as_expected = as_expected and (balance == 150) == (mode != "without")
    client.delete(LOCK, ACCOUNT)
    return 0 if as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
