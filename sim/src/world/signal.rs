//! Signals: how a layer tells the layers above it. All other calls run downwards.

use tenure::error::LostCause;
use tenure::protocol::message::{
    Batch, Fence, JobReport, LatchReport, LeaderReport, Mode, Push, Reply, Request,
};
use tenure::protocol::session::step::SessionInput;
use tenure::protocol::step::{AcquireError, CallAnswer, Input, LockOptions, Outcome, Outgoing, Ticket};

use crate::world::latch_memory::LatchId;
use crate::world::records::KeyRecords;
use crate::world::write::WriteLease;

/// What a layer tells the layers above it, which act before the layer goes on.
#[derive(Debug)]
pub(crate) enum Signal<'a> {
    // To the nodes.
    Session {
        slot: usize,
        input: SessionInput,
    },
    Input {
        slot: usize,
        key: usize,
        input: Input,
    },
    // To the callers.
    Granted {
        slot: usize,
        ticket: Ticket,
        fence: Fence,
    },
    Answered {
        slot: usize,
        ticket: Ticket,
        answer: &'a CallAnswer,
    },
    Denied {
        slot: usize,
        ticket: Ticket,
        denial: &'a AcquireError,
    },
    Overdue {
        slot: usize,
        ticket: Ticket,
    },
    Lost {
        slot: usize,
        ticket: Ticket,
        cause: LostCause,
    },
    Released {
        slot: usize,
        ticket: Ticket,
        outcome: &'a Outcome,
    },
    // To the laws.
    KeyChanged {
        key: usize,
    },
    AllKeysChanged,
    RequestQueued {
        slot: usize,
        outgoing: &'a Outgoing,
    },
    RequestSent {
        slot: usize,
        request: &'a Request,
    },
    RequestReported {
        slot: usize,
        key: usize,
        input: &'a Input,
    },
    Executed {
        batch: &'a Batch,
        replies: &'a [Reply],
        before: &'a [KeyRecords],
        pushes: &'a [Push],
    },
    WriteExecuted {
        writer: WriteLease,
        mode: Mode,
    },
    FenceIssued {
        slot: usize,
        key: usize,
        mode: Mode,
        fence: Fence,
    },
    LeaseGranted {
        slot: usize,
        caller: usize,
        fence: Fence,
    },
    CallerDenied {
        slot: usize,
        caller: usize,
        denial: &'a AcquireError,
    },
    OwnerAnswered {
        slot: usize,
        caller: usize,
        is_owner: bool,
    },
    ReleaseAnswered {
        slot: usize,
        caller: usize,
        outcome: &'a Outcome,
    },
    ReleaseKept {
        slot: usize,
        ticket: Ticket,
        finished: bool,
    },
    CheckpointAnswered {
        slot: usize,
        caller: usize,
        report: &'a JobReport,
    },
    TickDenied {
        slot: usize,
        key: usize,
        options: LockOptions,
        denial: &'a AcquireError,
    },
    RunBegan {
        slot: usize,
        caller: usize,
        fence: Fence,
    },
    LeaderAnswered {
        observer: usize,
        report: Option<&'a LeaderReport>,
    },
    LatchAnswered {
        slot: usize,
        caller: usize,
        id: &'a LatchId,
        called_at: u64,
        report: LatchReport,
    },
}
