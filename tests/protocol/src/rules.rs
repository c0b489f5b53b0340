// SPDX-License-Identifier: MIT
//! The rules of the contract that the model can switch off. README.md states each rule.

/// One rule, or a part of a rule that is needed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// R1: a grant is revoked only after a silence of min(TTL, GRACE), not at its age alone.
    RevokeAfterSilence,
    /// R1: no event reports the grant of a renewed lease after a third of that lease.
    RevokeStaleGrants,
    /// R2: only EVENTS confirms, OPEN does not.
    OnlyEventsConfirm,
    /// R2: an answer with as many events as were asked for does not confirm.
    FullAnswerConfirmsNothing,
    /// R3: a hold is safe only under the id of its acquire or declaration, and declarations precede EVENTS.
    DeclareBeforeEvents,
    /// R4: the server renews and expires leases before it answers EVENTS.
    RenewBeforeAnswer,
    /// R5: RELEASE and CANCEL concern a known number only.
    ReleaseByNumber,
    /// R6: plain holds are declared, too.
    DeclarePlainHolds,
    /// R3: all holds of an owner are lost if a declaration's count is too low.
    CompareCounts,
    /// R7: no call shortens the lease of a session-bound hold.
    NeverShortenLease,
    /// R8: the end of a session releases exactly its ephemeral numbers.
    ReleaseOnlyEphemeral,
    /// R9: the server announces that it stops renewing.
    AnnounceMax,
    /// R10: the lease of a session-bound hold is at least 3 × GRACE.
    LongLease,
    /// R11: CANCEL of an unseen number is remembered.
    RememberCancel,
    /// R11: a client repeats CANCEL until it has the answer.
    RepeatCancel,
    /// R11: nil is remembered.
    RememberNil,
    /// R12: a repeated acquire gets its outcome so far, not its first reply.
    ReplyOutcome,
    /// R13: an acquire without an answer is declared first in a new session.
    DeclareUnanswered,
    /// R14: a reply counts only if its call carried the present id.
    CheckIdOfReply,
    /// R15: the EVENTS that ends suspicion serves the waits of its session.
    ServeAfterSuspicion,
    /// R16: one counter of the client orders OPEN and EVENTS.
    OneCounter,
    /// R17: a child process drops the id of its parent's session.
    DropIdAfterFork,
    /// R18: only OPEN NEW creates a session.
    ServerChoosesId,
    /// R19: EVENTS blocks for at most min(TTL, GRACE) / 3.
    CapBlockingTime,
    /// R20: EVENTS replies an error while the server cannot renew, but keeps the session alive.
    ErrorInsteadOfConfirmation,
    /// R21: a hand-over is an acquire of its number, and names the giver's number.
    HandOverOnce,
    /// R22: the client releases what it has declared if a count is too low.
    ReleaseAfterLowCount,
    /// R23: RELEASE of an unseen number is remembered.
    RememberRelease,
}

impl Rule {
    pub const ALL: [Rule; 28] = [
        Rule::RevokeAfterSilence,
        Rule::RevokeStaleGrants,
        Rule::OnlyEventsConfirm,
        Rule::FullAnswerConfirmsNothing,
        Rule::DeclareBeforeEvents,
        Rule::RenewBeforeAnswer,
        Rule::ReleaseByNumber,
        Rule::DeclarePlainHolds,
        Rule::CompareCounts,
        Rule::NeverShortenLease,
        Rule::ReleaseOnlyEphemeral,
        Rule::AnnounceMax,
        Rule::LongLease,
        Rule::RememberCancel,
        Rule::RepeatCancel,
        Rule::RememberNil,
        Rule::ReplyOutcome,
        Rule::DeclareUnanswered,
        Rule::CheckIdOfReply,
        Rule::ServeAfterSuspicion,
        Rule::OneCounter,
        Rule::DropIdAfterFork,
        Rule::ServerChoosesId,
        Rule::CapBlockingTime,
        Rule::ErrorInsteadOfConfirmation,
        Rule::HandOverOnce,
        Rule::ReleaseAfterLowCount,
        Rule::RememberRelease,
    ];
}

/// The rules that are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    without: u32,
}

impl Rules {
    /// The whole contract.
    pub const fn all() -> Self {
        Rules { without: 0 }
    }

    /// Returns these rules without `rule`.
    pub const fn without(self, rule: Rule) -> Self {
        Rules { without: self.without | 1 << rule as u32 }
    }

    /// Whether `rule` is in force.
    pub const fn has(self, rule: Rule) -> bool {
        self.without & (1 << rule as u32) == 0
    }
}
