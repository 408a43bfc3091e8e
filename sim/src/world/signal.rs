//! Signals: how a layer tells the layers above it. All other calls run downwards.

use tenure::error::LostCause;
use tenure::protocol::message::{
    Batch, CallAnswer, Fence, JobReport, LatchReport, LeaderReport, Mode, Push, Reply, Request,
};
use tenure::protocol::session::step::SessionInput;
use tenure::protocol::step::{Input, LockOptions, Outcome, Outgoing, Ticket, WhyDenied};

use crate::world::latch_memory::LatchId;
use crate::world::records::KeyRecords;
use crate::world::write::WriteLease;

/// What a layer tells the layers above it, which act before the layer goes on.
#[derive(Debug)]
pub(crate) enum Signal<'a> {
    // To the nodes.
    /// An input for the session of a node.
    Session {
        slot: usize,
        session: usize,
        input: SessionInput,
    },
    /// A node learns the server of a hash slot.
    MapChanged { slot: usize, hash: usize, server: usize },
    /// A server of another cluster answers at the address of a known server.
    StrangerMet { slot: usize },
    /// An input for the shard of a node.
    Input { slot: usize, key: usize, input: Input },
    // To the callers.
    /// A caller is granted.
    Granted {
        slot: usize,
        ticket: Ticket,
        fence: Fence,
    },
    /// A call is answered.
    Answered {
        slot: usize,
        ticket: Ticket,
        answer: &'a CallAnswer,
    },
    /// A caller is denied.
    Denied {
        slot: usize,
        ticket: Ticket,
        denial: &'a WhyDenied,
    },
    /// A caller holds for longer than it allows.
    Overdue { slot: usize, ticket: Ticket },
    /// An operator asks the holder for its lease.
    Asked { slot: usize, ticket: Ticket },
    /// A caller lost its lease.
    Lost {
        slot: usize,
        ticket: Ticket,
        cause: LostCause,
    },
    /// A release has its outcome.
    Released {
        slot: usize,
        ticket: Ticket,
        outcome: &'a Outcome,
    },
    // To the laws.
    /// The guards or the records of a key may have changed.
    KeyChanged { key: usize },
    /// The guards of every key may have changed.
    AllKeysChanged,
    /// A node queued a request with its session.
    RequestQueued { slot: usize, outgoing: &'a Outgoing },
    /// A session sent a request.
    RequestSent { slot: usize, request: &'a Request },
    /// A session reported the answer or failure of a request.
    RequestReported {
        slot: usize,
        key: usize,
        input: &'a Input,
    },
    /// The server executed a batch.
    Executed {
        batch: &'a Batch,
        replies: &'a [Reply],
        before: &'a [KeyRecords],
        pushes: &'a [Push],
    },
    /// The server executed a write.
    WriteExecuted { writer: WriteLease, mode: Mode },
    /// A caller was told a fence.
    FenceIssued {
        slot: usize,
        key: usize,
        mode: Mode,
        fence: Fence,
    },
    /// A caller took a lease.
    LeaseGranted {
        slot: usize,
        caller: usize,
        fence: Fence,
    },
    /// A caller was denied and ended.
    CallerDenied {
        slot: usize,
        caller: usize,
        denial: &'a WhyDenied,
    },
    /// A caller was told whether a claim owns its lease.
    OwnerAnswered {
        slot: usize,
        caller: usize,
        is_owner: bool,
    },
    /// A caller was told the outcome of its release.
    ReleaseAnswered {
        slot: usize,
        caller: usize,
        outcome: &'a Outcome,
    },
    /// A caller was told that it held until its release.
    ReleaseKept {
        slot: usize,
        ticket: Ticket,
        finished: bool,
    },
    /// A run was told about its checkpoints.
    CheckpointAnswered {
        slot: usize,
        caller: usize,
        report: &'a JobReport,
    },
    /// A node gives a denied tick up.
    TickDenied {
        slot: usize,
        key: usize,
        options: LockOptions,
        denial: &'a WhyDenied,
    },
    /// A run begins.
    RunBegan {
        slot: usize,
        caller: usize,
        fence: Fence,
    },
    /// An observer was told of the leader.
    LeaderAnswered {
        observer: usize,
        report: Option<&'a LeaderReport>,
    },
    /// A caller was told about the latch.
    LatchAnswered {
        slot: usize,
        caller: usize,
        id: &'a LatchId,
        called_at: u64,
        report: LatchReport,
    },
}
