//! What watchers notice reaches sync, however often they must be asked.

use std::collections::VecDeque;

use super::*;

/// Says what it was given, one by one, then nothing for ever.
struct Scripted {
    cadence: Cadence,
    answers: VecDeque<Option<ExternalChange>>,
    asked: std::sync::mpsc::Sender<()>,
}

impl Watcher for Scripted {
    fn cadence(&self) -> Cadence {
        self.cadence
    }

    fn changed(&mut self, timeout: Duration) -> io::Result<Option<ExternalChange>> {
        _ = self.asked.send(());
        match self.answers.pop_front() {
            Some(answer) => Ok(answer),
            None if self.cadence == Cadence::Notified => {
                thread::sleep(timeout.min(Duration::from_millis(5)));
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

fn scripted(
    cadence: Cadence,
    answers: impl IntoIterator<Item = bool>,
) -> (Box<dyn Watcher>, std::sync::mpsc::Receiver<()>) {
    let (asked, questions) = std::sync::mpsc::channel();
    let answers = answers.into_iter();
    let answers = answers.map(|changed| changed.then(ExternalChange::default));
    let watcher = Scripted {
        cadence,
        answers: answers.collect(),
        asked,
    };
    (Box::new(watcher), questions)
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn one_change_in_many_notifications_is_one_resync() {
    let (sender, mut inputs) = mpsc::channel(8);
    let guard = Guard::new(sender, Period::new(LONG));
    let (watcher, _questions) = scripted(Cadence::Notified, [true, true, true, false, true]);
    guard.start(Family::V6, vec![watcher]);
    for _ in 0..2 {
        let input = inputs.blocking_recv();
        assert!(matches!(input, Some(Input::Resync(Family::V6, _))));
    }
    thread::sleep(Duration::from_millis(50));
    assert!(inputs.try_recv().is_err(), "two changes, two resyncs");
}

#[test]
fn a_polled_watcher_is_asked_once_per_period_and_a_shorter_one_holds_at_once() {
    let (sender, mut inputs) = mpsc::channel(8);
    let period = Period::new(Duration::from_hours(1));
    let guard = Guard::new(sender, period.clone());
    let (watcher, questions) = scripted(Cadence::Polled, [true]);
    guard.start(Family::V4, vec![watcher]);
    let soon = Duration::from_millis(250);
    assert!(questions.recv_timeout(soon).is_err(), "an hour is long");
    period.set(Duration::from_millis(1));
    questions.recv_timeout(LONG).unwrap();
    assert!(matches!(
        inputs.blocking_recv(),
        Some(Input::Resync(Family::V4, _))
    ));
    questions.recv_timeout(LONG).unwrap();
}

#[test]
fn the_process_that_is_named_last_comes_with_the_change() {
    let (sender, mut inputs) = mpsc::channel(8);
    let guard = Guard::new(sender, Period::new(LONG));
    let process = ferrule_dataplane::Process {
        id: 7,
        name: "kube-proxy".to_owned(),
    };
    let signed = ExternalChange {
        process: Some(process.clone()),
    };
    let (asked, _questions) = std::sync::mpsc::channel();
    let answers = [Some(ExternalChange::default()), Some(signed)];
    let watcher = Scripted {
        cadence: Cadence::Notified,
        answers: answers.into(),
        asked,
    };
    guard.start(Family::V4, vec![Box::new(watcher)]);
    let Some(Input::Resync(Family::V4, change)) = inputs.blocking_recv() else {
        panic!("no resync")
    };
    assert_eq!(change.process, Some(process));
}

#[test]
fn a_watcher_ends_with_sync() {
    let (sender, inputs) = mpsc::channel(8);
    let guard = Guard::new(sender, Period::new(Duration::from_millis(1)));
    let (watcher, questions) = scripted(Cadence::Polled, []);
    guard.start(Family::V4, vec![watcher]);
    questions.recv_timeout(LONG).unwrap();
    drop(inputs);
    while questions.recv_timeout(LONG).is_ok() {}
    // The sender went with the thread.
    assert_eq!(
        questions.recv_timeout(LONG),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    );
}
