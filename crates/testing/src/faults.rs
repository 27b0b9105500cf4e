//! Faults of a store's calls, before and after their effect.

use std::sync::Arc;

use parking_lot::Mutex;
use tidings_storage::Error;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, the store is unavailable.
    Before,
    /// Done, but reported as unavailable: an answer that got lost.
    After,
    /// Nothing is done, the store refuses the request for good.
    Refuse,
    /// Nothing is done and no answer comes.
    Hang,
}

struct Order {
    call: &'static str,
    fault: Fault,
    /// Calls (or rows) that it still strikes; `None`: until healed.
    left: Option<usize>,
    /// Only the rows whose name contains this.
    row: Option<String>,
}

/// Done once, between the effect of a call and its answer.
type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    orders: Vec<Order>,
    hooks: Vec<(&'static str, Hook)>,
    struck: usize,
    calls: Vec<&'static str>,
}

/// What to break next; clones share it.
#[derive(Clone, Default)]
pub struct Script(Arc<Mutex<State>>);

impl Script {
    /// The next `times` calls fail so.
    pub fn next(&self, call: &'static str, fault: Fault, times: usize) {
        self.order(call, fault, Some(times), None);
    }

    /// Every call fails so until [`Self::heal`].
    pub fn always(&self, call: &'static str, fault: Fault) {
        self.order(call, fault, None, None);
    }

    /// The rows whose name contains `row` fail so, the other rows of the call do not.
    pub fn rows(&self, call: &'static str, fault: Fault, row: &str) {
        self.order(call, fault, None, Some(row.to_owned()));
    }

    /// `hook` is done after the next such call has done its work, before it answers.
    pub fn after_next(&self, call: &'static str, hook: impl FnOnce() + Send + 'static) {
        self.0.lock().hooks.push((call, Box::new(hook)));
    }

    fn run_hook(&self, call: &'static str) {
        let hook = {
            let mut state = self.0.lock();
            let at = state.hooks.iter().position(|(of, _)| *of == call);
            at.map(|at| state.hooks.remove(at).1)
        };
        if let Some(hook) = hook {
            hook();
        }
    }

    fn order(&self, call: &'static str, fault: Fault, left: Option<usize>, row: Option<String>) {
        self.0.lock().orders.push(Order { call, fault, left, row });
    }

    /// From now on all is well.
    pub fn heal(&self) {
        self.0.lock().orders.clear();
    }

    /// Calls and rows that failed so far.
    #[must_use]
    pub fn struck(&self) -> usize {
        self.0.lock().struck
    }

    /// How often this was called.
    #[must_use]
    pub fn calls(&self, call: &str) -> usize {
        self.0.lock().calls.iter().filter(|known| **known == call).count()
    }

    /// All calls in the order they came to an end.
    #[must_use]
    pub fn order_of_calls(&self) -> Vec<&'static str> {
        self.0.lock().calls.clone()
    }

    fn take(&self, call: &'static str, row: Option<&str>) -> Option<Fault> {
        let mut state = self.0.lock();
        let at = state.orders.iter().position(|order| {
            order.call == call
                && match (&order.row, row) {
                    (None, _) => true,
                    (Some(wanted), Some(row)) => row.contains(wanted),
                    (Some(_), None) => false,
                }
        })?;
        let order = &mut state.orders[at];
        let fault = order.fault;
        if let Some(left) = &mut order.left {
            *left -= 1;
            if *left == 0 {
                state.orders.remove(at);
            }
        }
        state.struck += 1;
        Some(fault)
    }

    /// Does `work` under the name `call`, unless it is to fail.
    pub(crate) async fn run<T>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let result = match self.take(call, None) {
            None => work.await,
            Some(Fault::After) => {
                work.await?;
                Err(error(call, Fault::After))
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(fault @ (Fault::Before | Fault::Refuse)) => Err(error(call, fault)),
        };
        self.run_hook(call);
        self.0.lock().calls.push(call);
        result
    }

    /// The same for a call with one result per row: `work` is given the rows that reach the store.
    pub(crate) async fn run_rows<R: Clone, T>(
        &self,
        call: &'static str,
        rows: &[R],
        name: impl Fn(&R) -> String,
        work: impl AsyncFnOnce(&[R]) -> Vec<Result<T, Error>>,
    ) -> Vec<Result<T, Error>> {
        let faults: Vec<Option<Fault>> = rows.iter().map(|row| self.take(call, Some(&name(row)))).collect();
        if faults.contains(&Some(Fault::Hang)) {
            std::future::pending::<()>().await;
        }
        let reaching = |fault: &Option<Fault>| matches!(fault, None | Some(Fault::After));
        let kept: Vec<R> = rows
            .iter()
            .zip(&faults)
            .filter(|(_, fault)| reaching(fault))
            .map(|(row, _)| row.clone())
            .collect();
        let mut done = work(&kept).await.into_iter();
        let mut results = Vec::with_capacity(rows.len());
        for fault in faults {
            let result = if reaching(&fault) { done.next() } else { None };
            match (fault, result) {
                (None, Some(result)) => results.push(result),
                (None, None) => {}
                (Some(fault), _) => results.push(Err(error(call, fault))),
            }
        }
        self.0.lock().calls.push(call);
        results
    }
}

fn error(operation: &'static str, fault: Fault) -> Error {
    let reason = "a test wants it to fail".to_owned();
    match fault {
        Fault::Before | Fault::After | Fault::Hang => Error::Unavailable { operation, reason },
        Fault::Refuse => Error::Refused { operation, reason },
    }
}

/// A store whose calls fail as its script says.
pub struct Faulty<S> {
    pub(crate) inner: Arc<S>,
    /// What to break.
    pub script: Script,
}

impl<S> Faulty<S> {
    /// All well so far.
    #[must_use]
    pub fn new(inner: Arc<S>) -> Self {
        Self {
            inner,
            script: Script::default(),
        }
    }
}
