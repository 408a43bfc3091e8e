//! The events of a world.

use std::sync::Arc;

use tenure::error::StoreError;
use tenure::protocol::message::{Batch, BatchReply, Executed, Failure, Push, Reply, TickTime};
use tenure::protocol::redirects::{Side, SlotRefusal};
use tenure::protocol::session::step::{Attempt, BatchId};
use tenure::protocol::write::GuardedWrite;

use crate::world::caller::CallerAction;

/// An event. An event with a `life` is void in every other life of its slot.
#[derive(Debug)]
pub(crate) enum Event {
    Wake {
        slot: usize,
        life: u32,
    },
    Step {
        slot: usize,
        life: u32,
    },
    Handshake {
        conn: usize,
    },
    /// The server's first answer on a connection reaches the node, which asks the Sentinels then.
    Greeted {
        conn: usize,
    },
    /// The comparison of runs and epochs reaches the server.
    Link {
        conn: usize,
    },
    Connected {
        conn: usize,
        time: u64,
    },
    ConnectFailed {
        conn: usize,
        error: StoreError,
    },
    /// A batch reaches the server. Without an `id` it is a copy without a waiting sender. With `reload` it
    /// carries the script.
    Arrive {
        conn: usize,
        id: Option<BatchId>,
        batch: Box<Batch>,
        reload: bool,
    },
    NoScript {
        conn: usize,
        id: BatchId,
        batch: Box<Batch>,
    },
    /// A write reaches the server.
    Write {
        conn: usize,
        id: BatchId,
        write: Arc<GuardedWrite>,
    },
    Reply {
        conn: usize,
        id: BatchId,
        reply: Box<Result<BatchReply, Failure>>,
    },
    ResetSeen {
        conn: usize,
    },
    /// A link learns that a hash slot is at another server.
    MovedSeen {
        conn: usize,
        hash: usize,
        server: usize,
    },
    /// A link sends the rest of a batch in another way.
    Fallback {
        join: usize,
    },
    /// A request reaches a server that shall execute it with its record alone.
    Alone {
        join: usize,
        index: usize,
        side: Side,
        server: usize,
    },
    AloneAnswered {
        join: usize,
        index: usize,
        side: Side,
        answer: Box<AloneAnswer>,
    },
    /// Only for a planted mistake: a request that the link sent on.
    Forwarded {
        join: usize,
        index: usize,
        server: usize,
    },
    /// A node reads the map of hash slots.
    MapRefresh {
        slot: usize,
        life: u32,
    },
    /// A hash slot begins to move, or a server is cut off on the bus.
    ClusterChange,
    /// A lagging copy replaces a server of a cluster.
    MemberReplaced,
    /// The record of a key moves to the target.
    RecordMoves {
        key: usize,
    },
    /// A hash slot has moved.
    MoveEnds {
        hash: usize,
    },
    /// A node learns that the server of its connection is no longer the master.
    MasterMoved {
        slot: usize,
        life: u32,
    },
    /// A node asks the Sentinels whether its connection must end.
    SentinelsAsked {
        slot: usize,
        life: u32,
    },
    /// A process takes the place of another one.
    ProcessReplaced,
    /// A Sentinel learns of the latest promotion.
    SentinelLearns {
        sentinel: usize,
    },
    /// A replica stops to follow the master, and becomes the master a little later.
    FailOver,
    /// The replica becomes the master.
    Promote,
    /// The former master accepts nothing any more.
    Demoted,
    Subscribe {
        slot: usize,
        life: u32,
        sub: Attempt,
    },
    /// The question for a subscription reaches the server of a connection.
    InboxSought {
        conn: usize,
        sub: Attempt,
    },
    /// The answer to that question reaches the node.
    InboxFound {
        conn: usize,
        sub: Attempt,
        is_there: bool,
    },
    InboxOpened {
        slot: usize,
        life: u32,
        sub: Attempt,
    },
    InboxPong {
        slot: usize,
        life: u32,
        sub: Attempt,
    },
    InboxFailed {
        slot: usize,
        life: u32,
        sub: Attempt,
        error: StoreError,
    },
    Unsubscribed {
        slot: usize,
        life: u32,
        sub: Attempt,
    },
    Push {
        slot: usize,
        life: u32,
        sub: Attempt,
        push: Box<Push>,
    },
    /// A tick fires at a node.
    TickFires {
        slot: usize,
        key: usize,
    },
    /// A node hears that an operator acted on a job.
    JobActed {
        slot: usize,
        key: usize,
    },
    AskForOpenTick {
        slot: usize,
        key: usize,
    },
    ClaimTick {
        slot: usize,
        life: u32,
        key: usize,
        mark: Option<TickTime>,
        patient: bool,
    },
    Arrival {
        slot: usize,
    },
    LatchUse {
        slot: usize,
    },
    Campaign {
        slot: usize,
        key: usize,
    },
    CampaignAgain {
        slot: usize,
        life: u32,
        key: usize,
    },
    Observe {
        observer: usize,
    },
    ObserveAgain {
        slot: usize,
        life: u32,
        observer: usize,
    },
    Caller {
        slot: usize,
        life: u32,
        caller: usize,
        act: CallerAction,
    },
    TransferMessage {
        slot: usize,
        message: usize,
        choice: u8,
    },
    Resume {
        slot: usize,
        life: u32,
    },
    ProcessStart {
        slot: usize,
    },
    /// A restarted server is up; `None`: the server at hand.
    ServerUp {
        server: Option<usize>,
    },
    /// A subscription falls silent while everything else works.
    FallSilent {
        slot: usize,
    },
    Fault,
    /// An operator asks for a lease, or revokes one.
    Operator,
    Audit,
    Drain,
}

/// What a link is told about a request that was sent with its record alone.
#[derive(Debug)]
pub(crate) enum AloneAnswer {
    Done(Reply),
    /// It was not executed. The server names another one.
    Refused(SlotRefusal, usize),
    /// There is no answer.
    Lost(Executed),
}
