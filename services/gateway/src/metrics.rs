//! Metrics of gateway.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tidings_proto::v1::Code;
use tidings_telemetry::metrics::{Registry, latency_histogram};

/// A label with a result code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CodeLabel {
    /// Name of the code.
    pub code: &'static str,
}

/// What became of a push to one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum PushOutcome {
    /// Queued on the connection.
    HandedOver,
    /// Told the head only.
    Notified,
    /// No such session here.
    NotHere,
    /// The session was closing.
    Closed,
}

/// Labels of `tidings_deliveries`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PushLabels {
    /// What became of it.
    pub outcome: PushOutcome,
}

/// How far a pushed event has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Stage {
    /// Given to the device's socket.
    HandedOver,
    /// The device said it is in its database.
    Stored,
}

/// Labels of `tidings_delivery_end_to_end_seconds`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StageLabels {
    /// How far.
    pub stage: Stage,
}

/// The service's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Open sessions.
    pub sessions: Gauge,
    /// Sessions ended, by the code of their close.
    pub sessions_closed: Family<CodeLabel, Counter>,
    /// Sends answered, by code.
    pub sends: Family<CodeLabel, Counter>,
    /// From the frame to its link ACK.
    pub link_ack_seconds: Histogram,
    /// Records without broker confirm.
    pub produces_in_flight: Gauge,
    /// Resends that joined a pending produce.
    pub resends_joined: Counter,
    /// Frames other than sends that were refused, by code.
    pub frames_refused: Family<CodeLabel, Counter>,
    /// Device-state records written.
    pub device_states: Counter,
    /// Device ACKs that were merged into them.
    pub device_acks: Counter,
    /// Pushes by outcome.
    pub deliveries: Family<PushLabels, Counter>,
    /// Pushes waiting for sockets.
    pub push_queue_events: Gauge,
    /// From the ingress record's append time to the device.
    pub end_to_end_seconds: Family<StageLabels, Histogram, fn() -> Histogram>,
    /// Sync frames whose cursor lay behind what had been pushed without a hole.
    pub client_gaps: Counter,
    /// Sync rounds begun.
    pub sync_rounds: Counter,
    /// Sync rounds ended by an error.
    pub sync_rounds_failed: Counter,
    /// Routes that were no longer this gateway's.
    pub routes_lost: Counter,
    /// Calls of the route registry that failed.
    pub route_errors: Counter,
    /// The series that every message moves, so that none is looked up per message.
    hot: Hot,
}

#[derive(Clone, Debug)]
struct Hot {
    sends_ok: Counter,
    pushes_handed_over: Counter,
    handed_over_seconds: Histogram,
    stored_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let sends: Family<CodeLabel, Counter> = Family::default();
        let deliveries: Family<PushLabels, Counter> = Family::default();
        let end_to_end_seconds: Family<StageLabels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(latency_histogram);
        let stage = |stage| end_to_end_seconds.get_or_create_owned(&StageLabels { stage });
        let hot = Hot {
            sends_ok: sends.get_or_create_owned(&label(Code::Ok)),
            pushes_handed_over: deliveries.get_or_create_owned(&PushLabels {
                outcome: PushOutcome::HandedOver,
            }),
            handed_over_seconds: stage(Stage::HandedOver),
            stored_seconds: stage(Stage::Stored),
        };
        Self {
            hot,
            sessions: Gauge::default(),
            sessions_closed: Family::default(),
            sends,
            link_ack_seconds: latency_histogram(),
            produces_in_flight: Gauge::default(),
            resends_joined: Counter::default(),
            frames_refused: Family::default(),
            device_states: Counter::default(),
            device_acks: Counter::default(),
            deliveries,
            push_queue_events: Gauge::default(),
            end_to_end_seconds,
            client_gaps: Counter::default(),
            sync_rounds: Counter::default(),
            sync_rounds_failed: Counter::default(),
            routes_lost: Counter::default(),
            route_errors: Counter::default(),
        }
    }
}

