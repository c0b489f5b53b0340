// SPDX-License-Identifier: MIT
package io.github.redislock;

import io.github.redislock.Acquire.State;

/** Releases exactly one hold. The reader continues a release that fails. */
final class Releasing extends Work<Void> {
    private final Locks locks;
    private final Acquire acquire;
    private Call call;

    Releasing(Locks locks, Acquire acquire) {
        this.locks = locks;
        this.acquire = acquire;
    }

    @Override
    Pause step() {
        try {
            if (call != null || begin()) {
                Pause pause = call.step();
                if (pause != null) {
                    return pause;
                }
                locks.update(() -> {
                    if (acquire.state == State.HELD) {
                        acquire.session.over(acquire, Acquire.RELEASED);
                    }
                });
            }
        } catch (LockException error) {
            locks.update(() -> acquire.session.discard(acquire, Acquire.RELEASED));
            throw error.forCaller(acquire.request.name);
        }
        if (acquire.isLost()) {
            throw acquire.lost();
        }
        return null;
    }

    private boolean begin() {
        return locks.locked(() -> {
            if (acquire.state != State.HELD || acquire.isHandedOver || acquire.isReleasing) {
                return false;
            } else if (acquire.isLost()) {
                // Expired by the local clock. The server may still have the hold.
                acquire.session.discard(acquire, "expired");
                return false;
            }
            acquire.isReleasing = true;
            call = new Call(
                    locks,
                    acquire,
                    State.HELD,
                    Locks.now() + locks.patience,
                    each -> each.numbered(each.request.words("RELEASE", each.owner.name)));
            return true;
        });
    }
}
