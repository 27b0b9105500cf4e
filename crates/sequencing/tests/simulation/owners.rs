//! The services' half: drives the folds as a service must, one step at a time. Between any two steps another owner may
//! run, a write may land, or the process may die. The next batch is read while the writes of the last are in flight: the
//! folds only ask that they are acknowledged before the next `decide`.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tidings_sequencing::inbox::InboxFold;
use tidings_sequencing::router::RouterFold;
use tidings_sequencing::{LogEntry, Stop};

use crate::store::Write;
use crate::world::{EPOCH, World};

pub(crate) type Shared = Rc<RefCell<World>>;

/// Why a run ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Its producer failed.
    Failed,
    /// The fold met a broken invariant: always a violation here.
    Stopped(Stop),
}

impl From<Stop> for End {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

struct Step(bool);

impl Future for Step {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

fn step() -> Step {
    Step(false)
}

async fn until(world: &Shared, run: usize, ready: impl Fn(&World) -> bool) -> Result<(), End> {
    loop {
        step().await;
        let world = world.borrow();
        if world.runs[run].failed {
            return Err(End::Failed);
        }
        if ready(&world) {
            return Ok(());
        }
    }
}

async fn written(world: &Shared, run: usize) -> Result<(), End> {
    until(world, run, |w| w.runs[run].written()).await
}

async fn settled(world: &Shared, run: usize) -> Result<(), End> {
    until(world, run, |w| w.runs[run].settled()).await
}

fn batch(world: &Shared, log: impl Fn(&World) -> &Vec<LogEntry>, next: u64) -> Vec<LogEntry> {
    let size = 1 + world.borrow_mut().tape.pick(4);
    let world = world.borrow();
    let log = log(&world);
    let from = usize::try_from(next).expect("small");
    log[from.min(log.len())..(from + size).min(log.len())].to_vec()
}

fn checkpoint_due(world: &Shared, idle: bool) -> bool {
    let mut world = world.borrow_mut();
    if world.draining { idle } else { world.tape.chance(15) }
}

/// Owner of `ingress` partition `p`.
pub(crate) async fn router(world: Shared, run: usize, p: u32) -> Result<(), End> {
    let mut fold = {
        let mut w = world.borrow_mut();
        let (start, now) = (w.start_of(p), w.broker_now());
        RouterFold::new(w.params, p, start, now)
    };
    let mut committed = fold.next_offset();
    loop {
        until(&world, run, |_| true).await?;
        let batch = batch(&world, |w| &w.ingress[p as usize], fold.next_offset());
        if !batch.is_empty() {
            loop {
                let now = world.borrow_mut().broker_now();
                let Some(reads) = fold.next_reads(&batch, now)? else {
                    break;
                };
                step().await;
                let answers = world.borrow().store.answer_router(&reads);
                step().await;
                fold.load(answers)?;
            }
            written(&world, run).await?;
            let plan = fold.decide(&batch)?;
            let dead = plan
                .rejects
                .iter()
                .map(|r| format!("ingress/{p}/{}", r.offset))
                .collect();
            {
                let mut w = world.borrow_mut();
                let intents = plan.intents.into_iter().map(|(key, intent)| Write::Intent(key, intent));
                w.issue(run, intents);
                w.emit(run, plan.outputs);
                w.dead_letter(run, dead);
            }
        }
        if checkpoint_due(&world, batch.is_empty())
            && fold.next_offset() > committed
            && let Some(checkpoint) = fold.checkpoint()
        {
            written(&world, run).await?;
            let metadata = checkpoint.metadata().to_string();
            let heads = checkpoint
                .conv_heads
                .into_iter()
                .map(|(c, head)| Write::ConvHead(c, head));
            world.borrow_mut().issue(run, heads);
            written(&world, run).await?;
            settled(&world, run).await?;
            // Unfenced: an owner that has been replaced may commit an older position.
            world.borrow_mut().commits.insert(p, (checkpoint.next_offset, metadata));
            fold.checkpoint_committed();
            committed = checkpoint.next_offset;
        }
    }
}

/// Owner of `inbox` partition `q`.
pub(crate) async fn inbox(world: Shared, run: usize, q: u32) -> Result<(), End> {
    let read = world.borrow().store.checkpoints.get(&q).cloned();
    step().await;
    if let Some((checkpoint, pos)) = read.clone() {
        world.borrow_mut().issue(run, [Write::Checkpoint(q, checkpoint, pos)]);
        written(&world, run).await?;
    }
    let params = world.borrow().params;
    let mut fold = InboxFold::new(params, EPOCH, q, read.map(|(checkpoint, _)| checkpoint))?;
    let mut committed = fold.next_offset();
    let mut pushes = Vec::new();
    loop {
        until(&world, run, |_| true).await?;
        let batch = batch(&world, |w| &w.inbox[q as usize], fold.next_offset());
        if !batch.is_empty() {
            loop {
                let now = world.borrow_mut().broker_now();
                let Some(reads) = fold.next_reads(&batch, now)? else {
                    break;
                };
                step().await;
                let answers = world.borrow().store.answer_inbox(q, &reads);
                step().await;
                fold.load(answers)?;
            }
            written(&world, run).await?;
            world.borrow_mut().emit(run, std::mem::take(&mut pushes));
            let plan = fold.decide(&batch)?;
            let dead = plan.rejects.iter().map(|r| format!("inbox/{q}/{}", r.offset)).collect();
            {
                let mut w = world.borrow_mut();
                let intents = plan.dlq_intents.into_iter();
                w.issue(run, intents.map(|(id, off)| Write::DlqIntent(q, id, off)));
                w.issue(run, plan.rows.into_iter().map(|(uid, row)| Write::Row(uid, row)));
                w.emit(run, plan.receipts);
                w.dead_letter(run, dead);
            }
            pushes = plan.pushes;
        }
        if checkpoint_due(&world, batch.is_empty())
            && fold.next_offset() > committed
            && let Some(checkpoint) = fold.checkpoint()
        {
            written(&world, run).await?;
            world.borrow_mut().emit(run, std::mem::take(&mut pushes));
            settled(&world, run).await?;
            let devices = checkpoint.devices.into_iter();
            let convs = checkpoint.user_convs.into_iter();
            world
                .borrow_mut()
                .issue(run, devices.map(|((uid, device), r)| Write::Device(uid, device, r)));
            world
                .borrow_mut()
                .issue(run, convs.map(|((uid, conv), r)| Write::UserConv(uid, conv, r)));
            written(&world, run).await?;
            let heads = checkpoint.heads.into_iter();
            world
                .borrow_mut()
                .issue(run, heads.map(|(uid, head)| Write::InboxHead(uid, head)));
            written(&world, run).await?;
            committed = checkpoint.checkpoint.next_offset;
            world
                .borrow_mut()
                .issue(run, [Write::Checkpoint(q, checkpoint.checkpoint, checkpoint.pos)]);
            written(&world, run).await?;
            fold.checkpoint_committed();
        }
    }
}