impl Metrics {
    /// Registers all.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let m = Self::default();
        registry.register("tidings_sessions", "Open sessions", m.sessions.clone());
        registry.register(
            "tidings_sessions_closed",
            "Sessions ended, by the code of their close (OK: by the device)",
            m.sessions_closed.clone(),
        );
        registry.register("tidings_sends", "Sends answered, by code", m.sends.clone());
        registry.register(
            "tidings_link_ack_seconds",
            "From a send's frame to its link ACK with code OK",
            m.link_ack_seconds.clone(),
        );
        registry.register(
            "tidings_produces_in_flight",
            "Records without broker confirm",
            m.produces_in_flight.clone(),
        );
        registry.register(
            "tidings_resends_joined",
            "Resends that joined the pending produce of the same key and content",
            m.resends_joined.clone(),
        );
        registry.register(
            "tidings_frames_refused",
            "Frames other than sends that were refused, by code",
            m.frames_refused.clone(),
        );
        registry.register(
            "tidings_device_state_records",
            "Records with merged device ACKs written to topic inbox",
            m.device_states.clone(),
        );
        registry.register(
            "tidings_device_acks",
            "Device ACKs received, before merging",
            m.device_acks.clone(),
        );
        registry.register(
            "tidings_deliveries",
            "Pushes to sessions by outcome",
            m.deliveries.clone(),
        );
        registry.register(
            "tidings_push_queue_events",
            "Pushes waiting for the sockets of all sessions",
            m.push_queue_events.clone(),
        );
        registry.register(
            "tidings_delivery_end_to_end_seconds",
            "From the append time of a message's ingress record to a device, by stage",
            m.end_to_end_seconds.clone(),
        );
        registry.register(
            "tidings_client_gaps",
            "Sync frames whose cursor lay behind what had been pushed without a hole",
            m.client_gaps.clone(),
        );
        registry.register("tidings_sync_rounds", "Sync rounds begun", m.sync_rounds.clone());
        registry.register(
            "tidings_sync_rounds_failed",
            "Sync rounds ended by an error",
            m.sync_rounds_failed.clone(),
        );
        registry.register(
            "tidings_routes_lost",
            "Routes that had been replaced or had lapsed at a heartbeat",
            m.routes_lost.clone(),
        );
        registry.register(
            "tidings_route_errors",
            "Calls of the route registry that failed",
            m.route_errors.clone(),
        );
        for outcome in [PushOutcome::Notified, PushOutcome::NotHere, PushOutcome::Closed] {
            m.delivered(outcome, 0);
        }
        for code in [Code::Unconfirmed, Code::LaneOutOfOrder, Code::Overloaded] {
            m.sends.get_or_create(&label(code)).inc_by(0);
        }
        for code in [
            Code::Ok,
            Code::Unauthenticated,
            Code::Replaced,
            Code::SlowConsumer,
            Code::GoingAway,
            Code::IdleTimeout,
        ] {
            m.sessions_closed.get_or_create(&label(code)).inc_by(0);
        }
        m
    }

    /// Counts the answer to a send.
    pub fn answered(&self, code: Code) {
        if code == Code::Ok {
            self.hot.sends_ok.inc();
        } else {
            self.sends.get_or_create(&label(code)).inc();
        }
    }

    /// Counts a refused frame.
    pub fn refused(&self, code: Code) {
        self.frames_refused.get_or_create(&label(code)).inc();
    }

    /// Counts the end of a session.
    pub fn closed(&self, code: Code) {
        self.sessions_closed.get_or_create(&label(code)).inc();
    }

    /// Counts pushes.
    pub fn delivered(&self, outcome: PushOutcome, count: u64) {
        match outcome {
            PushOutcome::HandedOver => self.hot.pushes_handed_over.inc_by(count),
            PushOutcome::Notified | PushOutcome::NotHere | PushOutcome::Closed => {
                self.deliveries.get_or_create(&PushLabels { outcome }).inc_by(count)
            }
        };
    }

    /// Observes how long an event took to get that far.
    pub fn end_to_end(&self, stage: Stage, took: std::time::Duration) {
        match stage {
            Stage::HandedOver => self.hot.handed_over_seconds.observe(took.as_secs_f64()),
            Stage::Stored => self.hot.stored_seconds.observe(took.as_secs_f64()),
        }
    }
}

fn label(code: Code) -> CodeLabel {
    CodeLabel {
        code: code.as_str_name().trim_start_matches("CODE_"),
    }
}
